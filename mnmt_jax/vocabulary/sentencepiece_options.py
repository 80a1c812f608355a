"""Options of SentencePiece training, which commands read without importing SentencePiece."""

from __future__ import annotations

import dataclasses

from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.normalization import NFC, check_normalization


@dataclasses.dataclass(frozen=True)
class SentencePieceOptions:
    """Options of SentencePiece training.

    Attributes:
        vocab_size: number of pieces, including the three special ids but not the tags.
        model_type: `unigram` or `bpe`.
        character_coverage: share of characters that get a piece; others become bytes, or unk.
        byte_fallback: add a piece for each UTF-8 byte, 256 of `vocab_size`, so that every character
            can be encoded.
        text_normalization: normalisation of text before SentencePiece, one of
            `mnmt_jax.vocabulary.normalization.NORMALIZATIONS`.
        normalization: SentencePiece rule; `identity` leaves text unchanged (full-width punctuation
            included), `nmt_nfkc` is the rule of most published models.
        sentences: maximum number of sentences sampled from all languages together.
        temperature: T of p_l ~ (n_l / N)^(1/T), each language's share of the sampled sentences.
        seed: seed of the sample.
        symbols: texts that get a piece of their own, whether they are in the text or not, and are
            part of no other piece.
    """

    vocab_size: int = 8000
    model_type: str = "unigram"
    character_coverage: float = 1.0
    byte_fallback: bool = True
    text_normalization: str = NFC
    normalization: str = "identity"
    sentences: int = 1_000_000
    temperature: float = 5.0
    seed: int = 0
    symbols: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check values for which SentencePiece's own errors are less clear."""
        if self.model_type not in ("unigram", "bpe"):
            raise UserError(f"model_type '{self.model_type}' must be unigram or bpe")
        if not 0 < self.character_coverage <= 1:
            raise UserError(f"character_coverage {self.character_coverage} must be in (0, 1]")
        check_normalization(self.text_normalization)
        if not 0.1 <= self.temperature <= 1e9:
            raise UserError(f"temperature {self.temperature:g} must be from 0.1 to 1e9")
        for name, minimum, maximum in (
            ("vocab_size", 1, 2**24),
            ("sentences", 1, 2**31 - 1),
            ("seed", 0, 2**32 - 1),
        ):
            value = getattr(self, name)
            if not minimum <= value <= maximum:
                raise UserError(f"{name} {value} must be from {minimum} to {maximum}")
