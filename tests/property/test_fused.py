"""The kernels of attention, interpreted, against what they stand for.

In float32, where one weight dropped elsewhere is far beyond the tolerance; that programs for TPU
take theirs at all is in tests/tpu.
"""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnmt_jax.config.sections import Mesh
from mnmt_jax.design.layout import Stage
from mnmt_jax.design.layouts import LAYOUTS
from mnmt_jax.distributed.dropout_mask import DropoutMask
from mnmt_jax.distributed.per_device import sum_over_devices
from mnmt_jax.distributed.sharding import jit_with_mesh, make_mesh
from mnmt_jax.model.attention import fused, gpu_kernel, split, tpu_kernel
from tests.property.test_model import make, random_pairs, small_config, unpacked

ATOL = 2e-6  # of the largest number
HEADS, HEAD_DIM = 4, 64
LENGTHS = {"source": 32, "register": 48, "target": 32, "trigger": 16}
REGISTER = LAYOUTS["register"].stages[0]


KERNELS = {"tpu": tpu_kernel, "gpu": gpu_kernel}


@pytest.fixture(params=KERNELS)
def kind(request):
    """Of the device whose kernels are run."""
    return request.param


@pytest.fixture
def calls(monkeypatch, kind):
    """Runs kernels on the CPU, as if it were another; returns the names of those that were run."""
    run, called = tpu_kernel.pl.pallas_call, []

    def interpreted(*arguments, name, **options):
        called.append(name)
        return run(*arguments, name=name, interpret=True, **options)

    monkeypatch.setattr(tpu_kernel.pl, "pallas_call", interpreted)
    monkeypatch.setattr(fused, "platform", lambda: kind)
    return called


def both_ways(kind, stage):
    """Returns the names of the kernels of a forward and a backward pass."""
    names = ["attention_forward"] * len(stage.roles)
    if kind == "tpu":
        return names + ["attention_backward"] * len(stage.roles)
    read = sum(len(stage.key_roles(role)) for role in stage.roles)
    return names + ["attention_to_queries"] * len(stage.roles) + ["attention_to_keys"] * read


@pytest.fixture
def any_type(monkeypatch):
    monkeypatch.setattr(fused, "_TYPE", jnp.float32)


def drawn_spans(stage, rows=2, dtype="float32", lengths=LENGTHS):
    """Draws queries, keys and values, and segments of which the last are padding, or all."""
    rng = np.random.default_rng(0)
    shapes = {role: (rows, lengths[role], HEADS, HEAD_DIM) for role in stage.roles}
    states = [
        {role: jnp.asarray(rng.normal(size=shape) * scale, dtype) for role, shape in shapes.items()}
        for scale in (HEAD_DIM**-0.5, 1, 1)
    ]
    segments = {}
    for role in stage.roles:
        ids = np.sort(rng.integers(1, 4, (rows, lengths[role])), axis=1).astype(np.int32)
        ids[0, -5:], ids[-1] = 0, ids[-1] * (rows < 3)
        segments[role] = jnp.asarray(ids)
    return states, segments


def read(module, stage, segments, rate, rng, states):
    """Returns what a module reads of the states, which drops by keys that follow from one."""
    keys = iter(jax.random.split(rng, len(stage.roles)))

    def dropout():
        return DropoutMask(rate, next(keys)) if rate else DropoutMask()

    masks = module.make_masks(stage, segments)
    return module.attend(stage, masks, *states, dropout=dropout)


def values_and_gradients(module, stage, segments, states, rate=0.0, rng=None):
    """Returns what is read, and the gradients of an arbitrary sum of it.

    Float32 is computed in one program; of bfloat16 the compiler would leave out roundings there.
    """
    rng = jax.random.key(7) if rng is None else rng

    def compute(segments, states, rng):
        found, back = jax.vjp(functools.partial(read, module, stage, segments, rate, rng), states)
        draw = np.random.default_rng(1)
        weights = {r: jnp.asarray(draw.normal(size=x.shape), x.dtype) for r, x in found.items()}
        return found, back(weights)

    is_float32 = all(x.dtype == jnp.float32 for x in jax.tree.leaves(states))
    result = (jax.jit(compute) if is_float32 else compute)(segments, states, rng)
    return jax.tree.map(lambda x: np.asarray(x, np.float32), result)


def compare(expected, found, atol=ATOL):
    assert jax.tree.structure(expected) == jax.tree.structure(found)
    for one, other in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(other, one, rtol=0, atol=atol * max(np.abs(one).max(), 1))


