"""Diverse beam search against a slow transcription and exhaustive search on toy models."""

import functools

import jax
import numpy as np
import pytest

from mnmt_jax.decoding.diverse_beam_search import DiverseBeamSearch
from mnmt_jax.decoding.search import BeamSearch
from tests.parity.test_search import BATCH, VOCAB, _assert_same, _listed
from tests.slow_search import exhaustive, slow_diverse_search
from tests.toy_model import log_probs_of, make_cache, make_request, make_tables, reorder, step

LIMITS = [1, 2, 5, 8, 11, 11]


@functools.partial(jax.jit, static_argnames=("search",))
def _run(tables, request, search):
    state = search.start(step, make_cache(tables, search.beam), request)
    return search.finish(search.advance(step, state, request))


@pytest.mark.parametrize(
    ("beam", "groups", "penalty"),
    [(6, 2, 0.5), (4, 4, 0.8), (6, 3, 0.0), (3, 1, 0.5), (4, 2, 50.0)],
)
def test_diverse_search_equals_the_slow_transcription(beam, groups, penalty):
    request = make_request(LIMITS)
    search = DiverseBeamSearch(beam, reorder, groups=groups, penalty=penalty)
    repeated = total = 0
    for seed in range(4):
        tables = make_tables(seed, BATCH, VOCAB, eos=float(seed % 2))
        actual = _run(tables, request, search)
        for row, limit in enumerate(LIMITS):
            settings = {"beam": beam, "groups": groups, "penalty": penalty, "max_length": limit}
            expected = slow_diverse_search(log_probs_of(tables[row]), **settings)
            _assert_same(_listed(actual, row), expected)
            total += len(expected)
            repeated += len(expected) - len({tuple(tokens) for _, tokens in expected})
    # Only groups without a penalty all end with the same hypotheses.
    assert (repeated == total - total // groups) == (penalty == 0.0 or groups == 1)


def test_one_group_is_plain_beam_search_bit_for_bit():
    tables, request = make_tables(1, BATCH, VOCAB), make_request(LIMITS)
    plain = _run(tables, request, BeamSearch(3, reorder))
    for one, other in zip(
        jax.tree.leaves(_run(tables, request, DiverseBeamSearch(3, reorder))),
        jax.tree.leaves(plain),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


def test_groups_as_large_as_the_search_space_are_exhaustive():
    vocab, length, groups = 5, 2, 2
    tables = make_tables(0, 2, vocab, sharpness=1.0)
    search = DiverseBeamSearch(groups * vocab**length, reorder, groups=groups, penalty=0.7)
    actual = _run(tables, make_request([length] * 2), search)
    for row in range(2):
        expected = exhaustive(
            log_probs_of(tables[row]), vocab=vocab, max_length=length, length_penalty=1.0
        )
        everything = [one for one in expected for _ in range(groups)]
        _assert_same(_listed(actual, row), everything)


def test_a_group_avoids_the_tokens_of_earlier_groups():
    """Worked by hand: the second group takes the second token while it is within the penalty."""
    tables = np.full((1, 4096, 6), -30.0, np.float32)
    tables[:, :, 2:5] = 1.0, 0.8, 0.1
    tables[:, :, 1] = -3.0
    by_penalty = {}
    for penalty in (0.05, 0.5):
        search = DiverseBeamSearch(3, reorder, groups=3, penalty=penalty)
        hypotheses = _listed(_run(tables, make_request([2]), search), 0)
        by_penalty[penalty] = [tokens for _, tokens in hypotheses]
    assert by_penalty == {0.05: [[2, 2, 1]] * 3, 0.5: [[2, 2, 1], [2, 2, 1], [3, 3, 1]]}
