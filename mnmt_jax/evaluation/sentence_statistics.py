"""Sufficient statistics of sentences, from which scores of any set of sentences are computed.

OUTPUT/statistics/de-fr.npz    one array [sentences, statistics] for each metric

The statistics of a set of sentences are the sums of those of its sentences. BLEU, spBLEU and chrF++
have the n-gram counts of sacreBLEU; the other metrics, which are means over sentences, have the
score and a one. Scores of many sets are computed at once, by sacreBLEU's formulas.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.benchmark import TestSet
from mnmt_jax.evaluation.result import DirectionResult
from mnmt_jax.files.atomic_write import new_path
from mnmt_jax.files.file_digest import short_digest
from mnmt_jax.vocabulary.language_codes import Direction

_MAX_ORDER = 4  # n-grams of BLEU
_BETA = 2.0  # weight of the recall in chrF++
_HASHES = ("source_hash", "reference_hash")  # entries of a file besides the metrics
_TOLERANCE = 0.01  # between a score and that of the statistics, in percent

MetricStatistics = Mapping[str, np.ndarray]
"""Arrays [sentences, statistics] by metric, a field of `DirectionResult`."""


@dataclass(frozen=True)
class DirectionStatistics:
    """Statistics of the sentences of one direction.

    Attributes:
        metrics: statistics by metric.
        source_hash: hash of all source sentences.
        reference_hash: hash of all references.
    """

    metrics: MetricStatistics
    source_hash: str
    reference_hash: str

    @staticmethod
    def create(texts: TestSet, metrics: MetricStatistics) -> DirectionStatistics:
        """Return statistics with the hashes of a test set."""
        return DirectionStatistics(metrics, _hash(texts.sources), _hash(texts.references))


def mean_statistics(scores: Sequence[float]) -> np.ndarray:
    """Return the statistics of a metric that is the mean of these scores of sentences."""
    values = np.asarray(scores, np.float64)
    return np.stack([values, np.ones_like(values)], axis=1)


def scores_of_sums(metric: str, sums: np.ndarray) -> np.ndarray:
    """Return the scores of sets of sentences, in the unit of tables.

    Args:
        metric: field of `DirectionResult`.
        sums: sums of statistics, [sets, statistics].

    Returns:
        The score of each set of sentences, [sets].
    """
    return _SCORES.get(metric, _mean)(sums)


def _mean(sums: np.ndarray) -> np.ndarray:
    """Return means from sums of scores and their numbers, [sets, 2]."""
    return np.asarray(sums[:, 0] / sums[:, 1])


def _bleu(sums: np.ndarray) -> np.ndarray:
    """Return BLEU with exponential smoothing, as sacreBLEU's `BLEU.compute_bleu`.

    Args:
        sums: lengths of hypotheses and references, matches of 1- to 4-grams, and n-grams of the
            hypotheses, [sets, 10].
    """
    length, reference_length = sums[:, 0], sums[:, 1]
    matches, total = np.split(sums[:, 2:], [_MAX_ORDER], axis=1)
    shortness = np.maximum(reference_length / np.maximum(length, 1), 1)
    penalty = np.where((length == 0) & (reference_length > 0), 0, np.exp(1 - shortness))
    is_counted = total > 0  # a longer n-gram contains the shorter ones
    halvings = np.cumsum((matches == 0) & is_counted, axis=1)
    smoothed = np.where(matches > 0, matches, 0.5**halvings) / np.maximum(total, 1)
    with np.errstate(divide="ignore"):  # the logarithm of 0 makes a score of 0
        logs = np.log(np.where(is_counted, 100 * smoothed, 0))
    return penalty * np.exp(logs.mean(axis=1)) * matches.any(axis=1)


def _chrf(sums: np.ndarray) -> np.ndarray:
    """Return chrF++, as sacreBLEU's `CHRF`.

    Args:
        sums: n-grams of hypotheses, of references, and matches, for each order of characters and
            words, [sets, 3 x orders].
    """
    in_hypotheses, in_references, matches = np.moveaxis(sums.reshape(len(sums), -1, 3), -1, 0)
    is_counted = (in_hypotheses > 0) & (in_references > 0)
    orders = np.maximum(is_counted.sum(axis=1), 1)
    precision, recall = (
        np.where(is_counted, matches / np.maximum(count, 1), 0).sum(axis=1) / orders
        for count in (in_hypotheses, in_references)
    )
    weighted = _BETA**2 * precision + recall
    scores = 100 * (1 + _BETA**2) * precision * recall / np.where(weighted > 0, weighted, 1)
    return np.asarray(scores)


_SCORES: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "bleu": _bleu,
    "spbleu": _bleu,
    "chrf": _chrf,
}


def score_of(metric: str, statistics: np.ndarray) -> float:
    """Return the score of all sentences, [sentences, statistics]."""
    return float(scores_of_sums(metric, statistics.sum(axis=0, keepdims=True))[0])


def check_statistics(output: Path) -> None:
    """Check that a folder holds no statistics other than those of an evaluation.

    Raises:
        UserError: if there are other files.
    """
    foreign = [path for path in _folder(output).glob("*.npz") if _read(path) is None]
    if foreign:
        raise UserError(
            f"{foreign[0]}: already exists and was not written by mnmt-jax; move it, or choose "
            "another --output"
        )


def write_statistics(output: Path, statistics: Mapping[Direction, DirectionStatistics]) -> None:
    """Write the statistics of an evaluation to its folder; those of other directions are removed.

    Args:
        output: the folder of the evaluation.
        statistics: statistics by direction.
    """
    folder = _folder(output)
    folder.mkdir(exist_ok=True)
    for path in folder.glob("*.npz"):
        path.unlink(missing_ok=True)
    for direction, item in statistics.items():
        hashes = zip(_HASHES, (item.source_hash, item.reference_hash), strict=True)
        arrays: dict[str, Any] = {name: np.array(value) for name, value in hashes}
        arrays |= {name: _compact(values) for name, values in item.metrics.items()}
        with new_path(_path(output, direction)) as partial, partial.open("wb") as file:
            np.savez_compressed(file, **arrays)


def read_statistics(
    output: Path, results: Sequence[DirectionResult]
) -> dict[Direction, DirectionStatistics]:
    """Read the statistics of an evaluation.

    Args:
        output: the folder of the evaluation.
        results: its results.

    Returns:
        Statistics by direction. Directions without a readable file, and metrics whose statistics do
        not have the recorded score, are absent.
    """
    statistics = {}
    for result in results:
        item = _read(_path(output, result.direction))
        if item is None:
            continue
        metrics = {
            name: values for name, values in item.metrics.items() if _agrees(name, values, result)
        }
        statistics[result.direction] = DirectionStatistics(
            metrics, item.source_hash, item.reference_hash
        )
    return statistics


def _agrees(name: str, values: np.ndarray, result: DirectionResult) -> bool:
    """Return whether statistics have the recorded score and number of sentences."""
    score = getattr(result, name, None)
    return (
        score is not None
        and len(values) == result.sentences
        and abs(score_of(name, values) - score) < _TOLERANCE
    )


def _read(path: Path) -> DirectionStatistics | None:
    """Read a file; None if missing, damaged or of another program."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            hashes = [str(arrays[name]) for name in _HASHES]
            metrics = {
                name: arrays[name].astype(np.float64)
                for name in arrays.files
                if name not in _HASHES
            }
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    return DirectionStatistics(metrics, *hashes)


def _compact(values: np.ndarray) -> np.ndarray:
    """Return counts as 32-bit integers, other statistics as they are."""
    counts = values.astype(np.int32)
    return counts if np.array_equal(counts, values) else values


def _hash(lines: Sequence[str]) -> str:
    return short_digest("\n".join(lines))


def _folder(output: Path) -> Path:
    return output / "statistics"


def _path(output: Path, direction: Direction) -> Path:
    return _folder(output) / f"{'-'.join(direction)}.npz"
