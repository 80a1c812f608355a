"""One row of each table from data to page, killed once and continued."""

import time

import pytest

from tests.tables.row_runs import (
    FOLDER,
    NOT_RUN,
    ROWLESS,
    ROWS,
    add_to_report,
    count_cells,
    count_results,
    is_done,
    kill_in_the_middle,
    needs_files,
    plan_row,
    reproduce,
)

if FOLDER is None:
    pytest.skip(NOT_RUN, allow_module_level=True)


@pytest.mark.parametrize("table", ROWS)
def test_a_row_is_killed_once_and_continues_to_its_page(table, relaxed_dtypes):
    plan = plan_row(table, FOLDER, ROWS[table])
    report = _run_and_kill(plan)
    scored, cells = count_cells(plan, FOLDER)
    assert scored or needs_files(plan), f"no cell of '{plan.row}' has a score"
    add_to_report(FOLDER, table, plan.row, *report, f"{scored}/{cells} cells")


@pytest.mark.parametrize("table", ROWLESS)
def test_analyses_and_counts_are_killed_once_and_continue_to_their_pages(table):
    plan = plan_row(table, FOLDER)
    report = _run_and_kill(plan)
    results = count_results(plan, FOLDER)
    assert results
    add_to_report(FOLDER, table, "analyses, counts", *report, f"{results} results")


def _run_and_kill(plan) -> tuple[int, str, int]:
    """Run a plan; return the number of new steps, where it was killed, and the seconds."""
    start = time.time()
    missing = [step for step in plan.steps if not is_done(FOLDER, step)]
    killed_in = "nothing: all steps were done"
    if missing:
        process = reproduce(plan, FOLDER)
        killed_in = kill_in_the_middle(process, FOLDER, plan.steps)
    finished = {s: _time(s) for s in plan.steps if is_done(FOLDER, s)}
    assert reproduce(plan, FOLDER).wait() == 0, f"see {FOLDER}/reproduce.log"
    assert all(is_done(FOLDER, step) for step in plan.steps)
    assert {step: _time(step) for step in finished} == finished, "finished steps were repeated"
    return len(missing), killed_in, round(time.time() - start)


def _time(step) -> int:
    return (FOLDER / "done" / step.name).stat().st_mtime_ns
