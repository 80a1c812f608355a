"""Download a corpus from Debian packages and write it as parallel files."""

from mnmt_jax.commands.fetch import main
from mnmt_jax.runtime.run_command import run_command

if __name__ == "__main__":
    run_command(main)
