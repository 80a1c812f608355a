"""A row by Snakemake's local executor and by its SLURM plugin gives the same bytes."""

import json

import pytest

from tests import fake_slurm
from tests.tables.row_runs import FOLDER, NOT_RUN, plan_row, reproduce

if FOLDER is None:
    pytest.skip(NOT_RUN, allow_module_level=True)


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    return fake_slurm.put_on_path(tmp_path, monkeypatch)


def test_two_executors_make_the_same_scores_and_pages(tmp_path, jobs):
    plan = plan_row("language_layers/table7", tmp_path / "cluster", "FCLL")
    for name, arguments in (("here", ()), ("cluster", ("--", *fake_slurm.SNAKEMAKE_ARGUMENTS))):
        process = reproduce(plan, tmp_path / name, *arguments)
        assert process.wait() == 0, (tmp_path / name / "reproduce.log").read_text()[-3000:]
    submitted = [json.loads(path.read_text())["flags"] for path in sorted(jobs.glob("*.json"))]
    kinds = [job["comment"].split("_")[1] for job in submitted]
    assert kinds == [step.kind for step in plan.steps]
    here, cluster = (_results(tmp_path / name) for name in ("here", "cluster"))
    assert len(here) > 10 and here.keys() == cluster.keys()
    assert [name for name in here if here[name] != cluster[name]] == []


def _results(output) -> dict[str, bytes]:
    """Return the bytes of translations and pages, and the scores without seconds of training."""
    (evaluation,) = output.glob("evaluations/*/seed*")
    scores = json.loads((evaluation / "scores.json").read_text(encoding="utf-8"))
    assert scores.pop("seconds") > 0
    folders = (evaluation / "translations", output / "tables")
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    results = {str(path.relative_to(output)): path.read_bytes() for path in files}
    return results | {"scores": json.dumps(scores).encode()}
