"""Preemption notices, from a server that answers as Google Cloud's metadata server does."""

from __future__ import annotations

import dataclasses
import queue
import signal
import threading

import pytest

from mnmt_jax.distributed import preemption
from mnmt_jax.distributed.preemption import metadata_host, watch_for_preemption
from mnmt_jax.training.train import train
from tests.fresh_process import PATIENCE
from tests.made_metadata import MetadataServer, serve_metadata
from tests.made_run import make_cache, make_config, one_device, steps_of
from tests.waiting import wait_until

MAINTENANCE = "TERMINATE_ON_HOST_MAINTENANCE"
RUNNING = {"preempted": "FALSE", "maintenance_event": "NONE"}
SHORT = 0.2  # seconds in which a wrong notice would arrive


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(preemption, "_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(preemption, "_PAUSE_SECONDS", 0.01)


def wait_for_requests(server: MetadataServer, count: int = 2) -> None:
    """Wait until so many requests wait for a change."""
    wait_until(lambda: sum(waits for _, waits in server.requests) >= count)


@pytest.mark.parametrize(
    ("key", "value", "notice"),
    [
        ("preempted", "TRUE", "this machine is being preempted"),
        ("maintenance-event", MAINTENANCE, "this machine will be stopped for maintenance"),
    ],
)
def test_a_change_is_announced_once(key, value, notice, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://localhost:9")  # would refuse the connection
    notices: queue.Queue[str] = queue.Queue()
    with serve_metadata(**RUNNING) as server, watch_for_preemption(notices.put):
        wait_for_requests(server)
        assert notices.empty()
        server.set(key, value)
        assert notices.get(timeout=PATIENCE) == notice
        server.set(key, value)
        with pytest.raises(queue.Empty):
            notices.get(timeout=SHORT)
    assert {key for key, _ in server.requests} == {"preempted", "maintenance-event"}


def test_a_migration_is_no_notice():
    notices: queue.Queue[str] = queue.Queue()
    with serve_metadata(**RUNNING) as server, watch_for_preemption(notices.put):
        wait_for_requests(server)
        server.set("maintenance-event", "MIGRATE_ON_HOST_MAINTENANCE")
        wait_for_requests(server, 4)
        assert notices.empty()


def test_maintenance_announced_before_the_start_stops_only_after_a_change():
    """It may be an hour away: a command that is started again would stop at once, each time."""
    notices: queue.Queue[str] = queue.Queue()
    with (
        serve_metadata(preempted="FALSE", maintenance_event=MAINTENANCE) as server,
        watch_for_preemption(notices.put),
    ):
        wait_for_requests(server)
        assert notices.empty()
        server.set("maintenance-event", "NONE")
        wait_for_requests(server, 4)
        server.set("maintenance-event", MAINTENANCE)
        assert "maintenance" in notices.get(timeout=PATIENCE)


def test_a_preempted_machine_is_noticed_from_the_start():
    notices: queue.Queue[str] = queue.Queue()
    with serve_metadata(preempted="TRUE"), watch_for_preemption(notices.put):
        assert "preempted" in notices.get(timeout=PATIENCE)


def test_a_server_that_fails_is_asked_again():
    notices: queue.Queue[str] = queue.Queue()
    with serve_metadata(preempted="TRUE", maintenance_event="NONE") as server:
        server.refusals = [503] * 6
        with watch_for_preemption(notices.put):
            assert "preempted" in notices.get(timeout=PATIENCE)
    assert not server.refusals


def test_another_server_is_not_believed():
    notices: queue.Queue[str] = queue.Queue()
    with serve_metadata(preempted="TRUE") as server:
        server.flavor = "Other"
        with watch_for_preemption(notices.put):
            wait_until(lambda: len(server.requests) >= 3)
    assert notices.empty()


def watches() -> int:
    """Return how many threads watch for a notice."""
    return sum(thread.name.startswith("preemption ") for thread in threading.enumerate())


def test_threads_end_where_a_key_is_unknown_and_with_the_training():
    wait_until(lambda: not watches())  # those of other tests
    with serve_metadata() as server, watch_for_preemption(lambda _: None):
        wait_until(lambda: not watches())
        assert server.requests == []
    with serve_metadata(**RUNNING) as server:
        with watch_for_preemption(pytest.fail):
            wait_for_requests(server)
            assert watches() == 2
        server.set("preempted", "TRUE")
        wait_until(lambda: not watches())


def test_the_server_is_looked_for_on_machines_of_google_only(monkeypatch, tmp_path):
    product = tmp_path / "product_name"
    monkeypatch.setattr(preemption, "_PRODUCT_NAME", product)
    assert metadata_host({}) is None
    product.write_text("Standard PC\n")
    assert metadata_host({}) is None
    product.write_text("Google Compute Engine\n")
    assert metadata_host({}) == "metadata.google.internal"
    assert metadata_host({"NO_GCE_CHECK": "true"}) is None
    assert metadata_host({"NO_GCE_CHECK": "true", "GCE_METADATA_HOST": "a:1"}) == "a:1"


def test_a_training_saves_and_stops_as_after_sigterm(tmp_path, monkeypatch, capsys):
    """The notice comes with the third batch; the run would have thousands."""
    config = make_config(make_cache(tmp_path / "cache"), train={"steps": 100_000})
    with serve_metadata(**RUNNING) as server, one_device():
        from mnmt_jax.training import session

        place_batch, placed = session.place_batch, []

        def place(*arguments, **options):
            placed.append(1)
            if len(placed) == 3:
                server.set("preempted", "TRUE")
            return place_batch(*arguments, **options)

        monkeypatch.setattr(session, "place_batch", place)
        assert train(config, tmp_path / "run") == signal.SIGTERM.name
    said = capsys.readouterr().err
    assert "warning: this machine is being preempted: stopping as after SIGTERM" in said
    step = steps_of(tmp_path / "run")[-1]
    assert step == len(placed) >= 3
    assert f"SIGTERM: {tmp_path / 'run'} is at step {step} of 100000; run the same" in said
    with one_device():
        steps = dataclasses.replace(config.train, steps=step + 1)
        monkeypatch.setattr(session, "place_batch", place_batch)
        assert train(dataclasses.replace(config, train=steps), tmp_path / "run") is None
