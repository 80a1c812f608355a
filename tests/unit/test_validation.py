"""Validation metrics from the sums of batches."""

import math

import numpy as np
import pytest

from mnmt_jax.config.sections import Train
from mnmt_jax.errors import UserError
from mnmt_jax.training.losses import NLL_TOKENS
from mnmt_jax.training.validation import (
    ValidationTasks,
    checkpoint_loss,
    group_means,
    validate,
)


def sums(nll: float, tokens: float, predicted: float | None = None) -> dict[str, np.ndarray]:
    actual = {"smoothed": 2 * nll, "nll": nll, "tokens": tokens}
    actual |= {} if predicted is None else {NLL_TOKENS: predicted}
    return {name: np.float32(value) for name, value in actual.items()}


def test_perplexities_per_language_pool_all_its_tasks():
    batches = [("news_de", sums(6, 4)), ("news_de", sums(2, 4)), ("en", sums(0, 2))]
    batches += [("web_de", sums(16, 8)), ("en_de", sums(3, 1))]
    tasks = ValidationTasks(("news_de", "web_de", "en"), ("en_de",))
    languages = {"news_de": "de", "web_de": "de", "en": "en", "unseen": "fr"}
    result = validate(batches, lambda batch: batch, tasks, languages)
    assert result["perplexity"] == pytest.approx({"de": math.exp(24 / 16), "en": 1.0})
    alone = {name: values["perplexity"] for name, values in result["tasks"].items()}
    expected = {"news_de": math.e, "web_de": math.exp(2), "en": 1.0, "en_de": math.exp(3)}
    assert alone == pytest.approx(expected)
    mean = (math.e + math.exp(2) + 1) / 3  # of perplexities, not of logarithms
    assert result["supervised"] == pytest.approx({"loss": 2.0, "nll": 1.0, "perplexity": mean})
    assert result["zero_shot"] == pytest.approx(
        {"loss": 6.0, "nll": 3.0, "perplexity": math.exp(3)}
    )


def test_directions_from_and_to_english_have_separate_means():
    """Graformer's Tables 5 and 6: a column each, of perplexities averaged over directions."""
    batches = [("en_de", sums(2, 2)), ("en_fr", sums(4, 2)), ("de_en", sums(6, 2))]
    batches += [("de_fr", sums(8, 2))]
    tasks = ValidationTasks(("en_de", "de_en"), ("en_fr", "de_fr"), ("en_de", "en_fr"), ("de_en",))
    result = validate(batches, lambda batch: batch, tasks, {})
    assert result["from_english"] == pytest.approx(
        {"loss": 3.0, "nll": 1.5, "perplexity": (math.e + math.exp(2)) / 2}
    )
    assert result["to_english"]["perplexity"] == pytest.approx(math.exp(3))
    without = validate(batches, lambda batch: batch, ValidationTasks(("en_de",), ()), {})
    assert not {"from_english", "to_english"} & without.keys()


def test_a_masked_models_perplexity_is_per_predicted_token():
    result = validate(
        [("de", sums(4, 20, 2))], lambda batch: batch, ValidationTasks(("de",), ()), {"de": "de"}
    )
    assert result["perplexity"] == pytest.approx({"de": math.exp(2)})
    assert result["tasks"]["de"] == pytest.approx(
        {"loss": 0.4, "nll": 2.0, "perplexity": math.exp(2)}
    )


def test_a_translator_has_only_perplexities_of_directions():
    tasks = ValidationTasks(("en_de",), ())
    result = validate([("en_de", sums(2, 2))], lambda batch: batch, tasks, {})
    assert "perplexity" not in result
    assert result["tasks"]["en_de"]["perplexity"] == pytest.approx(math.e)
    huge = validate([("en_de", sums(5000, 2))], lambda batch: batch, tasks, {})
    assert huge["tasks"]["en_de"]["perplexity"] == math.inf


RESULT = {
    "supervised": {"loss": 2.0, "nll": 1.0, "perplexity": 3.0},
    "tasks": {"en_de": {"loss": 2.0}, "de_fr": {"loss": 6.0}},
    "translation": {
        "supervised": {"bleu": 20.0, "chrf": 40.0, "off_target": 5.0},
        "tasks": {
            "en_de": {"bleu": 20.0, "chrf": 40.0, "off_target": 5.0},
            "de_fr": {"bleu": None, "chrf": 30.0, "off_target": 9.0},
        },
    },
}


@pytest.mark.parametrize(
    ("best_by", "expected"),
    [
        ("supervised", 2.0),
        ("supervised/nll", 1.0),
        ("all", 4.0),
        ("zero_shot", None),
        ("supervised/chrf", -40.0),
        ("all/chrf", -35.0),
        ("all/bleu", -20.0),  # of those that have a score
        ("all/off_target", 7.0),
        ("zero_shot/bleu", None),
    ],
)
def test_the_best_is_the_lowest_after_the_sign_of_its_measure(best_by, expected):
    assert checkpoint_loss(RESULT, best_by) == expected
    assert checkpoint_loss({"tasks": {}}, best_by) is None


def test_means_leave_out_what_a_task_lacks():
    per_task = RESULT["translation"]["tasks"]
    means = group_means(per_task, ValidationTasks(("en_de",), ("de_fr",), (), ("missing",)))
    assert means == {
        "supervised": {"bleu": 20.0, "chrf": 40.0, "off_target": 5.0},
        "zero_shot": {"chrf": 30.0, "off_target": 9.0},
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"best_by": "trained"}, "best_by='trained' must be one of supervised, zero_shot, from_e"),
        ({"best_by": "all/comet"}, "and may end in /loss, /nll, /perplexity, /bleu, /chrf, /off_t"),
        ({"best_by": "all/"}, "Train.best_by='all/' must be one of"),
        ({"best_by": "all/bleu"}, "scores translations; set Train.translate_pairs"),
    ],
)
def test_an_unknown_measure_is_refused(settings, message):
    with pytest.raises(UserError, match=message):
        Train(**settings)
