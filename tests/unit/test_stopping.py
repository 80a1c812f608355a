"""Stop signals: they interrupt waits for data, and end processes whose bucket does not answer."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import threading
import time
import types
from pathlib import Path

import pytest

from mnmt_jax.distributed import outage_watch
from mnmt_jax.distributed.outage_watch import end_in_outage
from mnmt_jax.distributed.stopping import InterruptedWaitError, StopRequests
from mnmt_jax.files import bucket_reader
from mnmt_jax.files.bucket import copy_files
from mnmt_jax.files.bucket_reader import BucketReader
from mnmt_jax.files.local_copies import FOLDER_VARIABLE
from mnmt_jax.runtime import run_command as command_frame
from mnmt_jax.training.session import Session
from mnmt_jax.training.train import train
from tests.made_bucket import serve
from tests.made_run import assert_same_training, make_cache, make_config, steps_of

OUTAGE = 503, b"{}"
PATIENCE = 60  # seconds: an outage is waited for ten times as long


def send_later(number: signal.Signals, seconds: float = 0.2) -> None:
    """Send a signal to this process from another thread, as a scheduler does."""

    def send() -> None:
        time.sleep(seconds)
        os.kill(os.getpid(), number)

    threading.Thread(target=send, daemon=True).start()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_wait_at_once(number):
    with StopRequests() as stop:
        with pytest.raises(InterruptedWaitError), stop.waiting():
            send_later(number)
            threading.Event().wait(PATIENCE)
            pytest.fail("the wait went on")
        assert stop.received == number and not stop.is_waiting
        with pytest.raises(InterruptedWaitError), stop.waiting():
            pytest.fail("a wait began after the signal")


def test_a_preemption_notice_ends_a_wait():
    with StopRequests() as stop, pytest.raises(InterruptedWaitError), stop.waiting():
        threading.Timer(0.2, stop.announce, ["this machine goes"]).start()
        threading.Event().wait(PATIENCE)
        pytest.fail("the wait went on")
    assert stop.received == signal.SIGTERM


@pytest.mark.parametrize(
    ("can_interrupt", "interruptible"), [(False, True), (True, False)], ids=["others", "block"]
)
def test_signals_are_only_recorded_where_a_wait_must_end_by_itself(can_interrupt, interruptible):
    with StopRequests(can_interrupt=can_interrupt) as stop:
        with stop.waiting(interruptible=interruptible):
            assert stop.is_waiting
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert stop.received == signal.SIGTERM and not stop.is_waiting


def test_a_bucket_is_asked_whether_it_answers():
    with serve() as store:
        reader = BucketReader("gs://bucket/run")
        assert reader.outage() == ""
        store.refuses = OUTAGE
        assert reader.outage() == "503 Service Unavailable"
        store.refuses = 403, b"{}"
        assert reader.outage() == ""  # an answer, though not the hoped-for one


class TestWatch:
    """The thread that ends a stopped process."""

    @pytest.fixture
    def statuses(self, monkeypatch):
        """Statuses with which the process would have ended."""
        statuses: list[int] = []
        released = threading.Event()

        def end(status: int) -> None:
            statuses.append(status)
            released.wait()

        monkeypatch.setattr(outage_watch, "exit_immediately", end)
        monkeypatch.setattr(outage_watch, "_PAUSE_SECONDS", 0.05)
        monkeypatch.setattr(outage_watch, "_PATIENCE", 0.5)
        yield statuses
        released.set()

    def watch(self, refuses, run: str, cache: str, *, is_waiting: bool = False) -> None:
        """Watch for two seconds after a signal."""
        with serve() as store, StopRequests(can_interrupt=False) as stop:
            with end_in_outage(stop, run, cache):
                store.refuses = refuses
                stop.received, stop.is_waiting = signal.SIGTERM, is_waiting
                time.sleep(2)

    def test_a_silent_bucket_of_the_run_ends_the_process(self, statuses, capsys):
        self.watch(OUTAGE, "gs://bucket/run", "cache")
        line = capsys.readouterr().err
        assert statuses == [75] and line.count("\n") == 1
        assert line.startswith("error: gs://bucket/run: no answer for ")
        assert "(503 Service Unavailable)" in line and "after SIGTERM" in line
        assert "run the same command again: it continues from its last checkpoint" in line

    def test_a_silent_bucket_of_the_cache_only_while_it_is_waited_for(self, statuses):
        self.watch(OUTAGE, "run", "gs://bucket/cache")
        assert statuses == []
        self.watch(OUTAGE, "run", "gs://bucket/cache", is_waiting=True)
        assert statuses == [75]

    @pytest.mark.parametrize("refuses", [None, (403, b"{}")])
    def test_a_bucket_that_answers_does_not(self, statuses, refuses):
        self.watch(refuses, "gs://bucket/run", "gs://bucket/cache", is_waiting=True)
        assert statuses == []

    def test_without_a_signal_nothing_is_asked(self, statuses):
        with serve() as store, StopRequests() as stop, end_in_outage(stop, "gs://bucket/r", "c"):
            store.refuses = OUTAGE
            time.sleep(1)
        assert statuses == []


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """A bucket whose cache is copied to a folder of the test."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "copies"))
    with serve() as store:
        yield store


