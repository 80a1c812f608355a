"""Print parameters, FLOPs per target token and key/value cache size of a configuration as JSON."""

from mnmt_jax.commands.describe import main
from mnmt_jax.runtime.run_command import run_command

if __name__ == "__main__":
    run_command(main)
