"""Full storage: training continues, and the end reports what was not saved."""

from __future__ import annotations

import contextlib
import errno
import gzip
import os
import shutil
import threading
import time

import aiohttp
import gcsfs.retry
import pytest

from mnmt_jax.errors import UserError
from mnmt_jax.files.atomic_write import write_errors
from mnmt_jax.files.storage_errors import (
    is_machine_error,
    one_line,
    storage_error_reason,
    write_refusal,
)
from mnmt_jax.training.checkpoints import Checkpoints
from tests.full_disk import files_up_to
from tests.unit.test_checkpoint import make_state, shapes_of


@pytest.mark.parametrize(
    "error",
    [
        OSError("Forbidden: gs://bucket/run"),
        ConnectionResetError(),
        aiohttp.ClientError("503"),
        gcsfs.retry.HttpError({"code": 503, "message": "Service Unavailable"}),
        ValueError("Error reading manifest: DEADLINE_EXCEEDED: timed out"),
    ],
)
def test_network_errors_are_machine_errors(error):
    assert is_machine_error(error) and storage_error_reason(error) == one_line(error)


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError("gs://bucket/run/checkpoints/8"),
        IsADirectoryError("gs://bucket/run/checkpoints/8"),
        gzip.BadGzipFile("Not a gzipped file (b'{}')"),
    ],
)
def test_errors_about_the_file_itself_are_no_machine_errors(error):
    assert not is_machine_error(error) and not storage_error_reason(error)


def test_training_continues_and_saves_once_there_is_space(tmp_path):
    reports: list[str] = []
    checkpoints = Checkpoints(tmp_path / "checkpoints", report=reports.append)
    checkpoints.save(make_state(1), {"data": {}})
    checkpoints.wait()
    with files_up_to(2000):
        checkpoints.save(make_state(2, width=4000), {"data": {}})
        checkpoints.wait()
    assert len(reports) == 1 and "checkpoint 2 could not be written" in reports[0]
    assert "File too large" in reports[0] and reports[0].endswith("the last good one is 1")
    checkpoints.save(make_state(3), {"data": {}})
    checkpoints.close()
    assert len(reports) == 1
    again = Checkpoints(tmp_path / "checkpoints")
    assert again.steps() == [1, 3]
    assert int(again.restore(shapes_of(make_state(0))).state.step) == 3
    again.close()


@contextlib.contextmanager
def writing_on(folder):
    """Keep adding files to a folder once it exists, like threads of a failed save."""
    done = threading.Event()

    def write():
        while not folder.is_dir() and not done.wait(0.001):
            pass
        while not done.is_set():
            with contextlib.suppress(OSError):  # removed in between
                (folder / "late").mkdir(parents=True, exist_ok=True)
                (folder / "late" / str(time.monotonic_ns())).touch()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_a_failed_save_that_still_writes_does_not_block_the_next(tmp_path):
    folder, reports = tmp_path / "checkpoints", []
    checkpoints = Checkpoints(folder, report=reports.append)
    with writing_on(folder / "2.orbax-checkpoint-tmp"):
        with files_up_to(2000):
            checkpoints.save(make_state(2, width=4000), {"data": {}})
            checkpoints.wait()
        for step in (3, 4, 5):
            checkpoints.save(make_state(step), {"data": {}})
        checkpoints.close()
    assert len(reports) == 1 and checkpoints.steps() == [3, 4, 5]
    again = Checkpoints(folder)
    again.save(make_state(6), {"data": {}})
    again.close()
    assert {path.name for path in folder.iterdir()} == {"3", "4", "5", "6"}


def test_a_run_ending_without_a_save_is_an_error(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints", report=lambda line: None)
    checkpoints.save(make_state(1), {"data": {}})
    checkpoints.wait()
    with files_up_to(2000):
        checkpoints.save(make_state(2, width=4000), {"data": {}})
        with pytest.raises(
            UserError, match="checkpoint 2 could not .*last good one is 1; start the"
        ):
            checkpoints.close()


def test_no_save_is_attempted_on_full_storage(tmp_path, monkeypatch):
    reports: list[str] = []
    checkpoints = Checkpoints(tmp_path / "checkpoints", report=reports.append)
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage)
        checkpoints.save(make_state(1), {"data": {}})
    assert "checkpoint 1 could not be written (No space left on device: " in reports[0]
    assert "bytes needed, 1,000 free); make room at" in reports[0] and reports[0].endswith(
        "is none"
    )
    assert list((tmp_path / "checkpoints").iterdir()) == []
    checkpoints.save(make_state(2), {"data": {}})
    checkpoints.close()
    assert (
        len(reports) == 1 and write_refusal(tmp_path / "absent", 1) == "No such file or directory"
    )


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), "make room"),
        (OSError(errno.EACCES, os.strerror(errno.EACCES)), "see to the storage and your rights"),
        (ConnectionError("no route"), "see to the network and your rights"),
    ],
)
def test_the_remedy_fits_the_reason(error, remedy, tmp_path, monkeypatch):
    reports: list[str] = []
    checkpoints = Checkpoints(tmp_path / "checkpoints", report=reports.append)

    def refuse(*_, **__):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints._manager, "save", refuse)
        checkpoints.save(make_state(1), {"data": {}})
    (report,) = reports
    assert f"; {remedy} at {tmp_path / 'checkpoints'}; the last good one is none" in report
    if remedy != "see to the network and your rights":
        with pytest.raises(UserError, match=rf"a: cannot be written \(.*\); {remedy}, or choose"):
            with write_errors(tmp_path / "a"):
                raise error


@pytest.mark.parametrize(
    ("error", "storage", "machine"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True, False),
        (ValueError("INTERNAL: write [system error: 30 Read-only file system]"), True, False),
        (MemoryError(), False, True),
        (ValueError("RESOURCE_EXHAUSTED: Out of memory"), False, True),
        (ValueError("bad checksum"), False, False),
    ],
)
def test_errors_are_classified_as_storage_or_machine(error, storage, machine):
    try:
        raise RuntimeError("outside") from error
    except RuntimeError as outside:
        assert (bool(storage_error_reason(outside)), is_machine_error(outside)) == (
            storage,
            machine,
        )
