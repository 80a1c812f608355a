"""InstruCL's term against hand calculations and the formula written as loops."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from mnmt_jax.config.loading import load_config
from mnmt_jax.design.layouts import LAYOUTS
from mnmt_jax.errors import UserError
from mnmt_jax.methods.instructcl import InstruCL, contrastive_loss, tag_states
from mnmt_jax.model.sublayers import make_plan

RTOL = 1e-5
FORMS = ("code", "unweighted", "paper")


def term(anchors, positives, tags, *, valid=None, tokens=10.0, form="code"):
    tags = jnp.asarray(tags, jnp.int32)
    valid = jnp.ones(tags.shape, bool) if valid is None else jnp.asarray(valid)
    return contrastive_loss(
        jnp.asarray(anchors),
        jnp.asarray(positives),
        tags,
        valid,
        source_tokens=jnp.float32(tokens),
        form=form,
    )


def by_loops(anchors, positives, tags, valid, tokens, form):
    """The spec's 5.5 and 5.6, instance by instance, in double precision."""

    def cosine(x, y):
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        return (x @ y) / (np.linalg.norm(x) * np.linalg.norm(y))

    present = [i for i in range(len(tags)) if valid[i]]
    total = 0.0
    for i in present:
        like = math.exp(cosine(anchors[i], positives[i]))
        unlike = sum(math.exp(cosine(anchors[i], anchors[j])) for j in present if j != i)
        weight = 1 - sum(tags[j] == tags[i] for j in present) / len(present)
        loss = -math.log(like / (like + unlike))
        total += loss * (weight if form == "code" else 1)
    return total if form == "paper" else total * tokens / len(present)


def random_instances(seed: int, instances: int = 9, embed: int = 6):
    rng = np.random.default_rng(seed)
    anchors, positives = rng.normal(size=(2, instances, embed)).astype(np.float32)
    return anchors, positives, rng.integers(0, 3, instances), rng.random(instances) < 0.7


def test_two_instances_of_two_languages_by_hand():
    """w = (.5, .5); both anchors equal their positives and are orthogonal to each other."""
    axes = np.eye(2, dtype=np.float32)
    each = math.log(1 + math.exp(-1))  # -log(e / (e + 1))
    assert float(term(axes, axes, [4, 9], tokens=7)) == pytest.approx(each * 7 / 2, rel=RTOL)
    unweighted = float(term(axes, axes, [4, 9], tokens=7, form="unweighted"))
    assert unweighted == pytest.approx(2 * each * 7 / 2, rel=RTOL)
    assert float(term(axes, axes, [4, 9], tokens=7, form="paper")) == pytest.approx(
        2 * each, rel=RTOL
    )


def test_a_batch_of_one_language_has_zero_loss():
    anchors, positives, _, _ = random_instances(1)
    assert float(term(anchors, positives, [3] * 9)) == 0.0
    assert all(float(term(anchors, positives, [3] * 9, form=form)) > 1 for form in FORMS[1:])


def test_batches_of_one_or_no_instance_have_zero_loss():
    one = np.ones((1, 4), np.float32)
    for form in FORMS:
        assert float(term(one, -one, [3], form=form)) == 0.0
        assert float(term(one, one, [-1], valid=[False], form=form)) == 0.0


def test_source_tokens_scale_the_term():
    anchors, positives, tags, _ = random_instances(2)
    for form in FORMS:
        once, twice = (
            float(term(anchors, positives, tags, tokens=n, form=form)) for n in (50.0, 100.0)
        )
        assert once > 0
        assert twice == pytest.approx(once if form == "paper" else 2 * once, rel=RTOL)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", range(3))
def test_formula(seed, form):
    anchors, positives, tags, valid = random_instances(seed)
    assert 2 < valid.sum() < 9
    expected = by_loops(anchors, positives, tags, valid, 31.0, form)
    actual = term(anchors, positives, tags, valid=valid, tokens=31.0, form=form)
    assert float(actual) == pytest.approx(expected, rel=RTOL)


