"""LoRA in the model: selection, initial values and computation."""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnmt_jax.config.sections import Optimizer
from mnmt_jax.design.layouts import LAYOUTS
from mnmt_jax.distributed.sharding import param_axes_of
from mnmt_jax.errors import UserError
from mnmt_jax.methods.adaption import Adaption
from mnmt_jax.methods.language_layers import LanguageLayers
from mnmt_jax.model.lora import is_lora, merge_lora, split_lora
from mnmt_jax.model.modules import Projection
from mnmt_jax.model.network import build_model
from mnmt_jax.model.shapes import parameter_shapes
from mnmt_jax.model.trainable_params import Trainable
from mnmt_jax.runs.fingerprint import param_path
from tests.made_params import assert_same, read_all
from tests.random_params import random_params
from tests.sample_batches import VOCAB, random_pairs, small_config, unpacked

NAMES = ("register", "encoder_decoder", "two_stage_trigger")
EVERYWHERE = {"lora_rank": 3, "lora": ("*",)}
# The merged model rounds W + A B once, where the other rounds x W and (x A) B apart. The last test
# here measures what one rounding of every weight does to the logits; the two differed by 3e-6.
MERGED_ATOL = 1e-5


def config_of(name: str, **changes):
    """Return one layer per stage, two for registers so that the target depends on the source."""
    layers = (2,) if name == "register" else (1, 1)
    methods = (Adaption(8),) if name.startswith("two_stage") else ()
    return small_config(name, **({"stage_layers": layers, "methods": methods} | changes))


def batch_of(name: str) -> dict[str, np.ndarray]:
    return unpacked(LAYOUTS[name], random_pairs(3, seed=5), pad=1)


def names_of(params) -> set[str]:
    return {param_path(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)}


def shapes_of(config, batch):
    return jax.eval_shape(build_model(config, VOCAB).init, jax.random.key(4), batch)["params"]


def random(config):
    """Return the model with large random parameters, LoRA's too."""
    model = build_model(config, VOCAB)
    return model, random_params(model)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("register", "float32"), ("register", "bfloat16"), ("encoder_decoder", "float32")],
)
def test_a_new_lora_leaves_the_model_unchanged(name, dtype, relaxed_dtypes):
    """Neither the other random parameters nor any logit changes, since B is zero."""
    batch, actual = batch_of(name), []
    for changes in ({}, EVERYWHERE):
        sizes = {"dtype": dtype, "stage_layers": (1,) * len(LAYOUTS[name].stages)}
        model = build_model(config_of(name, **sizes, **changes), VOCAB)
        params = jax.jit(model.init)(jax.random.key(4), batch)["params"]
        actual.append((params, jax.jit(model.apply)({"params": params}, batch)))
    (plain, expected), (params, logits) = actual
    own, rest = split_lora(params)
    assert_same(rest, plain)
    assert len(jax.tree.leaves(own)) == 2 * sum(n.endswith("kernel") for n in names_of(plain)) > 10
    np.testing.assert_array_equal(logits, expected)
    for path, leaf in jax.tree_util.tree_leaves_with_path(own):
        assert np.asarray(leaf).any() == (path[-1].key == "lora_a"), path


def test_a_is_gaussian_with_variance_one_over_inputs():
    """For `wi` and for `out`, whose inputs are two axes."""
    config = small_config("prefix", lora_rank=64, lora=("*",))
    for axis, sizes in ((-1, (64,)), ((-2, -1), (4, 16))):
        layer = Projection(8, axis=axis, config=config, dtype=jnp.float32)
        states = jnp.zeros((1, *sizes))
        a = jax.jit(layer.init)(jax.random.key(0), states)["params"]["lora_a"]
        assert a.shape == (*sizes, 64)
        values = np.asarray(a) * math.sqrt(64)
        assert abs(values.mean()) < 0.05 and values.std() == pytest.approx(1, abs=0.05)
        assert np.abs(values).max() > 2.5  # a uniform draw of this width ends at 1.73


