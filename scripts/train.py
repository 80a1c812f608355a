"""Train a model, or resume training; the command is the same."""

from mnmt_jax.commands.train import main
from mnmt_jax.runtime.run_command import run_command

if __name__ == "__main__":
    run_command(main)
