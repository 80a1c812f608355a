"""Vocabularies: pieces and tags, their training, fixed ids, and orders that a seed decides."""

from mnmt_jax.vocabulary.pieces import Vocabulary
from mnmt_jax.vocabulary.sentencepiece_training import SentencePieceOptions, train_sentencepiece

__all__ = ["SentencePieceOptions", "Vocabulary", "train_sentencepiece"]