def test_invalid_instances_are_ignored():
    anchors, positives, tags, valid = random_instances(0)
    other = np.where(valid[:, None], anchors, 1e4).astype(np.float32)
    nothing = np.where(valid[:, None], positives, 0).astype(np.float32)

    def gradients(a, p):
        actual = jax.value_and_grad(lambda x, y: term(x, y, tags, valid=valid), argnums=(0, 1))
        return actual(jnp.asarray(a), jnp.asarray(p))

    expected, grads = gradients(anchors, positives)
    actual, grads_too = gradients(other, nothing)
    np.testing.assert_allclose(actual, expected, rtol=RTOL)
    for one, two in zip(grads, grads_too, strict=True):
        np.testing.assert_allclose(two, one, atol=1e-6)
        assert not np.asarray(one)[~valid].any() and np.abs(np.asarray(one)[valid]).min() > 0


def test_gradients_flow_through_anchors_and_positives():
    """Differences of the formula itself, so nothing on the way may stop a gradient."""
    anchors, positives, tags, _ = random_instances(4, instances=4, embed=3)
    check_grads(
        lambda x, y: term(x, y, tags), (anchors, positives), order=1, modes=["rev"], rtol=1e-2
    )


def test_the_norm_of_states_does_not_matter_and_their_dtype_little():
    anchors, positives, tags, _ = random_instances(5)
    expected = float(term(anchors, positives, tags))
    assert float(term(7 * anchors, positives / 9, tags)) == pytest.approx(expected, rel=RTOL)
    short = term(jnp.asarray(anchors, jnp.bfloat16), jnp.asarray(positives, jnp.bfloat16), tags)
    assert short.dtype == jnp.float32
    assert float(short) == pytest.approx(expected, rel=0.01)
    zeros = jnp.zeros((9, 6), jnp.bfloat16)
    slope = jax.grad(lambda x: term(x, x, tags))(zeros)
    assert np.isfinite(np.asarray(slope, np.float32)).all()


def test_tags_are_the_first_tokens_of_packed_pairs():
    states = jnp.arange(2 * 5 * 3, dtype=jnp.float32).reshape(2, 5, 3)
    segment_ids = jnp.asarray([[1, 1, 2, 3, 3], [1, 1, 1, 0, 0]], jnp.int32)
    actual = tag_states(states, segment_ids, 4).reshape(2, 4, 3)
    np.testing.assert_array_equal(actual[0, :3], states[0, np.array([0, 2, 3])])
    np.testing.assert_array_equal(actual[1, 0], states[1, 0])


@pytest.mark.parametrize(
    ("layout", "layers", "instruction", "legal"),
    [
        ("prefix", (12,), "1", range(1, 13)),
        ("two_stage_trigger", (6, 6), "4", range(1, 13)),
        ("register", (12,), "register", range(1, 13)),
        ("encoder_decoder", (6, 6), "1", range(1, 7)),
        ("encoder_decoder_register", (3, 6), "1", range(1, 4)),
    ],
)
def test_legal_layers(layout, layers, instruction, legal):
    for number in range(1, 15):
        config = load_config([], [f"Data.instruction='{instruction}'"])
        plan = make_plan(config.model, LAYOUTS[layout].with_layers(layers))
        if number in legal:
            InstruCL(number).check(config, plan)
            continue
        with pytest.raises(UserError) as caught:
            InstruCL(number).check(config, plan)
        message = str(caught.value)
        assert f"InstruCL.layer={number}: layout '{layout}'" in message
        assert f"layers 1 to {legal[-1]}" in message and "\n" not in message


@pytest.mark.parametrize("instruction", ["2", "3", "5"])
def test_an_instruction_without_the_target_tag_in_the_source_is_refused(instruction):
    config = load_config([], [f"Data.instruction='{instruction}'"])
    plan = make_plan(config.model, LAYOUTS["prefix"].with_layers((3,)))
    with pytest.raises(UserError, match=f"Data.instruction='{instruction}'.*1, 4, register"):
        InstruCL(2).check(config, plan)
