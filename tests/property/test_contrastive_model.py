"""InstruCL through the model: which states, which passes, which layers, in every layout."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnmt_jax.config.sections import Mesh
from mnmt_jax.data.converter import Converter, Example, Lengths, segments_from_rows
from mnmt_jax.data.instruction import INSTRUCTIONS
from mnmt_jax.design.layouts import LAYOUTS
from mnmt_jax.design.objective import States
from mnmt_jax.design.views import View
from mnmt_jax.distributed.sharding import make_mesh
from mnmt_jax.errors import UserError
from mnmt_jax.methods.adaption import Adaption
from mnmt_jax.methods.instructcl import InstruCL, tag_states
from mnmt_jax.model.flops import Sentence, _states_products, forward_flops
from mnmt_jax.model.forward_passes import ForwardPasses
from mnmt_jax.model.modules import sinusoid
from mnmt_jax.model.network import build_model
from mnmt_jax.training.learner import Learner, batch_loss
from tests.applied import apply
from tests.made_run import make_config
from tests.random_params import random_params
from tests.sample_batches import small_config, stage_layers
from tests.unit import made_text

ATOL = 1e-4
VOCABULARY = made_text.vocabulary()
ABLATIONS = ("register_open", "two_stage_causal", "prefix", "two_stage")
LENGTHS = Lengths(source=24, target=24, max_segments=3)


def examples(count: int, seed: int = 0, copies: bool = False) -> list[Example]:
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        source, target = (rng.integers(3, 57, rng.integers(1, 6)) for _ in range(2))
        made.append(Example(target if copies else source, target, 0, 1 + number % 2))
    return made


def make_batch(layout, rows, lengths: Lengths = LENGTHS, factor: float = 1.0):
    """A training batch with identity pairs, laid out by the project's converter."""
    instruction = INSTRUCTIONS["register" if "register" in layout.name else "1"]
    roles = layout.embedded_roles()
    converter = Converter(VOCABULARY, instruction, roles, lengths, factor, (View("identity"),))
    batch = converter.batch(segments_from_rows(rows), len(rows))
    return {name: jnp.asarray(array) for name, array in batch.items() if name != "task"}


def make_learner(folder, name: str, layer: int, groups: int = 1, **changes) -> Learner:
    model = {"layout": name, "stage_layers": stage_layers(name), "dropout": 0.0} | changes
    config = make_config(
        folder,
        model=model,
        data={"instruction": "register" if "register" in name else "1"},
        train={"methods": (InstruCL(layer, groups=groups),)},
    )
    mesh = make_mesh(Mesh(), jax.devices()[:1])
    return Learner.from_config(config, VOCABULARY.size, mesh)


def both(model, params, batch, layers):
    """The states, after each of the layers, of the pass that also makes the features."""
    reads = tuple(map(States, layers))
    _, states = apply(model, params, batch, reads, method="features_and_states")
    return dict(zip(layers, states, strict=True))


def term_of(learner: Learner, batch, rng=None):
    """The contrastive term alone, of the parameters."""

    def term(params):
        total, sums = batch_loss(learner, params, batch, rng)
        return total - sums["smoothed"]

    return term


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_state_is_the_residual_stream_or_the_layers_last_norm(norm):
    """By hand: where every sub-layer adds nothing, a pre-norm stream is the embedded tag.

    In stage 2 it is what stage 1's last norm made of it. Post-norm layers only normalise it.
    """
    layout = LAYOUTS["two_stage"].with_layers((2, 2))
    model = build_model(small_config("two_stage", norm=norm), VOCABULARY.size)
    batch = make_batch(layout, [examples(2)])
    params = random_params(model)

    def silent(path, leaf):
        adds = any(entry.key in ("out", "wo") for entry in path)
        plain = {"scale": jnp.ones_like(leaf), "bias": jnp.zeros_like(leaf)}
        is_norm = any("norm" in entry.key for entry in path)
        return jnp.zeros_like(leaf) if adds else plain[path[-1].key] if is_norm else leaf

    params = jax.tree_util.tree_map_with_path(silent, params)
    tags = VOCABULARY.tag_ids[np.array([1, 2])]
    embedded = params["embedding"][tags] * 4.0 + sinusoid(jnp.zeros((2, 1), jnp.int32), 16)[:, 0]
    centred = embedded - embedded.mean(axis=-1, keepdims=True)
    normal = centred / jnp.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
    assert float(jnp.abs(embedded - normal).max()) > 0.1
    layers = (1, 2, 3, 4)
    in_first = both(model, params, batch, layers)
    in_second = apply(model, params, batch, tuple(map(States, layers)), method="states")
    for layer, states in zip(layers, in_second, strict=True):
        expected = embedded if norm == "pre" and layer <= 2 else normal
        found = tag_states(jnp.asarray(states), batch["source_segment_ids"], 2)
        np.testing.assert_allclose(found, expected, atol=1e-4)
        np.testing.assert_allclose(in_first[layer], states, atol=1e-4)


