"""Add a language to a trained run."""

from mnmt_jax.commands.add_language import main
from mnmt_jax.runtime.run_command import run_command

if __name__ == "__main__":
    run_command(main)
