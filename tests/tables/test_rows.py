"""One row of each table from data to page, killed once and continued."""

import time

import pytest

from tests.tables.row_runs import (
    FOLDER,
    ROWS,
    add_to_report,
    count_cells,
    is_done,
    kill_in_the_middle,
    needs_files,
    plan_row,
    reproduce,
)


@pytest.mark.parametrize("table", ROWS)
def test_a_row_is_killed_once_and_continues_to_its_page(table, relaxed_dtypes):
    plan, start = plan_row(table, ROWS[table]), time.time()
    missing = [step for step in plan.steps if not is_done(FOLDER, step)]
    killed_in = "nothing: all steps were done"
    if missing:
        process = reproduce(plan, FOLDER)
        killed_in = kill_in_the_middle(process, FOLDER, plan.steps)
    finished = {s: _time(s) for s in plan.steps if is_done(FOLDER, s)}
    assert reproduce(plan, FOLDER).wait() == 0, f"see {FOLDER}/reproduce.log"
    assert all(is_done(FOLDER, step) for step in plan.steps)
    assert {step: _time(step) for step in finished} == finished, "finished steps were repeated"
    scored, cells = count_cells(plan, FOLDER)
    assert scored or needs_files(plan), f"no cell of '{plan.row}' has a score"
    seconds = round(time.time() - start)
    add_to_report(FOLDER, table, plan.row, len(missing), killed_in, seconds, f"{scored}/{cells}")


def _time(step) -> int:
    return (FOLDER / "done" / step.name).stat().st_mtime_ns
