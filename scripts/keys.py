"""List the gin keys: their values, default and meaning."""

from mnmt_jax.commands.keys import main
from mnmt_jax.runtime.run_command import run_command

if __name__ == "__main__":
    run_command(main)
