"""Unknown characters: characters of a text that no piece of a vocabulary covers.

A character is unknown if encoding maps it to unk or, with byte fallback, to the pieces of its UTF-8
bytes. SentencePiece's space mark (U+2581) in a text counts as unknown, because it is read as a
space.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from mnmt_jax.errors import join_names, pluralize
from mnmt_jax.vocabulary.normalization import SPACE_MARK, normalize_lines
from mnmt_jax.vocabulary.vocabulary import Vocabulary


def describe_unknown(counts: Counter[str], shown: int = 6) -> str:
    """Describe unknown characters, most frequent first, e.g. `3 characters: 🙂 (2), U+0007`.

    Args:
        counts: number of occurrences of each character.
        shown: maximum number of characters to list.
    """
    names = []
    for character, count in counts.most_common():
        visible = character.isprintable() and not unicodedata.combining(character)
        name = character if visible else f"U+{ord(character):04X}"
        names.append(f"{name} ({count})" if count > 1 else name)
    return f"{pluralize(counts.total(), 'character')}: {join_names(names, shown)}"


class UnknownRun(NamedTuple):
    """A run of adjacent unknown characters.

    Attributes:
        text: the characters.
        start: offset of the first one in the normalised text; -1 if the SentencePiece model's own
            normalisation rule changed them.
    """

    text: str
    start: int


def unknown_characters(
    vocabulary: Vocabulary, text: str, ids: Iterable[int], language: str | None = None
) -> str:
    """Return the unknown characters of a text, with repetitions.

    Args:
        vocabulary: vocabulary that encodes the text.
        text: raw text, before normalisation.
        ids: result of `vocabulary.encode`.
        language: language code; required only for a vocabulary with copies or additions.

    Returns:
        The characters in the order of the text, space marks last.
    """
    marks = SPACE_MARK * text.count(SPACE_MARK)
    if vocabulary.unknown_ids.isdisjoint(ids):
        return marks
    (normalized,) = normalize_lines([text], vocabulary.normalization)
    return "".join(run.text for run in unknown_runs(vocabulary, normalized, language)) + marks


def unknown_runs(
    vocabulary: Vocabulary, text: str, language: str | None = None
) -> list[UnknownRun]:
    """Find the unknown characters of a normalised text.

    Args:
        vocabulary: vocabulary that encodes the text.
        text: text normalised by `mnmt_jax.vocabulary.normalization`.
        language: language code.

    Returns:
        The runs in order, without adjacent spaces.
    """
    runs: list[UnknownRun] = []
    end = 0  # end of the processed text
    for characters, known in _surfaces(vocabulary, text, language):
        start = text.find(characters, end)
        previous_end, end = end, max(end, start + len(characters))
        if known:
            continue
        if runs and start == previous_end == runs[-1].start + len(runs[-1].text):
            runs[-1] = UnknownRun(runs[-1].text + characters, runs[-1].start)
        else:
            runs.append(UnknownRun(characters, start))
    return runs


def _surfaces(
    vocabulary: Vocabulary, text: str, language: str | None
) -> Iterator[tuple[str, bool]]:
    """Yield the words and word parts that pieces cover, and whether they are known."""
    pending_bytes = bytearray()
    for token, piece in vocabulary.encode_as_pieces(text, language):
        if token in vocabulary.byte_values:
            pending_bytes.append(vocabulary.byte_values[token])
            continue
        if pending_bytes:
            yield pending_bytes.decode(errors="replace"), False
            pending_bytes.clear()
        for word_part in filter(None, piece.split(SPACE_MARK)):
            yield word_part, token != vocabulary.unk_id
    if pending_bytes:
        yield pending_bytes.decode(errors="replace"), False