@pytest.mark.parametrize(
    ("name", "rate"), [("register", 0.3), ("prefix_trigger", 0.0), ("causal", 0.3)]
)
def test_it_equals_split(name, rate, calls, any_type, kind):
    """Outputs and gradients, of packed rows with padding and of one that is nothing else."""
    stage = LAYOUTS[name].stages[0]
    states, segments = drawn_spans(stage, rows=3)
    found = values_and_gradients(fused, stage, segments, states, rate)
    assert sorted(calls) == sorted(both_ways(kind, stage))
    compare(values_and_gradients(split, stage, segments, states, rate), found)


def test_other_keys_drop_other_weights(calls, any_type):
    """So what is compared above can differ."""
    states, segments = drawn_spans(REGISTER)
    run = jax.jit(lambda rng: read(fused, REGISTER, segments, 0.3, rng, states)["target"])
    one, other = (run(jax.random.key(seed)) for seed in (7, 8))
    assert np.abs(np.asarray(one - other)).max() > 100 * ATOL


def test_bfloat16_is_what_it_takes(calls, kind):
    stage = Stage(("source",), ("f",))
    states, segments = drawn_spans(stage, dtype="bfloat16")
    found = values_and_gradients(fused, stage, segments, states, 0.3)
    assert calls == both_ways(kind, stage)
    compare(values_and_gradients(split, stage, segments, states, 0.3), found, atol=0.02)


@pytest.mark.parametrize("factor", [3, 30])
def test_peaked_gradients_are_as_exact_as_those_of_split(factor, calls, kind):
    """Where one key has nearly all weight, its gradient is a small difference of large numbers."""
    stage = Stage(("source",), ("f",))
    states, _ = drawn_spans(stage, rows=1, dtype="bfloat16", lengths={"source": 128})
    states[0]["source"] *= factor
    segments = {"source": jnp.ones((1, 128), jnp.int32)}
    exact = jax.tree.map(lambda x: x.astype(jnp.float32), states)
    wanted = jax.tree.leaves(values_and_gradients(split, stage, segments, exact))
    errors = [
        [
            np.linalg.norm(one - other) / np.linalg.norm(other)
            for one, other in zip(jax.tree.leaves(found), wanted, strict=True)
        ]
        for found in (
            values_and_gradients(module, stage, segments, states) for module in (fused, split)
        )
    ]
    assert calls == both_ways(kind, stage)
    assert max(errors[0]) < 1.2 * max(errors[1]) < 0.01


def test_many_queries_are_taken_in_parts(calls, any_type, kind, monkeypatch):
    """On TPU of 128, on GPU of 64, as are the keys."""
    stage = Stage(("target",), ("c",))
    states, segments = drawn_spans(stage, lengths={"target": 144})
    monkeypatch.setattr(tpu_kernel, "_SCORES", 144 * 128)
    assert list(tpu_kernel._parts(144, 144)) == [(0, 128), (128, 144)]
    found = values_and_gradients(fused, stage, segments, states, 0.3)
    assert calls == both_ways(kind, stage)
    compare(values_and_gradients(split, stage, segments, states, 0.3), found)


def test_a_mesh_changes_nothing(calls, any_type, kind):
    """Every device drops of its own rows and heads what one device would."""
    mesh = make_mesh(Mesh(fsdp=2, tensor=2))
    states, segments = drawn_spans(REGISTER, rows=4)
    run = functools.partial(values_and_gradients_traced, REGISTER)
    found = jit_with_mesh(mesh, run)(segments, states, jax.random.key(7))
    assert sorted(calls) == sorted(both_ways(kind, REGISTER))
    compare(jax.device_get(jax.jit(run)(segments, states, jax.random.key(7))), found)
    expected = values_and_gradients(split, REGISTER, segments, states, 0.3)[0]
    compare(expected, jax.device_get(found[0]))


def test_devices_by_themselves_change_nothing(calls, any_type):
    """As when they exchange gradients once for many micro-batches."""
    mesh = make_mesh(Mesh(), jax.devices()[:4])
    stage = Stage(("source",), ("f",))
    states, segments = drawn_spans(stage, rows=4)
    weights = jnp.asarray(np.random.default_rng(1).normal(size=states[0]["source"].shape))

    def total(rng, rows):
        states, segments, weights = jax.tree.map(lambda x: x[0], rows)
        found = read(fused, stage, segments, 0.3, rng, states)
        return jnp.sum(found["source"] * weights)

    rows = jax.tree.map(lambda x: x[None], (states, segments, weights.astype(jnp.float32)))
    rng = jax.random.key(7)
    found = jit_with_mesh(mesh, functools.partial(sum_over_devices, total))(rng, rows)
    np.testing.assert_allclose(jax.device_get(found), jax.jit(total)(rng, rows), rtol=1e-5)
    assert len(calls) == 2


