"""Sample texts from a language model, with or without prompts."""

from mnmt_jax.commands.sample import main
from mnmt_jax.runtime.run_command import run_command

if __name__ == "__main__":
    run_command(main)
