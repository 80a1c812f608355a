"""Save the LoRA of a run alone, loads one onto a run, or merges it into the weights."""

from mnmt_jax.commands.adapters import main
from mnmt_jax.runtime.run_command import run_command

if __name__ == "__main__":
    run_command(main)
