"""Print how probable given texts or translations are."""

from mnmt_jax.commands.score import main
from mnmt_jax.runtime.run_command import run_command

if __name__ == "__main__":
    run_command(main)
