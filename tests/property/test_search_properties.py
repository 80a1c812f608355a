"""What must hold for any model, batch and limit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mnmt_jax.decoding.diverse_beam_search import DiverseBeamSearch
from mnmt_jax.decoding.search import EOS_ID, PAD_ID, BeamSearch, Greedy, Sample, sentence_rngs
from tests.toy_model import (
    assert_same_hypotheses,
    make_cache,
    make_request,
    make_tables,
    reorder,
    step,
)

ROWS, VOCAB, BEAM, STEPS = 5, 8, 3, 9
SEARCHES = {
    "beam": BeamSearch(BEAM, reorder),
    "diverse": DiverseBeamSearch(4, reorder, groups=2),
    "greedy": Greedy(),
    "sample": Sample(2, temperature=1.3, top_k=5, top_p=0.9, epsilon_cutoff=0.05),
}
LIMITS = st.lists(st.integers(1, STEPS - 1), min_size=ROWS, max_size=ROWS)
NAMES = st.sampled_from(sorted(SEARCHES))


@functools.partial(jax.jit, static_argnames=("name", "stops"))
def _run(name, tables, request, stops=(None,)):
    search = SEARCHES[name]
    state = search.start(step, make_cache(tables, search.beam), request)
    for enough in stops:
        state = search.advance(step, state, request, enough)
    return search.finish(state)


def _request(limits, rows=None):
    rows = np.arange(ROWS) if rows is None else rows
    request = make_request([limits[i] for i in rows], max_steps=STEPS)
    return request.replace(rngs=sentence_rngs(7, jnp.asarray(rows)))


@settings(max_examples=25, deadline=None)
@given(NAMES, st.integers(0, 2**20), LIMITS)
def test_hypotheses_are_well_formed(name, seed, limits):
    found = _run(name, make_tables(seed, ROWS, VOCAB), _request(limits))
    tokens, lengths, scores = (np.asarray(a) for a in (found.tokens, found.lengths, found.scores))
    assert (np.diff(scores, axis=1) <= 0).all() and (scores[:, 0] > -np.inf).all()
    for row, limit in enumerate(limits):
        for ids, length in zip(tokens[row], lengths[row], strict=True):
            if length:
                assert 2 <= length <= limit + 1 and ids[length - 1] == EOS_ID
                assert not np.isin(ids[: length - 1], [PAD_ID, EOS_ID]).any()
            assert (ids[length:] == PAD_ID).all()


@settings(max_examples=25, deadline=None)
@given(NAMES, st.integers(0, 2**20), LIMITS, st.integers(0, ROWS - 1))
def test_a_sentence_does_not_depend_on_its_batch_mates(name, seed, limits, row):
    tables = make_tables(seed, ROWS, VOCAB)
    together = _run(name, tables, _request(limits))
    alone = _run(name, tables[row : row + 1], _request(limits, np.array([row])))
    assert_same_hypotheses(jax.tree.map(lambda a: a[row : row + 1], together), alone)


@settings(max_examples=25, deadline=None)
@given(NAMES, st.integers(0, 2**20), LIMITS, st.permutations(range(ROWS)))
def test_the_order_of_rows_does_not_matter(name, seed, limits, order):
    order = np.array(order)
    tables = make_tables(seed, ROWS, VOCAB)
    straight = _run(name, tables, _request(limits))
    permuted = _run(name, tables[order], _request(limits, order))
    assert_same_hypotheses(jax.tree.map(lambda a: a[order], straight), permuted)


@settings(max_examples=20, deadline=None)
@given(NAMES, st.integers(0, 2**20), LIMITS)
def test_stopping_on_the_way_changes_nothing(name, seed, limits):
    tables, request = make_tables(seed, ROWS, VOCAB), _request(limits)
    assert_same_hypotheses(
        _run(name, tables, request), _run(name, tables, request, (1, 2, 4, None))
    )


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**20), LIMITS)
def test_scores_are_those_of_the_tokens(seed, limits):
    tables = make_tables(seed, ROWS, VOCAB)
    for name in SEARCHES:
        found = _run(name, tables, _request(limits))
        for row in range(ROWS):
            for rank, length in enumerate(np.asarray(found.lengths[row])):
                history, total = 0, 0.0
                inputs = [1, *np.asarray(found.tokens[row, rank, : max(length - 1, 0)])]
                for last, token in zip(inputs, found.tokens[row, rank, :length], strict=False):
                    history = (history * 613 + int(last) + 1) % 4096
                    logits = tables[row, history].astype(np.float64)
                    total += logits[int(token)] - np.log(np.exp(logits).sum())
                if length:
                    np.testing.assert_allclose(found.scores[row, rank], total / length, atol=1e-5)


def test_greedy_search_takes_the_lowest_id_of_equal_logits():
    logits = np.random.default_rng(2).integers(0, 4, (40, 1, 300)).astype(np.float32)
    logits[0] = -np.inf
    logits[1, 0, -1] = 5.0  # the last id alone
    step_of_row, request = jnp.zeros(40, jnp.int32), _request([3] * ROWS)
    actual = SEARCHES["greedy"].choose(jnp.asarray(logits), step_of_row, request)
    assert actual.dtype == jnp.int32
    np.testing.assert_array_equal(actual, logits.argmax(axis=-1))
