"""Compile a run for TPUs or GPUs that need not be there; prints memory and exchanges as JSON."""

from mnmt_jax.commands.compile_ahead import main
from mnmt_jax.runtime.run_command import run_command

if __name__ == "__main__":
    run_command(main)
