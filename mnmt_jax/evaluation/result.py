"""Evaluation results per direction and metric, with averages, and their `scores.json` format."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.averages import Averages, average_groups
from mnmt_jax.files.atomic_write import write_text
from mnmt_jax.files.json_objects import is_object_with, read_object
from mnmt_jax.files.storage_errors import one_line
from mnmt_jax.vocabulary.detector_names import LID176
from mnmt_jax.vocabulary.language_codes import Direction
from mnmt_jax.vocabulary.language_detectors import detector_titles
from mnmt_jax.vocabulary.languages import find_english

TestSentence = tuple[Direction, int, str, str]
"""Direction, number in the test set, source and reference of a sentence."""

FORMAT = 1
SCORES_FILE = "scores.json"
"""Name of the file that `write_result` writes into the folder of an evaluation."""

Curve = tuple[tuple[float, float], ...]
"""Points (step, value) of a training curve."""


@dataclass(frozen=True)
class Metric:
    """A metric with one value per direction.

    Attributes:
        key: field of `DirectionResult`.
        title: title in tables.
        higher_is_better: False for error ratios.
        explanation: one sentence for readers of the report.
    """

    key: str
    title: str
    higher_is_better: bool
    explanation: str


BLEU = Metric("bleu", "BLEU", True, "sacreBLEU with the target language's tokenizer.")
CHRF = Metric("chrf", "chrF++", True, "Character 6-grams and word bigrams.")
EXACT_MATCH = Metric("exact_match", "Exact", True, "Percent of outputs equal to the reference.")
NEAREST = Metric(
    "off_target_nearest",
    "Off-target",
    False,
    "Percent of outputs nearer to the sentence's rendering in another language.",
)
LID = Metric(
    "off_target_lid",
    "Off-target (lid.176)",
    False,
    "Percent of outputs that fastText's lid.176 takes for another language; on short phrases "
    "it errs, see its rate on the references.",
)
SPBLEU = Metric(
    "spbleu", "spBLEU", True, "BLEU over the pieces of Flores-200's SentencePiece model."
)
COMET = Metric("comet", "COMET", True, "A neural metric that reads source, output and reference.")
XCOMET = Metric("xcomet", "xCOMET", True, "COMET with error spans; it reads source and reference.")
KIWI = Metric("kiwi", "CometKiwi", True, "COMET without reference.")
METRICX = Metric("metricx", "MetricX", False, "MetricX-24's error score, from 0 to 25.")
BERT_SCORE = Metric("bert_score", "BERTScore", True, "F of contextual embeddings' similarity.")

STANDARD_METRICS = (BLEU, CHRF, EXACT_MATCH, NEAREST, LID)
"""Metrics that every evaluation has; the others are optional."""
_NEURAL_METRICS = (COMET, XCOMET, KIWI, METRICX, BERT_SCORE)
OPTIONAL_METRICS = (*_NEURAL_METRICS, SPBLEU)
"""The others, in the order of tables: neural metrics, then spBLEU."""
METRICS = (*STANDARD_METRICS, SPBLEU, *_NEURAL_METRICS)
_OFF_TARGET = (NEAREST.key, LID.key, "off_target_second", "off_target_both")


@dataclass(frozen=True)
class DirectionResult:
    """Scores of one direction, in percent; None where a score was left out.

    Attributes:
        source: code of the source language.
        target: code of the target language.
        supervised: whether the model was trained on the direction; None if unknown.
        sentences: number of sentences scored.
        bleu: sacreBLEU.
        chrf: chrF++.
        exact_match: share of hypotheses equal to their reference.
        off_target_nearest: off-target ratio by nearest rendering; None if the items are not
            available in all languages.
        off_target_lid: off-target ratio by a language detector, see `RunResult.detector`.
        off_target_lid_reference: the same ratio of the references, i.e. the detector's error rate.
        spbleu: BLEU over the pieces of Flores-200.
        comet: COMET, times 100.
        xcomet: xCOMET, times 100.
        kiwi: CometKiwi, times 100.
        metricx: MetricX-24's error score, from 0 to 25.
        bert_score: BERTScore's F, times 100.
        paper: scores by a published procedure (swapped roles and the like); not comparable with
            the scores above.
        empty: number of hypotheses that are blank, or without letters and digits though the source
            has letters.
        unknown_characters: number of source characters that no piece of the vocabulary covers; None
            if the vocabulary is unknown.
        detected: number of hypotheses per detected language, most frequent first. Detection is by
            nearest rendering if available, else by the language detector; "" is no language.
        notes: scores that were left out, with the reason.
        text_fingerprint: hash of the test sentences, `TestSet.fingerprint`; "" if unknown.
        intervals: 95 % interval over sentences of each score, by field.
        off_target_second: off-target ratio by a second language detector; None without one.
        off_target_second_reference: its ratio on the references.
        off_target_both: share of hypotheses that both detectors find off-target, in percent; None
            without a second one.
        off_target_both_reference: the same share of the references.
        copied: number of hypotheses that are their source; None if unknown.
        repeated: number of hypotheses that repeat words in a loop; None if unknown.
        length_ratio: characters of the hypotheses, in percent of those of the references; None if
            unknown.
        calibration: mean and standard deviation of a metric's scores of references with injected
            errors, by field (`mnmt_jax.evaluation.language_normalization`).
        without_context: number of lines of documents that were translated alone; None if the
            evaluation has no document context, or unknown.
    """

    source: str
    target: str
    supervised: bool | None
    sentences: int
    bleu: float | None
    chrf: float
    exact_match: float
    off_target_nearest: float | None
    off_target_lid: float | None
    off_target_lid_reference: float | None
    spbleu: float | None = None
    comet: float | None = None
    xcomet: float | None = None
    kiwi: float | None = None
    metricx: float | None = None
    bert_score: float | None = None
    paper: Mapping[str, float] = field(default_factory=dict)
    empty: int = 0
    unknown_characters: int | None = 0
    detected: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    text_fingerprint: str = ""
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    off_target_second: float | None = None
    off_target_second_reference: float | None = None
    off_target_both: float | None = None
    off_target_both_reference: float | None = None
    copied: int | None = None
    repeated: int | None = None
    length_ratio: float | None = None
    calibration: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    without_context: int | None = None

    @property
    def direction(self) -> Direction:
        """Source and target."""
        return self.source, self.target

    @property
    def has_language(self) -> bool:
        """Whether a language was detected in any hypothesis; True if that is not recorded."""
        return set(self.detected) != {""}

    def score(self, key: str) -> float | None:
        """Return the value of a metric to show; None if there is none, or as `is_undefined`.

        Args:
            key: `Metric.key`.
        """
        return None if is_undefined(key, [self]) else getattr(self, key)


@dataclass(frozen=True)
class Sample:
    """One translation shown in the report.

    Attributes:
        source: code of the source language.
        target: code of the target language.
        index: number of the sentence in the test set, from 0.
        source_text: the source sentence.
        hypothesis: the model's output.
        reference: the reference translation.
        detected: detected language of the hypothesis, as in `DirectionResult.detected`.
    """

    source: str
    target: str
    index: int
    source_text: str
    hypothesis: str
    reference: str
    detected: str

    @property
    def direction(self) -> Direction:
        """Source and target."""
        return self.source, self.target

    @property
    def sentence(self) -> TestSentence:
        """What was translated: direction, index, source and reference."""
        return self.direction, self.index, self.source_text, self.reference


@dataclass(frozen=True)
class RunResult:
    """The evaluation of one run on one task.

    Attributes:
        name: display name of the run.
        task: name of the corpus or mixture.
        layout: the model's layout, a row of the table of layouts; empty for an outside system.
        step: number of updates of the evaluated parameters; None if unknown.
        seconds: wall-clock seconds of training, as logged; None if unknown.
        parameters: number of parameters; None if unknown.
        directions: results per direction, in display order.
        signatures: signature of each metric, per target language where they differ.
        curves: training curves by name: `train` (training loss), and the validation losses
            `supervised`, `zero_shot`, `from_english` and `to_english`.
        validation: validation measures at the evaluated step, by the same groups of directions:
            "nll", and "perplexity", the mean of the directions' perplexities.
        samples: translations to show.
        config: the run's resolved configuration, by section.
        decoding: decoding settings (beam size and the like).
        decoding_overrides: decoding settings that flags changed from the run's values; None if
            unknown.
        paper: averages by a published procedure: its name, a label, and {"mean", "directions"}
            per metric and group; empty if it was not requested.
        notes: remarks for readers: what was left out and why.
        note: text of the user for the top of pages.
        version: version of mnmt-jax that scored; empty if unknown.
        trained_languages: languages of all directions that the model was trained on, also of those
            that were not evaluated; None if unknown.
    """

    name: str
    task: str
    layout: str
    step: int | None
    seconds: float | None
    parameters: int | None
    directions: tuple[DirectionResult, ...]
    signatures: Mapping[str, Any] = field(default_factory=dict)
    curves: Mapping[str, Curve] = field(default_factory=dict)
    validation: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    decoding: Mapping[str, Any] = field(default_factory=dict)
    paper: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    decoding_overrides: Mapping[str, Any] | None = None
    note: str = ""
    version: str = ""
    trained_languages: tuple[str, ...] | None = None

    @property
    def supervised(self) -> frozenset[Direction] | None:
        """The evaluated directions that were trained on; None if unknown."""
        if any(item.supervised is None for item in self.directions):
            return None
        return frozenset(item.direction for item in self.directions if item.supervised)

    def values(self, key: str) -> dict[Direction, float | None]:
        """Return the values of one metric per direction, to compute with.

        Args:
            key: `Metric.key`.
        """
        return {item.direction: getattr(item, key) for item in self.directions}

    def scores(self, key: str) -> dict[Direction, float | None]:
        """Return the values of one metric per direction to show, as `DirectionResult.score`.

        Args:
            key: `Metric.key`.
        """
        return {item.direction: item.score(key) for item in self.directions}

    @functools.cached_property
    def averages(self) -> Mapping[str, Averages]:
        """Averages over direction groups, per metric."""
        keys = [*(metric.key for metric in METRICS), "off_target_lid_reference"]
        return {
            key: average_groups(self.values(key), self.supervised, self.undefined_directions(key))
            for key in keys
        }

    def undefined_directions(self, key: str) -> frozenset[Direction]:
        """Return the directions whose mean of a metric says nothing, as `is_undefined`.

        Args:
            key: `Metric.key`.
        """
        return frozenset(item.direction for item in self.directions if is_undefined(key, [item]))

    @property
    def settings(self) -> dict[str, Any]:
        """Values of the configuration by name, e.g. `model.embed`."""
        return {
            f"{section}.{field}": value
            for section, fields in self.config.items()
            for field, value in (fields.items() if isinstance(fields, Mapping) else [("", fields)])
        }

    @property
    def detector(self) -> str:
        """Signature of the language detector of `off_target_lid`."""
        return self.signatures.get("off_target_lid", LID176)

    @property
    def second_detector(self) -> str:
        """Signature of the language detector of `off_target_second`; empty without one."""
        return self.signatures.get("off_target_second") or ""

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The optional metrics that were computed, and the standard ones."""
        present = {
            metric.key
            for metric in OPTIONAL_METRICS
            if any(value is not None for value in self.values(metric.key).values())
        }
        standard = titled_metrics([self], STANDARD_METRICS)
        return (*(item for item in OPTIONAL_METRICS if item.key in present), *standard)

    @property
    def off_target(self) -> Metric:
        """The main off-target metric: by nearest rendering if that was computed."""
        present = any(item.off_target_nearest is not None for item in self.directions)
        return titled_metrics([self], [NEAREST if present else LID])[0]


