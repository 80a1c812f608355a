"""Trains a SentencePiece vocabulary on a corpus, or adopts an existing SentencePiece model."""

from mnmt_jax.commands.vocabulary import main
from mnmt_jax.errors import run_command

if __name__ == "__main__":
    run_command(main)