@pytest.mark.parametrize(
    ("patterns", "carrying"),
    [
        (("query", "value"), {"attention/query", "attention/value", "memory_attention/query",
                              "memory_attention/value"}),
        (("attention/key",), {"attention/key"}),
        (("mlp",), {"mlp/wi", "mlp/wo"}),
        (("layer_0/attention/out", "memory_attention/out"), {"attention/out",
                                                             "memory_attention/out"}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("remat", [False, True])
def test_patterns_select_the_projections(patterns, carrying, remat):
    config = config_of("encoder_decoder", lora_rank=2, lora=patterns, remat=remat)
    params = shapes_of(config, batch_of("encoder_decoder"))
    actual = {n.split("/", 1)[1].rpartition("/")[0] for n in names_of(params) if is_lora(n)}
    assert actual == carrying
    layers = {n.split("/")[0] for n in names_of(params) if is_lora(n)}
    assert "layer_1" in layers and ("layer_0" in layers or "attention/out" not in carrying)


def test_patterns_of_projections_without_lora_are_refused():
    methods = (LanguageLayers(languages=("en", "de"), mlp=8),)
    for patterns in (("first",), ("query", "first")):
        config = config_of("encoder_decoder", methods=methods, lora_rank=2, lora=patterns)
        shapes = parameter_shapes(config, VOCAB)
        message = "'first' selects only projections without LoRA, such as those of language layers"
        with pytest.raises(UserError, match=message):
            Trainable.from_config(config, Optimizer()).split(shapes)


def test_a_projection_by_hand():
    """y = x W + b + (x A) B, two input axes as `out` has and two features as `query` has."""
    rng = np.random.default_rng(0)
    config = small_config("prefix", lora_rank=2, lora=("*",))
    layer = Projection((2, 5), axis=(-2, -1), config=config, dtype=jnp.float32)
    states = rng.normal(size=(4, 3, 2, 7)).astype(np.float32)
    shapes = {"kernel": (2, 7, 2, 5), "bias": (2, 5), "lora_a": (2, 7, 2), "lora_b": (2, 2, 5)}
    params = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    w, b, a, c = (params[name] for name in shapes)
    expected = (
        np.einsum("uvhd,hdxy->uvxy", states, w) + b + np.einsum("uvhd,hdr,rxy->uvxy", states, a, c)
    )
    np.testing.assert_allclose(layer.apply({"params": params}, states), expected, atol=2e-5)
    assert np.abs(np.einsum("hdr,rxy->hdxy", a, c)).max() > 1


def stepped(model, params, batch):
    """Return the logits of decoding step by step."""
    static = {k: v for k, v in batch.items() if not k.startswith("target")}
    tokens = jnp.asarray(batch["target_tokens"])
    prefill = functools.partial(model.apply, beam=1, max_steps=tokens.shape[1], method="prefill")
    advance = jax.jit(functools.partial(model.apply, method="step"))
    cache, actual = jax.jit(prefill)({"params": params}, static), []
    for step in range(tokens.shape[1]):
        logits, cache = advance({"params": params}, tokens[:, step : step + 1], cache)
        actual.append(logits[:, 0])
    return jnp.stack(actual, axis=1)


@pytest.mark.parametrize("name", NAMES)
def test_merged_weights_compute_the_same(name):
    """As training's path and as decoding's, with LoRA on every projection."""
    batch = batch_of(name)
    config = config_of(name, **EVERYWHERE)
    model, params = random(config)
    merged = read_all(merge_lora(jax.tree.map(np.asarray, params)))
    assert not any(map(is_lora, names_of(merged)))
    apply = jax.jit(build_model(dataclasses.replace(config, lora_rank=0), VOCAB).apply)
    valid = batch["target_segment_ids"] != 0
    expected = apply({"params": merged}, batch)[valid]
    without = apply({"params": split_lora(params)[1]}, batch)[valid]
    assert np.abs(without - expected).max() > 1  # LoRA does something here
    forced = jax.jit(model.apply)({"params": params}, batch)[valid]
    for actual in (forced, stepped(model, params, batch)[valid]):
        np.testing.assert_allclose(actual, expected, atol=MERGED_ATOL)


def test_every_parameter_of_lora_has_a_row_in_the_sharding_table():
    name = "two_stage_trigger"
    params = shapes_of(config_of(name, **EVERYWHERE), batch_of(name))
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        axes = param_axes_of(param_path(path))
        assert len(axes) == leaf.ndim
        assert ("rank" in axes) == is_lora(param_path(path))


@pytest.mark.parametrize("name", NAMES)
def test_the_tolerance_is_the_rounding_error(name):
    """Changing each weight by half an ulp changes the logits about as much.

    How much depends on the compiler's version: the tolerance is within a factor of ten of it.
    """
    batch = batch_of(name)
    model, params = random(config_of(name))
    rng = np.random.default_rng(0)

    def rounded(leaf):
        leaf = np.asarray(leaf)
        return (leaf * (1 + rng.choice([-1, 1], leaf.shape) * 2.0**-24)).astype(np.float32)

    apply = jax.jit(model.apply)
    moved = apply({"params": jax.tree.map(rounded, params)}, batch)
    difference = np.abs(moved - apply({"params": params}, batch)).max()
    assert MERGED_ATOL / 10 < difference < 10 * MERGED_ATOL
