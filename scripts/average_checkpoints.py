"""Average checkpoint parameters of a run; other commands load them with `--step=average`."""

from mnmt_jax.commands.average import main
from mnmt_jax.runtime.run_command import run_command

if __name__ == "__main__":
    run_command(main)
