"""Deduplication: exact and near duplicates of pairs, sources and targets."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from importlib.metadata import version

import numpy as np

from mnmt_jax.data.preparation.characters import CodePoints, fold
from mnmt_jax.data.preparation.ngram_hashes import ngram_hashes
from mnmt_jax.data.preparation.steps import KeyRule, PairBatch, import_package
from mnmt_jax.vocabulary.seeded_permutation import hash64

_SEPARATOR = b"\xff"  # no byte of UTF-8
_KEY_BYTES = 8
_MAX_PERMUTATIONS = 1024
_SEED = 1


@dataclasses.dataclass(frozen=True)
class _ExactDuplicates(KeyRule):
    """Base class of exact deduplication.

    Attributes:
        ignore_case: whether differences of case are ignored.
        ignore_punctuation: whether all but letters, marks and digits is ignored.
    """

    ignore_case: bool = False
    ignore_punctuation: bool = False

    def _fold(self, sentences: Sequence[str]) -> list[str]:
        return fold(sentences, case=self.ignore_case, punctuation=self.ignore_punctuation)


@dataclasses.dataclass(frozen=True)
class PairDuplicates(_ExactDuplicates):
    """Repeated pair."""

    name = "pair_duplicates"

    def keys(self, batch: PairBatch) -> np.ndarray:
        """Return the keys of each pair, uint64 `[n, 1]`."""
        sources, targets = self._fold(batch.sources), self._fold(batch.targets)
        return pair_keys(sources, targets)[:, None]


@dataclasses.dataclass(frozen=True)
class SourceDuplicates(_ExactDuplicates):
    """Repeated sentence in the first language of the sorted codes."""

    name = "source_duplicates"

    def keys(self, batch: PairBatch) -> np.ndarray:
        """Return the keys of each pair, uint64 `[n, 1]`."""
        return _hash(_encode(self._fold(batch.sources)))[:, None]


@dataclasses.dataclass(frozen=True)
class TargetDuplicates(_ExactDuplicates):
    """Repeated sentence in the second language of the sorted codes."""

    name = "target_duplicates"

    def keys(self, batch: PairBatch) -> np.ndarray:
        """Return the keys of each pair, uint64 `[n, 1]`."""
        return _hash(_encode(self._fold(batch.targets)))[:, None]


@dataclasses.dataclass(frozen=True)
class NearDuplicates(KeyRule):
    """Nearly repeated pair, by MinHash.

    A pair is a set of character n-grams of both sentences without case and punctuation. Two pairs
    whose sets have the Jaccard similarity s agree in all rows of some band with the probability
    `1 - (1 - s**rows)**bands`, by default 0.52 at 0.69, 0.65 at the threshold of 0.72, 0.92 at 0.8.

    Source: Broder 1997; bands and rows are by default those of FineWeb (arXiv 2406.17557).

    Attributes:
        n: number of characters of an n-gram.
        bands: number of keys per pair.
        rows: number of minimum hashes in a key.
    """

    name = "near_duplicates"
    n: int = 5
    bands: int = 14
    rows: int = 8

    def __post_init__(self) -> None:
        """Check the settings."""
        self.require("n", 1 <= self.n <= 100, expected="from 1 to 100")
        self.require("bands", self.bands >= 1, expected="1 or more")
        is_possible = self.bands <= _MAX_PERMUTATIONS
        self.require("bands", is_possible, expected=f"{_MAX_PERMUTATIONS} or less")
        self.require("rows", self.rows >= 1, expected="1 or more")
        is_bounded = self.bands * self.rows <= _MAX_PERMUTATIONS
        limit = _MAX_PERMUTATIONS // self.bands
        self.require("rows", is_bounded, expected=f"{limit} or less with {self.bands} bands")

    @property
    def threshold(self) -> float:
        """Jaccard similarity `(1 / bands)**(1 / rows)`, from which on most pairs are dropped."""
        return float((1 / self.bands) ** (1 / self.rows))

    def check_languages(self, languages: Sequence[str]) -> None:
        """Check that datasketch is installed."""
        import_package("datasketch", self.name)

    def dependencies(self, languages: Sequence[str]) -> dict[str, str]:
        """Return the version of datasketch."""
        return {"datasketch": version("datasketch")}

    def keys(self, batch: PairBatch) -> np.ndarray:
        """Return the keys of each pair, uint64 `[n, bands]`."""
        if not len(batch):
            return np.zeros((0, self.bands), np.uint64)
        minhashes = import_package("datasketch", self.name).MinHash.generator(
            self._shingles(batch),
            num_perm=self.bands * self.rows,
            seed=_SEED,
            scheme="affine32",
            hashfunc=_identity,
        )
        values = np.stack([minhash.hashvalues for minhash in minhashes]).astype(np.uint64)
        by_band = values.reshape(len(batch), self.bands, self.rows)
        keys = np.zeros(by_band.shape[:2], np.uint64)
        for row in range(self.rows):
            keys = hash64(keys + by_band[:, :, row])
        return keys

    def _shingles(self, batch: PairBatch) -> Iterable[list[int]]:
        """Return the n-grams of each pair as 32-bit hashes that differ by side."""
        sides = (
            _shingle_hashes(fold(sentences, case=True, punctuation=True), self.n, salt)
            for salt, sentences in enumerate((batch.sources, batch.targets))
        )
        return itertools.starmap(list.__add__, zip(*sides, strict=True))


def _shingle_hashes(sentences: Sequence[str], n: int, salt: int) -> list[list[int]]:
    """Return the 32-bit hashes of the n-grams of each sentence; of a short one, as a whole."""
    padded = [sentence.ljust(n) for sentence in sentences]
    hashes, of_sentence = ngram_hashes(CodePoints(padded), n, words=False)
    values = (hash64(hashes + np.uint64(salt)) >> np.uint64(32)).tolist()
    ends = np.cumsum(np.bincount(of_sentence, minlength=len(sentences))).tolist()
    return [values[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def pair_keys(sources: Sequence[str], targets: Sequence[str]) -> np.ndarray:
    """Return a hash of each pair of sentences, uint64 `[n]`."""
    sides = zip(_encode(sources), _encode(targets), strict=True)
    return _hash(source + _SEPARATOR + target for source, target in sides)


def _encode(sentences: Sequence[str]) -> Iterable[bytes]:
    return (sentence.encode("utf-8", "surrogatepass") for sentence in sentences)


def _hash(texts: Iterable[bytes]) -> np.ndarray:
    """Return the 64-bit hashes of texts, uint64 `[n]`."""
    digests = b"".join(blake2b(text, digest_size=_KEY_BYTES).digest() for text in texts)
    return np.frombuffer(digests, "<u8").astype(np.uint64)


def _identity(value: int) -> int:
    return value
