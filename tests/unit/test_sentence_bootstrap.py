"""Bootstrap over sentences, against sacreBLEU's own interval and known dependences."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF

from mnmt_jax.errors import UserError
from mnmt_jax.evaluation import sentence_bootstrap, spbleu
from mnmt_jax.evaluation.sentence_bootstrap import (
    confidence_interval,
    resample_scores,
    shared_sentences,
)
from tests.unit import made_text
from tests.unit.made_results import made_result
from tests.unit.test_paired_bootstrap import WORDS, damaged, write

METRICS = {"bleu": BLEU(tokenize="13a", force=True), "chrf": CHRF(word_order=2)}


def _lines(seed: int, count: int = 80) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=12)) for _ in range(count)]


def _result(pairs, sentences: int = 80):
    """Return a result of some directions; its scores only say which directions have one."""
    made = made_result("made", ("en", "de", "fr"), seed=1)
    items = {item.direction: item for item in made.directions}
    directions = tuple(dataclasses.replace(items[pair], sentences=sentences) for pair in pairs)
    return dataclasses.replace(made, directions=directions)


@pytest.mark.parametrize("metric", METRICS)
def test_one_direction_has_the_interval_of_sacrebleu(tmp_path, metric):
    references = _lines(0)
    hypotheses = damaged(references, 0.3, 1)
    write(tmp_path, "en-de", hypotheses, references)
    draws = resample_scores(_result([("en", "de")]), tmp_path, metric)["en", "de"]
    low, high = confidence_interval(draws)
    expected = METRICS[metric].corpus_score(hypotheses, [references], n_bootstrap=1000)
    assert draws.shape == (1000,)
    assert (high - low) / 2 == pytest.approx(float(expected._ci), rel=0.15)
    assert draws.mean() == pytest.approx(expected.score, abs=float(expected._ci) / 4)


@pytest.mark.parametrize("metric", METRICS)
def test_samples_of_equal_sentences_have_the_score_of_the_test_set(tmp_path, metric):
    references = ["The first, and the last, of nine words."] * 6
    hypotheses = ["The first, or the last, of ten words!"] * 6
    write(tmp_path, "en-de", hypotheses, references)
    draws = resample_scores(_result([("en", "de")]), tmp_path, metric, samples=5)["en", "de"]
    expected = METRICS[metric].corpus_score(hypotheses, [references]).score
    assert draws == pytest.approx([expected] * 5, rel=1e-5)


def test_spbleu_is_resampled_over_the_pieces_of_its_model(tmp_path, monkeypatch):
    references, model = _lines(0), tmp_path / "spm.model"
    hypotheses = damaged(references, 0.3, 1)
    write(tmp_path, "en-de", hypotheses, references)
    result = _result([("en", "de")])
    item = dataclasses.replace(result.directions[0], spbleu=50.0)
    result = dataclasses.replace(result, directions=(item,))
    monkeypatch.setattr(spbleu, "SACREBLEU_DIR", str(tmp_path / "none"))
    assert resample_scores(result, tmp_path, "spbleu", samples=10) == {}
    model.write_bytes(made_text.vocabulary().model)
    draws = resample_scores(result, tmp_path, "spbleu", flores200_model=model)["en", "de"]
    score, _, _ = spbleu.spbleu(hypotheses, references, spbleu.FloresTokenizer(model))
    low, high = confidence_interval(draws)
    assert low < score < high and float(draws.mean()) == pytest.approx(score, abs=(high - low) / 8)


def _half_width(draws) -> float:
    low, high = confidence_interval(sum(draws.values()) / len(draws))
    return (high - low) / 2


def test_directions_of_the_same_sentences_are_resampled_together(tmp_path):
    """The mean of two copies varies as one of them, of two independent sets by sqrt(2) less."""
    references, others = _lines(0), _lines(5)
    hypotheses = damaged(references, 0.3, 1)
    pairs = [("en", "de"), ("fr", "de")]
    write(tmp_path / "same", "en-de", hypotheses, references)
    write(tmp_path / "same", "fr-de", hypotheses, references)
    same = resample_scores(_result(pairs), tmp_path / "same", "bleu")
    assert np.array_equal(same["en", "de"], same["fr", "de"])
    write(tmp_path / "other", "en-de", hypotheses, references)
    write(tmp_path / "other", "fr-de", damaged(others, 0.3, 2), others)
    other = resample_scores(_result(pairs), tmp_path / "other", "bleu")
    correlation = np.corrcoef(other["en", "de"], other["fr", "de"])[0, 1]
    assert abs(correlation) < 0.15
    assert _half_width(other) == pytest.approx(_half_width(same) / 2**0.5, rel=0.2)


def test_clusters_are_connected_by_any_common_text():
    digests = {
        ("en", "de"): ("1", "2"),
        ("cs", "fr"): ("3", "4"),
        ("de", "fr"): ("2", "3"),
        ("fr", "cs"): ("3", "4"),  # the French text of de-fr
        ("en", "nl"): ("1", "4"),  # the English text of en-de
    }
    clusters = shared_sentences(digests)
    assert clusters["en", "de"] == clusters["de", "fr"] == clusters["fr", "cs"]
    assert clusters["en", "nl"] == clusters["en", "de"]
    assert clusters["cs", "fr"] != clusters["en", "de"]  # three is Czech there


@pytest.mark.parametrize("metric", ["off_target_lid", "off_target_nearest", "exact_match"])
def test_ratios_of_sentences_are_binomial(tmp_path, metric):
    result = _result([("en", "de")], sentences=400)
    item = dataclasses.replace(result.directions[0], **{metric: 25.0})
    result = dataclasses.replace(result, directions=(item,))
    draws = resample_scores(result, tmp_path, metric)["en", "de"]
    assert draws.mean() == pytest.approx(25, abs=0.3)
    assert draws.std() == pytest.approx(100 * (0.25 * 0.75 / 400) ** 0.5, rel=0.1)


def test_many_directions_are_resampled_by_several_processes(tmp_path, monkeypatch):
    references = _lines(0, 10)
    for number, name in enumerate(("en-de", "fr-de")):
        write(tmp_path, name, damaged(references, 0.3, number), references)
    pairs = [("en", "de"), ("fr", "de")]
    serial = resample_scores(_result(pairs), tmp_path, "bleu", samples=20)
    monkeypatch.setattr(sentence_bootstrap, "_PARALLEL", 2)
    calls = []
    monkeypatch.setattr(sentence_bootstrap, "map", lambda *a: calls.append(a), raising=False)
    parallel = resample_scores(_result(pairs), tmp_path, "bleu", samples=20)
    assert list(parallel) == pairs and not calls
    assert all(np.array_equal(parallel[pair], serial[pair]) for pair in pairs)


def test_directions_without_a_score_are_left_out(tmp_path):
    write(tmp_path, "en-de", ["a b c d"], ["a b c d"])
    result = _result([("en", "de"), ("en", "fr")])
    items = (result.directions[0], dataclasses.replace(result.directions[1], bleu=None))
    result = dataclasses.replace(result, directions=items)
    assert list(resample_scores(result, tmp_path, "bleu", samples=10)) == [("en", "de")]
    with pytest.raises(UserError, match=r"en-fr\.jsonl: is missing or damaged"):
        resample_scores(_result([("en", "fr")]), tmp_path, "bleu")
