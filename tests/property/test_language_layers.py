"""Language-specific layers through the model: whose branch, in which layers, in any layout."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from mnmt_jax.config.sections import Mesh, Optimizer
from mnmt_jax.decoding.generate import generate
from mnmt_jax.decoding.search import BeamSearch, Request
from mnmt_jax.design.layouts import LAYOUTS
from mnmt_jax.design.plan import Layer
from mnmt_jax.distributed.sharding import jit_with_mesh, make_mesh, place_batch, tree_sharding
from mnmt_jax.errors import UserError
from mnmt_jax.methods.language_layers import LanguageLayers, LanguageMLP
from mnmt_jax.model.context import Context, PositionInfo
from mnmt_jax.model.key_values import reorder
from mnmt_jax.model.network import build_model
from mnmt_jax.model.quantized_weights import cast_kernels
from mnmt_jax.training.optimizer import make_optimizer
from mnmt_jax.vocabulary.language_codes import find_code
from tests.applied import apply, compiled
from tests.property.test_contrastive_model import LENGTHS, VOCABULARY, make_batch
from tests.property.test_plan import pairs
from tests.random_params import MILD, random_params
from tests.sample_batches import small_config

ATOL = 2e-5
NAMES = ("encoder_decoder", "register", "two_stage_trigger")
MOMENTS = MILD | {"scale": (1, 0.3)}
METHOD = LanguageLayers(VOCABULARY.languages, without=("en",), mlp=12, dropout=0.0)


def make(name: str, method: LanguageLayers = METHOD, **changes):
    return build_model(small_config(name, methods=(method,), **changes), VOCABULARY.size)


@functools.cache
def case(name: str):
    """A model, six pairs of differing target languages a row each, and parameters."""
    model = make(name)
    batch = make_batch(model.layout, [[pair] for pair in pairs(6)])
    return model, batch, random_params(model, moments=MOMENTS)


@functools.cache
def forward(name: str):
    """The compiled forward pass of the case's model, which several tests call."""
    return compiled(case(name)[0])


