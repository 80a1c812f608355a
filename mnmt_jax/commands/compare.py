"""Sets evaluations of several runs side by side: a table, sample translations, one report page."""

from __future__ import annotations

from pathlib import Path

from mnmt_jax.commands.arguments import CommandParser, positive
from mnmt_jax.errors import UserError


def make_parser() -> CommandParser:
    """Makes the parser of the command line."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("results", nargs="+", help="folders that 'mnmt evaluate' wrote")
    parser.add_argument("--output", required=True, help="report to write, e.g. report/report.html")
    parser.add_argument("--samples", type=positive, default=5, help="sentences to show (default 5)")
    return parser


def main() -> None:
    """Reads the results, prints the table and the samples, and writes the page."""
    flags = make_parser().parse_args()

    from mnmt_jax.evaluation.report import is_report, write_report
    from mnmt_jax.evaluation.result import read_result
    from mnmt_jax.evaluation.table import comparison_table, sample_lines, told_apart
    from mnmt_jax.files.partial import check_replaced

    check_replaced(Path(flags.output), is_report)
    results = [read_result(folder) for folder in flags.results]
    if len({result.task for result in results}) > 1:
        tasks = (f"{folder}: {r.task}" for folder, r in zip(flags.results, results, strict=True))
        raise UserError(f"of several tasks; compare evaluations of one: {', '.join(tasks)}")
    results = told_apart(results)
    write_report(flags.output, results)
    print(comparison_table(results))
    print("\nZero-shot translations, in directions never trained on:\n")
    print(sample_lines(results, flags.samples))
