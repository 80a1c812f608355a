"""Save, load or merge the LoRA weights of a run."""

from mnmt_jax.commands.adapters import main
from mnmt_jax.runtime.run_command import run_command

if __name__ == "__main__":
    run_command(main)
