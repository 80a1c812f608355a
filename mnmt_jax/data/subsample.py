"""A share of a corpus's training pairs, to see what a model does with fewer.

Whether a pair is kept follows from a seed and the pair's text alone. So the subsets of one seed lie
in each other, opposite directions keep the same pairs, and neither the order of the lines nor that
of the directions matters.

Source: Graformer, section 4.7, which keeps 30, 10, 3 and 1 % at random; by which rule, and whether
one subset lies in the other, it does not say.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from mnmt_jax.data.corpus import Corpus, Share
from mnmt_jax.vocabulary.languages import Direction

_BITS = 64


class SubsampledCorpus(Corpus):
    """Serves a corpus with a share of each direction's training pairs; the rest of it is whole.

    Args:
        corpus: of pairs.
        share: of its training pairs; one is kept at least.
    """

    min_languages = 1

    def __init__(self, corpus: Corpus, share: Share) -> None:
        super().__init__(corpus.name, corpus.languages)
        self._corpus, self._limit, self._seed = corpus, share.of_pairs * 2**_BITS, share.seed
        self.share = share

    def splits(self) -> tuple[str, ...]:
        """Lists the splits of the corpus."""
        return self._corpus.splits()

    def directions(self, split: str) -> tuple[Direction, ...]:
        """Lists the directions of the corpus."""
        return self._corpus.directions(split)

    def missing_files(self, split: str, direction: Direction) -> tuple[str, ...]:
        """Lists the corpus's."""
        return self._corpus.missing_files(split, direction)

    def files(self, split: str, direction: Direction) -> tuple[str, ...]:
        """Lists the corpus's."""
        return self._corpus.files(split, direction)

    def pairs(self, split: str, direction: Direction) -> Iterator[tuple[str, str]]:
        """Yields those that are kept, in the corpus's order; see the base class."""
        pairs = self._corpus.pairs(split, direction)
        return self._kept(pairs, direction) if split == "train" else pairs

    def _kept(
        self, pairs: Iterator[tuple[str, str]], direction: Direction
    ) -> Iterator[tuple[str, str]]:
        """Yields the pairs whose number is below the share; of none such, that of the lowest."""
        lowest: tuple[int, tuple[str, str]] | None = None
        below = False
        for pair in pairs:
            number = _number(pair, direction, self._seed)
            if number < self._limit:
                below = True
                yield pair
            elif not below and (lowest is None or number < lowest[0]):
                lowest = number, pair
        if not below and lowest is not None:
            yield lowest[1]


def _number(pair: tuple[str, str], direction: Direction, seed: int) -> int:
    """Returns 64 bits of a pair, the same whichever side is the source."""
    sides = sorted(zip(direction, pair, strict=True))
    text = "\0".join((str(seed), *(part for side in sides for part in side)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=_BITS // 8).digest(), "big")
