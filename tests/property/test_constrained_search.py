"""Properties of the constrained search for any model, batch, limit and terms."""

import functools

import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mnmt_jax.decoding.constrained_search import ConstrainedBeamSearch
from tests.made_terms import search_terms
from tests.slow_search import EOS, missing_tokens
from tests.toy_model import (
    assert_same_hypotheses,
    make_cache,
    make_request,
    make_tables,
    reorder,
    step,
)

ROWS, VOCAB, BEAM, STEPS = 3, 8, 3, 13
TOKENS = st.lists(st.integers(2, VOCAB - 1), min_size=1, max_size=3)
TERM = st.tuples(st.lists(TOKENS, min_size=1, max_size=2), st.integers(1, 2))
TERMS = st.lists(st.lists(TERM, max_size=2), min_size=ROWS, max_size=ROWS)
# Every batch has the shape of this row, so that one program serves all.
WIDEST = ([([[2, 2, 2], [2]], 1)] * 2, [[2, 2, 2], [2]])
SEARCH = ConstrainedBeamSearch(BEAM, reorder)


@functools.partial(jax.jit, static_argnames="stops")
def _run(tables, request, stops=(None,)):
    state = SEARCH.start(step, make_cache(tables, BEAM), request)
    for stop_count in stops:
        state = SEARCH.advance(step, state, request, stop_count)
    return SEARCH.finish(state)


def _request(terms, forbidden=()):
    rows = [(required, list(forbidden)) for required in terms]
    arrays = jax.tree.map(lambda array: array[:-1], search_terms([*rows, WIDEST]))
    return make_request([STEPS - 1] * len(rows), max_steps=STEPS).replace(terms=arrays)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**20), TERMS)
def test_terms_that_fit_the_limit_are_always_met(seed, terms):
    """The limit is as long as all alternatives together, twice: 12 tokens."""
    hypotheses = _run(make_tables(seed, ROWS, VOCAB), _request(terms))
    for row, required in enumerate(terms):
        length = int(hypotheses.lengths[row, 0])
        tokens = np.asarray(hypotheses.tokens[row, 0, :length]).tolist()
        assert tokens[-1] == EOS and missing_tokens(required, tokens) == 0


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**20), TOKENS, TOKENS)
def test_forbidden_sequences_are_never_generated(seed, one, other):
    hypotheses = _run(make_tables(seed, ROWS, VOCAB), _request([[]] * ROWS, [one, other]))
    for tokens in np.asarray(hypotheses.tokens).reshape(-1, STEPS).tolist():
        text = str(tokens)
        assert str(one)[1:-1] not in text and str(other)[1:-1] not in text


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**20), TERMS, st.integers(0, ROWS - 1))
def test_a_sentence_does_not_depend_on_its_batch_mates(seed, terms, row):
    tables = make_tables(seed, ROWS, VOCAB)
    together = _run(tables, _request(terms))
    alone = _run(tables[row : row + 1], _request(terms[row : row + 1]))
    assert_same_hypotheses(jax.tree.map(lambda a: a[row : row + 1], together), alone)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**20), TERMS)
def test_stopping_on_the_way_changes_nothing(seed, terms):
    tables, request = make_tables(seed, ROWS, VOCAB), _request(terms)
    assert_same_hypotheses(_run(tables, request), _run(tables, request, (1, 2, None)))
