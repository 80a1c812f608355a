"""Loader workers: chunks in order, errors, lost processes, signals, and the end of the trainer."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from mnmt_jax.config.sections import Data
from mnmt_jax.data.batch_iterator import BatchIterator
from mnmt_jax.data.cache import TokenCache
from mnmt_jax.data.cache_writer import TaskSource, write_cache
from mnmt_jax.data.converter import BatchExtras
from mnmt_jax.data.input_pipeline import Pipeline
from mnmt_jax.data.loader_workers import LoaderWorkers
from mnmt_jax.design.layouts import LAYOUTS
from mnmt_jax.design.views import View
from mnmt_jax.errors import OutageError, UserError
from mnmt_jax.training.session import Session
from mnmt_jax.training.train import train
from tests import made_run
from tests.chunk_loaders import (
    BrokenLoader,
    CountingLoader,
    ImportsLoader,
    UnpicklableError,
    WarningLoader,
)
from tests.unit import made_text

ROOT = Path(__file__).parents[2]
PATIENCE = 60  # seconds


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> TokenCache:
    tasks = [
        TaskSource(
            f"made_{s}_{t}", s, t, {"train": lambda seed=seed: made_run.random_pairs(90, seed)}
        )
        for seed, (s, t) in enumerate([("en", "de"), ("de", "en")])
    ]
    directory = tmp_path_factory.mktemp("workers") / "cache"
    return write_cache(directory, tasks, vocabulary=made_text.vocabulary())


def make_pipeline(cache: TokenCache, **changes) -> Pipeline:
    data = Data(
        rows=4,
        source_length=24,
        target_length=24,
        max_segments=3,
        chunk_examples=40,
        instruction="register",
        noise=(("typos", 0.3),),
        **changes,
    )
    return Pipeline(
        cache, LAYOUTS["register"], data, extras=BatchExtras(views=(View("target_view"),))
    )


@pytest.fixture
def start():
    """Return a function that starts workers; they are ended after the test."""
    started: list[LoaderWorkers] = []

    def start(loader, workers: int, *position: int) -> LoaderWorkers:
        started.append(LoaderWorkers(loader, workers, *position))
        return started[-1]

    yield start
    for workers in started:
        workers.close()


def loader_processes() -> set[int]:
    """Return the workers of this process that have not ended."""
    processes = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_child = f"\nPPid:\t{os.getpid()}\n" in (folder / "status").read_text()
            if is_child and b"worker_process" in (folder / "cmdline").read_bytes():
                processes.add(int(folder.name))
    return processes


def mapped_chunks() -> int:
    """Return the number of chunks in the shared memory of this process, without garbage."""
    gc.collect()
    return Path("/proc/self/maps").read_text().count("memfd:batches")


def is_running(process: int) -> bool:
    """Return whether a process exists and has not ended."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False


def wait_until_ended(processes: set[int]) -> None:
    deadline = time.monotonic() + PATIENCE
    while any(map(is_running, processes)):
        assert time.monotonic() < deadline, "a loader process goes on"
        time.sleep(0.02)


def assert_batches_equal(first, second) -> None:
    assert list(first) == list(second)
    for name, array in first.items():
        assert (array.dtype, array.shape) == (second[name].dtype, second[name].shape)
        np.testing.assert_array_equal(array, second[name], err_msg=name)


@pytest.mark.parametrize("workers", [1, 3])
def test_batches_and_positions_do_not_depend_on_the_number_of_workers(cache, workers):
    """From the start, and from a position that was saved with another number of workers."""
    plain = BatchIterator(make_pipeline(cache), threads=0)
    iterator = make_pipeline(cache, workers=workers).train()
    for _ in range(14):
        assert_batches_equal(next(plain), next(iterator))
        assert plain.get_state() == iterator.get_state()
    assert plain.get_state()["chunk"] >= 2 and plain.get_state()["batch"] > 0
    again = make_pipeline(cache, workers=2).train()
    again.set_state(iterator.get_state())
    expected = [next(plain) for _ in range(6)]
    for continued in (again, iterator):
        continued.close()  # and goes on with new processes
        for batch in expected:
            assert_batches_equal(batch, next(continued))
        assert continued.get_state() == plain.get_state()
        continued.close()


