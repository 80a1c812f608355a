"""List the built-in table of languages, or print how language codes are understood."""

from mnmt_jax.commands.languages import main
from mnmt_jax.runtime.run_command import run_command

if __name__ == "__main__":
    run_command(main)
