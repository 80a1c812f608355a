"""Tokenize a mixture or user files into the token cache that training reads."""

from mnmt_jax.commands.cache import main
from mnmt_jax.runtime.run_command import run_command

if __name__ == "__main__":
    run_command(main)