def test_each_chunk_is_built_once_by_the_workers_in_turn(start):
    workers = start(CountingLoader(), 3, 5, 1)
    chunks = list(itertools.islice(workers, 7))
    assert [[batch["number"].tolist() for batch in chunk] for chunk in chunks] == [
        [[5, 1], [5, 2]],
        *([[number, batch] for batch in range(3)] for number in range(6, 12)),
    ]
    processes = [{int(batch["process"]) for batch in chunk} for chunk in chunks]
    assert processes[:3] == processes[3:6] and processes[6] == processes[0]
    assert len(set.union(*processes)) == 3 and os.getpid() not in set.union(*processes)
    workers.close()
    assert not any(map(is_running, set.union(*processes)))
    assert chunks[0][0]["number"].tolist() == [5, 1]


def test_workers_import_neither_jax_nor_grain(cache, start):
    loader = ImportsLoader(make_pipeline(cache), ("jax", "grain", "numpy"))
    batch = next(start(loader, 1))[0]
    assert [bool(batch[name]) for name in loader.modules] == [False, False, True]


def test_a_refused_process_gives_one_line_and_ends_the_others(start, monkeypatch):
    popen, started = subprocess.Popen, []

    def start_two(*arguments, **named):
        if len(started) == 2:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        started.append(popen(*arguments, **named))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start_two)
    with pytest.raises(UserError, match="no further .* temporarily unavailable.; lower Data.work"):
        start(CountingLoader(), 3)
    gc.collect()
    assert len(started) == 2 and not any(is_running(process.pid) for process in started)


def test_warnings_of_workers_are_lines(start, capfd):
    next(start(WarningLoader(), 1))
    assert capfd.readouterr().err.startswith("warning: the storage is slow\n")


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (signal.SIGKILL, "was killed by SIGKILL: memory may be short; lower Data.workers"),
        (3, "ended with status 3; its messages are above; lower Data.workers"),
        (MemoryError("77 bytes"), r"is out of memory \(77 bytes\); lower Data.workers"),
        (OSError(28, "No space left on device"), "is out of memory .*; lower Data.workers"),
        (UserError("FILE: is damaged"), "^FILE: is damaged$"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_a_failed_worker_gives_one_line(start, failure, message):
    workers = start(CountingLoader(1, failure), 2)
    assert len(next(workers)) == 3
    with pytest.raises(UserError, match=message) as error:
        next(workers)
    assert "\n" not in str(error.value)
    # Scripts start a run again after status 75, which this class has.
    assert isinstance(error.value, OutageError) == (failure is signal.SIGKILL)


def test_a_worker_that_cannot_read_its_loader_says_so(start):
    with pytest.raises(UserError, match="no such cache here"):
        next(start(BrokenLoader(), 1))


def test_other_errors_keep_their_type_and_the_worker_s_traceback(start):
    with pytest.raises(FileNotFoundError) as error:
        next(start(CountingLoader(0, FileNotFoundError(2, "gone", "FILE")), 1))
    assert error.value.filename == "FILE" and "in _fail" in error.value.__notes__[0]
    with pytest.raises(RuntimeError, match="(?s)in _fail.*UnpicklableError: 1 and 2"):
        next(start(CountingLoader(0, functools.partial(UnpicklableError, "1", "2")), 1))


def test_an_iterator_continues_after_an_error(cache, monkeypatch):
    """A chunk that could not be read is read again, by new processes."""
    iterator = make_pipeline(cache, workers=2).train()
    plain = BatchIterator(make_pipeline(cache), threads=0)
    assert_batches_equal(next(plain), next(iterator))
    processes = set(iterator.worker_ids)
    assert len(processes) == 2
    for process in processes:
        os.kill(process, signal.SIGKILL)
    with pytest.raises(UserError, match="SIGKILL"):
        for _ in range(40):
            assert_batches_equal(next(plain), next(iterator))
    plain.set_state(iterator.get_state())
    for _ in range(5):
        assert_batches_equal(next(plain), next(iterator))
    assert not any(map(is_running, processes))
    iterator.close()


def test_signals_to_the_whole_group_do_not_reach_workers(start):
    workers = start(CountingLoader(), 1)
    process = int(next(workers)[0]["process"])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        os.kill(process, number)
    numbers = [int(batch["number"][0]) for chunk in itertools.islice(workers, 3) for batch in chunk]
    assert numbers == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {signal.SIGINT, signal.SIGTERM}


@pytest.mark.usefixtures("one_device", "kept_programs")
def test_a_run_continues_with_another_number_of_workers(tmp_path, monkeypatch):
    """Each stop ends the workers; the parameters are those of a run without any.

    Nothing of a consumed chunk is kept until the next logged step.
    """
    cache, run = made_run.make_cache(tmp_path / "cache"), tmp_path / "run"
    settings = {"log_every": 8, "eval_every": 8, "save_every": 8}
    assert train(made_run.make_config(cache, train=settings), tmp_path / "plain") is None
    advance, seen, kept = Session.advance, [], []

    def advance_and_stop(self):
        advance(self)
        seen.append(len(loader_processes()))
        kept.append(self.batches)  # not ended by the garbage collector
        assert mapped_chunks() <= 1
        if self.step in (5, 7):  # in the second chunk
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Session, "advance", advance_and_stop)
    for workers, stopped in ((2, "SIGTERM"), (1, "SIGTERM"), (0, None)):
        config = made_run.make_config(cache, data={"workers": workers}, train=settings)
        assert train(config, run) == stopped
        assert not loader_processes()
    assert seen == [2, 2, 2, 2, 2, 1, 1, 0]
    made_run.assert_same_training(run, tmp_path / "plain", 8)