def is_undefined(key: str, items: Iterable[DirectionResult]) -> bool:
    """Return whether a metric is an off-target ratio of outputs without any language.

    Such outputs are not off-target, but the mean of 0 would look like a perfect score.

    Args:
        key: field of `DirectionResult`.
        items: the directions of a mean.
    """
    return key in _OFF_TARGET and not any(item.has_language for item in items)


def titled_metrics(
    results: Sequence[RunResult], metrics: Sequence[Metric] = METRICS
) -> tuple[Metric, ...]:
    """Return metrics with the evaluations' language detectors in title and explanation.

    Args:
        results: evaluations.
        metrics: some of `METRICS`.
    """
    names = name_detectors(result.detector for result in results)
    if names == LID176:
        return tuple(metrics)
    title = LID.title.replace(LID176, names)
    explanation = LID.explanation.replace("fastText's lid.176", names)
    lid_metric = dataclasses.replace(LID, title=title, explanation=explanation)
    return tuple(lid_metric if metric is LID else metric for metric in metrics)


def name_detectors(signatures: Iterable[str], *, among: Sequence[RunResult] = ()) -> str:
    """Return the names of detectors by their signatures, each once.

    Args:
        signatures: signatures of detectors; empty ones are left out.
        among: evaluations whose other detectors are to have other names.
    """
    named = list(filter(None, signatures))
    others = [text for result in among for text in (result.detector, result.second_detector)]
    titles = detector_titles([*named, *filter(None, others)])
    return ", ".join(dict.fromkeys(titles[signature] for signature in named))


