"""Convert a checkpoint of fairseq, Hugging Face or t5x into a run directory."""

from mnmt_jax.commands.import_checkpoint import main
from mnmt_jax.runtime.run_command import run_command

if __name__ == "__main__":
    run_command(main)
