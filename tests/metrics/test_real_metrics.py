"""COMET, xCOMET, CometKiwi, MetricX and BERTScore by their packages, with tiny random models."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from mnmt_jax.commands import evaluate as evaluate_command
from mnmt_jax.commands import metrics as metrics_command
from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.benchmark import TestSet
from mnmt_jax.evaluation.metrics_environment import MetricWorker
from mnmt_jax.evaluation.neural_metrics import BertScore, Comet, MetricX
from mnmt_jax.evaluation.result import read_result

ENVIRONMENT = os.environ.get("MNMT_JAX_TEST_METRICS", "")
if not ENVIRONMENT:
    pytest.skip("the environment of metrics: scripts/test_metrics.sh", allow_module_level=True)

TEXTS = TestSet(
    ["ein kleines Haus", "zwei Tage", "drei Katzen im Garten", "eins"],
    ["a small house", "two days", "three cats in the garden", "one"],
)
HYPOTHESES = ["a house", "two days", "three small cats in the garden today", ""]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of the models, and their scores by the libraries."""
    folder = tmp_path_factory.mktemp("models")
    triples = zip(TEXTS.sources, HYPOTHESES, TEXTS.references, strict=True)
    rows = [dict(zip(("src", "mt", "ref"), triple, strict=True)) for triple in triples]
    (folder / "rows.json").write_text(json.dumps(rows))
    script = Path(__file__).with_name("make_models.py")
    command = [f"{ENVIRONMENT}/bin/python", script, folder, folder / "rows.json"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    return folder, json.loads((folder / "scores.json").read_text())


@pytest.fixture(scope="module")
def worker():
    return MetricWorker(Path(ENVIRONMENT))


def test_scores_are_those_of_the_libraries(made, worker):
    folder, expected = made
    for name in ("comet", "kiwi", "xcomet"):
        scorer = Comet(folder / name / "checkpoints/model.ckpt", worker, name)
        scores = scorer.score(TEXTS, HYPOTHESES)
        assert scores == pytest.approx([100 * score for score in expected[name]], abs=1e-3)
        assert len({round(score, 4) for score in scores}) == 4
        assert scorer.signature("en").startswith("comet:2.")
    errors = MetricX(folder / "metricx", worker).score(TEXTS, HYPOTHESES)
    assert errors == pytest.approx([min(max(e, 0), 25) for e in expected["metricx"]], abs=1e-4)
    assert any(0 < error < 25 for error in errors)
    scorer = BertScore(folder / "bert", worker)
    scores = scorer.score(TEXTS, HYPOTHESES, "en")
    assert scores == pytest.approx([100 * score for score in expected["bert_score"]], abs=1e-3)
    assert scores[1] == pytest.approx(100, abs=1e-3) and scores[0] < 99.9


def test_a_damaged_model_is_one_line(tmp_path, worker):
    checkpoint = tmp_path / "checkpoints" / "model.ckpt"
    checkpoint.parent.mkdir()
    checkpoint.write_bytes(b"x")
    with pytest.raises(UserError, match=r"model.ckpt: failed in .*hparams.yaml file is missing"):
        Comet(checkpoint, worker).score(TEXTS, HYPOTHESES)


def test_an_evaluation_has_neural_scores_and_intervals(made, tmp_path, monkeypatch, capsys):
    folder, _ = made
    (tmp_path / "gpt").mkdir()
    (tmp_path / "gpt" / "de-en.txt").write_text("a house\n" * 6)
    words = ["evaluate", "--hypotheses", tmp_path / "gpt", "--task", "cldr_quickstart"]
    words += ["--directions", "de-en", "--limit", 6, "--output", tmp_path / "out"]
    words += ["--comet", folder / "comet/checkpoints/model.ckpt", "--metricx", folder / "metricx"]
    words += ["--xcomet", folder / "xcomet/checkpoints/model.ckpt"]
    words += ["--bert_score", folder / "bert", "--metrics_environment", ENVIRONMENT]
    monkeypatch.setattr("sys.argv", [str(word) for word in words])
    evaluate_command.main()
    header = capsys.readouterr().out.splitlines()[0]
    titles = [text.strip() for text in header.strip("|").split("|")][6:]
    assert titles[:5] == ["COMET", "xCOMET", "MetricX", "BERTScore", "BLEU"]
    result = read_result(tmp_path / "out")
    item = result.directions[0]
    for name in ("comet", "xcomet", "metricx", "bert_score"):
        low, high = item.intervals[name]
        assert low <= getattr(item, name) <= high and name in result.signatures
    low, high = item.intervals["bert_score"]
    assert low < high


def test_the_command_prints_versions(monkeypatch, capsys):
    words = ["metrics", "check", "--metrics_environment", ENVIRONMENT]
    monkeypatch.setattr("sys.argv", words)
    metrics_command.main()
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [name for name, _ in lines] == ["comet", "bert_score", "metricx"]
    assert all(version[0].isdigit() for _, version in lines)
