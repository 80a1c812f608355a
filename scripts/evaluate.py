"""Translate and score all directions of a task; write scores.json, table.md and report.html."""

from mnmt_jax.commands.evaluate import main
from mnmt_jax.runtime.run_command import run_command

if __name__ == "__main__":
    run_command(main)
