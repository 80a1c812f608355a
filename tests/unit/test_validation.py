"""Validation metrics from the sums of batches."""

import math

import numpy as np
import pytest

from mnmt_jax.training.losses import NLL_TOKENS
from mnmt_jax.training.validation import ValidationTasks, validate


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
