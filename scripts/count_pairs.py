"""Count the sentence pairs of a corpus, by split and direction."""

from mnmt_jax.commands.count import main
from mnmt_jax.runtime.run_command import run_command

if __name__ == "__main__":
    run_command(main)
