"""Random subsets of a corpus's training pairs, for experiments with less data.

Selection depends only on a seed and the text of a pair. So smaller subsets of a seed are contained
in larger ones, opposite directions keep the same pairs, and the order of lines or directions does
not matter.

Source: Graformer, section 4.7, which keeps 30, 10, 3 and 1 % at random. It states neither the
sampling method nor whether the subsets are nested.
"""

from __future__ import annotations

from collections.abc import Iterator

from mnmt_jax.data.corpus import HASH_BITS, Corpus, Share, hash_pair
from mnmt_jax.vocabulary.language_codes import Direction


class SubsampledCorpus(Corpus):
    """Corpus with a fraction of the training pairs of each direction; other splits are unchanged.

    Args:
        corpus: parallel corpus.
        share: fraction of its training pairs; at least one pair per direction is kept.
    """

    min_languages = 1

    def __init__(self, corpus: Corpus, share: Share) -> None:
        super().__init__(corpus.name, corpus.languages)
        self._corpus, self._limit, self._seed = corpus, share.of_pairs * 2**HASH_BITS, share.seed
        self.share = share

    def splits(self) -> tuple[str, ...]:
        """Return the splits of the corpus."""
        return self._corpus.splits()

    def directions(self, split: str) -> tuple[Direction, ...]:
        """Return the directions of the corpus."""
        return self._corpus.directions(split)

    def missing_files(self, split: str, direction: Direction) -> tuple[str, ...]:
        """Return the missing files of the corpus."""
        return self._corpus.missing_files(split, direction)

    def files(self, split: str, direction: Direction) -> tuple[str, ...]:
        """Return the files of the corpus."""
        return self._corpus.files(split, direction)

    def sample_size(self, split: str, direction: Direction) -> int | None:
        """Return the sample size of the corpus, whose sample is subsampled."""
        return self._corpus.sample_size(split, direction)

    def pairs(self, split: str, direction: Direction) -> Iterator[tuple[str, str]]:
        """Yield the selected pairs, in the order of the corpus; see the base class."""
        pairs = self._corpus.pairs(split, direction)
        return self._subsample(pairs, direction) if split == "train" else pairs

    def _subsample(
        self, pairs: Iterator[tuple[str, str]], direction: Direction
    ) -> Iterator[tuple[str, str]]:
        """Yield pairs with a hash below the limit; if there are none, the pair of lowest hash."""
        lowest: tuple[int, tuple[str, str]] | None = None
        has_selected = False
        for pair in pairs:
            number = hash_pair(pair, direction, self._seed)
            if number < self._limit:
                has_selected = True
                yield pair
            elif not has_selected and (lowest is None or number < lowest[0]):
                lowest = number, pair
        if not has_selected and lowest is not None:
            yield lowest[1]
