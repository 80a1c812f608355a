"""Stopped, killed and damaged runs end like an undisturbed one."""

from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path

import pytest

from mnmt_jax.config.loading import save_config
from tests import fresh_process
from tests.made_run import (
    KEEP_ALL_PROGRAMS,
    assert_same_training,
    make_cache,
    make_config,
    records,
    steps_of,
)

pytestmark = pytest.mark.usefixtures("one_device")

STEPS = 24


@pytest.fixture(scope="module")
def gin_file(tmp_path_factory) -> Path:
    """Write a configuration that saves at every step, so that a random kill likely hits a save."""
    folder = tmp_path_factory.mktemp("resume")
    config = make_config(
        make_cache(folder / "cache"),
        train={"steps": STEPS, "log_every": 7, "eval_every": 8, "save_every": 1},
        optimizer={"accumulate": 2},
    )
    save_config(config, folder / "run.gin")
    return folder / "run.gin"


def start(gin_file: Path, workdir: Path, *bindings: str) -> fresh_process.Child:
    flags = (f"--gin_file={gin_file}", *bindings, f"--workdir={workdir}")
    return fresh_process.start("train.py", *flags, variables=KEEP_ALL_PROGRAMS)


def finish(child: fresh_process.Child, status: int) -> str:
    _, output = child.communicate(timeout=fresh_process.PATIENCE)
    assert child.returncode == status, output
    return output


def wait_for(condition, child: fresh_process.Child) -> None:
    deadline = time.monotonic() + fresh_process.PATIENCE
    while not condition():
        assert child.poll() is None, child.said()
        assert time.monotonic() < deadline
        time.sleep(0.001)


def unfinished(run: Path, above: int) -> list[Path]:
    """Return the folders of saves in progress."""
    actual = (run / "checkpoints").glob("*tmp*")
    return [path for path in actual if int(path.name.split(".")[0]) > above]


def complete(run: Path) -> list[int]:
    return sorted(int(path.name) for path in (run / "checkpoints").glob("*") if path.name.isdigit())


def test_runs_stopped_by_sigterm_or_killed_in_a_save_resume_identically(gin_file, tmp_path):
    uninterrupted, broken = tmp_path / "straight", tmp_path / "broken"
    assert "complete" in finish(
        start(gin_file, uninterrupted, f"--gin.Train.save_every={STEPS}"), 0
    )

    child = start(gin_file, broken)
    wait_for(lambda: complete(broken) and complete(broken)[-1] >= 3, child)
    child.send_signal(signal.SIGTERM)
    output = finish(child, 128 + signal.SIGTERM)
    stopped_at = complete(broken)[-1]
    assert f"SIGTERM: {broken} is at step {stopped_at} of {STEPS}" in output
    assert 3 <= stopped_at < STEPS

    for above in (stopped_at + 1, stopped_at + 5):
        child = start(gin_file, broken)
        wait_for(lambda above=above: unfinished(broken, above), child)
        child.kill()
        child.communicate()
        assert unfinished(broken, above), "the save had ended before the kill; nothing was tested"
        assert above - 1 <= complete(broken)[-1] < STEPS

    assert "complete" in finish(start(gin_file, broken), 0)
    assert_same_training(broken, uninterrupted, STEPS)
    assert [record["step"] for record in records(broken)] == [7, 8, 14, 16, 21, 24]
    assert not unfinished(broken, 0)


def damage(run: Path, step: int, how: str) -> None:
    folder = run / "checkpoints" / str(step)
    if how == "missing":
        shutil.rmtree(folder / "training")
        return
    if how == "no position":  # in the data
        record = json.loads((folder / "extra" / "metadata").read_text())
        del record["extra"]["data"]
        (folder / "extra" / "metadata").write_text(json.dumps(record))
        return
    for data in (folder / "params").rglob("d/*"):  # all: some of them nothing refers to any more
        content = bytearray(data.read_bytes())
        content[len(content) // 2] ^= 1
        data.write_bytes(content[: len(content) // 2] if how == "truncated" else content)


@pytest.mark.parametrize("how", ["missing", "no position", "truncated", "flipped"])
def test_a_damaged_newest_checkpoint_falls_back_to_the_previous_one(
    how, undisturbed, tmp_path, capfd
):
    """The fallback is reported, and the run ends like the undisturbed one."""
    from mnmt_jax.training.train import train

    config, uninterrupted = undisturbed
    run = tmp_path / "run"
    shutil.copytree(uninterrupted, run)
    damage(run, 8, how)
    assert train(config, run) is None
    output = capfd.readouterr().err
    assert "checkpoint 8 cannot be read" in output
    assert "checkpoint 8 was moved to" in output and (run / "checkpoints_damaged" / "8").is_dir()
    assert_same_training(run, uninterrupted, 8)
    assert steps_of(run) == [4, 8]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    from mnmt_jax.training.train import train

    folder = tmp_path_factory.mktemp("damage")
    config = make_config(make_cache(folder / "cache"))
    assert train(config, folder / "run") is None
    return config, folder / "run"
