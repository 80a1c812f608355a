"""SentencePiece training, and sampling of its text."""

from __future__ import annotations

import dataclasses
import functools
import io
import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.normalization import normalize_lines
from mnmt_jax.vocabulary.seeded_permutation import hash64, text_hash64
from mnmt_jax.vocabulary.sentencepiece_options import SentencePieceOptions
from mnmt_jax.vocabulary.special_ids import EOS_ID, PAD_ID, UNK_ID
from mnmt_jax.vocabulary.vocabulary import Vocabulary

_BLOCK = 1 << 16  # sentences whose random keys are computed together


_DEFAULTS = SentencePieceOptions()


def train_sentencepiece(
    sentences_by_language: Mapping[str, Iterable[str]],
    directory: str | Path | None,
    *,
    options: SentencePieceOptions = _DEFAULTS,
) -> Vocabulary:
    """Train a SentencePiece model on text of several languages and save the vocabulary.

    Args:
        sentences_by_language: text of each language, read once; the key order becomes the tag
            order.
        directory: where `Vocabulary.save` writes; None writes nothing.
        options: size, type and sampling.

    Returns:
        The vocabulary; deterministic for the same text and options.

    Raises:
        UserError: if the text is empty or too little for the requested size.
    """
    model = train_model(sentences_by_language, options)
    languages = tuple(sentences_by_language)
    vocabulary = Vocabulary(model, languages, normalization=options.text_normalization)
    if directory is not None:
        vocabulary.save(directory)
    return vocabulary


def train_model(
    sentences_by_language: Mapping[str, Iterable[str]],
    options: SentencePieceOptions,
    *,
    space_first: bool = True,
    uncounted_pieces: int = 0,
) -> bytes:
    """Train a SentencePiece model on text of several languages.

    Args:
        sentences_by_language: text of each language, read once.
        options: size, type and sampling.
        space_first: put the space mark before the first word of a text too.
        uncounted_pieces: number of pieces that `options.vocab_size` leaves out: bytes and symbols.

    Returns:
        The serialised model; deterministic for the same text and options.

    Raises:
        UserError: if the text is empty or too little for the requested size.
    """
    sample = sample_sentences(sentences_by_language, options)
    sample = normalize_lines(sample, options.text_normalization)
    if not sample:
        raise UserError("no sentences to train a vocabulary on; check the corpus and its split")
    train = functools.partial(_run_trainer, sample, options, space_first)
    try:
        return train(options.vocab_size + uncounted_pieces)
    except RuntimeError as error:
        reason = _reason(error)
        summary = re.sub(r" \(\d+\)", "", reason.split(". ")[0])
        raise UserError(
            f"SentencePiece could not train {options.vocab_size} pieces: {summary}; "
            f"{_remedy(reason, options, uncounted_pieces, train)}"
        ) from error


def _run_trainer(
    sample: Iterable[str], options: SentencePieceOptions, space_first: bool, size: int
) -> bytes:
    """Return the serialised model of `size` pieces, trained on sampled and normalised text.

    Raises:
        RuntimeError: if the text is too little for the size, or has too many characters.
    """
    model = io.BytesIO()
    trainer_options: dict[str, Any] = {} if space_first else {"add_dummy_prefix": False}
    if options.symbols:
        trainer_options["user_defined_symbols"] = list(options.symbols)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sample),
        model_writer=model,
        vocab_size=size,
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
        # Float sums depend on how work is divided. A fixed number of threads gives the same
        # result on machines with different numbers of cores.
        num_threads=16,
        minloglevel=2,
        **trainer_options,
    )
    return model.getvalue()


def _reason(error: RuntimeError) -> str:
    return str(error).rsplit("] ", 1)[-1].strip()


