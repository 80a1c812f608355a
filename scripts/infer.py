"""Translate lines of text with a trained model, one output line per input line."""

from mnmt_jax.commands.translate import main
from mnmt_jax.runtime.run_command import run_command

if __name__ == "__main__":
    run_command(main)
