"""Work folders of resumable commands."""

from __future__ import annotations

import contextlib
import re
import shutil
from pathlib import Path

import pytest

from mnmt_jax.commands.beam_translation import BeamOutput, WorkerModel, _line_from_json
from mnmt_jax.decoding.encoded_lines import Line
from mnmt_jax.errors import UserError
from mnmt_jax.files.work_folder import open_work_folder

LINES = [Line(number, text, "de", "en") for number, text in enumerate(("eins", "zwei", "drei"))]


def translate(output: Path, provenance: str) -> list[str]:
    """Translate each line into one word by windows of one line; return the records."""

    def write_records(function, work, units):
        for (name,) in units:
            (work.work / f"{name}.jsonl").write_text(f'{{"by": "{provenance}"}}\n')

    facts, model = {"run": provenance}, WorkerModel("run")
    with BeamOutput(str(output), facts, 1, model=model, runner=write_records) as windows:
        windows.finish(iter(LINES), lambda lines: iter(()), lambda count: None)
        records = [record["by"] for record in windows.records()]
        windows.remove()
    return records


@pytest.mark.parametrize("removed", ["made_by.json", "*/*-*.lines.jsonl"])
def test_windows_are_not_used_after_an_interrupted_removal(tmp_path, monkeypatch, removed):
    """`rmtree` removes files in any order."""

    def remove_some(folder):
        for path in folder.glob(removed):
            path.unlink()
        raise InterruptedError

    with monkeypatch.context() as patch, pytest.raises(InterruptedError):
        patch.setattr(shutil, "rmtree", remove_some)
        translate(tmp_path / "out", "first")
    assert (tmp_path / "out.unfinished.beam").is_dir()
    assert translate(tmp_path / "out", "second") == ["second"] * 3
    assert not (tmp_path / "out.unfinished.beam").exists()


def test_windows_of_a_worker_that_outlived_its_command_are_not_used(tmp_path):
    """It writes a window of the removed folder after a command with other settings has begun."""
    works = []

    def write_records(function, work, units):
        works.append(work.work)
        if len(works) == 1:
            raise InterruptedError
        works[0].mkdir()
        for (name,) in units:
            (works[0] / f"{name}.jsonl").write_text('{"by": "first"}\n')
            (work.work / f"{name}.jsonl").write_text('{"by": "second"}\n')

    model, ignored = WorkerModel("run"), lambda *arguments: iter(())
    for provenance in ("first", "second"):
        facts, stopped = {"run": provenance}, provenance == "first"
        with BeamOutput(str(tmp_path / "out"), facts, 1, model=model, runner=write_records) as one:
            with pytest.raises(InterruptedError) if stopped else contextlib.nullcontext():
                one.finish(iter(LINES), ignored, ignored)
            records = [] if stopped else [record["by"] for record in one.records()]
        if stopped:
            shutil.rmtree(tmp_path / "out.unfinished.beam")
    assert records == ["second"] * 3


def test_workers_read_the_lines_that_were_written(tmp_path):
    class StoppedError(Exception):
        """The runner stops."""

    def stop(function, work, units):
        raise StoppedError

    lines = [
        Line(0, "eins", "de", "en", contrast_sources=("zwei", "drei"), aligned=True),
        Line(1, "\u2028", "de", "en", auxiliary=("un", "fr")),
    ]
    model = WorkerModel("run")
    with BeamOutput(str(tmp_path / "out"), {}, 2, model=model, runner=stop) as windows:
        with pytest.raises(StoppedError):
            windows.finish(iter(lines), lambda lines: iter(()), lambda count: None)
    (path,) = (tmp_path / "out.unfinished.beam").rglob("*.lines.jsonl")
    written = path.read_text(encoding="utf-8").split("\n")[:-1]
    assert [_line_from_json(text) for text in written] == lines


def test_a_folder_of_something_else_is_kept(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    message = f"^{re.escape(str(tmp_path))}: has files of something else; move them, or choose an"
    with pytest.raises(UserError, match=message):
        open_work_folder(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_folder_that_another_process_begins_is_a_work_folder(tmp_path, monkeypatch):
    list_files = Path.iterdir

    def begin_elsewhere(folder):
        names = list(list_files(folder))
        monkeypatch.undo()
        open_work_folder(folder).close()
        (folder / "plan.json").touch()
        return iter([*names, folder / "plan.json"])

    monkeypatch.setattr(Path, "iterdir", begin_elsewhere)
    open_work_folder(tmp_path / "work").close()
    assert (tmp_path / "work" / "plan.json").is_file()
