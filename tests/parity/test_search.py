"""The searches against slow transcriptions of their rules on toy models."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnmt_jax.decoding.search import Hypotheses, beam_search, greedy
from tests.slow_search import EOS, PAD, exhaustive, slow_beam_search, slow_greedy
from tests.toy_model import log_probs_of, make_cache, make_request, make_tables, reorder, step

SCORE_ATOL = 1e-5
BATCH, VOCAB = 6, 9


@functools.partial(jax.jit, static_argnames=("beam", "length_penalty"))
def _beam(tables, request, beam, length_penalty=1.0):
    return beam_search(
        step,
        make_cache(tables, beam),
        request=request,
        reorder=reorder,
        beam=beam,
        length_penalty=length_penalty,
    )


@jax.jit
def _greedy(tables, request):
    return greedy(step, make_cache(tables, 1), request=request)


def _listed(actual: Hypotheses, row: int) -> list[tuple[float, list[int]]]:
    tokens, lengths, scores = (
        np.asarray(a[row]) for a in (actual.tokens, actual.lengths, actual.scores)
    )
    for ids, length in zip(tokens, lengths, strict=True):
        assert (ids[length:] == PAD).all()
    return [
        (float(score), [int(i) for i in ids[:length]])
        for ids, length, score in zip(tokens, lengths, scores, strict=True)
        if length
    ]


def _assert_same(actual: list, expected: list) -> None:
    assert actual and [tokens for _, tokens in actual] == [tokens for _, tokens in expected]
    np.testing.assert_allclose(
        [score for score, _ in actual], [score for score, _ in expected], atol=SCORE_ATOL
    )


@pytest.mark.parametrize("beam", [1, 2, 5])
@pytest.mark.parametrize("length_penalty", [1.0, 0.6])
@pytest.mark.parametrize("eos", [-2.0, 0.0, 3.0])
def test_beam_search_equals_the_slow_transcription(beam: int, length_penalty: float, eos: float):
    request = make_request([1, 2, 5, 8, 11, 11])
    seen_lengths = set()
    for seed in range(6):
        tables = make_tables(seed, BATCH, VOCAB, eos=eos)
        actual = _beam(tables, request, beam, length_penalty)
        for row in range(BATCH):
            expected = slow_beam_search(
                log_probs_of(tables[row]),
                beam=beam,
                max_length=int(request.max_length[row]),
                length_penalty=length_penalty,
            )
            _assert_same(_listed(actual, row), expected)
            seen_lengths |= {len(tokens) for _, tokens in expected}
    assert len(seen_lengths) > 3


def test_an_eos_ranked_below_the_beam_does_not_finish():
    """Worked by hand: beam 1, eos ranked second must not finish."""
    tables = np.full((1, 4096, 5), -10.0, np.float32)
    tables[:, :, 3], tables[:, :, EOS] = 1.0, 0.9
    actual = _listed(_beam(tables, make_request([3]), 1), 0)
    assert [tokens for _, tokens in actual] == [[3, 3, 3, EOS]]


@pytest.mark.parametrize("seed", range(4))
def test_beam_size_one_equals_greedy(seed: int):
    tables = make_tables(seed, BATCH, VOCAB, eos=1.0)
    request = make_request([1, 3, 6, 10, 10, 10])
    one, chain = _beam(tables, request, 1), _greedy(tables, request)
    for row in range(BATCH):
        expected = [slow_greedy(log_probs_of(tables[row]), max_length=int(request.max_length[row]))]
        _assert_same(_listed(one, row), expected)
        _assert_same(_listed(chain, row), expected)


@pytest.mark.parametrize("length_penalty", [1.0, 0.3])
def test_a_beam_as_large_as_the_search_space_is_exhaustive(length_penalty: float):
    vocab, length = 5, 3
    tables = make_tables(0, 3, vocab, sharpness=1.0)
    actual = _beam(tables, make_request([length] * 3), vocab**length, length_penalty)
    for row in range(3):
        expected = exhaustive(
            log_probs_of(tables[row]), vocab=vocab, max_length=length, length_penalty=length_penalty
        )
        assert len(expected) == 3 + 3**2 + 3**3
        _assert_same(_listed(actual, row), expected)


def test_forced_tokens_are_neither_scored_nor_counted():
    prefix = (1, 7)
    tables = make_tables(3, BATCH, VOCAB)
    actual = _beam(tables, make_request([6] * BATCH, prefix), 4)
    for row in range(BATCH):
        expected = slow_beam_search(log_probs_of(tables[row], prefix), beam=4, max_length=6)
        _assert_same(_listed(actual, row), expected)


def test_inactive_rows_have_no_hypotheses_and_do_not_prolong_the_search():
    tables = make_tables(4, 3, VOCAB, eos=2.0)
    tables[1, :, EOS], tables[2, :, EOS] = -50.0, 50.0
    request = make_request([30] * 3).replace(active=jnp.asarray([True, False, False]))
    actual = _beam(tables, request, 3)
    for row in (1, 2):
        assert _listed(actual, row) == [] and (np.asarray(actual.scores[row]) == -np.inf).all()
    assert len(_listed(actual, 0)) == 3


def test_nan_logits_give_no_hypothesis():
    tables = np.full((1, 4096, 5), np.nan, np.float32)
    assert _listed(_beam(tables, make_request([3]), 2), 0) == []
