"""A run that continues with other numbers of processes: 8, then 3, then 5, in a bucket."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

from mnmt_jax.config.loading import save_config
from mnmt_jax.config.sections import Config
from mnmt_jax.files.bucket import bucket_path
from mnmt_jax.training.train import train
from tests import batch_record
from tests.made_bucket import download, serve
from tests.made_run import make_cache, make_config, one_device, records, saved
from tests.processes import Processes

RUN = "gs://bucket/run"
STEPS = 12
COUNTS = (8, 3, 5)
FSDP = (2, -1, 1)  # parameters are split over two processes, over all, over none
WORKERS = (0, 2, 1)  # loader workers of each process
EMPTY = ("", "2 of 114 rows of each batch stay empty", "3 of 115 rows of each batch stay empty")
STOPS = ((7, 2), (2, 2))  # process and update of its start at which it gets SIGTERM
AHEAD = 3  # updates after the signal
RTOL = 1e-5  # sums over devices are taken in another order
PARAMETER_ATOL = 1e-5


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Config:
    cache = make_cache(tmp_path_factory.mktemp("counts") / "cache")
    return make_config(
        cache,
        # About 15 batches are a chunk.
        data={"rows": batch_record.ROWS, "chunk_examples": 1800, "max_segments": 2},
        train={"steps": STEPS, "log_every": 1, "eval_every": 12, "save_every": 60},
        optimizer={"eps": 1e-3},
        model={"embed": 12, "mlp": 24},  # which three processes can split
    )


def alone(config: Config, folder: Path) -> list[str]:
    """Train in one process with one device; return the checksums of its batches."""
    with one_device(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("mnmt_jax.training.session.place_batch", batch_record.place_batch)
        batch_record.record_in(folder / "alone.txt")
        assert train(config, folder / "run") is None
    return (folder / "alone.txt").read_text().split()


def continue_with(
    count: int, settings: tuple[str, ...], record: Path, stop: tuple[int, int] | None
) -> str:
    """Train in a number of processes with one device each; return what process 0 printed."""
    variables = {"BATCH_RECORD": str(record)}
    if stop:
        variables |= {"STOP_PROCESS": str(stop[0]), "STOP_AFTER": str(stop[1])}
    flags = (f"--workdir={RUN}", "--module_import=tests.batch_record", *settings)
    status = 128 + signal.SIGTERM if stop else 0
    with Processes("train.py", count, lambda _: flags, devices=1, variables=variables) as many:
        return many.finish(range(count), status)[0]


def assert_losses_within_rounding(actual: Path, expected: Path) -> None:
    ours, reference = records(actual), records(expected)
    assert [one["step"] for one in ours] == [*range(1, STEPS + 1)]
    for one, other in zip(ours, reference, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=RTOL)
        assert one["padding_share"] == other["padding_share"]
    left, right = saved(actual, STEPS), saved(expected, STEPS)
    np.testing.assert_array_equal(left["data"], right["data"])
    params = [name for name in left if name.startswith("params")]
    assert len(params) > 10
    for name in params:
        np.testing.assert_allclose(left[name], right[name], atol=PARAMETER_ATOL, err_msg=name)


def test_eight_three_and_five_processes_see_the_batches_of_one(config, tmp_path):
    """Each number of processes continues the run of the one before; no batch changes a bit.

    Nor do the batches depend on the loader workers of the processes.
    """
    gin_file, record = tmp_path / "run.gin", tmp_path / "batches.txt"
    save_config(config, gin_file)
    expected = alone(config, tmp_path)
    assert len(set(expected)) == STEPS  # no batch is like another
    done = 0
    with serve():
        for count, fsdp, workers, stop, empty in zip(
            COUNTS, FSDP, WORKERS, (*STOPS, None), EMPTY, strict=True
        ):
            settings = (f"--gin.Mesh.fsdp={fsdp}", f"--gin.Data.workers={workers}")
            said = continue_with(count, (f"--gin_file={gin_file}", *settings), record, stop)
            assert empty in said and ("stay empty" in said) == bool(empty)
            updates = len(record.read_text().split())
            assert not done or f"continues at step {done}" in said
            if stop:
                assert stop[1] <= updates - done <= stop[1] + AHEAD
                assert f"SIGTERM: {RUN} is at step {updates} of {STEPS}" in said
            done = updates
        copy = download(bucket_path(RUN), tmp_path / "copy")
    assert record.read_text().split() == expected
    assert_losses_within_rounding(copy, tmp_path / "run")
