"""Train a SentencePiece vocabulary, adopt a SentencePiece model, or split shared pieces."""

from mnmt_jax.commands.vocabulary import main
from mnmt_jax.runtime.run_command import run_command

if __name__ == "__main__":
    run_command(main)