def write_result(result: RunResult, path: str | Path) -> None:
    """Write `scores.json`: all fields of the result, counts and averages."""
    counts = {
        "directions": len(result.directions),
        "sentences": sum(item.sentences for item in result.directions),
    }
    result_fields = dataclasses.asdict(result)
    directions, samples = result_fields.pop("directions"), result_fields.pop("samples")
    averages = {key: dataclasses.asdict(value) for key, value in result.averages.items()}
    document = {"format": FORMAT, **result_fields, "counts": counts, "averages": averages}
    document |= {"directions": directions, "samples": samples}
    text = json.dumps(document, ensure_ascii=False, indent=1)
    write_text(Path(path), text + "\n")


def is_result(text: str) -> bool:
    """Return whether the text of a file was written by any version of `write_result`."""
    return is_object_with(text, "format", "directions", "signatures")


def read_result(path: str | Path) -> RunResult:
    """Read a result written by `write_result`.

    Args:
        path: path of `scores.json` or of its folder.

    Raises:
        UserError: if the file is missing, damaged or has another format.
    """
    path = Path(path)
    path = path / SCORES_FILE if path.is_dir() else path
    if not path.is_file():
        raise UserError(f"{path}: no such file; run 'mnmt evaluate'")
    remedy = "run 'mnmt evaluate' again"
    document = read_object(path, remedy=remedy)
    if document.get("format") != FORMAT:
        raise UserError(f"{path}: not a scores file of format {FORMAT}; run 'mnmt evaluate'")
    try:
        return _from_json(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path}: is damaged ({one_line(error)}); {remedy}") from error


