"""Time the translation of random test sentences."""

from mnmt_jax.commands.benchmark import main
from mnmt_jax.runtime.run_command import run_command

if __name__ == "__main__":
    run_command(main)
