"""Intervals of a table's cells by bootstrap over sentences, with resampled scores kept on disk."""

from __future__ import annotations

import dataclasses
import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mnmt_jax.evaluation.benchmark import TestSet
from mnmt_jax.evaluation.metrics import score_and_statistics
from mnmt_jax.evaluation.published_procedures import PROCEDURES, PaperScorer
from mnmt_jax.evaluation.result import RunResult
from mnmt_jax.evaluation.sentence_bootstrap import Draws, confidence_interval, resample_scores
from mnmt_jax.evaluation.sentence_statistics import DirectionStatistics, read_statistics
from mnmt_jax.evaluation.translations import PROVENANCE_FILE, TRANSLATIONS, read_stored_texts
from mnmt_jax.files.atomic_write import new_path
from mnmt_jax.papers.groups import group_mean
from mnmt_jax.papers.tables import Column
from mnmt_jax.vocabulary.language_codes import Direction
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

    def statistics(self) -> Mapping[Direction, DirectionStatistics]:
        """Return the statistics of sentences, by direction, of its scores.

        Those of a published procedure are computed from the translations: of BLEU, if it does not
        swap hypotheses and references.

        Raises:
            UserError: if translations are missing or damaged.
        """
        if not self.procedure or self.vocabulary is None:
            return read_statistics(self.folder, self.result.directions)
        procedure = PROCEDURES[self.procedure]
        if procedure.swapped or not (self.folder / TRANSLATIONS).is_dir():
            return {}
        scorer = PaperScorer(procedure, Vocabulary.load(self.vocabulary), None)
        return {
            pair: self._procedure_statistics(scorer, pair)
            for pair, score in self.result.values("bleu").items()
            if score is not None
        }

    def _procedure_statistics(
        self, scorer: PaperScorer, direction: Direction
    ) -> DirectionStatistics:
        stored = read_stored_texts(self.folder / TRANSLATIONS, direction)
        texts = scorer.texts(direction, stored.sources, stored.hypotheses, stored.references)
        _, bleu = score_and_statistics(*scorer.bleu_inputs(direction, texts))
        return DirectionStatistics.create(
            TestSet(stored.sources, stored.references), {"bleu": bleu}
        )


class SentenceIntervals:
    """Intervals over sentences; resampled scores are computed once.

    Args:
        folder: folder for resampled scores, one file for each evaluation and metric.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

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
            The interval; None without statistics of the metric's sentences.
        """
        after = self._group_draws(column, field, evaluation)
        if after is None or before is None:
            return None if after is None else confidence_interval(after)
        reference = self._group_draws(column, field, before)
        return None if reference is None else confidence_interval(after - reference)

    def _group_draws(self, column: Column, field: str, evaluation: Evaluation) -> np.ndarray | None:
        draws = self._draws(evaluation, field)
        scores = evaluation.result.values(field)
        missing = any(score is not None and pair not in draws for pair, score in scores.items())
        return None if missing else group_mean(draws, column.group, evaluation.result.supervised)

    def _draws(self, evaluation: Evaluation, field: str) -> Draws:
        """Read the resampled scores of an evaluation, or compute and write them."""
        folder = evaluation.folder
        path = self._folder / folder.parent.name / f"{folder.name}-{field}.npz"
        key = _fingerprint(evaluation, field)
        draws = _read(path, key)
        if draws is None:
            draws = resample_scores(evaluation.statistics(), field)
            if draws:
                _write(path, key, draws)
        return draws


def _fingerprint(evaluation: Evaluation, field: str) -> str:
    """Return a hash of what made the translations, and of their scores."""
    provenance_file = evaluation.folder / TRANSLATIONS / PROVENANCE_FILE
    model = provenance_file.read_bytes() if provenance_file.is_file() else b""
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
