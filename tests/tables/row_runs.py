"""Runs of single rows by `mnmt reproduce --scale tiny`, killed once and continued."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from mnmt_jax.interop.miniature_checkpoint import train_pieces
from mnmt_jax.papers.output_folders import count_file
from mnmt_jax.papers.reproduction import collect
from mnmt_jax.papers.scales import TINY
from mnmt_jax.papers.steps import Step
from mnmt_jax.papers.table_plan import TablePlan, plan_table
from mnmt_jax.papers.tables import find_table

FOLDER = Path(os.environ["MNMT_JAX_TABLES"]).resolve() if "MNMT_JAX_TABLES" in os.environ else None
"""Output folder that all rows share; without it the tests of this folder do not run."""
NOT_RUN = "MNMT_JAX_TABLES names no output folder: run scripts/test_tables.sh"
REPORT = "rows.md"
PIECES = "flores200.model"
"""Miniature of spBLEU's SentencePiece model, in the output folder."""
_FLAG = "--flores200_model"
_HEADER = "| table | row | new steps | killed in | seconds | result |\n|---|---|--:|---|--:|--:|\n"
_POLL = 0.05
_CORES = min(4, len(os.sched_getaffinity(0)))
FILE_METRICS = {"comet", "bert_score"}
"""Metrics that need files from elsewhere; they are left out where these are not."""

# Every table with rows that run -> the row that is run. Rows of other tables are not repeated if
# another row of the table takes another path.
ROWS: Mapping[str, str] = {
    "registers/table3": "M2M-483M",
    "registers/table12": "NLLB-615M",
    "registers/table13": "MITRE-466M",
    "registers/table4": "NLLB-615M, LoRA",
    "registers/table7": "M2M-483M",
    "registers/table1": "12 layers: encoder-decoder + CL",
    "registers/table5": "12 layers: registers without the mask",
    "registers/table9": "12 layers: encoder-decoder + registers",
    "registers/table10": "12 layers: encoder-decoder + LCS",
    "registers/table11": "12 layers: encoder-decoder + LAVS",
    "registers/figure3": "12 layers: ratio 1.5",
    "registers/figure7": "MITRE-466M",
    "two_stage/table1": "OPUS-100 wide: TDO + adaption + InstruCL",
    "two_stage/table2": "NLLB-600M: TDO + adaption + InstruCL",
    "two_stage/table3": "TED-19: encoder-decoder + InstruCL after layer 6",
    "two_stage/table4": "TDO, d=544",
    "two_stage/figure5": "TED-19: TDO, M=1",
    "two_stage/figure6": "prefix decoder-only + InstruCL after layer 1",
    "two_stage/figure7": "causal decoder-only, strategy 5",
    "language_layers/table2": "FCLL",
    "language_layers/table3": "Baseline, fine-tuned by back-translation",
    "language_layers/table4": "SD",
    "language_layers/table5": "SD",
    "language_layers/table6": "Baseline + additional pairs, reduced data",
    "language_layers/table7": "FCLL without tags",
    "language_layers/table8": "FCLL, tags omitted",
    "language_layers/table9": "SD, branches off",
    "language_layers/table10": "SD, branches off",
    "language_layers/table12": "SD, branches off",
    "language_layers/figure4": "(1) residual removed, 4 layers with branches",
    "graformer/table1": "Graformer",
    "graformer/table2": "Transformer",
    "graformer/table3": "Row 7: encoder fine-tuned, decoder frozen, no residual connection",
    "graformer/table4": "encoder 6, decoder 6+6",
    "graformer/table5": "Graformer without residual connection",
    "graformer/table6": "Adapter",
    "graformer/table7": "Graformer, trained on fr→en",
    "graformer/table8": "Graformer, encoder frozen, trained on de→en",
    "graformer/table9": "Graformer",
    "graformer/table12": "Direct",
    "graformer/table13": "Adapter",
    "graformer/figure5": "Graformer, 3% of the pairs",
    "graformer/figure6": "Graformer, 3% of the pairs",
    "graformer/figure7": "Graformer",
    "position_disentangling/table1": "PIV-M (small)",
    "position_disentangling/table2": "MNMT-TPDM + sinusoidal anchor",
    "position_disentangling/table3": "MNMT-TPDM + learnable positions",
    "position_disentangling/table6": "MNMT-GTPDM-small",
    "position_disentangling/table7": "MNMT-RC-small",
    "position_disentangling/table8": "MNMT-TPDM-small",
    "position_disentangling/figure1": "MNMT without positions, 50,000 updates",
    "position_disentangling/figure5": "MNMT-TPDM",
    "benchmarks/zero_shot": "lavs",
    "benchmarks/zero_shot_prose": "fcll",
    "benchmarks/graft": "graft, 10 %",
    "benchmarks/graft_prose": "drawn, 10 %",
}

