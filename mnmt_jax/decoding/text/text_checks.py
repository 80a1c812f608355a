"""Checks of texts: of each sentence, and of the whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from mnmt_jax.decoding.guards import TranslationChecker, TranslationChecks
from mnmt_jax.decoding.text.translated_text import (
    SentenceTranslation,
    TextToTranslate,
    TextTranslation,
    last_retry,
)
from mnmt_jax.decoding.translation import Hypothesis, Translation


def with_checks(
    result: TextTranslation,
    text: TextToTranslate,
    checker: TranslationChecker,
    length_penalty: float,
) -> TextTranslation:
    """Return a translated text with the checks of each sentence and of the whole.

    The whole fails a check if a sentence does, but its language is detected in all of it.

    Args:
        result: the translated text.
        text: the text.
        checker: the checks.
        length_penalty: of `Decode`, with which scores were computed.
    """

    def check(sentence: SentenceTranslation) -> TranslationChecks:
        joined = join_pieces(sentence.text, sentence.translations, length_penalty)
        return checker.check(sentence.source, text.source, joined, text.target)

    checks = [check(sentence) for sentence in result.sentences]
    sentences = tuple(
        dataclasses.replace(sentence, checks=one)
        for sentence, one in zip(result.sentences, checks, strict=True)
    )
    joined = join_pieces(result.text, result.pieces, length_penalty)
    translated = "\n".join(sentence.text for sentence in sentences)
    language, probability = checker.detect_target(translated, text.target)
    whole = TranslationChecks(
        language=language,
        probability=probability,
        off_target=any(one.off_target for one in checks),
        copied=any(one.copied for one in checks),
        repeated=any(one.repeated for one in checks),
        empty=any(one.empty for one in checks),
        cut=joined.truncated or joined.limited,
        unknown_characters=joined.unknown_characters,
        missing_numbers=tuple(number for one in checks for number in one.missing_numbers),
        score=joined.score,
        retried=joined.retried,
    )
    return dataclasses.replace(result, sentences=sentences, checks=whole)


def checks_record(result: TextTranslation) -> dict[str, Any] | None:
    """Return the checks of a text and its sentences as an object of JSON; None without checks."""
    if result.checks is None:
        return None
    sentences = [
        {"source": one.source, "translation": one.text, **one.checks.as_dict()}
        for one in result.sentences
        if one.checks is not None
    ]
    untranslated = {} if result.is_translated else {"not_translated": True}
    return {**result.checks.as_dict(), **untranslated, "sentences": sentences}


def join_pieces(text: str, pieces: Sequence[Translation], length_penalty: float) -> Translation:
    """Return the translations of pieces of a text as one.

    Its score is that of a sentence with all tokens: the sum of the log-probabilities, divided by
    the number of tokens to the power of `Decode.length_penalty`. It was retried if a piece was, by
    the last search of any.

    Args:
        text: the translated text, in one line.
        pieces: translations of its pieces.
        length_penalty: of `Decode`, with which scores were computed.
    """
    best = [piece.hypotheses[0] for piece in pieces if piece.hypotheses]
    tokens = tuple(token for hypothesis in best for token in hypothesis.tokens)
    total = sum(one.score * len(one.tokens) ** length_penalty for one in best if one.tokens)
    score = total / len(tokens) ** length_penalty if tokens else 0.0
    pivots = [piece.pivot for piece in pieces if piece.pivot is not None]
    return Translation(
        hypotheses=(Hypothesis(text, score, tokens),),
        truncated=any(piece.truncated for piece in pieces),
        limited=any(piece.limited for piece in pieces),
        pivot=" ".join(pivots) if pivots else None,
        unknown_characters="".join(piece.unknown_characters for piece in pieces),
        retried=last_retry(pieces),
    )
