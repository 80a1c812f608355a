"""Compile a run for absent TPUs or GPUs; print memory and collectives as JSON."""

from mnmt_jax.commands.compile_ahead import main
from mnmt_jax.runtime.run_command import run_command

if __name__ == "__main__":
    run_command(main)