ROWLESS = (
    "language_layers/figure3",
    "language_layers/figure5",
    "language_layers/figure6",
    "position_disentangling/table4",
    "position_disentangling/figure2",
    "registers/table6",
    "registers/figure4",
    "registers/figure5",
    "registers/figure6",
    "registers/figure8",
    "registers/figure10",
    "two_stage/figure1",
    "two_stage/figure4",
    "graformer/table10",
    "graformer/table11",
    "language_layers/table11",
    "position_disentangling/table5",
    "registers/table14",
    "registers/figure9",
    "two_stage/table5",
    "two_stage/table6",
)
"""Tables without rows that run, but with analyses of trained models or counts of data."""


@dataclasses.dataclass(frozen=True)
class RowPlan:
    """What is run of a table: a row with one seed, or analyses and counts if `row` is empty."""

    row: str
    number: int
    plan: TablePlan

    @property
    def table(self) -> str:
        """Name of the table, with that of its paper."""
        return self.plan.table.full_name

    @property
    def steps(self) -> Sequence[Step]:
        """All steps; inputs come before what waits for them."""
        return self.plan.workflow.steps


def plan_row(name: str, output: Path, row_name: str = "") -> RowPlan:
    """Plan what `reproduce` runs: a row of a table, or its analyses and counts, at scale `tiny`."""
    table = find_table(name)
    number = ["", *(row.name for row in table.rows)].index(row_name)
    plan = plan_table(
        table,
        TINY,
        rows=str(number) if row_name else None,
        seeds=None,
        data=Path("data"),
        hypotheses=(),
        metrics={"spbleu": (_FLAG, str(output / PIECES))},
    )
    return RowPlan(row_name, number, plan)


def reproduce(plan: RowPlan, output: Path, *arguments: str) -> subprocess.Popen:
    """Start `mnmt reproduce` for a row, in a process group with all of its steps."""
    output.mkdir(parents=True, exist_ok=True)
    if not (output / PIECES).exists():
        (output / PIECES).write_bytes(train_pieces())
    command = [sys.executable, "-m", "mnmt_jax", "reproduce", plan.table, "--scale=tiny"]
    command += ["--rows", str(plan.number)] if plan.row else []
    command += [f"--output={output}", f"--cores={_CORES}"]
    command += [_FLAG, str(output / PIECES), *arguments]
    with (output / "reproduce.log").open("a") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=log, env=_environment(), start_new_session=True
        )


def _environment() -> dict[str, str]:
    """Return the variables of this process without those that the test suite sets for JAX."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JAX_", "XLA_", "PYTEST_"))
    }


def is_done(output: Path, step: Step) -> bool:
    """Return whether a step has finished."""
    return (output / "done" / step.name).exists()


def kill_in_the_middle(process: subprocess.Popen, output: Path, steps: Iterable[Step]) -> str:
    """Kill a workflow in its first training after a checkpoint, or in its last step.

    Returns:
        The name of the step that was running.
    """
    missing = [step for step in steps if not is_done(output, step)]
    victim = next((step for step in missing if step.kind == "train"), missing[-1])
    while not _is_midway(output, victim):
        assert process.poll() is None, f"ended before {victim.name}; see {output}/reproduce.log"
        time.sleep(_POLL)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return victim.name


def _is_midway(output: Path, step: Step) -> bool:
    if step.kind != "train":
        return (output / "logs" / f"{step.name}.log").exists()
    run = output / step.command[step.command.index("--workdir") + 1]
    return any(path.name.isdecimal() for path in run.rglob("checkpoints/*"))


def count_cells(planned: RowPlan, output: Path) -> tuple[int, int]:
    """Return how many cells of the row have a score of ours, and how many there are."""
    made = collect(planned.plan.table, planned.plan.trials, output)
    cells = [cell for (row, _), cell in made.cells.items() if row == planned.row]
    return sum(cell.ours is not None for cell in cells), len(cells)


def needs_files(planned: RowPlan) -> bool:
    """Return whether all columns have metrics whose models are not part of this project."""
    return {column.metric for column in planned.plan.table.columns} <= FILE_METRICS


def count_results(planned: RowPlan, output: Path) -> int:
    """Return the number of analysis pages and counts of a table; all must be there."""
    plan = planned.plan
    pages = [page for analysis in plan.analyses for page in analysis.pages().values()]
    pages += [count_file(mixture) for mixture in plan.counts]
    missing = [page for page in pages if not (output / page).is_file()]
    assert not missing, missing
    return len(pages)


def add_to_report(output: Path, table: str, *values: object) -> None:
    """Add a line to the report on the rows, unless it has one on the table."""
    path = output / REPORT
    text = path.read_text(encoding="utf-8") if path.exists() else _HEADER
    if f"| {table} |" not in text:
        line = " | ".join(map(str, (table, *values)))
        path.write_text(f"{text}| {line} |\n", encoding="utf-8")
