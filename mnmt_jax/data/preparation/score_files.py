"""Scores of sentence pairs in tab-separated files, such as those of LASER and Bicleaner.

The scores of a file are looked up by the hash of the pair, so text and scores need not have the
same lines. The sorted hashes are written to `FILE.index` once and mapped into memory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mnmt_jax.data.preparation.duplicates import pair_keys
from mnmt_jax.data.preparation.steps import PairBatch, PairRule
from mnmt_jax.data.text_reader import Flaw, read_lines
from mnmt_jax.errors import UserError
from mnmt_jax.files.atomic_write import new_folder
from mnmt_jax.vocabulary.languages import Direction

_BLOCK = 100_000  # lines that are hashed at a time
_PARTITIONS = 64  # of the hashes by their first bits; one of them is sorted at a time
_SHIFT = np.uint64(64 - 6)
_MAX_LINE_BYTES = 1 << 17
_ENTRY = np.dtype([("key", "<u8"), ("score", "<f4")])


@dataclasses.dataclass(frozen=True)
class ScoreFile(PairRule):
    """A score in a file below a threshold.

    A line of a file has three columns separated by tabs: a score and the two sentences. If a pair
    is repeated, its largest score counts. Transforms that precede the rule change what is looked
    up, so it usually comes first.

    Source: the files of LASER's and CCMatrix' mining, and of Bicleaner.

    Attributes:
        files: name of the files with the codes of two languages, as `scores/{first}-{second}.tsv`;
            gzip if it ends in `.gz`. Columns are in the order of the codes in the name.
        minimum: smallest score that is kept.
        score_column: number of the column with the score, 1 to 3.
        missing: `drop` or `keep`, pairs that the file does not have.
    """

    name = "score_file"
    files: str
    minimum: float
    score_column: int = 1
    missing: Literal["drop", "keep"] = "drop"

    def __post_init__(self) -> None:
        """Check the settings."""
        has_codes = "{first}" in self.files and "{second}" in self.files
        self.require("files", has_codes, expected="a name with {first} and {second}")
        self.require("minimum", math.isfinite(self.minimum), expected="a number")
        self.require("score_column", 1 <= self.score_column <= 3, expected="from 1 to 3")
        self.require_choice("missing", ("drop", "keep"))

    def check_languages(self, languages: Sequence[str]) -> None:
        """Write the indices of the files of these languages.

        Raises:
            UserError: if there is no file, or a line of one is wrong.
        """
        directions = self._directions(languages)
        if not directions:
            raise UserError(f"score_file: files = {self.files!r}: no file of two of the languages")
        for direction in directions:
            self._table(direction).facts()

    def dependencies(self, languages: Sequence[str]) -> dict[str, str]:
        """Return the digests of the scores by file."""
        tables = [self._table(direction) for direction in self._directions(languages)]
        return {str(table.path): table.facts()["digest"] for table in tables}

    def keeps(self, batch: PairBatch) -> np.ndarray:
        """Return which pairs are kept, bool `[n]`."""
        scores = self._table(batch.direction).look_up(pair_keys(batch.sources, batch.targets))
        is_missing = np.isnan(scores) & (self.missing == "keep")
        return is_missing | (scores >= self.minimum)

    def _directions(self, languages: Sequence[str]) -> list[Direction]:
        pairs = itertools.combinations(sorted(languages), 2)
        return [pair for pair in pairs if self._path(pair) or self._path(pair[::-1])]

    def _path(self, direction: Direction) -> Path | None:
        first, second = direction
        path = Path(self.files.replace("{first}", first).replace("{second}", second))
        return path if path.is_file() else None

    def _table(self, direction: Direction) -> _ScoreTable:
        is_reversed = self._path(direction) is None
        path = self._path(direction[::-1] if is_reversed else direction)
        if path is None:
            raise UserError(
                f"score_file: files = {self.files!r}: no file of {'-'.join(direction)}; write one"
            )
        return _ScoreTable(path, self.score_column, is_reversed)


@dataclasses.dataclass(frozen=True)
class _ScoreTable:
    """The scores of a file.

    Attributes:
        path: the file.
        score_column: number of the column with the score, from 1.
        is_reversed: whether the second language comes first.
    """

    path: Path
    score_column: int
    is_reversed: bool

    @property
    def index(self) -> Path:
        """Folder of the index."""
        return self.path.with_name(f"{self.path.name}.index")

    def look_up(self, keys: np.ndarray) -> np.ndarray:
        """Return the scores of pairs, float32 `[n]`; not a number where there is none."""
        known_keys, scores = _open_index(self.index, self.facts()["digest"])
        positions = np.searchsorted(known_keys, keys)
        positions[positions == len(known_keys)] = 0
        is_known = known_keys[positions] == keys if len(known_keys) else np.zeros(len(keys), bool)
        result = np.full(len(keys), np.nan, np.float32)
        result[is_known] = scores[positions[is_known]]
        return result

    def facts(self) -> dict[str, Any]:
        """Return what the index was made of and its digest; make it if it is not there or old."""
        expected = self._identity()
        with contextlib.suppress(OSError, ValueError):
            facts: dict[str, Any] = json.loads((self.index / "facts.json").read_text("utf-8"))
            if expected.items() <= facts.items():
                return facts
        with new_folder(self.index, overwrite=True, flag="") as folder:
            facts = {**expected, "digest": self._write(folder)}
            (folder / "facts.json").write_text(json.dumps(facts), "utf-8")
        return facts

    def _identity(self) -> dict[str, Any]:
        status = self.path.stat()
        return {
            "bytes": status.st_size,
            "modified": status.st_mtime_ns,
            "score_column": self.score_column,
            "reversed": self.is_reversed,
        }

    def _write(self, folder: Path) -> str:
        """Write the sorted hashes and scores; return a digest of both."""
        paths = [folder / str(number) for number in range(_PARTITIONS)]
        count = self._partition(paths)
        keys = _new_array(folder / "keys.npy", "<u8", count)
        scores = _new_array(folder / "scores.npy", "<f4", count)
        digest, start = sha256(), 0
        for path in paths:
            entries = np.fromfile(path, _ENTRY)
            entries = entries[np.lexsort((-entries["score"], entries["key"]))]
            digest.update(entries.tobytes())
            part = slice(start, start + len(entries))
            keys[part], scores[part] = entries["key"], entries["score"]
            start += len(entries)
            path.unlink()
        return digest.hexdigest()[:16]

    def _partition(self, paths: Sequence[Path]) -> int:
        """Write hashes and scores to files by the first bits of the hash; return their number."""
        count = 0
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(open(path, "wb")) for path in paths]
            for entries in self._blocks():
                count += len(entries)
                numbers = entries["key"] >> _SHIFT
                for number, file in enumerate(files):
                    file.write(entries[numbers == number].tobytes())
        return count

    def _blocks(self) -> Iterator[np.ndarray]:
        """Yield the hashes and scores of the lines in blocks."""
        lines = enumerate(read_lines(str(self.path), _MAX_LINE_BYTES), start=1)
        rows = (self._parse(number, line) for number, line in lines if not isinstance(line, Flaw))
        while block := list(itertools.islice(rows, _BLOCK)):
            scores, first, second = zip(*block, strict=True)
            sides = (second, first) if self.is_reversed else (first, second)
            entries = np.empty(len(block), _ENTRY)
            entries["key"], entries["score"] = pair_keys(*sides), scores
            yield entries

    def _parse(self, number: int, line: str) -> tuple[float, str, str]:
        columns = line.split("\t")
        if len(columns) != 3:
            raise UserError(
                f"{self.path}:{number}: {len(columns)} columns; write a score and two sentences "
                "with tabs between them"
            )
        score = columns.pop(self.score_column - 1)
        try:
            return float(score), columns[0].strip(), columns[1].strip()
        except ValueError:
            raise UserError(
                f"{self.path}:{number}: column {self.score_column}: {score[:20]!r} is not a "
                "number; set score_column"
            ) from None


def _new_array(path: Path, dtype: str, count: int) -> np.ndarray:
    if not count:  # nothing can be mapped
        np.save(path, np.zeros(0, dtype))
        return np.zeros(0, dtype)
    return np.lib.format.open_memmap(path, "w+", np.dtype(dtype), (count,))


@functools.lru_cache(maxsize=64)
def _open_index(index: Path, digest: str) -> tuple[np.ndarray, np.ndarray]:
    """Map the hashes and the scores of an index, uint64 and float32 `[pairs]`."""
    arrays = (np.load(index / name, mmap_mode="r") for name in ("keys.npy", "scores.npy"))
    keys, scores = arrays
    return keys, scores