def config_of(folder: Path, store, **changes):
    """A configuration that reads a cache in the bucket, and the same with its folder."""
    from mnmt_jax.files.bucket import bucket_path

    local = make_config(make_cache(folder / "cache"), **changes)
    copy_files(Path(local.data.cache), bucket_path("gs://bucket/cache"))
    data = dataclasses.replace(local.data, cache="gs://bucket/cache")
    return dataclasses.replace(local, data=data), local


@pytest.mark.usefixtures("one_device", "kept_programs")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_training_that_waits_for_its_cache_saves_at_the_signal(
    bucket, tmp_path, workers, monkeypatch
):
    """In the middle of the run, when the copies of its shards are gone; then bit for bit."""
    changes = {"workers": workers, "chunk_examples": 3}
    config, local = config_of(tmp_path, bucket, data=changes, optimizer={"accumulate": 2})
    plain = dataclasses.replace(local, data=dataclasses.replace(local.data, workers=0))
    assert train(plain, tmp_path / "plain") is None
    advance, answered = Session.advance, []

    def advance_and_lose(session: Session) -> None:
        advance(session)
        if session.step == 2:
            bucket.trouble = lose
            shutil.rmtree(tmp_path / "copies" / "token_caches")
            (tmp_path / "copies" / "token_caches").mkdir()

    def lose(name: str) -> str:
        if not answered:
            send_later(signal.SIGTERM, 1)
        answered.append(name)
        return "503"

    with monkeypatch.context() as patch:
        patch.setattr(Session, "advance", advance_and_lose)
        start = time.monotonic()
        assert train(config, tmp_path / "run") == "SIGTERM"
    assert time.monotonic() - start < PATIENCE
    [step] = steps_of(tmp_path / "run")
    bucket.trouble = lambda name: ""
    assert train(config, tmp_path / "run") is None
    assert_same_training(tmp_path / "run", tmp_path / "plain", config.train.steps)
    assert answered and 2 <= step < config.train.steps


def test_an_update_that_a_signal_interrupts_is_read_again():
    """The first of its two micro-batches had been read."""

    class Batches:
        position = 5

        def __next__(self) -> dict:
            if self.position == 6:
                signal.raise_signal(signal.SIGTERM)
            self.position += 1
            return {}

    optimizer = types.SimpleNamespace(accumulate=2)
    setup = types.SimpleNamespace(config=types.SimpleNamespace(optimizer=optimizer))
    session = types.SimpleNamespace(batches=Batches(), setup=setup)
    with StopRequests() as stop:
        session.waiting = stop.waiting
        with pytest.raises(InterruptedWaitError):
            Session._next_batches(session)
    assert session.batches.position == 5


def test_a_training_that_waits_for_a_list_of_files_ends_at_the_signal(bucket, tmp_path, capsys):
    config, _ = config_of(tmp_path, bucket)
    bucket.refuses = OUTAGE
    send_later(signal.SIGTERM, 1)
    assert train(config, tmp_path / "run") == "SIGTERM"
    assert f"SIGTERM: {tmp_path / 'run'} was not opened; run the same" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_stopped_command_does_not_wait_for_its_threads(monkeypatch):
    ended: list[int] = []

    def end(status: int) -> None:
        ended.append(status)
        raise SystemExit(status)

    monkeypatch.setattr(command_frame, "exit_immediately", end)
    with pytest.raises(SystemExit):
        command_frame.run_command(lambda: 143)
    assert ended == [143]
    with pytest.raises(SystemExit):
        command_frame.run_command(lambda: 75)
    assert ended == [143]


def test_the_message_of_an_outage_names_one_signal(bucket, monkeypatch, caplog):
    monkeypatch.setattr(bucket_reader, "_FIRST_PATIENCE", 0.2)
    monkeypatch.setattr(bucket_reader, "_SHORTEST_PAUSE", 0.05)
    bucket.refuses = OUTAGE
    with pytest.raises(bucket_reader.OutageError):
        BucketReader("gs://bucket/run").sizes()
    assert "; Ctrl-C ends this" in caplog.text
