"""Corpus with other codes for some of its languages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mnmt_jax.data.corpus import Corpus
from mnmt_jax.vocabulary.language_codes import Direction


class RenamedCorpus(Corpus):
    """View of a corpus in which languages have other codes, such as `pt_BR` for its `pt`.

    Args:
        corpus: corpus whose text is read.
        codes: the new code by code of the corpus; the other languages keep theirs.
    """

    def __init__(self, corpus: Corpus, codes: Mapping[str, str]) -> None:
        super().__init__(corpus.name, [codes.get(code, code) for code in corpus.languages])
        self._corpus = corpus
        self._original = dict(zip(self.languages, corpus.languages, strict=True))
        self._renamed = {original: code for code, original in self._original.items()}

    def splits(self) -> tuple[str, ...]:
        """Return the splits of the corpus."""
        return self._corpus.splits()

    def directions(self, split: str) -> tuple[Direction, ...]:
        """Return the directions of the corpus in the new codes."""
        pairs = self._corpus.directions(split)
        return tuple((self._renamed[source], self._renamed[target]) for source, target in pairs)

    def pairs(self, split: str, direction: Direction) -> Iterator[tuple[str, str]]:
        """Yield the pairs of the corpus; see the base class."""
        self._check(split, direction)
        source, target = direction
        return self._corpus.pairs(split, (self._original[source], self._original[target]))
