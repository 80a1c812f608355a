"""Run a published table from data to a page with the published numbers and ours.

The steps run under Snakemake: what is done is not repeated, and after any stop the same command
continues. Arguments after `--` go to Snakemake, e.g. `-- --executor slurm --jobs 8`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from mnmt_jax.commands.common_flags import positive_int
from mnmt_jax.commands.pass_through import PassThroughParser
from mnmt_jax.errors import UserError
from mnmt_jax.papers.score_models import SCORE_MODELS

if TYPE_CHECKING:
    from mnmt_jax.papers.reproduction import Reproduction
    from mnmt_jax.papers.table_plan import TablePlan


def make_parser() -> PassThroughParser:
    """Make the parser of the command line."""
    parser = PassThroughParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", metavar="PAPER/TABLE", help="'mnmt papers' lists them")
    parser.add_argument(
        "--data", type=Path, default=Path("data"), metavar="DIR", help="corpora; default: data"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="folder of runs and tables, which several tables may share; default: runs/papers, or "
        "runs/papers_tiny with --scale=tiny",
    )
    parser.add_argument(
        "--rows",
        metavar="LIST",
        help="row numbers, e.g. 1,3-5; default: all, and the table's analyses",
    )
    parser.add_argument(
        "--hypotheses",
        action="append",
        default=[],
        metavar="ROW=FOLDER",
        help="score a row's translations from files, e.g. of a closed model, as 'mnmt evaluate "
        "--hypotheses' does; repeatable",
    )
    parser.add_argument(
        "--seeds", type=positive_int, metavar="N", help="seeds; default: the paper's"
    )
    parser.add_argument(
        "--scale",
        choices=("full", "tiny"),
        default="full",
        help="tiny: every step with tiny models on made text, in minutes; default: %(default)s",
    )
    parser.add_argument(
        "--dry_run", action="store_true", help="print steps, cost and commands; run nothing"
    )
    parser.add_argument(
        "--cores",
        type=positive_int,
        default=1,
        metavar="N",
        help="steps at a time; default: %(default)s",
    )
    scores = parser.add_argument_group("models of scores, as for 'mnmt evaluate'")
    for model in SCORE_MODELS.values():
        scores.add_argument(
            f"--{model.flag}",
            type=Path,
            metavar=model.kind,
            help=f"compute {model.title} with this model, and fill its columns",
        )
    parser.add_pass_through("snakemake")
    return parser


def main() -> None:
    """Run the command."""
    flags = make_parser().parse_args()
    from mnmt_jax.commands.reproduction_plan import describe_plan
    from mnmt_jax.papers.engine import check_finished, finished_steps, run_steps
    from mnmt_jax.papers.pages import write_pages
    from mnmt_jax.papers.scales import SCALES
    from mnmt_jax.papers.shared_scores import check_scores
    from mnmt_jax.papers.table_plan import plan_table
    from mnmt_jax.papers.tables import find_table

    table, scale = find_table(flags.table), SCALES[flags.scale]
    plan = plan_table(
        table,
        scale,
        rows=flags.rows,
        seeds=flags.seeds,
        data=flags.data,
        hypotheses=flags.hypotheses,
        metrics=_metric_flags(flags),
    )
    output = flags.output or Path("runs/papers_tiny" if scale.miniature else "runs/papers")
    scale.check_folder(output, flags.data)
    if flags.dry_run:
        print(describe_plan(table, plan.trials, plan.analyses, plan.workflow, data=flags.data))
        if scale.miniature:
            print("Costs are those at full scale; the commands are those of --scale tiny.")
        check_finished(plan.workflow.steps, output)
        if done := finished_steps(plan.workflow.steps, output):
            print(f"{len(done)} of {len(plan.workflow.steps)} steps are done in {output}.")
        return
    scale.record(output, flags.data)
    check_scores(plan, output)
    run_steps(
        plan.workflow.steps,
        plan.targets,
        name=f"{table.paper}-{table.name}",
        output=output,
        data=output / "data" if scale.miniature else flags.data,
        cores=flags.cores,
        arguments=flags.snakemake,
    )
    reproduction = _read_results(plan, output)
    page = write_pages(plan.paper, reproduction, scale, output / "tables" / table.paper)
    print(page.with_suffix(".md").read_text(encoding="utf-8"))
    print(f"Page: {page}")


def _read_results(plan: TablePlan, output: Path) -> Reproduction:
    from mnmt_jax.cost.training_estimate import count_parameters
    from mnmt_jax.papers.analysis_cells import with_analyses
    from mnmt_jax.papers.counts import with_counts
    from mnmt_jax.papers.reproduction import collect

    reproduction = collect(
        plan.table,
        plan.trials,
        output,
        count_parameters=count_parameters,
    )
    reproduction = with_analyses(reproduction, plan.analyses, output)
    return with_counts(plan.paper, reproduction, output) if plan.counts else reproduction


def _metric_flags(flags: argparse.Namespace) -> dict[str, tuple[str, str]]:
    """Return the flags of `mnmt evaluate` for scores that need a model, by metric.

    Those without a column in the table are among them: another table that shares the evaluations
    may have filled its columns.

    Raises:
        UserError: if a model is not there.
    """
    chosen = {}
    for metric, model in SCORE_MODELS.items():
        path = getattr(flags, model.flag)
        if path is not None and not path.exists():
            raise UserError(f"--{model.flag}={path}: no such file or folder")
        if path is not None:
            chosen[metric] = (f"--{model.flag}", str(path.resolve()))
    return chosen
