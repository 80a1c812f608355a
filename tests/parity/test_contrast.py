"""Contrastive search against slow transcriptions and all sequences, on toy models."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnmt_jax.decoding.contrastive_decoding import Contrast
from mnmt_jax.decoding.search import BeamSearch, Greedy, Sample, sentence_rngs
from tests.slow_search import EOS, PAD, contrasted, exhaustive, slow_beam_search, slow_greedy
from tests.toy_model import STATES, log_probs_of, make_request, make_tables, reorder, step

SCORE_ATOL, SCORE_RTOL = 2e-5, 1e-5  # of a difference of probabilities
INPUTS, VOCAB = 3, 9
LIMITS = (1, 2, 5, 8, 11)
WEIGHTS = np.array([[0.7, 0.1], [0.6, 0.0], [0.1, 0.85], [0.0, 0.3], [0.0, 0.0]], np.float32)
SEARCHES = {
    "beam": BeamSearch(4, reorder),
    "wide": BeamSearch(5**3, reorder, 0.3),
    "greedy": Greedy(),
    "sample": Sample(64, temperature=3.0),
    "top": Sample(2, temperature=3.0, top_k=1),
}


def _step(tokens, cache):
    """Apply the toy model under each input; hypotheses have one history."""
    batch, inputs = cache["tables"].shape[:2]
    flat = cache["tables"].reshape(batch * inputs, STATES, -1)
    history = jnp.repeat(cache["history"], inputs, axis=0)
    logits, _ = step(jnp.repeat(tokens, inputs, axis=0), {"tables": flat, "history": history})
    after = step(tokens, cache | {"tables": cache["tables"][:, 0]})[1]["history"]
    return logits.reshape(batch, inputs, *logits.shape[1:]), cache | {"history": after}


@functools.partial(jax.jit, static_argnames="name")
def _run(name, tables, request):
    """Search with tables [batch, inputs, STATES, vocab], or without contrast inputs."""
    search = SEARCHES[name]
    history = jnp.zeros((tables.shape[0], search.beam), jnp.int32)
    cache = {"tables": jnp.asarray(tables), "history": history}
    one = step if request.contrast is None else _step
    state = search.start(one, cache, request)
    return search.finish(search.advance(one, state, request))


def _tables(seed, rows, inputs=INPUTS, vocab=VOCAB, eos=0.0):
    drawn = [make_tables(100 * seed + n, rows, vocab, eos=eos) for n in range(inputs)]
    return np.stack(drawn, axis=1)


def _request(weights, limits=LIMITS):
    prefix = np.ones((*weights.shape, 1), np.int32)
    request = make_request(limits).replace(contrast=Contrast(prefix, weights))
    return request.replace(rngs=sentence_rngs(3, jnp.arange(len(limits))))


def _log_scores(tables, weights, limit, spared=None):
    return contrasted([log_probs_of(table) for table in tables], weights, limit, spared)


def _listed(actual, row):
    return [
        (float(score), ids[:length].tolist())
        for ids, length, score in zip(
            *(np.asarray(a[row]) for a in (actual.tokens, actual.lengths, actual.scores)),
            strict=True,
        )
        if length and score > -np.inf
    ]


def _assert_same(actual, expected):
    assert actual and [tokens for _, tokens in actual] == [tokens for _, tokens in expected]
    scores = [score for score, _ in actual], [score for score, _ in expected]
    np.testing.assert_allclose(*scores, rtol=SCORE_RTOL, atol=SCORE_ATOL)


@pytest.mark.parametrize("eos", [-2.0, 2.0])
def test_beam_and_greedy_search_equal_slow_transcriptions(eos):
    spared, request, differs = [], _request(WEIGHTS), 0
    for seed in range(4):
        tables = _tables(seed, len(LIMITS), eos=eos)
        actual, chain = (_run(name, tables, request) for name in ("beam", "greedy"))
        for row, limit in enumerate(LIMITS):
            scores = _log_scores(tables[row], WEIGHTS[row], limit, spared)
            _assert_same(_listed(actual, row), slow_beam_search(scores, beam=4, max_length=limit))
            one = slow_greedy(scores, max_length=limit)
            _assert_same(_listed(chain, row), [one])
            plain = slow_greedy(log_probs_of(tables[row][0]), max_length=limit)
            differs += one[1] != plain[1]
    assert differs >= 4 and len(spared) >= 4


@pytest.mark.parametrize("weights", [(0.7, 0.1), (0.9, 0.0)])
def test_a_beam_as_large_as_the_search_space_is_exhaustive(weights):
    vocab, length, spared = 5, 3, []
    tables = _tables(7, 2, vocab=vocab)
    given = np.tile(np.float32(weights), (2, 1))
    actual = _run("wide", tables, _request(given, [length] * 2))
    for row in range(2):
        scores = _log_scores(tables[row], weights, length, spared)
        expected = exhaustive(scores, vocab=vocab, max_length=length, length_penalty=0.3)
        assert len(expected) == 3 + 3**2 + 3**3
        kept = [(score, tokens) for score, tokens in expected if score > -np.inf]
        assert 3 < len(kept) < len(expected)
        _assert_same(_listed(actual, row), kept)
    assert spared


def test_zero_contrast_weights_equal_plain_search():
    """Bit for bit, except for samples, where XLA orders sums differently."""
    tables, request = _tables(1, len(LIMITS)), _request(np.zeros_like(WEIGHTS))
    for name, atol in {"beam": 0.0, "greedy": 0.0, "sample": 2e-6}.items():
        actual = _run(name, tables, request)
        plain = _run(name, tables[:, 0], request.replace(contrast=None))
        np.testing.assert_array_equal(actual.tokens, plain.tokens)
        np.testing.assert_array_equal(actual.lengths, plain.lengths)
        np.testing.assert_allclose(actual.scores, plain.scores, rtol=0, atol=atol)


def test_contrast_with_the_same_source_subtracts_the_weight_per_token():
    tables = np.repeat(_tables(2, len(LIMITS), inputs=1), INPUTS, axis=1)
    weights = np.tile(np.float32([0.5, 0.2]), (len(LIMITS), 1))
    request = _request(weights)
    actual = _run("beam", tables, request)
    plain = _run("beam", tables[:, 0], request.replace(contrast=None))
    np.testing.assert_array_equal(actual.tokens, plain.tokens)
    kept = np.asarray(plain.lengths) > 0
    expected = np.asarray(plain.scores)[kept] + np.log(0.3)
    np.testing.assert_allclose(np.asarray(actual.scores)[kept], expected, atol=SCORE_ATOL)


def test_samples_are_drawn_from_and_scored_by_the_contrasted_distribution():
    tables, request = _tables(5, len(LIMITS), eos=-1.0), _request(WEIGHTS)
    actual, top, greedy = (_run(name, tables, request) for name in ("sample", "top", "greedy"))
    drawn = set()
    for row, limit in enumerate(LIMITS):
        scores = _log_scores(tables[row], WEIGHTS[row], limit)
        for score, tokens in _listed(actual, row):
            steps = [scores(tokens[:i])[token] for i, token in enumerate(tokens)]
            assert score == pytest.approx(float(np.mean(steps)), abs=SCORE_ATOL)
            drawn.add(tuple(tokens))
        first = {int(ids[0]) for ids in np.asarray(actual.tokens[row])}
        left = scores([]) > -np.inf
        assert first <= set(np.flatnonzero(left).tolist()) - {PAD, EOS}
        _assert_same(_listed(top, row)[:1], _listed(greedy, row))
    assert len(drawn) > 100


def test_contrast_weights_are_per_sentence():
    """Each row equals its result alone."""
    tables, request = _tables(6, len(LIMITS)), _request(WEIGHTS)
    together = _run("beam", tables, request)
    order = np.array([3, 0, 4, 2, 1])
    permuted = _run("beam", tables[order], _request(WEIGHTS[order], [LIMITS[i] for i in order]))
    for one, other in zip(jax.tree.leaves(together), jax.tree.leaves(permuted), strict=True):
        np.testing.assert_array_equal(np.asarray(one)[order], other)


def test_nan_logits_give_no_contrastive_hypotheses():
    tables = np.full((1, INPUTS, STATES, 5), np.nan, np.float32)
    for name in ("beam", "greedy"):
        assert _listed(_run(name, tables, _request(WEIGHTS[:1], [3])), 0) == []
