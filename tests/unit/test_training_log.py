"""Curves read from metrics.jsonl."""

import json

from mnmt_jax.evaluation.training_log import read_training_log
from mnmt_jax.training.reporter import MetricsFile


def test_an_empty_training_log(tmp_path):
    assert read_training_log(None).curves == {} == read_training_log(tmp_path / "no").curves


def test_invalid_lines_of_a_log_are_skipped(tmp_path):
    good = {"step": 2, "seconds": 1.5, "train": 0, "nll": 3.0, "validation": {"supervised": 1}}
    lines = [
        b"[" * 100_000,
        b"[1]",
        b"\xff",
        b'{"step": [1], "seconds": 5}',
        b'{"step": "a", "seconds": 5}',
        b'{"step": NaN, "seconds": 5}',
        b'{"step": 1, "seconds": "b", "nll": "c", "validation": [], "text": "a\xe2\x80\xa8b"}',
        json.dumps(good).encode(),
        b'{"step": 3, "nll"',
    ]
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join(lines))
    log = read_training_log(tmp_path / "metrics.jsonl", 2)
    assert (log.seconds, log.curves) == (1.5, {"train": ((2, 3.0),)})
    MetricsFile(tmp_path / "metrics.jsonl", after_step=2)
    kept = (tmp_path / "metrics.jsonl").read_bytes().split(b"\n")
    assert kept == [*lines[6:8], b""]


def test_validation_at_a_step_does_not_depend_on_the_points_of_a_curve(tmp_path):
    groups = {name: {"nll": 2.0, "perplexity": 11.4} for name in ("supervised", "to_english")}
    records = [
        {"step": step, "validation": groups | {"zero_shot": {"nll": step, "perplexity": None}}}
        for step in range(1, 1001)
    ]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    log = read_training_log(path, 998)
    assert log.validation == groups | {"zero_shot": {"nll": 998}}
    assert 998 not in dict(log.curves["zero_shot"])
    assert read_training_log(path).validation["zero_shot"] == {"nll": 1000}
    assert read_training_log(path, 1001).validation == {}
