"""Reports of a run: metrics file, speed and remaining time."""

from __future__ import annotations

import json
import types

import jax.numpy as jnp
import pytest

from mnmt_jax.distributed.chips import chip_of
from mnmt_jax.errors import UserError
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.training import reporter as metrics
from mnmt_jax.training.reporter import MetricsFile, Reporter
from tests.full_disk import files_up_to

STEPS = 10


@pytest.fixture
def clock(monkeypatch):
    """Return a fake clock."""
    now = types.SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(metrics.time, "monotonic", lambda: now.seconds)
    return now


def device(kind):
    return types.SimpleNamespace(device_kind=kind)


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_metrics_file_keeps_lines_up_to_the_restored_step(tmp_path):
    path = tmp_path / "metrics.jsonl"
    whole = "".join(f'{{"step": {step}}}\n' for step in (2, 4, 6))
    path.write_text(whole + '{"step": 8, "lo')
    file = MetricsFile(path, after_step=4)
    seconds = {"by_process": [0.5, float("inf")]}
    file.write({"step": 6, "loss": float("nan"), "validation": {"loss": 1.5}, "seconds": seconds})
    assert read(path) == [
        {"step": 2},
        {"step": 4},
        {
            "step": 6,
            "loss": None,
            "validation": {"loss": 1.5},
            "seconds": {"by_process": [0.5, None]},
        },
    ]
    before = path.read_text()
    for lines in (before, "", '{"step": 2}\n'):
        path.write_text(lines)
        MetricsFile(path, after_step=0)
        assert path.read_text() == ""
    assert (tmp_path / "metrics_earlier.jsonl").read_text() == before + '{"step": 2}\n'


def test_an_unwritable_metrics_file_is_an_error(tmp_path):
    with pytest.raises(UserError, match="cannot be written"):
        MetricsFile(tmp_path / "absent" / "metrics.jsonl", after_step=0)


def test_training_continues_without_the_metrics_that_storage_refuses(tmp_path, capfd):
    """A limit that the free space of the storage does not show, like a user's quota."""
    reporter = Reporter(RunDirectory(tmp_path), 0, STEPS)
    reporter.write({"step": 2, "loss": 1.0})
    file, long = tmp_path / "metrics.jsonl", {"terms": "x" * 5000}
    with files_up_to(2000):
        for step in (4, 6):
            reporter.write({"step": step, "loss": 1.0, **long})
    reporter.write({"step": 8, "loss": 1.0})
    reporter.close()
    assert [record["step"] for record in read(file)] == [2, 8]
    lines = [line for line in capfd.readouterr().err.splitlines() if "left out" in line]
    assert lines == [
        f"{file}: the metrics of step {step} are left out (File too large)" for step in (4, 6)
    ]


def test_training_continues_if_its_lines_cannot_be_written(tmp_path):
    """Standard error is often a file on the storage of the run."""
    reporter = Reporter(RunDirectory(tmp_path), 0, STEPS)
    with files_up_to(100):
        reporter.say("x" * 200)
    reporter.write({"step": 2, "loss": 1.0})
    reporter.close()
    assert [record["step"] for record in read(tmp_path / "metrics.jsonl")] == [2]


def test_speed_excludes_compilation_and_pauses(tmp_path, clock):
    reporter = Reporter(RunDirectory(tmp_path), 0, STEPS, seconds=7.0)
    clock.seconds += 30  # compiling
    reporter.advance(jnp.zeros(()))
    for _ in range(4):
        clock.seconds += 0.5
        reporter.advance(None)
    with reporter.paused():
        clock.seconds += 20
    speed = reporter.speed({"target": 100.0}, 3e12, [device("NVIDIA H200")] * 2)
    assert speed["steps_per_second"] == pytest.approx(2.0)
    assert speed["tokens_per_second"] == {"target": pytest.approx(200.0)}
    assert speed["mfu"] == pytest.approx(2.0 * 3e12 / (2 * 989e12))
    assert speed["seconds"] == pytest.approx(7 + 30 + 2 + 20)
    unknown = reporter.speed({"target": 100.0}, 3e12, [device("cpu")])
    assert unknown["steps_per_second"] is unknown["mfu"] is None
    reporter.close()


def test_lines_without_a_terminal_show_the_remaining_time(tmp_path, clock, capfd):
    reporter = Reporter(RunDirectory(tmp_path), 0, 3600 * 2 + 5)
    for _ in range(5):
        reporter.advance(jnp.zeros(()))
    clock.seconds += 4
    record = {"step": 5, "loss": 2.5, "nll": 2.0}
    record |= reporter.speed({"target": 10.0}, 1.0, [device("cpu")])
    by_language = {"de": 12.345, "en": 8.0}
    reporter.write(
        record | {"validation": {"zero_shot": {"loss": 3.25}, "perplexity": by_language}}
    )
    reporter.close()
    assert capfd.readouterr().err == (
        "step 5/7205: loss 2.5000, nll 2.0000, 10 target tokens/s, zero-shot loss 3.2500, "
        "perplexity de 12.35, en 8.00, 2:00:00 left\n"
    )
    assert read(tmp_path / "metrics.jsonl")[0]["step"] == 5


def test_a_warning_is_printed_once_for_each_name(tmp_path, capfd):
    reporter = Reporter(RunDirectory(tmp_path), 0, 10)
    for line in ("first", "second"):
        reporter.warn_once({"critic": line})
    reporter.warn_once({"critic": "third", **{str(number): str(number) for number in range(8)}})
    reporter.close()
    lines = capfd.readouterr().err.splitlines()
    assert lines == [f"warning: {text}" for text in ("first", *range(8))]


@pytest.mark.parametrize(
    ("kind", "peak"),
    [
        ("TPU v4", 275e12),
        ("TPU v5 lite", 197e12),
        ("TPU v5p", 459e12),
        ("TPU v6 lite", 918e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 NVL", 835e12),
        ("cpu", None),
    ],
)
def test_peak_flops_of_devices(kind, peak):
    chip = chip_of(kind)
    assert (chip and chip.peak_flops) == peak
