"""Opposite directions of a corpus, which usually have the same text.

They do not if a pair of languages has files in both orders, such as WMT's test sets in `de-en/` and
`en-de/`, or if a sample is drawn of one of them.
"""

from __future__ import annotations

import filecmp
from collections.abc import Iterable

from mnmt_jax.data.corpus import Corpus
from mnmt_jax.vocabulary.language_codes import Direction


def has_same_text(corpus: Corpus, split: str, direction: Direction) -> bool:
    """Return whether a direction has the text of the opposite one: samples of the same files.

    The files may also be copies, and all their pairs may be taken.

    Args:
        corpus: the corpus; has text of both directions.
        split: name of the split.
        direction: source and target language.
    """
    if not has_same_sample(corpus, split, direction):
        return False
    files, opposite = (corpus.files(split, pair) for pair in (direction, direction[::-1]))
    if {*files} == {*opposite}:
        return True
    if len(files) != len(opposite):
        return False
    sides = zip(files, opposite[::-1], strict=True)
    return all(filecmp.cmp(*paths, shallow=False) for paths in sides)


def has_same_sample(corpus: Corpus, split: str, direction: Direction) -> bool:
    """Return whether samples of one size, or none, are drawn of both directions."""
    sizes = {corpus.sample_size(split, pair) for pair in (direction, direction[::-1])}
    return len(sizes) == 1


def distinct_directions(
    corpus: Corpus, split: str, directions: Iterable[Direction]
) -> list[Direction]:
    """Return directions in their order, one of two opposite ones that have the same text.

    Args:
        corpus: the corpus; has text of all directions.
        split: name of the split.
        directions: source and target languages.
    """
    distinct = dict.fromkeys(directions)

    def is_repeated(pair: Direction) -> bool:
        opposite = pair[::-1]
        is_second = opposite in distinct and pair > opposite
        return is_second and has_same_text(corpus, split, pair)

    return [pair for pair in distinct if not is_repeated(pair)]
