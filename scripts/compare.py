"""Compare evaluations of several runs: a table, sample translations, one report page."""

from mnmt_jax.commands.compare import main
from mnmt_jax.runtime.run_command import run_command

if __name__ == "__main__":
    run_command(main)
