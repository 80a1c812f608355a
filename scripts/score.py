"""Prints how probable given texts or translations are."""

from mnmt_jax.commands.score import main
from mnmt_jax.errors import run_command

if __name__ == "__main__":
    run_command(main)
