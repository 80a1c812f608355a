"""Optional metrics: spBLEU, neural metrics, and the published scoring procedures."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.benchmark import TestSet
from mnmt_jax.evaluation.metrics_environment import MetricWorker
from mnmt_jax.evaluation.neural_metrics import (
    ENGLISH_MODELS,
    BertScore,
    Comet,
    MetricX,
    NeuralMetric,
)
from mnmt_jax.evaluation.published_procedures import (
    PaperScorer,
    choose_procedure,
    round_as_published,
)
from mnmt_jax.evaluation.result import DirectionResult
from mnmt_jax.evaluation.scoring import ScoredDirection
from mnmt_jax.evaluation.sentence_statistics import mean_statistics
from mnmt_jax.evaluation.spbleu import FloresTokenizer, find_tokenizer, missing_model_note, spbleu
from mnmt_jax.vocabulary.vocabulary import Vocabulary


@dataclasses.dataclass(frozen=True)
class MetricSelection:
    """Selection of optional metrics.

    Attributes:
        spbleu: compute spBLEU, or add a note if its tokenizer is missing.
        flores200_model: file of spBLEU's tokenizer; None looks into sacreBLEU's cache.
        comet: checkpoints of models of COMET's library by metric, `comet`, `xcomet` or `kiwi`.
        metricx: folder of a MetricX-24 model; None leaves MetricX out.
        bert_score: folder of BERTScore's models; None leaves BERTScore out.
        bert_score_english: its model for English.
        metrics_environment: environment of the neural metrics; None for the default one.
        paper: name of a published procedure, "auto", or "" for none.
    """

    spbleu: bool = True
    flores200_model: str | Path | None = None
    comet: Mapping[str, str | Path] = dataclasses.field(default_factory=dict)
    metricx: str | Path | None = None
    bert_score: str | Path | None = None
    bert_score_english: str = ENGLISH_MODELS[0]
    metrics_environment: Path | None = None
    paper: str = ""


class OptionalMetrics:
    """Scorer of optional metrics.

    Args:
        selection: the metrics to compute.
        vocabulary: vocabulary of the model; only a published procedure needs it.
        languages: languages of the model.

    Attributes:
        signatures: signature of each computed metric, by metric.

    Raises:
        UserError: if a selected file, package or procedure is missing, or if the vocabulary is
            needed and unknown.
    """

    def __init__(
        self,
        selection: MetricSelection = MetricSelection(),
        vocabulary: Vocabulary | None = None,
        languages: Sequence[str] = (),
    ) -> None:
        self._selection = selection
        self._tokenizer: FloresTokenizer | None = find_tokenizer(selection.flores200_model)
        self._paper: PaperScorer | None = None
        if selection.paper:
            if vocabulary is None:
                raise UserError(
                    f"--paper_compatible={selection.paper}: its procedure uses the vocabulary of a "
                    "model; evaluate a --run, or leave the flag out"
                )
            procedure = choose_procedure(selection.paper, languages)
            self._paper = PaperScorer(procedure, vocabulary, self._tokenizer)
        own_models = self._paper is None or self._paper.procedure.language_specific_bert_models
        self._neural = _neural_metrics(selection, language_specific_models=own_models)
        self.signatures: dict[str, Any] = {}

    def settings(self, targets: Iterable[str]) -> dict[str, Any]:
        """Return the model or procedure of each optional metric that is computed, by flag.

        Args:
            targets: target languages of the scores.

        Returns:
            The ends of the signatures of the scores; as in `signatures` one by target language
            where they differ.
        """
        settings: dict[str, Any] = {}
        if self._selection.spbleu and self._tokenizer is not None:
            settings["spbleu"] = f"model:{self._tokenizer.fingerprint}"
        for metric, target in itertools.product(self._neural, targets):
            _record_signature(settings, metric, target)
        if self._paper is not None:
            settings["paper_compatible"] = self._paper.procedure.name
        return settings

    def add(
        self, scored: ScoredDirection, texts: TestSet, hypotheses: Sequence[str]
    ) -> ScoredDirection:
        """Return a scored direction with the optional scores and their statistics added.

        Args:
            scored: the direction with the standard scores.
            texts: the test set.
            hypotheses: translations of its sources.
        """
        result, statistics = scored.result, dict(scored.statistics)
        updates: dict[str, Any] = {}
        notes: list[str] = []
        if self._selection.spbleu and self._tokenizer is None:
            notes.append(missing_model_note())
        elif self._selection.spbleu and self._tokenizer is not None:
            updates["spbleu"], statistics["spbleu"], self.signatures["spbleu"] = spbleu(
                hypotheses, texts.references, self._tokenizer
            )
        neural, missing = self._neural_scores(result.target, texts, hypotheses)
        statistics |= {name: mean_statistics(scores) for name, scores in neural.items()}
        paper, left_out = self._published_scores(result, texts, hypotheses)
        notes += [note for note in (missing, left_out) if note and note not in notes]
        updates |= {name: float(np.mean(scores)) for name, scores in neural.items()}
        updates |= {"paper": paper, "notes": (*result.notes, *notes)}
        return dataclasses.replace(
            scored, result=dataclasses.replace(result, **updates), statistics=statistics
        )

    def scores(
        self, texts: TestSet, hypotheses: Sequence[str], target_language: str
    ) -> dict[str, float]:
        """Return the optional scores of translations by metric.

        Args:
            texts: the test set.
            hypotheses: translations of its sources.
            target_language: their language.
        """
        neural, _ = self._neural_scores(target_language, texts, hypotheses)
        scores = {name: float(np.mean(values)) for name, values in neural.items()}
        if self._selection.spbleu and self._tokenizer is not None:
            scores["spbleu"], _, _ = spbleu(hypotheses, texts.references, self._tokenizer)
        return scores

    def paper(self, results: Sequence[DirectionResult]) -> dict[str, Any]:
        """Return the averages of the published procedure, JSON-serialisable; {} without one."""
        if self._paper is None:
            return {}
        procedure = self._paper.procedure
        metrics = dict.fromkeys(key for item in results for key in item.paper)
        averages = {
            key: procedure.table(
                key, {item.direction: item.paper[key] for item in results if key in item.paper}
            )
            for key in metrics
        }
        return {"procedure": procedure.name, "label": procedure.label, "averages": averages}

    def _neural_scores(
        self, target: str, texts: TestSet, hypotheses: Sequence[str]
    ) -> tuple[dict[str, list[float]], str]:
        """Return the neural scores of each sentence, and a note if a model is missing."""
        scores: dict[str, list[float]] = {}
        notes = []
        for metric in self._neural:
            note = metric.missing(target)
            if note:
                notes.append(note)
                continue
            scores[metric.name] = metric.score(texts, hypotheses, target)
            _record_signature(self.signatures, metric, target)
        return scores, "; ".join(notes)

    def _published_scores(
        self, result: DirectionResult, texts: TestSet, hypotheses: Sequence[str]
    ) -> tuple[Mapping[str, float], str]:
        """Return the scores of the published procedure, and a note if BLEU is left out."""
        if self._paper is None:
            return {}, ""
        prepared = self._paper.texts(result.direction, texts.sources, hypotheses, texts.references)
        scores = self._paper.scores(result.direction, prepared)
        if prepared.references:
            # Swapping does not affect COMET (named fields) and BERTScore (its F is symmetric).
            selected = TestSet(prepared.sources, prepared.references)
            neural, _ = self._neural_scores(result.target, selected, prepared.hypotheses)
            means = {name: float(np.mean(values)) for name, values in neural.items()}
            scores |= {name: round_as_published(mean) for name, mean in means.items()}
        if result.off_target_lid is not None:
            scores["off_target"] = round_as_published(result.off_target_lid)
        return scores, self._paper.note(result.direction)


def _record_signature(signatures: dict[str, Any], metric: NeuralMetric, target: str) -> None:
    """Add the signature of a metric, by target language unless one model has all languages."""
    signature = metric.signature(target)
    if signature == metric.setting:
        signatures[metric.name] = signature
    else:
        signatures.setdefault(metric.name, {})[f"to {target}"] = signature


def _neural_metrics(
    selection: MetricSelection, *, language_specific_models: bool
) -> list[NeuralMetric]:
    """Return the neural metrics of a selection; they share a process.

    Args:
        selection: the selected metrics.
        language_specific_models: as in `BertScore`.
    """
    if not (selection.comet or selection.metricx or selection.bert_score):
        return []
    worker = MetricWorker(selection.metrics_environment)
    metrics: list[NeuralMetric] = [
        Comet(path, worker, name) for name, path in selection.comet.items()
    ]
    if selection.metricx:
        metrics.append(MetricX(selection.metricx, worker))
    if selection.bert_score:
        metrics.append(
            BertScore(
                selection.bert_score,
                worker,
                language_specific_models=language_specific_models,
                english=selection.bert_score_english,
            )
        )
    return metrics
