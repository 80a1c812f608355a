"""Optional metrics: spBLEU, COMET, BERTScore, and the published scoring procedures."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.benchmark import TestSet
from mnmt_jax.evaluation.neural_metrics import ENGLISH_MODELS, BertScore, Comet
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
        comet: checkpoint of a COMET model; None leaves COMET out.
        bert_score: folder of BERTScore's models; None leaves BERTScore out.
        bert_score_english: its model for English.
        paper: name of a published procedure, "auto", or "" for none.
    """

    spbleu: bool = True
    flores200_model: str | Path | None = None
    comet: str | Path | None = None
    bert_score: str | Path | None = None
    bert_score_english: str = ENGLISH_MODELS[0]
    paper: str = ""


class OptionalMetrics:
    """Scorer of optional metrics.

    Args:
        wanted: the metrics to compute.
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
        self._comet = Comet(selection.comet) if selection.comet else None
        self._paper: PaperScorer | None = None
        if selection.paper:
            if vocabulary is None:
                raise UserError("--paper_compatible needs the model's vocabulary")
            procedure = choose_procedure(selection.paper, languages)
            self._paper = PaperScorer(procedure, vocabulary, self._tokenizer)
        own_models = self._paper is None or self._paper.procedure.language_specific_bert_models
        self._bert = (
            BertScore(
                selection.bert_score,
                language_specific_models=own_models,
                english=selection.bert_score_english,
            )
            if selection.bert_score
            else None
        )
        self.signatures: dict[str, Any] = {}

    @property
    def settings(self) -> dict[str, str]:
        """Model or procedure of each optional metric that is computed, by flag."""
        settings = {}
        if self._selection.spbleu and self._tokenizer is not None:
            settings["spbleu"] = self._tokenizer.fingerprint
        if self._comet is not None:
            settings["comet"] = self._comet.signature
        if self._bert is not None:
            settings["bert_score"] = str(self._selection.bert_score)
            if self._selection.bert_score_english != ENGLISH_MODELS[0]:
                settings["bert_score"] += f", {self._selection.bert_score_english} for English"
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
        neural, missing = self._neural_scores(result, texts, hypotheses)
        statistics |= {name: mean_statistics(scores) for name, scores in neural.items()}
        paper, left_out = self._published_scores(result, texts, hypotheses)
        notes += [note for note in (missing, left_out) if note and note not in notes]
        updates |= {name: 100.0 * float(np.mean(scores)) for name, scores in neural.items()}
        updates |= {"paper": paper, "notes": (*result.notes, *notes)}
        return dataclasses.replace(
            scored, result=dataclasses.replace(result, **updates), statistics=statistics
        )

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
        self, result: DirectionResult, texts: Any, hypotheses: Sequence[str]
    ) -> tuple[dict[str, Sequence[float]], str]:
        """Return COMET and BERTScore of each sentence, and a note if a model is missing."""
        scores: dict[str, Sequence[float]] = {}
        note = ""
        if self._comet is not None:
            scores["comet"] = self._comet.score(texts.sources, hypotheses, texts.references)
            self.signatures["comet"] = self._comet.signature
        if self._bert is not None:
            note = self._bert.missing(result.target)
            if not note:
                score = self._bert.score(hypotheses, texts.references, result.target)
                scores["bert_score"] = score
                signatures = self.signatures.setdefault("bert_score", {})
                signatures[f"to {result.target}"] = self._bert.signature(result.target)
        return scores, note

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
            neural, _ = self._neural_scores(result, prepared, prepared.hypotheses)
            means = {name: 100.0 * float(np.mean(values)) for name, values in neural.items()}
            scores |= {name: round_as_published(mean) for name, mean in means.items()}
        if result.off_target_lid is not None:
            scores["off_target"] = round_as_published(result.off_target_lid)
        return scores, self._paper.note(result.direction)
