"""Tables run from data to page, and workflows that stop and continue."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from mnmt_jax.commands import reproduce
from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.result import read_result
from mnmt_jax.files.atomic_write import lock
from mnmt_jax.papers.engine import run_steps
from mnmt_jax.papers.scales import TINY
from mnmt_jax.papers.steps import Step
from tests import fake_slurm
from tests.fresh_process import serve_starts
from tests.run_commands import ROOT


def _run(steps, output: Path, arguments=()) -> None:
    run_steps(
        steps,
        [steps[-1].name],
        name="made",
        output=output,
        data=output / "data",
        cores=1,
        arguments=arguments,
    )


def _shell(name: str, script: str, *inputs: str) -> Step:
    return Step(name, ("bash", "-c", script), inputs)


def test_a_failed_workflow_continues_without_repeating_finished_steps(tmp_path, capfd):
    steps = (
        _shell("data/a", "echo made >> a.txt"),
        _shell(
            "train/b/seed1",
            "mkdir -p run; echo part >> run/b.txt; test -e go || { echo no go file; exit 1; }",
            "data/a",
        ),
        _shell("evaluate/c/seed1", "cat a.txt run/b.txt > c.txt", "train/b/seed1"),
    )
    message = (
        r"train/b/seed1 failed: no go file \[.*logs/train/b/seed1.log\]; once mended, the same"
    )
    with pytest.raises(UserError, match=message):
        _run(steps, tmp_path)
    assert (tmp_path / "done/data/a").exists() and not (tmp_path / "c.txt").exists()
    assert (tmp_path / "run/b.txt").read_text() == "part\n"  # kept for the step to continue from
    (tmp_path / "go").touch()
    _leave_locks(tmp_path, "done/train/b/seed1")
    _run(steps, tmp_path)
    assert (tmp_path / "c.txt").read_text() == "made\npart\npart\n"
    _run(steps, tmp_path)
    assert (tmp_path / "c.txt").read_text() == "made\npart\npart\n"
    assert "Nothing to be done" in "".join(capfd.readouterr())
    changed = (_shell("data/a", "echo other >> a.txt"), *steps[1:])
    with pytest.raises(UserError, match="done/data/a: this step was done with `'echo made >> a.t"):
        _run(changed, tmp_path)


def _leave_locks(output: Path, file: str) -> None:
    """Leave the files by which a killed Snakemake would refuse to continue."""
    for kind in ("input", "output"):
        path = output / f".snakemake/locks/0.{kind}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{file}\n")


def test_one_process_at_a_time_works_in_an_output_folder(tmp_path):
    """A refused one leaves the plan of the other, whose Snakemake may read it again."""
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans/made.json").write_text("of the other")
    with (tmp_path / "plans/lock").open("w") as file:
        assert lock(file)
        print(4321, file=file, flush=True)
        with pytest.raises(UserError, match="Snakemake works in this folder, process 4321, also"):
            _run((_shell("data/a", "echo made > a.txt"),), tmp_path)
    assert not (tmp_path / "a.txt").exists()
    assert (tmp_path / "plans/made.json").read_text() == "of the other"


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    return fake_slurm.put_on_path(tmp_path, monkeypatch)


def test_words_after_two_dashes_go_to_snakemake():
    """argparse alone refuses them if flags stand between the table and the dashes."""
    parse = reproduce.make_parser().parse_args
    words = ["registers/table1", "--scale=tiny", "--", "--executor", "slurm", "--", "x"]
    assert parse(words).snakemake == ["--executor", "slurm", "--", "x"]
    assert parse(words[:3]).snakemake == parse(words[:1]).snakemake == []
    with pytest.raises(UserError, match="unexpected 'slurm'; .* of Snakemake follow '--'"):
        parse([words[0], "slurm"])


def test_slurm_gets_the_steps_in_order_and_makes_the_same_files(tmp_path, slurm):
    steps = (
        _shell("data/a", "echo made > a.txt"),
        _shell("train/b/seed1", "cat a.txt > b.txt; echo trained >> b.txt", "data/a"),
    )
    for folder, arguments in (("here", ()), ("cluster", fake_slurm.SNAKEMAKE_ARGUMENTS)):
        _run(steps, tmp_path / folder, arguments)
    jobs = [json.loads(path.read_text())["flags"] for path in sorted(slurm.glob("*.json"))]
    assert [job["comment"].split("_")[1] for job in jobs] == ["data", "train"]
    assert {(job["p"], job["A"]) for job in jobs} == {("gpus", "lab")}
    train = jobs[1]
    assert (train["mem"], train["t"]) == ("64000", "4320") and "gpus" in " ".join(train)
    made = [(tmp_path / folder / "b.txt").read_bytes() for folder in ("here", "cluster")]
    assert made == [b"made\ntrained\n"] * 2


@pytest.fixture
def forked_mnmt(tmp_path, monkeypatch):
    """Let workflows start `mnmt` in forks of the server, which has imported everything."""
    folder = tmp_path / "bin"
    folder.mkdir()
    main = folder / "main.py"
    main.write_text("from mnmt_jax.commands.mnmt import run\n\nrun()\n")
    script = ROOT / "tests" / "start_script.py"
    client = shlex.join([sys.executable, "-S", str(script), str(serve_starts()), str(main)])
    for name, command in (("mnmt", client), ("python", shlex.quote(sys.executable))):
        (folder / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (folder / name).chmod(0o755)
    monkeypatch.setattr("sys.executable", str(folder / "python"))  # steps look beside it


def test_a_row_runs_from_data_to_the_page(
    tmp_path, capfd, monkeypatch, relaxed_dtypes, forked_mnmt
):
    """FCLL of Table 7 at the scale `tiny`, on a made miniature of IWSLT17's files."""
    command = ["mnmt reproduce", "language_layers/table7", "--rows=2", "--scale=tiny"]
    monkeypatch.setattr("sys.argv", [*command, f"--output={tmp_path}"])
    reproduce.main()
    printed = capfd.readouterr().out
    page = tmp_path / "tables/language_layers/table7.html"
    assert TINY.notice in printed and f"Page: {page}" in printed
    evaluation = tmp_path / "evaluations/fcll_iwslt17-iwslt17/seed1"
    noted = [evaluation / name for name in ("table.md", "report.html")]
    assert all(TINY.notice in path.read_text("utf-8") for path in noted)
    result = read_result(evaluation)
    assert len(result.directions) == 12 and {item.sentences for item in result.directions} == {2}
    bleu = sum(item.bleu for item in result.directions if not item.supervised) / 6
    lines = [line for line in printed.splitlines() if line.startswith("| FCLL  ")]
    row = next(line for line in lines if "zero-shot BLEU" in line)
    assert [cell.strip() for cell in row.split("|")[3:5]] == ["21.00", f"{bleu:.2f}"]
    assert (tmp_path / "data/iwslt17/train.en-it.en").is_file()
    assert "training sentences 360 instead of 870,000" in printed
    assert "vocabulary 530 instead of 40,005" in printed