def values_and_gradients_traced(stage, segments, states, rng):
    found, back = jax.vjp(functools.partial(read, fused, stage, segments, 0.3, rng), states)
    return found, back(jax.tree.map(jnp.sin, found))


@pytest.mark.parametrize(
    ("kind", "without"),
    [(kind, without) for kind in KERNELS for without in ("kind", "type", "width", "hash", "rows")]
    + [("tpu", "lengths"), ("tpu", "room"), ("gpu", "ampere")],
)
def test_where_it_does_not_fit_it_is_split(without, calls, any_type, monkeypatch):
    lengths = LENGTHS | ({"register": 45} if without == "lengths" else {})
    dtype = "bfloat16" if without == "type" else "float32"
    states, segments = drawn_spans(REGISTER, dtype=dtype, lengths=lengths)
    if without == "kind":
        monkeypatch.setattr(fused, "platform", lambda: "cpu")
    if without == "width":
        states = jax.tree.map(lambda x: x[..., :40], states)
    if without == "room":
        monkeypatch.setattr(tpu_kernel, "_LONGEST", 16)
    if without == "ampere":
        monkeypatch.setattr(gpu_kernel, "_is_recent", lambda device: False)
    rng = jax.random.key(7, impl="rbg" if without == "hash" else None)
    mesh = make_mesh(Mesh(), jax.devices()[: 8 if without == "rows" else 1])
    with jax.set_mesh(mesh):
        expected, found = (
            jax.jit(functools.partial(read, module, REGISTER, segments, 0.3))(rng, states)
            for module in (split, fused)
        )
    assert len(calls) == (1 if without == "lengths" else 0)  # the source sees itself alone
    compare(jax.device_get(expected), jax.device_get(found))


@pytest.mark.parametrize(
    ("capability", "recent"), [("7.5", False), ("gfx90a", False), ("8.0", True), ("10.0", True)]
)
def test_gpus_before_ampere_and_of_others_have_no_kernel(capability, recent):
    device = types.SimpleNamespace(compute_capability=capability)
    assert gpu_kernel._is_recent(device) == recent


@pytest.mark.parametrize("kind", ["tpu"])
def test_a_model_trains_the_same_with_it(calls, any_type):
    """Its layers draw the same dropout; the last layers need fewer roles."""
    layout = LAYOUTS["register"]
    batch = unpacked(layout, random_pairs(2, seed=3))
    batch = {name: jnp.pad(x, ((0, 0), (0, -x.shape[1] % 16))) for name, x in batch.items()}
    sizes = dict(embed=128, heads=2, stage_layers=(2,), dropout=0.1, attention_dropout=0.3)
    model, params = make(small_config("register", remat=True, **sizes))
    by_kernel = model.clone(config=dataclasses.replace(model.config, attention="fused"))

    def loss(params, model):
        rngs = {"dropout": jax.random.key(5)}
        logits = model.apply({"params": params}, batch, False, rngs=rngs, method="logits")
        return jnp.mean(logits**2, where=batch["target_segment_ids"][..., None] != 0)

    expected, found = (
        jax.jit(jax.value_and_grad(loss), static_argnums=1)(params, each)
        for each in (model, by_kernel)
    )
    assert calls.count("attention_forward") >= 6
    compare(jax.device_get(expected), jax.device_get(found), atol=5e-5)


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_triton_takes_all_of_it(rate, monkeypatch):
    """Lowered for a GPU of NVIDIA's, with spans that end amid a block."""
    monkeypatch.setattr(fused, "platform", lambda: "gpu")
    states, segments = drawn_spans(REGISTER, dtype="bfloat16")

    def gradients(rng, states):
        read_of = functools.partial(read, fused, REGISTER, segments, rate, rng)
        found, back = jax.vjp(read_of, states)
        return back(found)

    device = jax.sharding.AbstractDevice("NVIDIA H100 80GB HBM3", None, "gpu")
    mesh = jax.sharding.AbstractMesh((), (), abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
        traced = jax.jit(gradients).trace(jax.random.key(7), states)
        program = traced.lower(lowering_platforms=("cuda",)).as_text()
    names = both_ways("gpu", REGISTER)
    assert program.count("stablehlo.custom_call @__gpu$xla.gpu.triton") == len(names)
    assert all(f'name = "{name}"' in program for name in names)
