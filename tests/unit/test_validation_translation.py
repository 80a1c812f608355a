"""Translations of validation text: what is scored, the best checkpoint, and early stopping."""

from __future__ import annotations

import dataclasses
import signal

import pytest

from mnmt_jax.decoding.translator import Translator
from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.validation_scores import score
from mnmt_jax.runs.parameters import best_steps
from mnmt_jax.training import validation_translation
from mnmt_jax.training.train import train
from tests.made_run import (
    SUPERVISED,
    ZERO_SHOT,
    assert_same_training,
    make_cache,
    make_config,
    records,
)
from tests.unit.test_train import stop_after

pytestmark = pytest.mark.usefixtures("one_device", "kept_programs")
GREEDY = {"beam_size": 1, "temperature": 0.0, "top_p": 1.0}
CHRF = [30.0, 50.0, 40.0, 20.0, 60.0]  # of the validations, in order


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return make_cache(tmp_path_factory.mktemp("translated"))


def configure(cache, **train_fields):
    every = {"steps": 5, "eval_every": 1, "save_every": 1, "log_every": 1, "keep_last": 9}
    every |= {"translate_pairs": 2, "best_by": "supervised/chrf", "patience": 2}
    decode = {"max_length": 4, "buckets": (32,), "temperature": 1.0, "top_p": 0.9}
    return make_config(cache, train=every | train_fields, decode=decode)


class MadeScores:
    """Scores validations as listed, and keeps what it was to score."""

    def __init__(self, first_validation: int = 0) -> None:
        self.calls: list = []
        self.first = first_validation

    def __call__(self, hypotheses, references, target):
        self.calls.append((list(hypotheses), list(references), target))
        validation = self.first + (len(self.calls) - 1) // len(SUPERVISED + ZERO_SHOT)
        return {"bleu": 1.0, "chrf": CHRF[validation], "off_target": 0.0}


def test_training_ends_without_a_better_score_also_after_an_interruption(
    cache, tmp_path, monkeypatch, capfd
):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    scores, searches = MadeScores(), []

    class RecordedTranslator(Translator):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            searches.append(self.config.decode.method)

    monkeypatch.setattr(validation_translation, "Translator", RecordedTranslator)
    assert train(configure(cache), whole, scorer=scores) is None
    assert "is at step 4 of 5: no better validation in 2 updates after step 2" in (
        error := capfd.readouterr().err
    )
    assert "supervised loss" in error and "BLEU 1.0, chrF++ 50.0, off-target 0.0" in error
    assert searches == ["greedy"] * 4
    assert best_steps(whole, 2) == [2, 3]
    assert records(whole)[1]["validation"]["translation"]["zero_shot"]["chrf"] == 50.0
    with monkeypatch.context() as patch:
        stop_after(patch, 3, lambda: signal.raise_signal(signal.SIGTERM))
        assert train(configure(cache), broken, scorer=MadeScores()) == "SIGTERM"
    assert train(configure(cache), broken, scorer=MadeScores(3)) is None
    assert_same_training(broken, whole, 4)

    hypotheses, references, target = scores.calls[-len(SUPERVISED + ZERO_SHOT)]
    translator = Translator.load(whole, 4)
    vocabulary = translator.vocabulary
    from mnmt_jax.data.cache import TokenCache

    pairs = [TokenCache.open(cache).pair("made_en_de", "validation", n) for n in range(2)]
    sources, expected = ([vocabulary.decode(pair[s].tolist()) for pair in pairs] for s in (0, 1))
    assert (references, target) == (expected, "de")
    assert hypotheses == translator.translate(sources, source="en", target="de", **GREEDY)
    assert any(hypotheses)


def test_settings_that_cannot_translate_are_refused(cache, tmp_path):
    with pytest.raises(UserError, match="Train.translate_pairs=2: pass scorer=mnmt_jax.evaluation"):
        train(configure(cache), tmp_path / "run")
    with pytest.raises(UserError, match="=2: Model.layout='causal_lm' is .*translate_pairs=0"):
        model = dataclasses.replace(configure(cache).model, layout="causal_lm")
        config = dataclasses.replace(configure(cache), model=model)
        train(config, tmp_path / "run", scorer=MadeScores())


@pytest.mark.parametrize(
    ("model", "decode", "message"),
    [
        ({"positions": ("learned", 40)}, {"max_length": 200}, "Model.positions=.*max_length"),
        ({}, {"buckets": (1,)}, "Decode.buckets=.1,.: each must be at least"),
        (
            {},
            {"language_contrast": 0.1, "contrast_languages": ("es",)},
            "Decode.contrast_languages=.*has no 'es'",
        ),
    ],
)
def test_a_search_that_does_not_fit_is_refused_before_the_first_update(
    cache, tmp_path, model, decode, message
):
    """After it, its settings could not be changed any more."""
    config = configure(cache)
    config = dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, **model),
        decode=dataclasses.replace(config.decode, **decode),
    )
    with pytest.raises(UserError, match=f"^Train.translate_pairs=2: validation .*{message}"):
        train(config, tmp_path / "run", scorer=MadeScores())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_shares_of_processes_are_the_lines_in_order(count):
    lines = ["a", "b", "c", "d"]
    assert validation_translation.interleave([lines[n::count] for n in range(count)]) == lines


def test_scores_are_those_of_the_evaluation():
    references = ["Das ist ein kleines Haus am Fluss.", "Wir gehen heute in den Garten."]
    assert score(references, references, "de") == pytest.approx(
        {"bleu": 100.0, "chrf": 100.0, "off_target": 0.0}
    )
    english = ["This is a small house by the river.", "We go to the garden today."]
    assert score(english, references, "de")["off_target"] == 100.0
    assert score(english, references, "de")["chrf"] < 40
