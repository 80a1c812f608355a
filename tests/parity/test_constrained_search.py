"""The constrained search against its slow transcription and exhaustive search on toy models."""

import functools

import jax
import numpy as np
import pytest

from mnmt_jax.decoding.constrained_search import ConstrainedBeamSearch
from mnmt_jax.decoding.search import BeamSearch
from tests.made_terms import search_terms
from tests.slow_search import EOS, PAD, exhaustive, missing_tokens, slow_constrained_search
from tests.toy_model import log_probs_of, make_cache, make_request, make_tables, reorder, step

SCORE_ATOL = 1e-5
BATCH, VOCAB = 6, 9
# Required terms (alternatives, count) and forbidden sequences of each sentence.
ROWS = (
    ([([[5, 6]], 1), ([[5, 7]], 1)], []),
    ([([[5, 6], [7]], 1), ([[4, 4]], 1)], [[3]]),
    ([([[5, 6]], 1), ([[6, 7]], 1)], [[2, 2]]),
    ([([[5]], 2), ([[5, 6]], 1)], []),
    ([([[2, 3, 4], [8, 8, 8, 8]], 2)], [[5, 6], [6]]),
    ([], [[4]]),
)


@functools.partial(jax.jit, static_argnames=("beam", "length_penalty", "search"))
def _run(tables, request, beam, length_penalty=1.0, search=ConstrainedBeamSearch):
    search = search(beam, reorder, length_penalty)
    state = search.start(step, make_cache(tables, beam), request)
    return search.finish(search.advance(step, state, request))


def _listed(actual, row):
    arrays = (np.asarray(a[row]) for a in (actual.tokens, actual.lengths, actual.scores))
    for tokens, length, score in zip(*arrays, strict=True):
        assert (tokens[length:] == PAD).all()
        if length:
            yield float(score), tokens[:length].tolist()


def _assert_same(actual, expected):
    actual = list(actual)
    assert actual and [tokens for _, tokens in actual] == [tokens for _, tokens in expected]
    scores = [[score for score, _ in one] for one in (actual, expected)]
    np.testing.assert_allclose(*scores, atol=SCORE_ATOL)


@pytest.mark.parametrize("beam", [1, 2, 5])
@pytest.mark.parametrize("eos", [-2.0, 0.0, 3.0])
def test_constrained_search_equals_the_slow_transcription(beam, eos):
    limits = [3, 5, 8, 11, 4, 11]
    request = make_request(limits).replace(terms=search_terms(ROWS))
    complete = partial = 0
    for seed in range(4):
        tables = make_tables(seed, BATCH, VOCAB, eos=eos)
        actual = _run(tables, request, beam, 0.6)
        for row, (terms, forbidden) in enumerate(ROWS):
            expected = slow_constrained_search(
                log_probs_of(tables[row]),
                terms,
                forbidden,
                beam=beam,
                max_length=limits[row],
                length_penalty=0.6,
            )
            _assert_same(_listed(actual, row), expected)
            is_complete = [not missing_tokens(terms, tokens) for _, tokens in expected]
            complete, partial = complete + sum(is_complete), partial + is_complete.count(False)
    assert complete and partial


@pytest.mark.parametrize("length_penalty", [1.0, 0.3])
def test_a_beam_as_large_as_the_search_space_is_exhaustive(length_penalty):
    vocab, length = 5, 3
    rows = (
        ([([[3]], 1), ([[4, 2]], 1)], []),
        ([([[2, 3], [4]], 2)], []),
        ([([[3, 3]], 1)], [[4, 2], [2]]),
        ([([[2, 3, 4, 4]], 1)], []),
    )
    tables = make_tables(0, len(rows), vocab, sharpness=1.0)
    request = make_request([length] * len(rows)).replace(terms=search_terms(rows))
    actual = _run(tables, request, vocab**length, length_penalty)
    sizes = []
    for row, (terms, forbidden) in enumerate(rows):
        every = exhaustive(
            log_probs_of(tables[row]), vocab=vocab, max_length=length, length_penalty=length_penalty
        )
        allowed = [
            (score, tokens)
            for score, tokens in every
            if not any(
                tokens[i : i + len(one)] == one for one in forbidden for i in range(len(tokens))
            )
        ]
        complete = [one for one in allowed if not missing_tokens(terms, one[1])]
        partial = [
            one for one in allowed if missing_tokens(terms, one[1]) and len(one[1]) == length + 1
        ]
        _assert_same(_listed(actual, row), complete + partial)
        sizes.append(len(complete))
    assert sizes == [2, 10, 4, 0]


def test_overlapping_terms_by_hand():
    """Eos is most probable, so that nothing but terms is generated.

    The terms 4 5 and 5 6 overlap: 4 5 6 has both. The term 4 is a prefix of 4 5: 4 5 has both, and
    if 4 is required twice, 4 4 5 and 4 5 4 have both.
    """
    rows = (
        ([([[4, 5]], 1), ([[5, 6]], 1)], []),
        ([([[4]], 1), ([[4, 5]], 1)], []),
        ([([[4]], 2), ([[4, 5]], 1)], []),
    )
    tables = np.zeros((3, 4096, 7), np.float32)
    tables[:, :, 3], tables[:, :, EOS] = 2.0, 3.0
    request = make_request([8] * 3).replace(terms=search_terms(rows))
    actual = _run(tables, request, 7, 0.0)
    best = [next(_listed(actual, row))[1] for row in range(3)]
    assert best[:2] == [[4, 5, 6, EOS], [4, 5, EOS]]
    assert best[2] in ([4, 4, 5, EOS], [4, 5, 4, EOS])


def test_a_hypothesis_that_can_only_end_does_so_and_ranks_last():
    """As contrasts may exclude everything else: after 3 there is nothing but eos, after 5 the term.

    The history 1 (the prefix) has state 2 in the tables, 1 5 has 1232.
    """
    tables = np.full((1, 4096, 7), -np.inf, np.float32)
    tables[:, 2, 3], tables[:, 2, 5], tables[:, :, EOS] = 0.0, -5.0, 0.0
    tables[:, 1232, 6] = -5.0
    request = make_request([8]).replace(terms=search_terms([([([[6]], 1)], [])]))
    (first, tokens), (second, others) = _listed(_run(tables, request, 2), 0)
    assert (tokens, others) == ([5, 6, EOS], [3, EOS]) and first < second


def test_without_terms_the_search_is_the_plain_one_bit_for_bit():
    tables = make_tables(5, BATCH, VOCAB)
    request = make_request([1, 2, 5, 8, 11, 11])
    plain = _run(tables, request, 4, search=BeamSearch)
    constrained = _run(tables, request.replace(terms=search_terms([([], [])] * BATCH)), 4)
    for one, other in zip(jax.tree.leaves(plain), jax.tree.leaves(constrained), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
