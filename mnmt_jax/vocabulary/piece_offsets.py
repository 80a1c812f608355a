"""Character offsets of pieces in a source text and in a decoded translation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import regex

from mnmt_jax.vocabulary.normalization import SPACE_MARK, normalize_lines
from mnmt_jax.vocabulary.vocabulary import Vocabulary

Span = tuple[int, int]
"""Start and end of characters in a text."""

_CLUSTER = regex.compile(r"\X")


def encoded_spans(vocabulary: Vocabulary, text: str, language: str | None = None) -> list[Span]:
    """Return the characters of a text that each of its pieces covers.

    Args:
        vocabulary: vocabulary that encodes the text.
        text: raw text, before normalisation.
        language: code of its language.

    Returns:
        A span per piece of `vocabulary.encode`, ascending, without the spaces at its ends. All
        bytes of a character have its span. A piece that is not in the text is empty.
    """
    (normalized,) = normalize_lines([text], vocabulary.normalization)
    positions = _original_positions(text, normalized, vocabulary.normalization)
    return [
        (positions[start], positions[end] if end > start else positions[start])
        for start, end in _normalized_spans(vocabulary, normalized, language)
    ]


def decoded_spans(vocabulary: Vocabulary, ids: Sequence[int]) -> list[Span]:
    """Return the characters of the decoded text that each id adds.

    Args:
        vocabulary: vocabulary that decodes the ids.
        ids: ids of a translation.

    Returns:
        A span in `vocabulary.decode(ids)` per id, ascending; empty for tags and eos, and for all
        bytes of a character but the last one.
    """
    ends = [len(vocabulary.decode(ids[: count + 1])) for count in range(len(ids))]
    return list(zip([0, *ends], ends, strict=False))


def _normalized_spans(vocabulary: Vocabulary, text: str, language: str | None) -> Iterator[Span]:
    """Yield the span of each piece in a normalised text."""
    end, pending = 0, bytearray()
    pieces = vocabulary.encode_as_pieces(text, language)
    for number, (token, piece) in enumerate(pieces):
        if token not in vocabulary.byte_values:
            start, end = _find(text, piece.replace(SPACE_MARK, " ").strip(), end)
            yield start, end
            continue
        pending.append(vocabulary.byte_values[token])
        if number + 1 == len(pieces) or pieces[number + 1][0] not in vocabulary.byte_values:
            yield from _byte_spans(text, bytes(pending), end)
            end = _find(text, pending.decode(errors="replace"), end)[1]
            pending.clear()


def _byte_spans(text: str, data: bytes, end: int) -> Iterator[Span]:
    """Yield the span of the character of each byte."""
    for character in data.decode(errors="replace"):
        span = _find(text, character, end)
        end = span[1]
        yield from [span] * len(character.encode())


def _find(text: str, part: str, start: int) -> Span:
    """Return the first span of a part of a text; an empty one if there is none."""
    position = text.find(part, start) if part else -1
    return (start, start) if position < 0 else (position, position + len(part))


def _original_positions(text: str, normalized: str, normalization: str) -> list[int]:
    """Return the position in a text of each character of its normalised form, and its end.

    Normalisation changes grapheme clusters one by one. Where it does not, positions are relative.
    """
    positions: list[int] = []
    for match in _CLUSTER.finditer(text):
        (part,) = normalize_lines([match.group()], normalization)
        positions += [match.start()] * len(part)
    if len(positions) != len(normalized):
        positions = [n * len(text) // len(normalized) for n in range(len(normalized))]
    return [*positions, len(text)]
