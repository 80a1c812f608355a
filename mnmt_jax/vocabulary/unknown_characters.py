"""Unknown characters: those of a text that no piece of a vocabulary covers.

A character is unknown if encoding turns it into unk or, where the vocabulary has byte fallback,
into the pieces of its UTF-8 bytes. SentencePiece's mark of a space (U+2581) is unknown in any text:
it is read as a space.
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
    """Name unknown characters, most frequent first, e.g. `3 characters: 🙂 (2), U+0007`.

    Args:
        counts: how often each was met.
        shown: how many are named.
    """
    names = []
    for character, count in counts.most_common():
        visible = character.isprintable() and not unicodedata.combining(character)
        name = character if visible else f"U+{ord(character):04X}"
        names.append(f"{name} ({count})" if count > 1 else name)
    return f"{pluralize(counts.total(), 'character')}: {join_names(names, shown)}"


class UnknownRun(NamedTuple):
    """Unknown characters side by side.

    Attributes:
        text: the characters.
        start: place of the first one in the normalised text; -1 if the vocabulary's own
            SentencePiece rule wrote them otherwise than they stand there.
    """

    text: str
    start: int


def unknown_characters(
    vocabulary: Vocabulary, text: str, ids: Iterable[int], language: str | None = None
) -> str:
    """Collect the unknown characters of a text, each as often as it occurs.

    Args:
        vocabulary: encodes the text.
        text: as it was given, before normalisation.
        ids: what `vocabulary.encode` makes of it.
        language: code of its language; only a vocabulary with copies or additions needs it.

    Returns:
        The characters in the order of the text, marks of a space last.
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
        vocabulary: encodes the text.
        text: as `mnmt_jax.vocabulary.normalization` makes it.
        language: code of its language.

    Returns:
        The runs in order, without the spaces beside them.
    """
    runs: list[UnknownRun] = []
    end = 0  # of what was read of the text
    for characters, known in _surfaces(vocabulary, text, language):
        start = text.find(characters, end)
        before, end = end, max(end, start + len(characters))
        if known:
            continue
        if runs and start == before == runs[-1].start + len(runs[-1].text):
            runs[-1] = UnknownRun(runs[-1].text + characters, runs[-1].start)
        else:
            runs.append(UnknownRun(characters, start))
    return runs


def _surfaces(
    vocabulary: Vocabulary, text: str, language: str | None
) -> Iterator[tuple[str, bool]]:
    """Yield the words and parts of words that pieces cover, and whether they are known."""
    spelt = bytearray()
    for token, piece in vocabulary.encode_as_pieces(text, language):
        if token in vocabulary.byte_values:
            spelt.append(vocabulary.byte_values[token])
            continue
        if spelt:
            yield spelt.decode(errors="replace"), False
            spelt.clear()
        for part in filter(None, piece.split(SPACE_MARK)):
            yield part, token != vocabulary.unk_id
    if spelt:
        yield spelt.decode(errors="replace"), False
