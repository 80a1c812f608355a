"""Folders of evaluations that are continued, kept or shared by several processes."""

from __future__ import annotations

import pytest

from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.benchmark import Benchmark, find_corpus
from mnmt_jax.evaluation.evaluate import evaluate
from mnmt_jax.evaluation.evaluated_model import EvaluatedModel
from mnmt_jax.evaluation.translations import TranslatedSentence

PAIR = ("de", "fr")
SETTINGS = {"checkpoint": "step 7", "beam_size": 5, "batch": 32, "buckets": (16, 32)}


@pytest.fixture
def benchmark():
    corpus, _ = find_corpus("cldr_quickstart")
    return Benchmark("cldr_quickstart", corpus, limit=3).only([PAIR])


def system(text="a", name="made", **changes):
    def translate(lines, direction):
        return [TranslatedSentence(text) for _ in lines]

    return EvaluatedModel(name, translate, None, {**SETTINGS, **changes})


def hypotheses(folder):
    return (folder / "translations" / "de-fr.jsonl").read_text()


def test_an_evaluation_is_continued_with_a_smaller_batch(benchmark, tmp_path):
    """The remedy for a lack of memory; what is translated stays."""
    evaluate(system("a"), benchmark, tmp_path)
    before = hypotheses(tmp_path)
    (tmp_path / "scores.json").unlink()
    result = evaluate(system("b", batch=4), benchmark, tmp_path)
    assert hypotheses(tmp_path) == before and result.decoding["batch"] == 4
    with pytest.raises(UserError, match=r"\(beam_size\)"):
        evaluate(system("b", beam_size=1), benchmark, tmp_path)
