"""The flags of several processes, and which rows each of them reads."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from mnmt_jax.commands.common_flags import CommandParser
from mnmt_jax.config.sections import Mesh
from mnmt_jax.data.chunk_plan import ProcessRows
from mnmt_jax.distributed.processes import Agreement, add_process_flags, connect, is_distributed
from mnmt_jax.distributed.sharding import local_batch_shards, make_mesh
from mnmt_jax.errors import UserError
from mnmt_jax.training.train import train
from tests.fresh_process import PATIENCE
from tests.made_run import make_cache, make_config

ROOT = Path(__file__).resolve().parents[2]
THREE = ["--coordinator_address=localhost:1", "--num_processes=2", "--process_id=1"]


def parse(*arguments: str):
    parser = CommandParser()
    add_process_flags(parser)
    return parser.parse_args(arguments)


@pytest.mark.parametrize(
    ("arguments", "several"), [([], False), (["--distributed"], True), (THREE, True)]
)
def test_several_processes_are_asked_for(arguments, several):
    assert is_distributed(parse(*arguments)) is several


@pytest.mark.parametrize("left_out", range(3))
def test_a_missing_flag_is_named(left_out):
    arguments = [flag for number, flag in enumerate(THREE) if number != left_out]
    with pytest.raises(UserError, match=f"{THREE[left_out].split('=')[0]} is missing"):
        is_distributed(parse(*arguments))


def test_a_number_beyond_the_processes_is_refused():
    with pytest.raises(UserError, match="--process_id=2 must be from 0 to .* = 1"):
        is_distributed(parse(*THREE[:2], "--process_id=2"))


@pytest.mark.parametrize("seconds", [0, -5])
def test_a_heartbeat_without_duration_is_refused(seconds):
    """JAX's runtime aborts, which looks like a lost process."""
    with pytest.raises(UserError, match=f"^--heartbeat_seconds={seconds} must be at least 1$"):
        is_distributed(parse(*THREE, f"--heartbeat_seconds={seconds}"))


@pytest.mark.parametrize("address", ["host", "host:", "host:x", "host:0", "host:65536"])
def test_an_address_without_a_port_is_refused(address):
    with pytest.raises(UserError, match=f"^--coordinator_address={address} must be HOST:PORT"):
        connect(parse(f"--coordinator_address={address}", *THREE[1:]))


def test_progress_starts_the_time_limit_again(monkeypatch):
    limits = []
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda n, exit: limits.append(n))
    agreement = Agreement(make_mesh(Mesh(), jax.devices()[:1]), lambda: 0)
    agreement.progress()
    assert not limits  # one process waits for no other
    agreement._is_distributed = True
    for count in (1, 2):
        agreement.progress()
        assert limits == [1800] * count


def test_rows_of_runs_that_are_not_neighbours():
    places = ProcessRows((1, 3), 4).local_rows(8)
    np.testing.assert_array_equal(places, [-1, -1, 0, 1, -1, -1, 2, 3])
    np.testing.assert_array_equal(ProcessRows().local_rows(3), [0, 1, 2])


def test_the_last_rows_stay_empty_if_the_shards_do_not_divide_them():
    """7 rows on 4 shards of 2: the last shard has one row and an empty one."""
    local = [ProcessRows((shard,), 4) for shard in range(4)]
    assert [rows.count(7) for rows in local] == [2, 2, 2, 2]
    assert {rows.empty_rows(7) for rows in local} == {1}
    places = np.stack([rows.local_rows(7) for rows in local])
    np.testing.assert_array_equal(np.argwhere(places >= 0)[:, 1], np.arange(7))
    np.testing.assert_array_equal(places[3], [-1] * 6 + [0])
    np.testing.assert_array_equal(ProcessRows((2, 3), 4).local_rows(7), [-1] * 4 + [0, 1, 2])
    assert ProcessRows((0,), 4).empty_rows(8) == 0


def test_one_process_owns_all_shards():
    assert local_batch_shards(make_mesh(Mesh(fsdp=2, tensor=2))) == (0, 1, 2, 3)


WORK = """
import os, sys, time
from mnmt_jax.distributed.processes import supervise
def work():
    {}
sys.exit(supervise(work) or 0)
"""


def supervised(work: str) -> subprocess.Popen:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", WORK.format(work)]
    return subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize(
    ("work", "status", "said"),
    [
        ("return 3", 3, ""),
        ("from mnmt_jax.errors import UserError; raise UserError('no')", 2, "error: no"),
        (
            "import jax; jax.config.update('jax_platforms', 'none'); "
            "from mnmt_jax.errors import UserError; raise UserError('no')",
            2,
            "error: no",
        ),
        ("os._exit(1)", 75, "error: the process on "),
        ("os.abort()", 75, "error: another process has exited or does not respond"),
        ("os.kill(os.getpid(), 9)", 137, "error: SIGKILL ended this process; out of memory?"),
        (
            "import jax; raise jax.errors.JaxRuntimeError('Gloo all-reduce failed: reset by peer')",
            75,
            "same command in every process again",
        ),
    ],
)
def test_the_end_of_the_work_is_explained(work, status, said):
    child = supervised(work)
    _, error = child.communicate(timeout=PATIENCE)
    assert child.returncode == status, error
    assert said in error and error.count("error:") == bool(said)


def test_a_bug_keeps_its_status_and_traceback():
    """Only an exit by a library or the time limit is taken for a process that hung."""
    child = supervised("raise RuntimeError('a bug')")
    _, error = child.communicate(timeout=PATIENCE)
    assert child.returncode == 1
    assert error.endswith("RuntimeError: a bug\n") and "error: the process" not in error


def test_the_work_ends_with_its_guard_and_hears_sigterm():
    child = supervised("print(os.getpid(), flush=True); time.sleep(10000)")
    worker = int(child.stdout.readline())
    child.kill()
    child.wait()
    for _ in range(2000):
        status = Path(f"/proc/{worker}/stat")
        if not status.exists() or status.read_text().split(")")[1].split()[0] == "Z":
            break
        time.sleep(0.05)
    else:
        raise AssertionError("the worker outlived its guard")
    child = supervised("print(os.getpid(), flush=True); time.sleep(10000)")
    child.stdout.readline()
    child.send_signal(signal.SIGTERM)
    _, error = child.communicate(timeout=PATIENCE)
    assert child.returncode == 128 + signal.SIGTERM and "SIGTERM ended" in error


def test_a_run_that_process_0_continues_and_this_one_does_not_find_is_refused(
    tmp_path, monkeypatch, one_device
):
    """Before checkpoints are read: process 0 has them in a folder that is not shared."""
    module = "mnmt_jax.training.open_run.broadcast_from_first"
    monkeypatch.setattr(module, lambda numbers: [True])
    with pytest.raises(UserError, match="run is not the folder that process 0 writes to; choose"):
        train(make_config(make_cache(tmp_path / "cache")), tmp_path / "run")
    assert not (tmp_path / "run" / "config.gin").exists()
