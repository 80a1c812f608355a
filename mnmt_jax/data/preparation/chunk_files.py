"""Intermediate files of a preparation: chunks of text, keys, dropped pairs and encoded pairs.

Every file appears under its name when it is complete. The JSON file of a chunk is written last; its
presence says that the chunk is done.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mnmt_jax.data.preparation.steps import PairBatch
from mnmt_jax.files.atomic_write import new_path, write_text
from mnmt_jax.files.json_objects import read_object
from mnmt_jax.vocabulary.language_codes import Direction

KEY = np.dtype([("key", "<u8"), ("index", "<u8"), ("column", "<u1")])
"""Key of a pair for deduplication, the pair's index and the column of the key."""


def pair_index(chunk: int, row: int | np.ndarray) -> Any:
    """Return the index of a pair: ordered by chunk, then row."""
    return np.uint64(chunk << 32) + np.asarray(row, np.uint64)


def write_batch(stem: Path, batch: PairBatch) -> None:
    """Write pairs to `STEM.text`, and their scores, if any, to `STEM.scores.npy`.

    Sentences have no NUL characters, which separate them: all sources, then all targets.
    """
    if batch.scores:
        save(_with_suffix(stem, "scores"), np.stack([*batch.scores.values()]))
    with new_path(stem.with_suffix(".text")) as partial:
        partial.write_bytes("\0".join((*batch.sources, *batch.targets)).encode())


def read_batch(stem: Path, pairs: int, direction: Direction, scores: Sequence[str]) -> PairBatch:
    """Read what `write_batch` wrote.

    Args:
        stem: path without suffix.
        pairs: number of pairs.
        direction: their languages.
        scores: names of their scores.
    """
    text = stem.with_suffix(".text").read_bytes().decode()
    lines = text.split("\0") if pairs else []
    columns = np.load(_with_suffix(stem, "scores")) if scores else []
    by_name = dict(zip(scores, columns, strict=True))
    return PairBatch(lines[:pairs], lines[pairs:], direction, by_name)


def write_keys(path: Path, chunk: int, keys: np.ndarray, partitions: int) -> list[int]:
    """Write the keys of a chunk, ordered by partition.

    Args:
        path: path of the file.
        chunk: number of the chunk.
        keys: uint64 `[pairs, columns]`.
        partitions: number of partitions; a key is in partition `key % partitions`.

    Returns:
        Number of keys before each partition, and of all: `partitions + 1` numbers.
    """
    pairs, columns = keys.shape
    table = np.empty(pairs * columns, KEY)
    table["key"] = keys.reshape(-1)
    table["index"] = np.repeat(pair_index(chunk, np.arange(pairs)), columns)
    table["column"] = np.tile(np.arange(columns, dtype=np.uint8), pairs)
    partition = table["key"] % np.uint64(partitions)
    save(path, table[np.argsort(partition, kind="stable")])
    counts = np.bincount(partition.astype(np.int64), minlength=partitions)
    return [0, *np.cumsum(counts).tolist()]


def repeated(table: np.ndarray) -> np.ndarray:
    """Return the indices of pairs that have a key of an earlier pair in the same column.

    Args:
        table: `KEY` records of one partition.

    Returns:
        uint64, sorted, each once.
    """
    ordered = table[np.lexsort((table["index"], table["key"], table["column"]))]
    same = (ordered["key"][1:] == ordered["key"][:-1]) & (
        ordered["column"][1:] == ordered["column"][:-1]
    )
    # Columns of one pair may have one key; a pair does not repeat itself.
    return np.unique(ordered["index"][1:][same])


def rows_of_chunk(paths: Iterable[Path], chunk: int) -> np.ndarray:
    """Return the rows of a chunk in files of sorted indices, int64, sorted, each once."""
    rows = []
    for path in paths:
        indices = np.load(path, mmap_mode="r")
        first, last = np.searchsorted(indices, [pair_index(chunk, 0), pair_index(chunk + 1, 0)])
        rows.append(np.asarray(indices[first:last] - pair_index(chunk, 0), np.int64))
    return np.unique(np.concatenate(rows)) if rows else np.empty(0, np.int64)


@dataclasses.dataclass(frozen=True)
class EncodedChunk:
    """Encoded pairs of a chunk, memory-mapped.

    Attributes:
        lengths: numbers of source and target pieces, int32 `[pairs, 2]`.
        pieces: pieces of all pairs, int32 `[total]`: source and target of the first pair, ...
    """

    lengths: np.ndarray
    pieces: np.ndarray

    def pairs(self, *, reverse: bool) -> Iterator[tuple[list[int], list[int]]]:
        """Yield source and target pieces; with `reverse`, target and source."""
        pieces, start = self.pieces.tolist(), 0
        for source, target in self.lengths.tolist():
            middle, end = start + source, start + source + target
            sides = pieces[start:middle], pieces[middle:end]
            yield sides[::-1] if reverse else sides
            start = end


def write_encoded(
    stem: Path, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> None:
    """Write encoded pairs to `STEM.lengths.npy` and `STEM.pieces.npy`."""
    counts = [(len(one), len(other)) for one, other in zip(sources, targets, strict=True)]
    flat = [piece for pair in zip(sources, targets, strict=True) for side in pair for piece in side]
    save(_with_suffix(stem, "lengths"), np.array(counts, np.int32).reshape(-1, 2))
    save(_with_suffix(stem, "pieces"), np.array(flat, np.int32))


def read_encoded(stem: Path) -> EncodedChunk:
    """Open what `write_encoded` wrote."""
    lengths, pieces = (_with_suffix(stem, name) for name in ("lengths", "pieces"))
    return EncodedChunk(np.load(lengths, mmap_mode="r"), np.load(pieces, mmap_mode="r"))


def save(path: Path, array: np.ndarray) -> None:
    """Write an array atomically in NumPy's format."""
    with new_path(path) as partial, open(partial, "wb") as file:
        np.save(file, array)


def write_facts(path: Path, facts: dict[str, Any]) -> None:
    """Write a JSON object, which says that a chunk is done."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(facts, ensure_ascii=False) + "\n")


def read_facts(path: Path) -> dict[str, Any]:
    """Read what `write_facts` wrote."""
    return read_object(path, remedy="remove the folder, and prepare the text again")


def _with_suffix(stem: Path, name: str) -> Path:
    return stem.with_name(f"{stem.name}.{name}.npy")
