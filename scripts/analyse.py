"""Analyse attention, language branches and hidden states of a model."""

from mnmt_jax.commands.analyse import main
from mnmt_jax.runtime.run_command import run_command

if __name__ == "__main__":
    run_command(main)
