"""Decoding of every layout: cache, search, scores and batches agree."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnmt_jax.decoding.generate import generate, search_batch
from mnmt_jax.decoding.scoring import score_labels
from mnmt_jax.decoding.search import EOS_ID, BeamSearch, Request
from mnmt_jax.design.layouts import LAYOUTS
from mnmt_jax.model.key_values import reorder
from mnmt_jax.model.network import build_model
from tests.random_params import random_params
from tests.sample_batches import VOCAB, pack, random_pairs, small_config, spans_of
from tests.slow_search import slow_beam_search

STEP_ATOL = 2e-5
SCORE_ATOL = 1e-5
BEAM, FACTOR, EOS_BIAS = 3, 1.5, 1.0
LIMITS = (14, 5, 1, 9)
MAX_STEPS = max(LIMITS) + 1
LENGTHS = {"source": 12, "register": 6, "trigger": 1, "target": MAX_STEPS}


@dataclasses.dataclass
class Case:
    """A random model of one layout with four sentences."""

    model: object
    params: dict
    layout: object
    pairs: list

    def batch(self, targets, pairs=None):
        """Return one row per sentence, with its target inputs."""
        pairs = self.pairs if pairs is None else pairs
        roles = self.layout.embedded_roles()
        rows = [
            [spans_of(self.layout, source, target, tag, FACTOR)]
            for (source, _, tag), target in zip(pairs, targets, strict=True)
        ]
        return pack(rows, {role: LENGTHS[role] for role in roles})

    def static_batch(self, pairs=None):
        pairs = self.pairs if pairs is None else pairs
        batch = self.batch([[] for _ in pairs], pairs)
        return {name: array for name, array in batch.items() if not name.startswith("target")}

    @functools.cached_property
    def logits(self):
        return jax.jit(lambda batch: self.model.apply({"params": self.params}, batch))

    def log_probs_of(self, row):
        """Return the slow path for one sentence: teacher forcing over the whole prefix."""

        def log_probs(tokens):
            targets = [[] for _ in self.pairs]
            targets[row] = list(tokens)
            logits = self.logits(self.batch(targets))[row, len(tokens)]
            return np.asarray(jax.nn.log_softmax(logits))

        return log_probs


@functools.cache
def _case(name):
    config = small_config(name, register_factor=FACTOR)
    pairs = random_pairs(len(LIMITS), seed=5)
    layout = LAYOUTS[name]
    model = build_model(config, VOCAB)
    params = random_params(model, seed=3)
    # The final norm's bias points to eos, so that hypotheses end at different lengths.
    last_norm = params[f"stage_{len(layout.stages) - 1}_norm"]
    last_norm["bias"] = EOS_BIAS * params["embedding"][EOS_ID]
    return Case(model, params, layout, pairs)


def _request(limits=LIMITS, active=None):
    rows = len(limits)
    return Request(
        prefix=jnp.full((rows, 1), EOS_ID, jnp.int32),
        max_length=jnp.asarray(limits, jnp.int32),
        active=jnp.ones((rows,), bool) if active is None else jnp.asarray(active),
        max_steps=MAX_STEPS,
    )


@functools.cache
def _found(name):
    case = _case(name)
    search = BeamSearch(BEAM, reorder)
    return generate(case.model, case.params, case.static_batch(), _request(), search=search)


def _hypotheses(actual, row):
    return [
        (float(score), ids[:length].tolist())
        for ids, length, score in zip(
            actual.tokens[row], actual.lengths[row], actual.scores[row], strict=True
        )
        if length
    ]


def test_step_equals_teacher_forcing_under_reordering():
    """Beams hold different prefixes and are reordered; the next test does this for every row."""
    case = _case("register")
    rng = np.random.default_rng(0)
    rows, steps = len(case.pairs), 6
    histories = [[[] for _ in range(BEAM)] for _ in range(rows)]
    variables = {"params": case.params}
    prefill = functools.partial(case.model.apply, beam=BEAM, max_steps=steps, method="prefill")
    cache = jax.jit(prefill)(variables, case.static_batch())
    step = jax.jit(lambda tokens, cache: case.model.apply(variables, tokens, cache, method="step"))
    tokens = np.full((rows, BEAM), EOS_ID, np.int32)
    for _ in range(steps):
        logits, cache = step(tokens, cache)
        for beam in range(BEAM):
            targets = [histories[row][beam] for row in range(rows)]
            forced = case.logits(case.batch(targets))[:, len(targets[0])]
            np.testing.assert_allclose(logits[:, beam], forced, atol=STEP_ATOL)
        parents = rng.integers(0, BEAM, (rows, BEAM))
        tokens = rng.integers(3, 15, (rows, BEAM)).astype(np.int32)
        cache = reorder(cache, jnp.asarray(parents))
        histories = [
            [[*histories[row][parents[row, b]], int(tokens[row, b])] for b in range(BEAM)]
            for row in range(rows)
        ]
    assert int(cache.index) == steps


@pytest.mark.parametrize("name", LAYOUTS)
def test_beam_search_equals_slow_search_on_teacher_forced_logits(name):
    case, actual = _case(name), _found(name)
    for row, limit in enumerate(LIMITS):
        expected = slow_beam_search(case.log_probs_of(row), beam=BEAM, max_length=limit)
        hypotheses = _hypotheses(actual, row)
        assert [tokens for _, tokens in hypotheses] == [tokens for _, tokens in expected]
        np.testing.assert_allclose(
            [score for score, _ in hypotheses], [score for score, _ in expected], atol=SCORE_ATOL
        )
    assert actual.lengths.max() > 2


@pytest.mark.parametrize("name", LAYOUTS)
def test_scoring_gives_the_score_of_the_search(name):
    case, actual = _case(name), _found(name)
    compared = 0
    for rank in range(BEAM):
        tokens = [_hypotheses(actual, row) for row in range(len(LIMITS))]
        tokens = [each[rank][1] if rank < len(each) else [] for each in tokens]
        batch = case.batch([ids[:-1] for ids in tokens])
        labels = np.zeros_like(batch["target_tokens"])
        scored = np.zeros(labels.shape, bool)
        for row, ids in enumerate(tokens):
            labels[row, : len(ids)] = ids
            scored[row, : len(ids)] = True
        scores = score_labels(case.logits(batch), jnp.asarray(labels), jnp.asarray(scored))
        np.testing.assert_allclose(scores, actual.scores[:, rank], atol=SCORE_ATOL)
        compared += sum(map(bool, tokens))
    assert compared >= BEAM * (len(LIMITS) - 1)


@pytest.mark.parametrize("name", LAYOUTS)
def test_other_and_empty_rows_do_not_change_results(name):
    case, actual = _case(name), _found(name)
    order = [2, 0, 3, 1]
    search = BeamSearch(BEAM, reorder)
    batch = case.static_batch([case.pairs[i] for i in order])
    limits = [LIMITS[i] for i in order]
    permuted = generate(case.model, case.params, batch, _request(limits), search=search)
    for place, row in enumerate(order):
        _assert_same_row(permuted, place, actual, row)
    alone = {key: np.where(np.arange(4)[:, None] == 1, a, 0) for key, a in batch.items()}
    request = _request(limits, active=[False, True, False, False])
    _assert_same_row(
        generate(case.model, case.params, alone, request, search=search), 1, actual, order[1]
    )


def test_a_smaller_step_limit_keeps_finished_results_and_marks_the_others():
    case, actual = _case("register"), _found("register")
    room = int(np.median(actual.lengths.max(axis=1)))
    request = _request().replace(max_steps=room)
    short, done = search_batch(
        case.params,
        case.static_batch(),
        request,
        model=case.model,
        search=BeamSearch(BEAM, reorder),
    )
    assert 0 < np.sum(done) < len(done)
    for row in np.flatnonzero(done):
        np.testing.assert_array_equal(short.tokens[row], actual.tokens[row, :, :room])
        np.testing.assert_allclose(short.scores[row], actual.scores[row], atol=SCORE_ATOL)


def _assert_same_row(one, row, other, other_row):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a[row], b[other_row])