@pytest.mark.parametrize("name", NAMES)
def test_packed_beside_other_languages_it_is_what_it_is_alone(name):
    model, alone, params = case(name)
    packed = make_batch(model.layout, [pairs(6)[:3], pairs(6)[3:]])
    expected, found = (forward(name)(params, batch) for batch in (alone, packed))
    for number, row in enumerate(expected):
        here = packed["target_segment_ids"][number // 3] == number % 3 + 1
        np.testing.assert_allclose(found[number // 3, here], row[: here.sum()], atol=ATOL)


def test_branches_stay_float32_where_other_kernels_are_rounded():
    """Their gradients are added up over many blocks, in the type of the parameters."""
    layer = cast_kernels(case("register")[2], jnp.bfloat16, LanguageMLP.axes)["layer_0"]
    assert layer["attention"]["query"]["kernel"].dtype == jnp.bfloat16
    branches = jax.tree.leaves(layer["mlp"].pop("branch"))
    assert len(branches) > 2 and {leaf.dtype for leaf in branches} == {jnp.dtype("float32")}
    assert layer["mlp"]["wi"]["kernel"].dtype == jnp.bfloat16


@pytest.mark.parametrize("name", NAMES)
def test_only_the_branch_of_the_language_computes(name):
    """Branches of the other languages may be anything; the centre's sentences have none."""
    model, batch, params = case(name)
    expected = forward(name)(params, batch)
    changed = jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf.at[1].add(1.0) if "branch" in str(path) else leaf, params
    )
    moved = np.abs(forward(name)(changed, batch) - expected).max(axis=(1, 2)) > 0.01
    languages = np.asarray(batch["target_lang"])[:, 0]
    assert moved.tolist() == (languages == 2).tolist() and 0 < moved.sum() < len(moved)
    plain = build_model(small_config(name), VOCABULARY.size)
    shared = jax.tree.map(lambda leaf: leaf, params)
    for number in range(model.layout.layers):
        shared[f"layer_{number}"]["mlp"] = {
            key: leaf for key, leaf in params[f"layer_{number}"]["mlp"].items() if key != "branch"
        }
    centre = batch | {"target_lang": jnp.zeros_like(batch["target_lang"])}
    without = apply(plain, shared, batch)
    np.testing.assert_allclose(forward(name)(params, centre), without, atol=ATOL)
    off = make(name, dataclasses.replace(METHOD, off=True))
    np.testing.assert_allclose(apply(off, params, batch), without, atol=ATOL)


@pytest.mark.parametrize("name", NAMES)
def test_steps_are_teacher_forcing_in_each_language(name):
    """Under beams that change places; every sentence keeps its language."""
    model, _, params = case(name)
    batch = make_batch(model.layout, [[pair] for pair in pairs(6)], LENGTHS)
    logits = forward(name)(params, batch)
    static = {key: array for key, array in batch.items() if not key.startswith("target_")}
    static["target_lang"] = batch["target_lang"]
    steps = int((batch["target_segment_ids"] != 0).sum(axis=1).min())
    cache = apply(model, params, static, beam=2, max_steps=steps, method="prefill")
    cache = jax.tree.map(jnp.asarray, cache)
    step = jax.jit(lambda p, t, c: model.apply({"params": p}, t, c, method="step"))
    for number in range(steps):
        tokens = jnp.repeat(batch["target_tokens"][:, number, None], 2, axis=1)
        found, cache = step(params, tokens, cache)
        cache = reorder(cache, jnp.asarray([[1, 0]] * 6))
        for beam in range(2):
            np.testing.assert_allclose(found[:, beam], logits[:, number], atol=ATOL)


def test_the_languages_of_others_change_no_bit_of_a_translation():
    model, batch, params = case("encoder_decoder")
    static = {key: array for key, array in batch.items() if not key.startswith("target_")}
    static["target_lang"] = batch["target_lang"]

    def found(order):
        request = Request(
            prefix=jnp.ones((6, 1), jnp.int32),
            max_length=jnp.full((6,), 9, jnp.int32),
            active=jnp.ones((6,), bool),
            max_steps=10,
        )
        given = {key: array[np.asarray(order)] for key, array in static.items()}
        return generate(model, params, given, request, search=BeamSearch(2, reorder))

    order = [3, 0, 5, 1, 4, 2]
    first, other = found(range(6)), found(order)
    np.testing.assert_array_equal(first.tokens[order], other.tokens)
    np.testing.assert_array_equal(first.scores[order], other.scores)
    assert first.lengths.max() > 2
    # With one language alone in the batch, and with its mates in others.
    one = static["target_lang"]
    static["target_lang"] = jnp.full_like(one, one[0, 0])
    np.testing.assert_array_equal(found(range(6)).scores[0], first.scores[0])


@pytest.mark.parametrize("mesh", [Mesh(fsdp=4), Mesh(fsdp=2, tensor=2)], ids=str)
def test_a_mesh_changes_nothing(mesh):
    """Two branches: over fsdp of two each device has one of them, over four the width is split."""
    model = make("encoder_decoder", heads=4)
    batch = make_batch(model.layout, [[pair] for pair in pairs(8)])
    params = random_params(model, moments=MOMENTS)

    def both(params, batch):
        def loss(params):
            logits = model.apply({"params": params}, batch)
            scores = jax.nn.log_softmax(logits)[..., 3]
            return jnp.where(batch["target_segment_ids"] != 0, scores, 0).sum()

        return jax.value_and_grad(loss)(params)

    devices = make_mesh(mesh, jax.devices()[:8])
    placed = jax.device_put(params, tree_sharding(devices, params, LanguageMLP.axes))
    found = jit_with_mesh(devices, both)(
        placed, place_batch(jax.tree.map(np.asarray, batch), devices)
    )
    expected = jax.jit(both)(params, batch)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), atol=1e-4, rtol=1e-4)


