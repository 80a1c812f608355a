"""Print the built-in table of languages, or resolve language codes."""

from mnmt_jax.commands.languages import main
from mnmt_jax.runtime.run_command import run_command

if __name__ == "__main__":
    run_command(main)
