"""The loss against hand-computed values, and the chunked loss against the plain one."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnmt_jax.training.losses import chunked_token_loss, token_loss

VALUE_RTOL = 1e-6
GRADIENT_ATOL = 2e-6
VOCAB, EMBED = 37, 8


def make_case(rows=3, length=10, seed=0, dtype=jnp.float32):
    rng = np.random.default_rng(seed)
    features = jnp.asarray(rng.normal(size=(rows, length, EMBED)), dtype)
    embedding = jnp.asarray(rng.normal(size=(VOCAB, EMBED)), jnp.float32)
    labels = jnp.asarray(rng.integers(0, VOCAB, (rows, length)), jnp.int32)
    valid = jnp.asarray(rng.random((rows, length)) < 0.7)
    assert 0 < int(valid.sum()) < valid.size
    return features, embedding, labels, valid


def plain(features, embedding, labels, valid, label_smoothing=0.1):
    table = embedding.astype(features.dtype)
    logits = jnp.einsum("btm,vm->btv", features, table, preferred_element_type=jnp.float32)
    return token_loss(logits, labels, valid, label_smoothing)


def test_uniform_four_classes_cost_ln_4_for_every_label():
    sums = token_loss(jnp.zeros((4, 4)), jnp.arange(4), jnp.ones(4, bool), 0.1)
    np.testing.assert_allclose(sums.smoothed, 4 * math.log(4), rtol=VALUE_RTOL)
    np.testing.assert_allclose(sums.nll, 4 * math.log(4), rtol=VALUE_RTOL)
    assert float(sums.tokens) == 4


def test_smoothed_loss_is_cross_entropy_with_eps_over_v_minus_1():
    log_probs = np.log([0.5, 0.2, 0.2, 0.1])
    soft_target = np.array([0.1 / 3, 0.9, 0.1 / 3, 0.1 / 3])
    sums = token_loss(jnp.asarray(log_probs)[None], jnp.array([1]), jnp.ones(1, bool), 0.1)
    np.testing.assert_allclose(sums.smoothed, -(soft_target * log_probs).sum(), rtol=VALUE_RTOL)
    np.testing.assert_allclose(sums.nll, -log_probs[1], rtol=VALUE_RTOL)


def test_older_fairseq_label_smoothing_includes_the_label():
    """Graformer's: (1 - eps) nll + eps / V of every entry's; ours with eps (1 - 1 / V) is that."""
    log_probs, eps = np.log([0.5, 0.2, 0.2, 0.1]), 0.1
    older = -((1 - eps) * log_probs[1] + eps / 4 * log_probs.sum())

    def ours(smoothing):
        one = jnp.asarray(log_probs)[None], jnp.array([1]), jnp.ones(1, bool)
        return float(token_loss(*one, smoothing).smoothed)

    assert ours(eps * (1 - 1 / 4)) == pytest.approx(older, rel=VALUE_RTOL)
    assert abs(ours(eps) - older) > 1e-3  # of four entries; of 64,050 it is a millionth


def test_invalid_positions_do_not_count():
    features, embedding, labels, valid = make_case()
    other_labels = jnp.where(valid, labels, 0)
    other_features = jnp.where(valid[..., None], features, 99.0)
    for first, second in (
        (
            plain(features, embedding, labels, valid),
            plain(other_features, embedding, other_labels, valid),
        ),
        tuple(
            chunked_token_loss([(f, embedding)], la, valid, label_smoothing=0.1, chunk=7)
            for f, la in ((features, labels), (other_features, other_labels))
        ),
    ):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    ("chunk", "label_smoothing"),
    [(30, 0.1), (10, 0.1), (10, 0.0), (7, 0.1), (4, 0.1), (1, 0.1), (1000, 0.0)],  # 7, 4: not of 30
)
def test_chunked_equals_plain_in_value_and_gradient(chunk, label_smoothing):
    features, embedding, labels, valid = make_case()

    def chunked(f, e):
        sums = chunked_token_loss(
            [(f, e)], labels, valid, label_smoothing=label_smoothing, chunk=chunk
        )
        return 3.0 * sums.smoothed, sums

    def slow(f, e):
        sums = plain(f, e, labels, valid, label_smoothing)
        return 3.0 * sums.smoothed, sums

    def gradient(function):
        return jax.jit(jax.value_and_grad(function, (0, 1), has_aux=True))(features, embedding)

    expected, expected_grads = gradient(slow)
    actual, found_grads = gradient(chunked)
    undifferentiated = jax.jit(chunked)(features, embedding)
    for sums in (actual[1], undifferentiated[1]):
        np.testing.assert_allclose(sums, expected[1], rtol=VALUE_RTOL)
    for a, b in zip(found_grads, expected_grads, strict=True):
        assert float(jnp.abs(b).max()) > 0.1
        np.testing.assert_allclose(a, b, atol=GRADIENT_ATOL, rtol=1e-5)


def test_bfloat16_products_are_accumulated_in_float32():
    features, embedding, labels, valid = make_case(dtype=jnp.bfloat16)
    arguments = (features, embedding, labels, valid)
    expected = plain(*arguments)
    actual = chunked_token_loss([arguments[:2]], *arguments[2:], label_smoothing=0.1, chunk=8)
    assert all(value.dtype == jnp.float32 for value in actual)
    np.testing.assert_allclose(actual, expected, rtol=VALUE_RTOL)
    gradient = jax.grad(
        lambda f: (
            chunked_token_loss(
                [(f, arguments[1])], *arguments[2:], label_smoothing=0.1, chunk=8
            ).smoothed
        )
    )(features)
    assert gradient.dtype == jnp.bfloat16


def shapes_of(jaxpr):
    """Yield the shape of every intermediate, inner programs included."""
    for equation in jaxpr.eqns:
        for variable in equation.outvars:
            yield variable.aval.shape
        for parameter in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")
        ):
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                yield from shapes_of(inner)


def test_at_most_one_chunk_of_logits_is_in_memory():
    features, embedding, labels, valid = make_case(rows=4, length=16)

    def loss(f, e):
        return chunked_token_loss([(f, e)], labels, valid, label_smoothing=0.1, chunk=16).smoothed

    def whole(f, e):
        return plain(f, e, labels, valid).smoothed

    def most_logits(function):
        jaxpr = jax.make_jaxpr(jax.grad(function, (0, 1)))(features, embedding).jaxpr
        sizes = [math.prod(s) // VOCAB for s in shapes_of(jaxpr) if s and s[-1] == VOCAB]
        return max(sizes)

    assert most_logits(whole) == 64
    assert most_logits(loss) == 16


def test_each_logit_is_computed_once():
    features, embedding, labels, valid = make_case(rows=4, length=16)
    gradient = jax.grad(
        lambda f, e: (
            chunked_token_loss([(f, e)], labels, valid, label_smoothing=0.1, chunk=16).smoothed
        ),
        (0, 1),
    )
    text = str(jax.make_jaxpr(gradient)(features, embedding))
    assert text.count("dot_general") == 3  # logits, gradient of features, gradient of embedding


@pytest.mark.parametrize("chunk", [4, 16])
def test_the_gradient_of_a_frozen_embedding_is_not_computed(chunk):
    """The gradient of the features is unchanged."""
    features, embedding, labels, valid = make_case()

    def loss(f, e):
        return chunked_token_loss(
            [(f, e)], labels, valid, label_smoothing=0.1, chunk=chunk
        ).smoothed

    alone, both = jax.grad(loss), jax.grad(loss, (0, 1))
    jaxpr = jax.make_jaxpr(alone)(features, embedding)
    assert str(jaxpr).count("dot_general") == 2
    assert (VOCAB, EMBED) not in list(shapes_of(jaxpr.jaxpr))
    assert (VOCAB, EMBED) in list(shapes_of(jax.make_jaxpr(both)(features, embedding).jaxpr))
    stopped = jax.grad(lambda f, e: loss(f, jax.lax.stop_gradient(e)), (0, 1))(features, embedding)
    expected, _ = both(features, embedding)
    np.testing.assert_array_equal(alone(features, embedding), expected)
    np.testing.assert_array_equal(stopped[0], expected)
    assert not stopped[1].any()


def two_heads(dtype=jnp.float32):
    """Return features and tables of two heads, labels, and the mask of labels."""
    features, table, labels, valid = make_case(rows=4, length=16, dtype=dtype)
    other_features, other_table, *_ = make_case(rows=4, length=16, seed=1, dtype=dtype)
    return [(features, table), (other_features, other_table)], labels, valid


def summed(heads, labels, valid):
    terms = [
        jnp.einsum("btm,vm->btv", f, t.astype(f.dtype), preferred_element_type=jnp.float32)
        for f, t in heads
    ]
    return token_loss(terms[0] + terms[1], labels, valid, 0.1).smoothed


@pytest.mark.parametrize("chunk", [16, 7])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_logits_of_two_heads_are_their_sum(dtype, chunk):
    heads, labels, valid = two_heads(dtype)

    def chunked(heads):
        return chunked_token_loss(heads, labels, valid, label_smoothing=0.1, chunk=chunk).smoothed

    actual, gradients = jax.jit(jax.value_and_grad(chunked))(heads)
    expected, slow = jax.jit(jax.value_and_grad(lambda h: summed(h, labels, valid)))(heads)
    np.testing.assert_allclose(actual, expected, rtol=VALUE_RTOL)
    np.testing.assert_allclose(jax.jit(chunked)(heads), expected, rtol=VALUE_RTOL)
    atol = GRADIENT_ATOL if dtype == jnp.float32 else 0.05
    for one, other in zip(jax.tree.leaves(gradients), jax.tree.leaves(slow), strict=True):
        assert one.dtype == other.dtype
        one, other = (np.asarray(a, np.float32) for a in (one, other))
        np.testing.assert_allclose(one, other, atol=atol, rtol=1e-5)


@pytest.mark.parametrize("frozen", [(), (0,), (1,), (0, 1)])
def test_two_heads_compute_one_chunk_and_no_gradient_of_a_frozen_table(frozen):
    """Two products for the logits, two for the features, one for each table that trains."""
    heads, labels, valid = two_heads()

    def loss(trained, features):
        tables = (trained.get(n, table) for n, (_, table) in enumerate(heads))
        pairs = list(zip(features, tables, strict=True))
        return chunked_token_loss(pairs, labels, valid, label_smoothing=0.1, chunk=16).smoothed

    trained = {n: table for n, (_, table) in enumerate(heads) if n not in frozen}
    gradient = jax.grad(loss, (0, 1))
    jaxpr = jax.make_jaxpr(gradient)(trained, [f for f, _ in heads])
    assert str(jaxpr).count("dot_general") == 6 - len(frozen)
    sizes = [math.prod(s) // VOCAB for s in shapes_of(jaxpr.jaxpr) if s and s[-1] == VOCAB]
    assert max(sizes) == 16
    every = jax.grad(loss, (0, 1))(dict(enumerate(t for _, t in heads)), [f for f, _ in heads])
    actual = gradient(trained, [f for f, _ in heads])
    jax.tree.map(
        np.testing.assert_array_equal, actual, ({n: every[0][n] for n in trained}, every[1])
    )


def test_chunk_must_be_positive():
    with pytest.raises(ValueError, match="chunk=0 must be at least 1"):
        features, embedding, *rest = make_case()
        chunked_token_loss([(features, embedding)], *rest, label_smoothing=0.1, chunk=0)
