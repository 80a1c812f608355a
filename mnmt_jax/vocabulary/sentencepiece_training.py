"""Training of SentencePiece models: their settings, and the text drawn for them."""

from __future__ import annotations

import dataclasses
import io
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.normalization import NFC, check_normalization, normalize_lines
from mnmt_jax.vocabulary.seeded_permutation import hash64, text_hash64
from mnmt_jax.vocabulary.special_ids import EOS_ID, PAD_ID, UNK_ID
from mnmt_jax.vocabulary.vocabulary import Vocabulary


@dataclasses.dataclass(frozen=True)
class SentencePieceOptions:
    """How a SentencePiece model is trained.

    Attributes:
        vocab_size: pieces, the three special ids included and the tags not.
        model_type: `unigram` or `bpe`.
        character_coverage: share of characters that get a piece; the rest becomes bytes, or unk.
        byte_fallback: give each byte of UTF-8 a piece, 256 of `vocab_size`, so that every character
            can be written.
        text_normalization: what is done to text before SentencePiece sees it, one of
            `mnmt_jax.vocabulary.normalization.NORMALIZATIONS`.
        normalization: SentencePiece rule; `identity` keeps text as it is (full-width punctuation
            included), `nmt_nfkc` is what most published models used.
        sentences: sentences drawn from all languages together at most.
        temperature: T of p_l ~ (n_l / N)^(1/T), each language's share of the sentences drawn.
        seed: seed of the draw.
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

    def __post_init__(self) -> None:
        """Checks what SentencePiece would report less clearly."""
        if self.model_type not in ("unigram", "bpe"):
            raise UserError(f"model_type '{self.model_type}' must be unigram or bpe")
        if not 0 < self.character_coverage <= 1:
            raise UserError(f"character_coverage {self.character_coverage} must be in (0, 1]")
        check_normalization(self.text_normalization)
        if not 0.1 <= self.temperature <= 1e9:
            raise UserError(f"temperature {self.temperature:g} must be from 0.1 to 1e9")
        for name, least, most in (
            ("vocab_size", 1, 2**24),
            ("sentences", 1, 2**31 - 1),
            ("seed", 0, 2**32 - 1),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise UserError(f"{name} {value} must be from {least} to {most}")


_DEFAULTS = SentencePieceOptions()


def train_sentencepiece(
    sentences_by_language: Mapping[str, Sequence[str]],
    directory: str | Path | None,
    *,
    options: SentencePieceOptions = _DEFAULTS,
) -> Vocabulary:
    """Train a SentencePiece model on text of several languages and save the vocabulary.

    Args:
        sentences_by_language: text of each language; the key order becomes the tag order.
        directory: where `Vocabulary.save` writes; None writes nothing.
        options: size, type and sampling.

    Returns:
        The vocabulary. The same text and options give the same one.

    Raises:
        UserError: if the text is empty or too little for the size asked.
    """
    model = train_model(sentences_by_language, options)
    languages = tuple(sentences_by_language)
    vocabulary = Vocabulary(model, languages, normalization=options.text_normalization)
    if directory is not None:
        vocabulary.save(directory)
    return vocabulary


def train_model(
    sentences_by_language: Mapping[str, Sequence[str]],
    options: SentencePieceOptions,
    *,
    space_first: bool = True,
) -> bytes:
    """Trains a SentencePiece model on text of languages.

    Args:
        sentences_by_language: text of each language.
        options: size, type and sampling.
        space_first: put the mark of a space before a text's first word too.

    Returns:
        The serialised model. The same text and options give the same one.

    Raises:
        UserError: if the text is empty or too little for the size asked.
    """
    sample = sample_sentences(sentences_by_language, options)
    sample = normalize_lines(sample, options.text_normalization)
    if not sample:
        raise UserError("no sentences to train a vocabulary on; check the corpus and its split")
    model = io.BytesIO()
    normalizer: dict[str, Any] = {} if space_first else {"add_dummy_prefix": False}
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sample),
            model_writer=model,
            vocab_size=options.vocab_size,
            model_type=options.model_type,
            character_coverage=options.character_coverage,
            byte_fallback=options.byte_fallback,
            normalization_rule_name=options.normalization,
            pad_id=PAD_ID,
            eos_id=EOS_ID,
            unk_id=UNK_ID,
            bos_id=-1,
            max_sentence_length=1 << 16,
            shuffle_input_sentence=False,
            # Sums of floats depend on how work is divided: a fixed number keeps the result equal
            # on machines with different numbers of cores.
            num_threads=16,
            minloglevel=2,
            **normalizer,
        )
    except RuntimeError as error:
        reason = str(error).rsplit("] ", 1)[-1].strip()
        raise UserError(
            f"SentencePiece could not train {options.vocab_size} pieces: {reason.split('. ')[0]}; "
            f"{_remedy(reason, options)}"
        ) from error
    return model.getvalue()


def _remedy(reason: str, options: SentencePieceOptions) -> str:
    """Return what to change about a training that SentencePiece refuses."""
    if too_many := re.search(r"<= (\d+)", reason):
        return f"lower --vocab_size to at most {too_many[1]}, or give more text"
    if too_few := re.search(r"(\d+) vs (\d+)", reason):
        bytes_too = ", or leave out the 256 pieces of bytes with --no-byte_fallback"
        return f"raise --vocab_size to at least {too_few[2]}{bytes_too * options.byte_fallback}"
    return f"correct what it names (the rule of normalization is '{options.normalization}')"


def sample_sentences(
    sentences_by_language: Mapping[str, Sequence[str]], options: SentencePieceOptions
) -> list[str]:
    """Draws sentences without replacement, language by language.

    A language's quota is its share by temperature; what a small language cannot fill goes to the
    others by the same shares. Sentences keep their order.
    """
    counts = [len(sentences) for sentences in sentences_by_language.values()]
    quotas = _quotas(counts, options.sentences, options.temperature)
    sample: list[str] = []
    for (language, sentences), quota in zip(sentences_by_language.items(), quotas, strict=True):
        keys = hash64(options.seed, text_hash64(language), np.arange(len(sentences)))
        chosen = np.sort(np.argsort(keys, kind="stable")[:quota])
        sample.extend(sentences[i] for i in chosen)
    return sample


def _quotas(counts: Sequence[int], budget: int, temperature: float) -> list[int]:
    if sum(counts) <= budget:
        return list(counts)
    shares = [math.pow(count, 1 / temperature) if count else 0.0 for count in counts]
    quotas = [0] * len(counts)
    open_ = [i for i, count in enumerate(counts) if count]
    while open_:
        left = budget - sum(quotas)
        total = sum(shares[i] for i in open_)
        full = [i for i in open_ if counts[i] <= left * shares[i] / total]
        for i in full or open_:
            quotas[i] = counts[i] if full else int(left * shares[i] / total)
        open_ = [i for i in open_ if i not in full] if full else []
    return quotas