def _remedy(
    reason: str,
    options: SentencePieceOptions,
    uncounted_pieces: int,
    train: Callable[[int], bytes],
) -> str:
    """Return how to correct a training configuration that SentencePiece rejects."""
    if too_many := re.search(r"<= (\d+)", reason):
        most, least = int(too_many[1]) - uncounted_pieces, _least_size(train) - uncounted_pieces
        return f"lower --vocab_size to at most {most} (at least {least}), or give more text"
    if too_few := re.search(r"(\d+) vs (\d+)", reason):
        byte_hint = ""
        if options.byte_fallback and not uncounted_pieces:
            byte_hint = ", or leave out the 256 pieces of bytes with --no-byte_fallback"
        return f"raise --vocab_size to at least {int(too_few[2]) - uncounted_pieces}{byte_hint}"
    return f"correct what it names (the rule of normalization is '{options.normalization}')"


def _least_size(train: Callable[[int], bytes]) -> int:
    """Return the smallest size, which SentencePiece names before it trains any smaller one."""
    specials = len((PAD_ID, EOS_ID, UNK_ID))
    try:
        train(specials)
    except RuntimeError as error:
        if too_few := re.search(r"(\d+) vs (\d+)", _reason(error)):
            return int(too_few[2])
    return specials


def sample_sentences(
    sentences_by_language: Mapping[str, Iterable[str]], options: SentencePieceOptions
) -> list[str]:
    """Sample sentences without replacement, language by language.

    A language's quota is its share by temperature. What a small language cannot fill goes to the
    others by the same shares. Sentences keep their order. All text is read; up to
    `options.sentences` of each language are in memory, and a quarter more while it is read.
    """
    samples = [
        _sample_language(sentences, language, options)
        for language, sentences in sentences_by_language.items()
    ]
    quotas = _quotas([item.count for item in samples], options.sentences, options.temperature)
    return [
        sentence
        for item, quota in zip(samples, quotas, strict=True)
        for sentence in item.lowest(quota).sentences
    ]


@dataclasses.dataclass(frozen=True)
class _LanguageSample:
    """The sentences of a language with the lowest random keys, in their order.

    Attributes:
        count: number of all sentences of the language.
        keys: uint64 `[n]`.
        sentences: n sentences.
    """

    count: int
    keys: np.ndarray
    sentences: list[str]

    def lowest(self, size: int) -> _LanguageSample:
        """Return the sentences with the lowest keys; of equal keys the first."""
        rows = np.sort(np.argsort(self.keys, kind="stable")[:size])
        sentences = [self.sentences[i] for i in rows]
        return _LanguageSample(self.count, self.keys[rows], sentences)


def _sample_language(
    sentences: Iterable[str], language: str, options: SentencePieceOptions
) -> _LanguageSample:
    """Return the `options.sentences` with the lowest keys, or all if there are fewer."""
    size, language_hash, stream = options.sentences, text_hash64(language), iter(sentences)
    sample, highest = _LanguageSample(0, np.empty(0, np.uint64), []), None
    while block := list(itertools.islice(stream, _BLOCK)):
        count = sample.count + len(block)
        keys = hash64(options.seed, language_hash, np.arange(sample.count, count))
        if highest is not None:
            rows = np.flatnonzero(keys < highest)
            keys, block = keys[rows], [block[i] for i in rows]
        sample.sentences.extend(block)
        sample = _LanguageSample(count, np.concatenate((sample.keys, keys)), sample.sentences)
        if len(sample.keys) > size + max(size // 4, _BLOCK):
            sample = sample.lowest(size)
            highest = sample.keys.max()
    return sample.lowest(size) if len(sample.keys) > size else sample


def _quotas(counts: Sequence[int], budget: int, temperature: float) -> list[int]:
    if sum(counts) <= budget:
        return list(counts)
    shares = [math.pow(count, 1 / temperature) if count else 0.0 for count in counts]
    quotas = [0] * len(counts)
    unfilled = [i for i, count in enumerate(counts) if count]
    while unfilled:
        remaining = budget - sum(quotas)
        total = math.fsum(shares[i] for i in unfilled)
        exhausted = [i for i in unfilled if counts[i] <= remaining * shares[i] / total]
        for i in exhausted or unfilled:
            quotas[i] = counts[i] if exhausted else int(remaining * shares[i] / total)
        unfilled = [i for i in unfilled if i not in exhausted] if exhausted else []
    return quotas
