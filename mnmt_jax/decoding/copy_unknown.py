"""Copying of unknown characters from a source to its translation.

A model cannot read or write a character that its vocabulary lacks (`<unk>`), and learns nothing
about one that its training text lacks. With `Decode.copy_unknown` such characters are removed from
the source and inserted at the corresponding position of the translation. Characters at the start or
end of the source stay there; others go to the nearest word boundary. In a chunk of a document
this is done for each sentence.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import regex

from mnmt_jax.data.document_context import Context
from mnmt_jax.vocabulary.unknown_characters import UnknownRun, unknown_runs
from mnmt_jax.vocabulary.vocabulary import Vocabulary

_CLUSTER = regex.compile(r"\X")


@dataclasses.dataclass(frozen=True)
class CopiedText:
    """Characters to copy.

    Attributes:
        text: complete grapheme clusters, so that an emoji of several characters is not split.
        position: fraction of the other characters of the source that precede it, 0 to 1.
        space_before: whether a space preceded it.
        space_after: whether a space followed it.
    """

    text: str
    position: float
    space_before: bool
    space_after: bool


Copies = tuple[tuple[CopiedText, ...], ...]
"""Characters to copy, of each sentence of a text; empty if no sentence has any."""


def extract_copies(
    text: str, vocabulary: Vocabulary, language: str, context: Context | None = None
) -> tuple[str, Copies]:
    """Separate the unknown characters of each sentence of a text from the others.

    Args:
        text: normalised text.
        vocabulary: vocabulary that encodes it.
        language: its language.
        context: how the sentences of a chunk are joined; None for one sentence.

    Returns:
        The text without them, and the characters to copy.
    """
    sentences = context.split(text) if context else [text]
    runs = [unknown_runs(vocabulary, sentence, language) for sentence in sentences]
    known_texts, copies = zip(*map(extract_unknown, sentences, runs), strict=True)
    remaining = (
        context.join([known.strip() for known in known_texts]) if context else known_texts[0]
    )
    return remaining, copies if any(copies) else ()


def reinsert_copies(translation: str, copies: Copies, context: Context | None = None) -> str:
    """Insert the unknown characters of each sentence of a source into its translation.

    Args:
        translation: translation of the other characters; one with another number of sentences than
            the source stays as it is.
        copies: characters from `extract_copies`.
        context: as in `extract_copies`.
    """
    sentences = context.split(translation) if context else [translation]
    if len(sentences) != len(copies):
        return translation
    complete = list(map(reinsert_unknown, sentences, copies))
    return context.join(complete) if context else complete[0]


def extract_unknown(text: str, runs: Sequence[UnknownRun]) -> tuple[str, tuple[CopiedText, ...]]:
    """Separate the unknown characters of a text from the others.

    Args:
        text: normalised text.
        runs: runs of unknown characters; those without a position stay in the text.

    Returns:
        The text without them, and the characters to copy, in order.
    """
    unknown = {index for run in runs if run.start >= 0 for index in _indices(run)}
    clusters = [match.span() for match in _CLUSTER.finditer(text)]
    groups = []
    for is_unknown, run in itertools.groupby(
        clusters, lambda span: not unknown.isdisjoint(range(*span))
    ):
        spans = list(run)
        groups.append((is_unknown, spans[0][0], spans[-1][1]))
    known_texts = [text[start:end] for is_unknown, start, end in groups if not is_unknown]
    total, count = sum(map(_count_letters, known_texts)), 0
    copies = []
    for is_unknown, start, end in groups:
        if not is_unknown:
            count += _count_letters(text[start:end])
            continue
        position = count / total if total else 0.0
        spaces = text[start - 1 : start] == " ", text[end : end + 1] == " "
        copies.append(CopiedText(text[start:end], position, *spaces))
    return "".join(known_texts), tuple(copies)


def reinsert_unknown(translation: str, copies: Sequence[CopiedText]) -> str:
    """Insert the unknown characters of a source into its translation.

    Args:
        translation: translation of the other characters; empty if there were none.
        copies: characters from `extract_unknown`.
    """
    result, end = "", 0
    for copied in copies:
        index = _insertion_index(translation, copied)
        result += translation[end:index]
        end = index
        space_before = " " if copied.space_before and result and not result.endswith(" ") else ""
        next_character = translation[index : index + 1]
        space_after = " " if copied.space_after and next_character not in ("", " ") else ""
        result += space_before + copied.text + space_after
    return result + translation[end:]


def _insertion_index(translation: str, copied: CopiedText) -> int:
    """Return the index of a translation where a copied text is inserted."""
    if copied.position in (0.0, 1.0):
        return round(copied.position) * len(translation)
    ideal = copied.position * len(translation)
    attached_to_next = copied.space_before and not copied.space_after
    candidates = [i + attached_to_next for i, letter in enumerate(translation) if letter == " "]
    candidates = candidates or [match.end() for match in _CLUSTER.finditer(translation)]
    return min(candidates, key=lambda index: abs(index - ideal), default=0)


def _indices(run: UnknownRun) -> range:
    return range(run.start, run.start + len(run.text))


def _count_letters(text: str) -> int:
    """Count the characters that are not spaces."""
    return len(text) - text.count(" ")
