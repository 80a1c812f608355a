"""Average the parameters of checkpoints of a run; `--step=average` takes them then."""

from mnmt_jax.commands.average import main
from mnmt_jax.runtime.run_command import run_command

if __name__ == "__main__":
    run_command(main)
