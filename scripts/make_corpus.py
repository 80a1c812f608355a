"""Write the built-in CLDR corpus as parallel files or TSV."""

from mnmt_jax.commands.corpus import main
from mnmt_jax.runtime.run_command import run_command

if __name__ == "__main__":
    run_command(main)
