"""Deduplication: exact and near duplicates of pairs, sources and targets."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from importlib.metadata import version
from typing import Any

import numpy as np

from mnmt_jax.data.preparation.characters import CodePoints, fold
from mnmt_jax.data.preparation.ngram_hashes import mix, ngram_hashes
from mnmt_jax.data.preparation.steps import KeyRule, PairBatch
from mnmt_jax.errors import UserError

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

    def _encode(self, sentences: Sequence[str]) -> Iterable[bytes]:
        folded = fold(sentences, case=self.ignore_case, punctuation=self.ignore_punctuation)
        return (sentence.encode("utf-8", "surrogatepass") for sentence in folded)


@dataclasses.dataclass(frozen=True)
class PairDuplicates(_ExactDuplicates):
    """Repeated pair."""

    name = "pair_duplicates"

    def keys(self, batch: PairBatch) -> np.ndarray:
        """Return the keys of each pair, uint64 `[n, 1]`."""
        sides = zip(self._encode(batch.sources), self._encode(batch.targets), strict=True)
        return _hash(source + _SEPARATOR + target for source, target in sides)


@dataclasses.dataclass(frozen=True)
class SourceDuplicates(_ExactDuplicates):
    """Repeated sentence in the first language of the sorted codes."""

    name = "source_duplicates"

    def keys(self, batch: PairBatch) -> np.ndarray:
        """Return the keys of each pair, uint64 `[n, 1]`."""
        return _hash(self._encode(batch.sources))


@dataclasses.dataclass(frozen=True)
class TargetDuplicates(_ExactDuplicates):
    """Repeated sentence in the second language of the sorted codes."""

    name = "target_duplicates"

    def keys(self, batch: PairBatch) -> np.ndarray:
        """Return the keys of each pair, uint64 `[n, 1]`."""
        return _hash(self._encode(batch.targets))


@dataclasses.dataclass(frozen=True)
class NearDuplicates(KeyRule):
    """Nearly repeated pair, by MinHash.

    A pair is a set of character n-grams of both sentences without case and punctuation. Two pairs
    whose sets have the Jaccard similarity s agree in all rows of some band with the probability
    `1 - (1 - s**rows)**bands`: half at about `(1 / bands)**(1 / rows)`, 0.72 by default.

    Source: Broder 1997; the defaults are those of FineWeb (arXiv 2406.17557).

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
        self.require("rows", self.rows >= 1, expected="1 or more")
        is_bounded = self.bands * self.rows <= _MAX_PERMUTATIONS
        limit = _MAX_PERMUTATIONS // self.bands
        self.require("rows", is_bounded, expected=f"{limit} or less with {self.bands} bands")

    @property
    def threshold(self) -> float:
        """Approximate Jaccard similarity from which on pairs are duplicates."""
        return float((1 / self.bands) ** (1 / self.rows))

    def check_languages(self, languages: Sequence[str]) -> None:
        """Check that datasketch is installed."""
        _datasketch()

    def dependencies(self, languages: Sequence[str]) -> dict[str, str]:
        """Return the version of datasketch."""
        return {"datasketch": version("datasketch")}

    def keys(self, batch: PairBatch) -> np.ndarray:
        """Return the keys of each pair, uint64 `[n, bands]`."""
        if not len(batch):
            return np.zeros((0, self.bands), np.uint64)
        minhashes = _datasketch().MinHash.generator(
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
            keys = mix(keys + by_band[:, :, row])
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
    values = (mix(hashes + np.uint64(salt)) >> np.uint64(32)).tolist()
    ends = np.cumsum(np.bincount(of_sentence, minlength=len(sentences))).tolist()
    return [values[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _hash(texts: Iterable[bytes]) -> np.ndarray:
    """Return the 64-bit hashes of texts, uint64 `[n, 1]`."""
    digests = b"".join(blake2b(text, digest_size=_KEY_BYTES).digest() for text in texts)
    return np.frombuffer(digests, "<u8").astype(np.uint64)[:, None]


def _identity(value: int) -> int:
    return value


@functools.cache
def _datasketch() -> Any:
    try:
        return importlib.import_module("datasketch")
    except ImportError as error:
        raise UserError(
            'near_duplicates needs datasketch; pip install "mnmt-jax[prepare]"'
        ) from error
