"""Compare evaluations of several runs: a table, sample translations, one report page."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mnmt_jax.commands.common_flags import CommandParser, list_of, positive_int
from mnmt_jax.errors import UserError

if TYPE_CHECKING:
    from mnmt_jax.evaluation.result import RunResult


def make_parser() -> CommandParser:
    """Make the parser of the command line."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("results", nargs="+", help="folders that 'mnmt evaluate' wrote")
    parser.add_argument("--output", required=True, help="report to write, e.g. report/report.html")
    parser.add_argument(
        "--samples", type=positive_int, default=5, help="sentences to show; default: %(default)s"
    )
    parser.add_argument(
        "--metrics",
        metavar="LIST",
        help="metrics of the tables, in their order, e.g. spbleu,comet; default: the optional ones "
        "that all evaluations have, bleu, chrf, exact_match, and off-target",
    )
    parser.add_argument(
        "--by_seed",
        action="store_true",
        help="print statistics of each system over its seeds: evaluations whose runs differ only "
        "in Train.seed, and in its number in paths; differences are to the first system",
    )
    parser.add_argument(
        "--resamples",
        type=positive_int,
        default=1000,
        metavar="N",
        help="resamples of the sentences for intervals and for the tests of means; default: "
        "%(default)s",
    )
    parser.add_argument(
        "--paired_bootstrap",
        type=positive_int,
        nargs="?",
        const=1000,
        metavar="N",
        help="also test BLEU and chrF++ of each direction, by paired bootstrap and approximate "
        "randomization with N samples (default 1000)",
    )
    return parser


def main() -> None:
    """Read the results, print the table and the samples, and write the page."""
    flags = make_parser().parse_args()

    from mnmt_jax.evaluation.comparison import common_directions
    from mnmt_jax.evaluation.language_normalization import normalized_table
    from mnmt_jax.evaluation.paired_bootstrap import paired_scores, paired_table
    from mnmt_jax.evaluation.quality_flags import quality_table
    from mnmt_jax.evaluation.report import is_report, write_report
    from mnmt_jax.evaluation.result import read_result
    from mnmt_jax.evaluation.result_labels import disambiguate_names
    from mnmt_jax.evaluation.result_tables import comparison_table, leading_metrics, sample_lines
    from mnmt_jax.evaluation.seed_statistics import (
        explain_seeds,
        group_by_seed,
        seed_notes,
        seed_table,
        single_seed_evaluations,
    )
    from mnmt_jax.evaluation.significance import SentenceSignificance
    from mnmt_jax.evaluation.significance_tables import difference_table
    from mnmt_jax.files.atomic_write import check_replaced

    check_replaced(Path(flags.output), is_report)
    results = [read_result(folder) for folder in flags.results]
    if len({result.task for result in results}) > 1:
        tasks = (f"{folder}: {r.task}" for folder, r in zip(flags.results, results, strict=True))
        raise UserError(
            f"the evaluations are of several tasks; compare evaluations of one: {', '.join(tasks)}"
        )
    groups = group_by_seed(results) if flags.by_seed else {}
    compared = single_seed_evaluations(results, groups)
    folders = [path if path.is_dir() else path.parent for path in map(Path, flags.results)]
    results = _with_folders(disambiguate_names(results), folders)
    metrics = list_of("--metrics", flags.metrics)
    significance = SentenceSignificance.read(results, folders, flags.resamples)
    write_report(
        flags.output,
        results,
        metrics,
        significance=significance,
        by_seed=groups,
        compared=compared,
    )
    if groups:
        notes = "".join(f"\n{note}" for note in (explain_seeds(groups), *seed_notes(groups)))
        print(f"Over seeds:\n\n{seed_table(groups, metrics)}\n{notes}\n")
    print(comparison_table(results, metrics, significance))
    if differences := difference_table(results, metrics, significance, compared):
        print(f"\n{differences}")
    if normalized := normalized_table(results, leading_metrics(results, metrics)):
        print(f"\nMeans across languages:\n\n{normalized}")
    print(f"\nQuality flags:\n\n{quality_table(results)}")
    if flags.paired_bootstrap:
        for folder, result in zip(folders[1:], results[1:], strict=True):
            directions = common_directions([results[0], result])
            samples = flags.paired_bootstrap
            scores = paired_scores(folders[0], folder, directions, samples=samples)
            table = paired_table(scores, (results[0].name, result.name))
            print(f"\nAgainst {results[0].name}:\n\n{table}")
    print(f"\n{sample_lines(results, flags.samples)}")


def _with_folders(results: Sequence[RunResult], folders: Sequence[Path]) -> list[RunResult]:
    """Add the folder of an evaluation to names that are not unique.

    Raises:
        UserError: if a folder is named twice.
    """
    if len({os.path.realpath(folder) for folder in folders}) < len(folders):
        raise UserError("a folder is named twice; name each folder once")
    counts = Counter(result.name for result in results)
    return [
        dataclasses.replace(result, name=f"{result.name} ({folder})")
        if counts[result.name] > 1
        else result
        for result, folder in zip(results, folders, strict=True)
    ]
