"""Paired tests of two evaluations per direction: paired bootstrap, approximate randomization.

Scores are sacreBLEU's, p are those of `mnmt_jax.evaluation.significance`. sacreBLEU's `PairedTest`
does not count draws equal to the difference, so that its p of randomization is 0.001 if one
sentence differs.

Source: Koehn 2004, "Statistical significance tests for machine translation evaluation"; Riezler and
Maxwell 2005, "On some pitfalls in automatic evaluation and significance testing for MT".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.metrics.base import Metric

from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.metrics import missing_tokenizer_note, score_and_statistics
from mnmt_jax.evaluation.significance import SEED, direction_difference, limits_of_p
from mnmt_jax.evaluation.translations import TRANSLATIONS, read_stored_texts
from mnmt_jax.pages.markdown_tables import format_difference, markdown_table
from mnmt_jax.vocabulary.language_codes import Direction
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
        signature: sacreBLEU's signature of the scores.
        samples: number of resamples and of random exchanges.
    """

    direction: str
    metric: str
    first: float
    second: float
    p: float
    p_randomization: float
    signature: str
    samples: int


def paired_scores(
    first: Path, second: Path, directions: Collection[Direction], *, samples: int
) -> list[PairedScore]:
    """Compare two evaluations in their common directions.

    Args:
        first: folder of the baseline's evaluation.
        second: folder of the other evaluation.
        directions: directions that both evaluated on the same sentences, as `common_directions`
            returns them; () for no scores.
        samples: number of bootstrap resamples and of random exchanges.

    Raises:
        UserError: if the sentences of a direction differ, or translations are missing or damaged.
    """
    scores: list[PairedScore] = []
    for direction in sorted(directions):
        systems = [
            read_stored_texts(folder / TRANSLATIONS, direction) for folder in (first, second)
        ]
        references = systems[0].references
        if systems[1].references != references:
            raise UserError(
                f"{second}: the sentences of {'-'.join(direction)} are not those of {first}; "
                "evaluate both with the same --limit"
            )
        hypotheses = [texts.hypotheses for texts in systems]
        scores += _compare(direction, hypotheses, references, samples)
    return scores


def paired_table(scores: Sequence[PairedScore], names: tuple[str, str]) -> str:
    """Format the scores as a Markdown table with counts of significant differences and signatures.

    Differences are significant by the two-sided p of approximate randomization.

    Args:
        scores: result of `paired_scores`.
        names: names of the baseline and of the other system.

    Returns:
        The table, or a sentence if there are no scores.
    """
    if not scores:
        return (
            f"{names[1]}: no direction in common on the same sentences; evaluate both on one task "
            "with the same --limit."
        )
    header = ["direction", "metric", *names, "difference"]
    header += ["p (bootstrap, one-sided)", "p (randomization)"]
    rows = [
        [score.direction, score.metric, f"{score.first:.1f}", f"{score.second:.1f}"]
        + [format_difference(score.second - score.first)]
        + [f"{score.p:.3f}", f"{score.p_randomization:.3f}"]
        for score in scores
    ]
    lines = [markdown_table(header, rows), ""]
    for metric in dict.fromkeys(score.metric for score in scores):
        metric_scores = [score for score in scores if score.metric == metric]
        significant = [score for score in metric_scores if _is_significant(score)]
        better = sum(score.second > score.first for score in significant)
        lines.append(
            f"{metric}: better in {better} of {len(metric_scores)} directions, worse in "
            f"{len(significant) - better}, undecided in {len(metric_scores) - len(significant)} "
            f"(two-sided p < {_SIGNIFICANCE_LEVEL}, randomization)."
        )
    signatures = dict.fromkeys(f"{score.metric}: {score.signature}" for score in scores)
    samples = dict.fromkeys(
        f"p: resamples and trials:{score.samples}|seed:{SEED}\n{limits_of_p(score.samples)}"
        for score in scores
    )
    return "\n".join([*lines, "", *signatures, *samples])


def _is_significant(score: PairedScore) -> bool:
    return score.p_randomization < _SIGNIFICANCE_LEVEL


def _compare(
    direction: Direction,
    hypotheses: Sequence[Sequence[str]],
    references: Sequence[str],
    samples: int,
) -> Iterator[PairedScore]:
    name, tokenizer = "-".join(direction), get_language(direction[1]).sacrebleu_tokenizer
    metrics: dict[str, tuple[str, Metric]] = {"chrF++": ("chrf", CHRF(word_order=2))}
    if not missing_tokenizer_note(tokenizer):
        # `force` only silences a warning about tokenized input.
        metrics = {"BLEU": ("bleu", BLEU(tokenize=tokenizer, force=True)), **metrics}
    for title, (key, metric) in metrics.items():
        (first, one), (second, other) = (
            score_and_statistics(metric, lines, references) for lines in hypotheses
        )
        difference = direction_difference(key, one, other, samples)
        p_values = difference.p_bootstrap, difference.p_randomization
        signature = str(metric.get_signature())
        yield PairedScore(name, title, first, second, *p_values, signature, samples)
