"""Intervals of a table's cells by bootstrap over sentences, with resampled scores kept on disk."""

from __future__ import annotations

import dataclasses
import hashlib
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from mnmt_jax.errors import say
from mnmt_jax.evaluation.published_procedures import PROCEDURES, PaperScorer
from mnmt_jax.evaluation.result import RunResult
from mnmt_jax.evaluation.sentence_bootstrap import (
    METRICS,
    Draws,
    confidence_interval,
    resample_scores,
)
from mnmt_jax.files.atomic_write import new_path
from mnmt_jax.papers.groups import group_mean
from mnmt_jax.papers.tables import Column
from mnmt_jax.vocabulary.vocabulary import Vocabulary

_KEY = "evaluation"  # entry with the hash of the evaluation


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The evaluation of one seed of a row.

    Attributes:
        result: its scores.
        folder: its folder.
        procedure: published procedure of its scores; empty for sacreBLEU's.
        vocabulary: folder of the model's vocabulary, which a procedure needs.
    """

    result: RunResult
    folder: Path
    procedure: str = ""
    vocabulary: Path | None = None

    def scorer(self) -> PaperScorer | None:
        """Return the scorer of its procedure; None without one."""
        if not self.procedure or self.vocabulary is None:
            return None
        vocabulary = Vocabulary.load(self.vocabulary)
        return PaperScorer(PROCEDURES[self.procedure], vocabulary, None)


class SentenceIntervals:
    """Intervals over sentences; resampled scores are computed once.

    Args:
        folder: folder for resampled scores, one file for each evaluation and metric.
        flores200_model: tokenizer of spBLEU; None looks into sacreBLEU's cache.
    """

    def __init__(self, folder: Path, flores200_model: Path | None = None) -> None:
        self._folder, self._flores200_model = folder, flores200_model

    def of_column(
        self, column: Column, field: str, evaluation: Evaluation, before: Evaluation | None = None
    ) -> tuple[float, float] | None:
        """Return the 95 % interval of a column's score of one evaluation.

        Args:
            column: the column.
            field: field of `DirectionResult` that it averages.
            evaluation: the evaluation.
            before: for a column of changes, the evaluation on the same sentences that it is
                compared with.

        Returns:
            The interval; None if the evaluation has no translations or the metric has no scores of
            sentences.
        """
        after = self._group_draws(column, field, evaluation)
        if after is None or before is None:
            return None if after is None else confidence_interval(after)
        reference = self._group_draws(column, field, before)
        return None if reference is None else confidence_interval(after - reference)

    def _group_draws(self, column: Column, field: str, evaluation: Evaluation) -> np.ndarray | None:
        if field not in METRICS or not (evaluation.folder / "translations").is_dir():
            return None
        procedure = PROCEDURES.get(evaluation.procedure)
        if procedure and (procedure.swapped or field != "bleu"):
            return None
        draws = self._draws(evaluation, field)
        return group_mean(draws, column.group, evaluation.result.supervised)

    def _draws(self, evaluation: Evaluation, field: str) -> Draws:
        """Read the resampled scores of an evaluation, or compute and write them."""
        folder = evaluation.folder
        path = self._folder / folder.parent.name / f"{folder.name}-{field}.npz"
        key = _fingerprint(evaluation, field)
        draws = _read(path, key)
        if draws is None:
            say(f"{folder}: resampling {field}")
            draws = resample_scores(
                evaluation.result,
                folder,
                field,
                flores200_model=self._flores200_model,
                scorer=evaluation.scorer(),
            )
            _write(path, key, draws)
        return draws


def _fingerprint(evaluation: Evaluation, field: str) -> str:
    """Return a hash of what made the translations, and of their scores."""
    made_by = evaluation.folder / "translations" / "made_by.json"
    model = made_by.read_bytes() if made_by.is_file() else b""
    model += evaluation.procedure.encode()
    scores = repr(sorted(evaluation.result.values(field).items()))
    return hashlib.sha256(model + scores.encode()).hexdigest()


def _read(path: Path, key: str) -> Draws | None:
    """Read resampled scores; None if missing, damaged or of other translations."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            if str(arrays[_KEY]) != key:
                return None
            names = [name for name in arrays.files if name != _KEY]
            pairs = {name: name.partition("-") for name in names}
            return {(pairs[name][0], pairs[name][2]): arrays[name] for name in names}
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return None


def _write(path: Path, key: str, draws: Draws) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {_KEY: np.array(key)}
    arrays |= {"-".join(pair): values for pair, values in draws.items()}
    with new_path(path) as partial, partial.open("wb") as file:
        np.savez_compressed(file, **arrays)
