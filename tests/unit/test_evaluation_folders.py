"""Folders of evaluations that are continued, kept or shared by several processes."""

from __future__ import annotations

import os
import shutil

import pytest

from mnmt_jax.errors import UserError
from mnmt_jax.evaluation import evaluate as evaluation
from mnmt_jax.evaluation.benchmark import Benchmark, find_corpus
from mnmt_jax.evaluation.evaluate import evaluate
from mnmt_jax.evaluation.evaluated_model import EvaluatedModel
from mnmt_jax.evaluation.outside_hypotheses import HypothesisFiles, outside_system
from mnmt_jax.evaluation.translations import TranslatedSentence
from mnmt_jax.files.atomic_write import lock

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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "other"}, "name"),
        ({"checkpoint": "step 8"}, "checkpoint"),
        ({"pivot": "en"}, "pivot"),
    ],
)
def test_another_system_does_not_replace_scores_without_translations(
    benchmark, tmp_path, changes, message
):
    evaluate(system(), benchmark, tmp_path)
    shutil.rmtree(tmp_path / "translations")
    with pytest.raises(UserError, match=rf"a finished evaluation .* \({message}\)"):
        evaluate(system(**changes), benchmark, tmp_path)
    assert evaluate(system(batch=4), benchmark, tmp_path).name == "made"
    shutil.rmtree(tmp_path / "translations")
    assert evaluate(system(**changes), benchmark, tmp_path, overwrite=True).name != ""


def test_other_hypotheses_do_not_replace_scores_without_translations(benchmark, tmp_path):
    folder, output = tmp_path / "files", tmp_path / "out"
    folder.mkdir()
    outside = []
    for text in "ab":
        (folder / "de-fr.txt").write_text(f"{text}\n" * 3)
        outside.append(outside_system(HypothesisFiles(folder)))
        if text == "a":
            evaluate(outside[0], benchmark, output)
    shutil.rmtree(output / "translations")
    with pytest.raises(UserError, match=r"\(hypotheses\)"):
        evaluate(outside[1], benchmark, output)
    (folder / "de-fr.txt").write_text("a\n" * 3)
    assert evaluate(outside[0], benchmark, output).name == "files"


def test_one_process_at_a_time_scores(benchmark, tmp_path, monkeypatch):
    """Processes of one command that restart when all is translated do not mix their files."""
    stages = []

    def check(stage):
        def run(*args, **options):
            descriptor = os.open(tmp_path, os.O_RDONLY)
            assert not lock(descriptor)
            os.close(descriptor)
            stages.append(stage.__name__)
            return stage(*args, **options)

        return run

    for stage in (evaluation.score, evaluation.report):
        monkeypatch.setattr(evaluation, stage.__name__, check(stage))
    evaluate(system(), benchmark, tmp_path)
    assert stages == ["score", "report"]
    descriptor = os.open(tmp_path, os.O_RDONLY)
    assert lock(descriptor)
    os.close(descriptor)
