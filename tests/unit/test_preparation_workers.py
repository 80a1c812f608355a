"""Workers of a preparation: a killed command, its units, and the folder of Beam's workers."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

import pytest

from mnmt_jax.data.mixtures import plan_tasks
from mnmt_jax.data.preparation import passes
from mnmt_jax.data.preparation.outputs import CacheOutput
from mnmt_jax.data.preparation.prepare import prepare
from mnmt_jax.data.preparation.runners import LocalRunner, _run_unit
from tests.fresh_process import PATIENCE
from tests.unit.made_preparation import (
    DIRECTIONS,
    SHARD_EXAMPLES,
    SIZES,
    STEPS,
    Lower,
    Nothing,
    content,
    corpus,
    made_recipe,
    run,
    vocabulary,
)
from tests.waiting import wait_until

__all__ = ["corpus", "vocabulary"]  # fixtures


class KilledError(Exception):
    """The command is killed."""


def test_units_of_a_killed_preparation_are_not_those_of_the_next_one(corpus, vocabulary, tmp_path):
    """Workers that outlived the command go on while another recipe has begun."""
    options = {"form": CacheOutput(vocabulary, SHARD_EXAMPLES), "output": tmp_path / "cache"}
    tasks, queued = plan_tasks(corpus, DIRECTIONS), []

    def kill_at_the_filter(function, job, units):
        if function is passes.filter_chunk:
            queued.extend((function, job, unit) for unit in units)
            raise KilledError
        LocalRunner(1)(function, job, units)

    def with_old_workers(function, job, units):
        if function is passes.filter_chunk:
            for old_function, old_job, unit in queued[:3]:
                old_job.work.mkdir(exist_ok=True)
                text = passes.raw_folder(old_job, unit[0])
                if not text.exists():  # a worker may have read its text before it was removed
                    text.parent.mkdir(exist_ok=True)
                    text.symlink_to(passes.raw_folder(job, unit[0]))
                old_function(old_job, *unit)
        LocalRunner(1)(function, job, units)

    with pytest.raises(KilledError):
        recipe = made_recipe((Nothing(),))
        prepare(corpus, tasks, recipe, runner=kill_at_the_filter, **options, **SIZES)
    recipe = made_recipe((Lower(),))
    prepare(corpus, tasks, recipe, runner=with_old_workers, overwrite=True, **options, **SIZES)
    run(corpus, vocabulary, tmp_path / "straight", (Lower(),))
    assert len(queued) > 3 and content(tmp_path / "cache") == content(tmp_path / "straight")


class Folder:
    """Work of units in a folder."""

    def __init__(self, work: Path) -> None:
        self.work = work


def note_process_and_wait(job, number):
    """Write the process id of the worker, and wait in the first units of two workers."""
    (job.work / f"{number}.started").write_text(str(os.getpid()), encoding="utf-8")
    if number < 2:
        time.sleep(PATIENCE)


def start_workers(work: Path) -> None:
    with LocalRunner(2) as runner:
        runner(note_process_and_wait, Folder(work), [(number,) for number in range(8)])


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def test_workers_end_with_a_killed_command(tmp_path):
    command = multiprocessing.get_context("spawn").Process(target=start_workers, args=(tmp_path,))
    command.start()

    def worker_ids() -> set[int]:
        texts = [path.read_text(encoding="utf-8") for path in tmp_path.glob("*.started")]
        return {int(text) for text in texts if text}

    wait_until(lambda: len(worker_ids()) == 2)
    command.kill()
    command.join()
    wait_until(lambda: not any(map(is_running, worker_ids())))
    assert len(list(tmp_path.glob("*.started"))) == 2


def test_a_worker_of_beam_reads_relative_paths_from_the_folder_of_the_command(
    tmp_path, monkeypatch
):
    (tmp_path / "text").write_text("good")
    monkeypatch.chdir("/")  # of the worker; reset afterwards
    texts = []

    def read(job, name):
        texts.append(Path(name).read_text())

    _run_unit(read, Folder(tmp_path), tmp_path / "refusal.txt", tmp_path, ("text",))
    _run_unit(read, Folder(tmp_path), tmp_path / "refusal.txt", tmp_path / "elsewhere", ("text",))
    assert texts == ["good"] * 2


def test_a_relative_output_has_an_absolute_folder_of_units(
    corpus, vocabulary, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    folders = []

    def note_folder(function, job, units):
        folders.append(job.work)
        LocalRunner(1)(function, job, units)

    options = {"form": CacheOutput(vocabulary), "output": Path("cache"), "runner": note_folder}
    prepare(corpus, plan_tasks(corpus, DIRECTIONS), made_recipe(STEPS), **options)
    assert {folder.parent for folder in folders} == {tmp_path / "cache.unfinished"}
