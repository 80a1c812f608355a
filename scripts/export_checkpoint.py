"""Export a run's model for Hugging Face (M2M-100 or MITRE layout), fairseq, t5x or CTranslate2."""

from mnmt_jax.commands.export_checkpoint import main
from mnmt_jax.runtime.run_command import run_command

if __name__ == "__main__":
    run_command(main)