def test_the_branch_has_a_dropout_of_its_own_on_what_it_gives():
    """Each element of the change is one of four: with or without what is shared, and the branch."""
    own, rate = 0.75, 0.5
    method = dataclasses.replace(METHOD, dropout=own)
    model = make("encoder_decoder", method, dropout=rate, embed=64)
    kind = model.plan.stages[1].layers[0][-1].kind
    states = jax.random.normal(jax.random.key(0), (1, 8, 64))
    ids = jnp.ones((1, 8), jnp.int32)

    def change(params, languages, deterministic):
        context = Context(
            {}, {"target": ids}, {"target_lang": languages}, deterministic=deterministic
        )
        return kind.apply(
            {"params": params},
            states,
            PositionInfo(context, ("target",)),
            rngs={"dropout": jax.random.key(1)},
            method="change",
        )

    centre, german = (jnp.full((1, 1), number) for number in (0, 1))
    params = random_params(model, moments=MOMENTS)["layer_2"]["mlp"]
    shared = np.asarray(change(params, centre, True))
    branch = np.asarray(change(params, german, True)) - shared
    dropped = np.asarray(change(params, german, False))
    kept = [s * shared / (1 - rate) + b * branch / (1 - own) for s in (0, 1) for b in (0, 1)]
    fits = np.isclose(dropped[None], np.stack(kept), atol=1e-4)
    assert fits.any(axis=0).all()
    shares = fits.mean(axis=(1, 2, 3))
    np.testing.assert_allclose(shares, [rate * own, rate * 0.25, rate * own, rate * 0.25], atol=0.1)


def test_what_is_absent_takes_a_dense_step_of_adam():
    """As with fairseq's gradients of several GPUs: momentum and weight decay go on at zero."""
    optimizer = make_optimizer(Optimizer(warmup_steps=1, weight_decay=0.1), 10)
    params = {"branch": {"first": {"kernel": jnp.ones((2, 1, 1))}}}
    state, gradient = optimizer.init(params), jnp.asarray([[[1.0]], [[1.0]]])
    for grads in (gradient, gradient.at[1].set(0.0)):
        before = params["branch"]["first"]["kernel"]
        updates, state = optimizer.update(jax.tree.map(lambda _: grads, params), state, params)  # noqa: B023
        params = optax.apply_updates(params, updates)
    moved = (params["branch"]["first"]["kernel"] - before).ravel()
    assert moved[0] < moved[1] < 0


def has_branches(layer: Layer) -> bool:
    return any(isinstance(sublayer.kind, LanguageMLP) for sublayer in layer)


def test_layers_are_chosen_and_described():
    method = dataclasses.replace(METHOD, layers=(2, 4))
    plan = make("encoder_decoder", method).plan
    held = [has_branches(layer) for _, layer in plan.layers()]
    assert held == [False, True, False, True]
    every = make("encoder_decoder").plan
    assert [has_branches(layer) for _, layer in every.layers()] == [False, False, True, True]
    assert METHOD.slots == (-1, 0, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"languages": ()}, r"LanguageLayers.languages=\(\): name the vocabulary's languages"),
        ({"without": ("nl",)}, "LanguageLayers.without names nl; .* are en, de, fr"),
        ({"layers": (5,)}, r"LanguageLayers.layers=\(5,\): the model has 4 layers, not 5"),
        ({"without": ("en", "de", "fr")}, "no language has a branch"),
    ],
)
def test_mistakes_are_one_line(changes, message):
    with pytest.raises(UserError, match=message) as caught:
        make("encoder_decoder", dataclasses.replace(METHOD, **changes))
    assert "\n" not in str(caught.value)


def test_it_takes_the_languages_of_the_vocabulary_and_refuses_others():
    fitted = LanguageLayers(without=("en",)).bind_languages(("en", "de"), find_code)
    assert (
        fitted.languages == ("en", "de")
        and fitted.bind_languages(("en", "de"), find_code) == fitted
    )
    with pytest.raises(UserError, match=r"LanguageLayers.languages=\('en', 'de'\), but the voc"):
        fitted.bind_languages(("de", "en"), find_code)


def test_every_layout_has_a_place_for_them():
    for name in LAYOUTS:
        plan = make(name).plan
        assert any(has_branches(layer) for _, layer in plan.layers())
