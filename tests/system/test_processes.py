"""Two and four processes train as one does, stop together, and notice when one of them is gone."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mnmt_jax.config.loading import save_config
from mnmt_jax.config.sections import Mesh
from mnmt_jax.distributed.processes import LOST_STATUS
from mnmt_jax.evaluation.validation_scores import score
from mnmt_jax.files.bucket import bucket_path
from mnmt_jax.training.train import train
from tests.made_bucket import download, serve
from tests.made_run import make_cache, make_config, records, saved, steps_of
from tests.processes import Processes, grandchild
from tests.slow_loader import SECONDS

STEPS = 12  # an update of two processes takes 0.4 processor seconds
NOTICE = 90  # seconds within which the others must be gone; JAX by itself waits 100
TRANSLATED = 3  # pairs of each task: two and one
RTOL = 1e-5  # sums over devices are taken in another order
PARAMETER_ATOL = 1e-5


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    cache = make_cache(tmp_path_factory.mktemp("processes") / "cache")
    return make_config(
        cache,
        train={"steps": STEPS, "log_every": 1, "eval_every": 8, "save_every": 4},
        decode={"max_length": 8, "buckets": (32,)},
        optimizer={"accumulate": 2, "eps": 1e-3},
        model={"heads": 4},
        mesh={"fsdp": 2, "tensor": 2},
    )


@pytest.fixture(scope="module")
def gin_file(config, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("gin") / "run.gin"
    save_config(config, path)
    return path


@pytest.fixture(scope="module")
def alone(config, tmp_path_factory) -> Path:
    """The run of one process with all eight devices, which also translates."""
    folder = tmp_path_factory.mktemp("alone")
    training = dataclasses.replace(config.train, translate_pairs=TRANSLATED)
    config = dataclasses.replace(config, train=training)
    assert train(config, folder / "run", scorer=score) is None
    return folder / "run"


def start(
    gin_file: Path, workdir: Path, count: int, *bindings: str, workdirs: Sequence[str | Path] = ()
) -> Processes:
    """Trains in several processes, which have eight devices together."""

    def flags(number: int) -> list[str]:
        place = workdirs[number] if workdirs else workdir
        return [f"--gin_file={gin_file}", f"--workdir={place}", *bindings]

    return Processes("train.py", count, flags, devices=8 // count)


def step_of(run: Path) -> int:
    """Returns the last logged step."""
    path = run / "metrics.jsonl"
    found = re.findall(r'"step": (\d+)', path.read_text()) if path.is_file() else []
    return int(found[-1]) if found else 0


def translation_scores(run: Path) -> list[dict[str, Any]]:
    """Returns the scores of the translations of each validation."""
    lines = records(run)
    return [line["validation"]["translation"] for line in lines if "validation" in line]


def assert_close(found: Path, expected: Path, step: int) -> None:
    """Compares two runs up to the order of sums; which pairs were trained on, exactly."""
    left, right = saved(found, step), saved(expected, step)
    assert left.keys() == right.keys() and len(left) > 40
    np.testing.assert_array_equal(left["data"], right["data"])
    for name in left:
        if name.startswith("params"):
            np.testing.assert_allclose(left[name], right[name], atol=PARAMETER_ATOL, err_msg=name)
    ours, theirs = records(found), records(expected)
    assert [one["step"] for one in ours] == [one["step"] for one in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert one["padding_share"] == other["padding_share"]
        assert one["loss"] == pytest.approx(other["loss"], rel=RTOL)
        if "validation" in other:
            losses, expected_losses = (r["validation"]["tasks"] for r in (one, other))
            assert losses.keys() == expected_losses.keys()
            for name, values in expected_losses.items():
                assert losses[name]["loss"] == pytest.approx(values["loss"], rel=RTOL)


def test_two_processes_train_in_a_bucket_and_translate(gin_file, alone, tmp_path):
    setting = f"--gin.Train.translate_pairs={TRANSLATED}"
    with (
        serve(),
        start(gin_file, tmp_path / "said", 2, setting, workdirs=["gs://bucket/run"] * 2) as two,
    ):
        said = two.finish(range(2), 0)
        assert f"gs://bucket/run is at step {STEPS} of {STEPS}" in said[0]
        copy = download(bucket_path("gs://bucket/run"), tmp_path / "copy")
    assert_close(copy, alone, STEPS)
    ours, reference = (translation_scores(run) for run in (copy, alone))
    assert ours == reference and any(scores["chrf"] > 0 for scores in ours[-1]["tasks"].values())


def test_two_processes_stop_together_and_four_continue(gin_file, alone, tmp_path):
    """SIGTERM to one of two; a checkpoint of two processes is restored by four.

    The four are arranged so that two of them read the same rows.
    """
    run = tmp_path / "run"
    with start(gin_file, run, 2) as two:
        two.wait_for(lambda: step_of(run) >= 5)
        two.children[1].send_signal(signal.SIGTERM)
        said = two.finish((0, 1), 128 + signal.SIGTERM)
    stopped_at = steps_of(run)[-1]
    assert 5 <= stopped_at < STEPS
    assert f"SIGTERM: {run} is at step {stopped_at} of {STEPS}" in said[0]
    assert "SIGTERM" not in said[1]  # one process speaks for all
    with start(gin_file, run, 4, "--gin.Mesh.fsdp=1", "--gin.Mesh.tensor=4") as four:
        said = four.finish(range(4), 0)
    assert f"complete: {run} is at step {STEPS}" in said[0]
    assert_close(run, alone, STEPS)


@pytest.mark.parametrize(
    ("victim", "number"),
    [(0, signal.SIGKILL), (1, signal.SIGKILL), (1, signal.SIGSTOP)],
    ids=["the first is killed", "the other is killed", "the other hangs"],
)
def test_the_others_end_when_one_is_gone_and_the_command_continues(
    victim, number, gin_file, alone, tmp_path
):
    run = tmp_path / "run"
    with start(gin_file, run, 2) as processes:
        # The checkpoint of step 4 is written beside the updates and ends after some of them.
        first = run / "checkpoints" / "4"
        processes.wait_for(lambda: step_of(run) >= 5 and first.is_dir())
        os.kill(grandchild(processes.children[victim]), number)
        (said,) = processes.finish((1 - victim,), LOST_STATUS, NOTICE)
    assert "error: another process has exited or does not respond; start the same command" in said
    assert steps_of(run)[-1] >= 4
    with start(gin_file, run, 2) as processes:
        processes.finish((0, 1), 0)
    assert_close(run, alone, STEPS)


def test_what_one_process_alone_does_not_find_is_told_by_it(gin_file, tmp_path):
    """Folders that are not shared: one line and status 2 there, and the other does not wait."""
    runs = [tmp_path / "one", tmp_path / "other"]
    with start(gin_file, runs[0], 2, workdirs=runs) as two:
        (said,) = two.finish((1,), 2)
        two.finish((0,), LOST_STATUS, NOTICE)
    assert f"error: {runs[1]} is not the folder that process 0 writes to" in said
    assert not (runs[1] / "config.gin").exists()


def test_a_host_that_loads_slowly_is_named(config, tmp_path):
    """All three have the same time per update; only the second waits for its loader."""
    gin_file, run = tmp_path / "run.gin", tmp_path / "run"
    changed = {"rows": 12}, {"steps": 9, "log_every": 3, "eval_every": 9, "save_every": 9}
    data, training = (
        dataclasses.replace(section, **changes)
        for section, changes in zip((config.data, config.train), changed, strict=True)
    )
    save_config(dataclasses.replace(config, data=data, train=training, mesh=Mesh()), gin_file)
    flags = (f"--gin_file={gin_file}", f"--workdir={run}", "--module_import=tests.slow_loader")
    slow = {"SLOW_PROCESS": "1"}
    with Processes("train.py", 3, lambda _: flags, devices=1, variables=slow) as three:
        said = three.finish(range(3), 0)
    expected = f"warning: process 1 on {socket.gethostname()} takes"
    assert said[0].count(expected) == 1 and said[0].count("warning:") == 1
    assert "warning:" not in said[1] + said[2]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 3
    for line in lines[1:]:  # in the first, all wait for the first chunk
        first, second, third = line["batch_seconds"]["by_process"]
        assert second >= 2 * SECONDS > 2 * max(first, third)  # two micro-batches
        assert line["batch_seconds"]["slowest"] == second


def test_a_process_that_hangs_shows_where_and_is_started_again(config, tmp_path):
    """Its heartbeat continues, so the others would wait forever."""
    gin_file, run = tmp_path / "run.gin", tmp_path / "run"
    optimizer = dataclasses.replace(config.optimizer, accumulate=1)
    save_config(dataclasses.replace(config, optimizer=optimizer), gin_file)
    flags = (f"--gin_file={gin_file}", f"--workdir={run}", "--module_import=tests.hanging_loader")
    with Processes("train.py", 2, lambda _: flags, devices=4) as two:
        said, other = two.finish((1, 0), LOST_STATUS)
    assert "Timeout (0:00:02)!" in said and " in hang_at_the_fourth" in said
    expected = f"error: the process on {socket.gethostname()} made no progress for"
    assert said.count(expected) == 1 and "the run continues from its last checkpoint" in said
    assert "error: another process has exited or does not respond" in other
    with Processes("train.py", 2, lambda _: flags[:2], devices=4) as two:
        two.finish((0, 1), 0)
    assert steps_of(run)[-1] == STEPS