def _from_json(document: dict[str, Any]) -> RunResult:
    for derived in ("format", "counts", "averages"):
        del document[derived]
    document["directions"] = tuple(map(_direction_from_json, document["directions"]))
    document["samples"] = tuple(Sample(**item) for item in document["samples"])
    document["curves"] = {
        name: tuple((step, value) for step, value in points)
        for name, points in document["curves"].items()
    }
    for settings in ("config", "decoding", "decoding_overrides", "trained_languages"):
        document[settings] = _tuples(document.get(settings))
    return RunResult(**{**document, "notes": tuple(document["notes"])})


def _direction_from_json(item: dict[str, Any]) -> DirectionResult:
    pairs = {name: _tuples(item.get(name, {})) for name in ("intervals", "calibration")}
    return DirectionResult(**{**item, **pairs, "notes": tuple(item["notes"])})


def _tuples(value: Any) -> Any:
    """Return settings read from JSON with tuples for lists, as configurations hold them."""
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def languages_of(results: Sequence[RunResult]) -> tuple[str, ...]:
    """List the languages of all evaluated directions in order of occurrence, English first."""
    codes = dict.fromkeys(
        code for result in results for item in result.directions for code in item.direction
    )
    english = find_english(codes)
    return tuple(sorted(codes, key=lambda code: code != english))