@pytest.mark.parametrize("name", ["register", "two_stage_trigger", "encoder_decoder_register"])
def test_both_passes_give_a_copied_sentence_the_same_state(name):
    """An identity pair's tag has the state of the pair (y, y), whichever pass computes it."""
    layout = LAYOUTS[name].with_layers(stage_layers(name))
    methods = (Adaption(8),) if name == "two_stage_trigger" else ()  # of stage 2 alone
    config = small_config(name, norm="post", register_factor=1.5, methods=methods)
    model = build_model(config, VOCABULARY.size)
    lengths = dataclasses.replace(LENGTHS, max_segments=2)
    batch = make_batch(layout, [examples(2, copies=True), examples(1, 1, True)], lengths, 1.5)
    params = random_params(model)
    pairs = {k.removeprefix("identity_"): v for k, v in batch.items() if k.startswith("identity_")}
    in_first = both(model, params, batch, tuple(layout.layers_with("source")))
    for layer, states in in_first.items():
        (second,) = apply(model, params, pairs, (States(layer),), method="states")
        anchors = tag_states(jnp.asarray(states), batch["source_segment_ids"], 2)
        positives = tag_states(jnp.asarray(second), pairs["source_segment_ids"], 2)
        np.testing.assert_allclose(anchors[:3], positives[:3], atol=ATOL)
        assert float(jnp.abs(anchors[0] - anchors[1]).max()) > 0.01


@pytest.mark.parametrize(
    ("name", "layers", "layer"), [("two_stage_trigger", (1, 2), 2), ("encoder_decoder", (2, 1), 1)]
)
def test_later_layers_take_no_part(name, layers, layer, tmp_path):
    """They get no gradient of the term, and the second pass does not even ask for them."""
    layout = LAYOUTS[name].with_layers(layers)
    learner = make_learner(tmp_path, name, layer, norm="pre", stage_layers=layers)
    batch = make_batch(layout, [examples(3), examples(2, 1)])
    params = random_params(learner.model)
    gradients = jax.jit(jax.grad(term_of(learner, batch)))(params)
    largest = {
        part: max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(tree))
        for part, tree in gradients.items()
    }
    reached = {f"layer_{number}" for number in range(layer)} | {"embedding"}
    first_stage = layout.stages[0].layers
    reached |= {"stage_0_norm"} if layer > first_stage else set()
    assert {part for part, size in largest.items() if size > 1e-6} == reached
    assert {part for part, size in largest.items() if size > 0} == reached
    static = {k.removeprefix("identity_"): v for k, v in batch.items() if k.startswith("identity_")}
    few = {part: tree for part, tree in params.items() if part in reached}
    (states,) = apply(learner.model, few, static, (States(layer),), method="states")
    assert states.shape == (2, LENGTHS.target + LENGTHS.max_segments, 16)
    with pytest.raises(Exception, match=f"layer_{layer}"):
        apply(learner.model, few, static, (States(layer + 1),), method="states")


@pytest.mark.parametrize(
    ("name", "layer"), [("register", 3), ("two_stage_trigger", 4), ("encoder_decoder", 2)]
)
def test_flops_equal_what_the_compiler_executes(name, layer):
    """The second pass stops at its layer, and the first pays only for states that are wanted."""
    layers = (3,) * len(LAYOUTS[name].stages)
    methods = (Adaption(32),) if name == "two_stage_trigger" else ()
    config = small_config(name, embed=64, mlp=128, heads=4, stage_layers=layers, methods=methods)
    layout = LAYOUTS[name].with_layers(layers)
    lengths = Lengths(source=32, target=24)
    example = Example(np.full(30, 5), np.full(23, 6), 0, 1)
    batch = make_batch(layout, [[example]], lengths)
    if "register_tokens" in batch:  # as many as the source, without the room for packing
        batch |= {k: v[:, :32] for k, v in batch.items() if k.startswith("register_")}
    model = build_model(config, VOCABULARY.size)
    params, reads = random_params(model), (States(layer),)

    def executed(method):
        run = jax.jit(lambda p, b: model.apply({"params": p}, b, reads, method=method))
        return run.lower(params, batch).compile().cost_analysis()["flops"]

    counted = sum(product.flops for product in _states_products(config, layout, reads, 32))
    assert counted < executed("states") < 1.10 * counted
    first = forward_flops(config, layout, 0, Sentence(32, 24), reads)
    assert first < executed("features_and_states") < 1.10 * first
    assert first > forward_flops(config, layout, 0, Sentence(32, 24)) or name != "register"


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name not in ABLATIONS])
def test_packing_changes_no_loss(name, tmp_path):
    """Every pair of a row is an anchor, and instances are those of all rows together."""
    layout = LAYOUTS[name].with_layers(stage_layers(name))
    learner = make_learner(tmp_path, name, layout.layers_with("source")[-1])
    pairs = examples(5, seed=3)
    packed = make_batch(layout, [pairs[:3], [], pairs[3:], [], []])
    alone = make_batch(layout, [[pair] for pair in pairs])
    params = random_params(learner.model)
    run = jax.jit(lambda batch: batch_loss(learner, params, batch))
    (total, sums), (expected, expected_sums) = run(packed), run(alone)
    np.testing.assert_allclose(total, expected, rtol=1e-5)
    assert sums.keys() == expected_sums.keys()
    for name, value in sums.items():
        np.testing.assert_allclose(value, expected_sums[name], rtol=1e-5)
    assert float(sums["contrastive"]) > 1
    np.testing.assert_allclose(total, sums["smoothed"] + sums["contrastive"], rtol=1e-6)