SCRIPT = """
import itertools, sys
from mnmt_jax.data.loader_workers import LoaderWorkers
from mnmt_jax.training.session import Session
from mnmt_jax.training.train import train
from tests import made_run
from tests.chunk_loaders import CountingLoader
workers = LoaderWorkers(CountingLoader(), 2)
print(*(int(chunk[0]["process"]) for chunk in itertools.islice(workers, 2)), flush=True)
"""


@pytest.mark.parametrize(
    ("last_line", "status"),
    [("", 0), ("raise SystemExit(5)", 5), ("1 / 0", 1), ("sys.stdin.read()", -signal.SIGKILL)],
)
def test_workers_end_with_a_script_that_has_no_main_guard(last_line, status, tmp_path):
    """At its end, after an error, and when it is killed."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + last_line)
    with subprocess.Popen(
        [sys.executable, str(script)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as parent:
        processes = set(map(int, parent.stdout.readline().split()))
        assert len(processes) == 2
        if status < 0:
            assert all(map(is_running, processes))
            parent.kill()
        assert parent.wait(PATIENCE) == status
        wait_until_ended(processes)
        assert ("ZeroDivisionError" in parent.stderr.read()) == (last_line == "1 / 0")


def test_memory_is_free_when_the_batches_are(start):
    """The batches of a chunk share one mapping; no descriptor is left open."""
    workers = start(CountingLoader(), 2)
    first = next(workers)
    before, descriptors = mapped_chunks(), len(os.listdir("/proc/self/fd"))
    assert before == 1
    chunks = list(itertools.islice(workers, 4))
    assert mapped_chunks() == 5
    del chunks
    assert (mapped_chunks(), len(os.listdir("/proc/self/fd"))) == (before, descriptors)
    last = first.pop()["number"]
    del first
    assert mapped_chunks() == 1 and last.tolist() == [0, 2]
