"""Sampling against the model's distribution."""

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnmt_jax.decoding.search import Sample, sample, sentence_rngs
from tests.slow_search import sequence_probabilities
from tests.toy_model import log_probs_of, make_cache, make_request, make_tables, step

DRAWS, VOCAB = 4000, 7
FREQUENCY_ATOL = 0.03  # over three standard errors of 4000 draws
LOGITS = np.array([0.0, 0.0, 2.0, 1.5, 1.0, 0.5, -3.0], np.float32)  # pad and eos first


@functools.partial(jax.jit, static_argnames=("options",))
def _first_tokens(rngs, options=()):
    tables = jnp.broadcast_to(LOGITS[None, None], (1, 4096, VOCAB))
    request, options = make_request([1]).replace(rngs=rngs), dict(options)
    cache = make_cache(tables, DRAWS)
    return sample(step, cache, request=request, beam=DRAWS, **options).tokens[0, :, 0]


def _expected(temperature: float, kept: int) -> np.ndarray:
    weights = np.exp(LOGITS / temperature)
    weights[:2] = 0.0  # no pad ever, no eos at the first step
    weights[2 + kept :] = 0.0  # words are sorted by logit
    return weights / weights.sum()


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, 5),
        ({"temperature": 0.5}, 5),
        ({"top_k": 2}, 2),
        ({"top_p": 0.5}, 2),
        ({"top_p": 1e-6}, 1),
        ({"top_k": 3, "top_p": 0.75, "temperature": 2.0}, 3),
        ({"top_k": 1}, 1),
        # Probabilities of the words: 0.45, 0.28, 0.17, 0.10, 0.003.
        ({"epsilon_cutoff": 0.15}, 3),
        ({"epsilon_cutoff": 0.15, "temperature": 2.0}, 4),
        ({"epsilon_cutoff": 0.9}, 1),
        ({"epsilon_cutoff": 0.15, "top_p": 0.75}, 2),  # of the 0.90 that remain
    ],
)
def test_frequencies_follow_the_truncated_distribution(options: dict, kept: int):
    drawn = np.asarray(_first_tokens(sentence_rngs(0, jnp.arange(1)), tuple(options.items())))
    frequency = np.bincount(drawn, minlength=VOCAB) / DRAWS
    expected = _expected(options.get("temperature", 1.0), kept)
    np.testing.assert_allclose(frequency, expected, atol=FREQUENCY_ATOL)
    assert (frequency[expected == 0] == 0).all()


def test_samples_depend_on_sentence_and_seed():
    def drawn(seed: int, sentence: int) -> list[int]:
        return _first_tokens(sentence_rngs(seed, jnp.asarray([sentence]))).tolist()

    assert drawn(0, 0) == drawn(0, 0)
    assert drawn(0, 0) != drawn(0, 1) and drawn(0, 0) != drawn(1, 0)


def test_the_default_is_one_unrestricted_sample():
    assert Sample() == Sample(
        beam=1, temperature=1.0, top_k=0, top_p=1.0, length_penalty=1.0, epsilon_cutoff=0.0
    )


def test_whole_sequences_follow_the_exhaustive_distribution():
    tables = make_tables(3, 1, 5, sharpness=1.0)
    request = make_request([2]).replace(rngs=sentence_rngs(1, jnp.arange(1)))
    options = {"beam": DRAWS, "epsilon_cutoff": 0.2}
    drawn = sample(step, make_cache(tables, DRAWS), request=request, **options)
    rows = zip(np.asarray(drawn.tokens[0]), np.asarray(drawn.lengths[0]), strict=True)
    counts = collections.Counter(tuple(tokens[:length].tolist()) for tokens, length in rows)
    log_probs = log_probs_of(tables[0])
    expected = sequence_probabilities(log_probs, max_length=2, epsilon_cutoff=0.2)
    everything = sequence_probabilities(log_probs, max_length=2)
    assert counts.keys() == expected.keys() and 3 < len(expected) < len(everything)
    for tokens, prob in expected.items():
        assert abs(counts[tokens] / DRAWS - prob) < FREQUENCY_ATOL
