"""Paired tests of two evaluations per direction, with sacreBLEU's implementation.

The paired bootstrap and approximate randomization.

Source: Koehn 2004, "Statistical significance tests for machine translation evaluation"; sacreBLEU's
`PairedTest`, whose p is that of Riezler and Maxwell 2005 for shifted means.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.metrics.base import Metric
from sacrebleu.significance import PairedTest, Result

from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.markdown_tables import markdown_table
from mnmt_jax.evaluation.metrics import missing_tokenizer_note
from mnmt_jax.files.json_objects import parse_json
from mnmt_jax.vocabulary.languages import get_language

_SIGNIFICANCE_LEVEL = 0.05


@dataclasses.dataclass(frozen=True)
class PairedScore:
    """Scores of two systems in one direction by one metric.

    Attributes:
        direction: source and target, e.g. "de-fr".
        metric: `BLEU` or `chrF++`.
        first: score of the baseline, in percent.
        second: score of the other system, in percent.
        p: p of the difference by the paired bootstrap, one-sided in effect.
        p_randomization: two-sided p by approximate randomization.
    """

    direction: str
    metric: str
    first: float
    second: float
    p: float
    p_randomization: float


def paired_scores(first: Path, second: Path, samples: int) -> list[PairedScore]:
    """Compare two evaluations in their common directions.

    Args:
        first: folder of the baseline's evaluation.
        second: folder of the other evaluation.
        samples: number of bootstrap resamples and of random exchanges, drawn by sacreBLEU with its
            fixed seed.

    Raises:
        UserError: if they have no direction in common, or if the sentences of one differ.
    """
    names = [_directions(folder) for folder in (first, second)]
    common = [name for name in names[0] if name in names[1]]
    if not common:
        raise UserError(f"{first} and {second}: no direction in common; evaluate both on one task")
    scores: list[PairedScore] = []
    for name in common:
        systems = [_read(folder, name) for folder in (first, second)]
        if systems[0][1] != systems[1][1]:
            raise UserError(
                f"{second}: the sentences of {name} are not those of {first}; evaluate both with "
                "the same --limit"
            )
        scores += _compare(name, [system[0] for system in systems], systems[0][1], samples)
    return scores


def paired_table(scores: Sequence[PairedScore], title: str) -> str:
    """Format the scores as a Markdown table with counts of significant differences.

    Args:
        scores: result of `paired_scores`.
        title: name of the second system.
    """
    header = ["direction", "metric", "first", title, "difference"]
    header += ["p (bootstrap)", "p (randomization)"]
    rows = [
        [score.direction, score.metric, f"{score.first:.1f}", f"{score.second:.1f}"]
        + [f"{score.second - score.first:+.1f}", f"{score.p:.3f}", f"{score.p_randomization:.3f}"]
        for score in scores
    ]
    lines = [markdown_table(header, rows), ""]
    for metric in dict.fromkeys(score.metric for score in scores):
        metric_scores = [score for score in scores if score.metric == metric]
        significant = [score for score in metric_scores if score.p < _SIGNIFICANCE_LEVEL]
        better = sum(score.second > score.first for score in significant)
        lines.append(
            f"{metric}: better in {better} of {len(metric_scores)} directions, worse in "
            f"{len(significant) - better}, undecided in {len(metric_scores) - len(significant)} "
            f"(p < {_SIGNIFICANCE_LEVEL}, bootstrap)."
        )
    return "\n".join(lines)


def _directions(folder: Path) -> list[str]:
    return sorted(path.stem for path in (folder / "translations").glob("*.jsonl"))


def _read(folder: Path, direction: str) -> tuple[list[str], list[str]]:
    """Return the hypotheses and references of a direction.

    Raises:
        UserError: if a line is not a record of an evaluation.
    """
    path = folder / "translations" / f"{direction}.jsonl"
    hypotheses, references = [], []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            record = parse_json(line, finite=False)
            hypotheses.append(str(record["hypothesis"]))
            references.append(str(record["reference"]))
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}:{number}: not of 'mnmt evaluate'; evaluate again") from error
    return hypotheses, references


def _compare(
    direction: str, hypotheses: Sequence[list[str]], references: list[str], samples: int
) -> Iterator[PairedScore]:
    tokenizer = get_language(direction.split("-")[-1]).sacrebleu_tokenizer
    metrics: dict[str, Metric] = {"chrF++": CHRF(word_order=2)}
    if not missing_tokenizer_note(tokenizer):
        metrics = {"BLEU": BLEU(tokenize=tokenizer, force=True), **metrics}
    systems: list[tuple[str, Sequence[str]]] = [
        ("Baseline: first", hypotheses[0]),
        ("second", hypotheses[1]),
    ]
    bootstrap, randomization = (
        _test(systems, metrics, references, kind=kind, samples=samples) for kind in ("bs", "ar")
    )
    for title, (baseline, system) in bootstrap.items():
        # sacreBLEU's p of equal systems is the smallest possible.
        is_equal = baseline.score == system.score
        p, p_randomization = (
            1.0 if is_equal else _p_value(result) for result in (system, randomization[title][1])
        )
        yield PairedScore(direction, title, baseline.score, system.score, p, p_randomization)


def _test(
    systems: Sequence[tuple[str, Sequence[str]]],
    metrics: dict[str, Metric],
    references: list[str],
    *,
    kind: str,
    samples: int,
) -> dict[str, tuple[Result, Result]]:
    """Return sacreBLEU's results of both systems by metric.

    Args:
        systems: names and hypotheses, the baseline first.
        metrics: metrics by title.
        references: the references.
        kind: `bs` for the paired bootstrap, `ar` for approximate randomization.
        samples: number of resamples or trials.
    """
    with _quiet():
        test = PairedTest(
            list(systems), metrics, [references], test_type=kind, n_samples=samples, n_jobs=1
        )
        _, scores = test()
    columns = [
        [score for score in column if isinstance(score, Result)]
        for key, column in scores.items()
        if key != "System"
    ]
    return {title: (one, other) for title, (one, other) in zip(metrics, columns, strict=True)}


def _p_value(result: Result) -> float:
    return 1.0 if result.p_value is None else float(result.p_value)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence sacreBLEU's progress lines."""
    logger = logging.getLogger("sacrebleu")
    previous_level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(previous_level)
