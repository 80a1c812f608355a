"""Vocabularies: pieces and tags, their training, fixed ids, and orders that a seed decides."""

from mnmt_jax.vocabulary.pieces import SentencePieceOptions, Vocabulary, train_sentencepiece

__all__ = ["SentencePieceOptions", "Vocabulary", "train_sentencepiece"]
