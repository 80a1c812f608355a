"""Print log-probabilities of texts or translations as JSON lines, and the perplexity."""

from mnmt_jax.commands.score import main
from mnmt_jax.runtime.run_command import run_command

if __name__ == "__main__":
    run_command(main)