def test_groups_are_batches_of_their_own(tmp_path):
    """The term of two groups is the sum over two half batches, as on two GPUs of the authors."""
    whole, halves = (make_learner(tmp_path, "prefix", 1, groups) for groups in (1, 2))
    pairs = examples(9, seed=3)
    batch = make_batch(whole.model.layout, [pairs[:3], pairs[3:4], pairs[4:7], pairs[7:]])
    params = random_params(whole.model)

    def contrast(learner, batch):
        return float(
            jax.jit(lambda p, b: batch_loss(learner, p, b)[1])(params, batch)["contrastive"]
        )

    parts = ({n: array[half] for n, array in batch.items()} for half in (slice(2), slice(2, 4)))
    expected = sum(contrast(whole, part) for part in parts)
    assert contrast(halves, batch) == pytest.approx(expected, rel=1e-5)
    assert contrast(whole, batch) > 1.05 * expected  # more negatives
    with pytest.raises(UserError, match="InstruCL.groups=3 must divide Data.rows=8"):
        make_learner(tmp_path, "prefix", 1, 3)


def test_both_passes_have_dropout_each_its_own(tmp_path, monkeypatch):
    learner = make_learner(tmp_path, "prefix", 1, stage_layers=(1,), dropout=0.3)
    batch = make_batch(learner.model.layout, [examples(3)])
    params = random_params(learner.model)
    rngs, apply = {}, ForwardPasses._apply

    def watched(self, method, batch, reads, rng, *rest):
        rngs[method] = rng
        return apply(self, method, batch, reads, rng, *rest)

    monkeypatch.setattr(ForwardPasses, "_apply", watched)

    @jax.jit
    def noisy_term(params, rng):
        term = term_of(learner, batch, rng)(params)
        return term, {method: jax.random.key_data(rng) for method, rng in rngs.items()}

    (first, drawn), (second, _) = (noisy_term(params, jax.random.key(seed)) for seed in (1, 2))
    assert float(first) != float(second)
    assert len({tuple(data.tolist()) for data in drawn.values()}) == len(drawn) == 2
    rngs.clear()
    still = jax.jit(term_of(learner, batch))(params)
    assert set(rngs.values()) == {None} and float(still) not in (float(first), float(second))


def test_recomputing_layers_changes_nothing(tmp_path):
    layout = LAYOUTS["prefix"].with_layers((1,))
    batch = make_batch(layout, [examples(3), examples(3, 1)])
    gradients = {}
    for remat in (False, True):
        learner = make_learner(tmp_path, "prefix", 1, stage_layers=(1,), remat=remat)
        params = random_params(learner.model)
        gradients[remat] = jax.jit(jax.grad(term_of(learner, batch)))(params)
    scale = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(gradients[False]))
    assert scale > 0.01
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5 * scale), *gradients.values()
    )


def test_bfloat16_is_near_float32(tmp_path, relaxed_dtypes):
    layout = LAYOUTS["register"].with_layers((1,))
    batch = make_batch(layout, [examples(3), examples(3, 1)])
    terms = {}
    for dtype in ("float32", "bfloat16"):
        learner = make_learner(tmp_path, "register", 1, dtype=dtype, stage_layers=(1,))
        params = random_params(learner.model)
        found = jax.jit(term_of(learner, batch))(params)
        assert found.dtype == jnp.float32
        terms[dtype] = float(found)
    assert terms["bfloat16"] != terms["float32"]
    assert terms["bfloat16"] == pytest.approx(terms["float32"], rel=0.02)
