"""What must hold for every row of the table: paths agree, nothing leaks, packing is free."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mnmt_jax.design.layouts import LAYOUTS
from mnmt_jax.methods.adaption import Adaption
from mnmt_jax.model.attention import IMPLEMENTATIONS
from tests.applied import apply
from tests.drawn_masks import labelled, read_pictures
from tests.sample_batches import make, pack, random_pairs, small_config, spans_of, unpacked
from tests.toy_heads import ENDS

ATOL = 2e-5
LENGTHS = {"source": 24, "register": 30, "trigger": 4, "target": 24}


def lengths_of(layout):
    return {role: LENGTHS[role] for role in layout.embedded_roles()}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_dense_equals_split_and_packed_equals_unpacked(name, norm):
    """One packed row through both paths equals each sentence alone, at every valid position."""
    config = small_config(name, norm=norm)
    layout = LAYOUTS[name]
    pairs = random_pairs(3, seed=1)
    spans = [spans_of(layout, *pair) for pair in pairs]
    # Packed and unpacked rows in one batch: one program instead of two.
    batch = pack([spans, *([sentence] for sentence in spans)], lengths_of(layout))
    model, params = make(config)
    split = apply(model, params, batch)
    oracle = model.clone(config=dataclasses.replace(config, attention="dense"))
    dense = apply(oracle, params, batch)
    segment_ids = batch["target_segment_ids"]
    compared = 0
    for number, (_, target, _) in enumerate(pairs, start=1):
        place = np.flatnonzero(segment_ids[0] == number)
        assert len(place) == len(target) + 1 == segment_ids[number].sum()
        np.testing.assert_allclose(split[0, place], dense[0, place], atol=ATOL)
        np.testing.assert_allclose(split[0, place], split[number, : len(place)], atol=ATOL)
        compared += len(place)
    assert compared >= 6
    assert np.isfinite(split).all()


@pytest.mark.parametrize("name", LAYOUTS)
def test_input_influence_equals_the_drawn_masks(name):
    """An input moves a state exactly if a path through the pictures of its layers leads there.

    The row is the one drawn, two sentences and padding, and every role's last states are looked at.
    """
    stages, memories = read_pictures(name)
    layout = LAYOUTS[name].with_layers(small_config(name).stage_layers)
    batch = row_of(layout, stages)
    model, params = make(small_config(name))
    probe = jax.random.normal(jax.random.key(2), (model.config.embed,))

    def states(shifts):
        found = model.apply({"params": params}, batch, shifts, method=last_states_of_shifted)
        return {role: (found[role] * probe[None, None]).sum(axis=-1)[0] for role in found}

    zeros = {
        role: np.zeros((1, batch[f"{role}_tokens"].shape[1], model.config.embed), np.float32)
        for role in layout.embedded_roles()
    }
    jacobian = jax.tree.map(np.asarray, jax.jit(jax.jacobian(states))(zeros))
    expected = drawn_influence(layout, stages, memories)
    assert set(jacobian) == set(expected) == set(layout.embedded_roles())
    compared = 0
    for role, by_input in jacobian.items():
        real = batch[f"{role}_segment_ids"][0] != 0
        for read, values in by_input.items():
            support = np.abs(values[:, 0]).max(axis=-1) > 0
            np.testing.assert_array_equal(
                support[real], expected[role][read][real], err_msg=f"{name}: {role} of {read}"
            )
            assert support[real].any() == (read in layout.reachable(role))
            compared += support[real].size
    assert compared >= 40


def row_of(layout, stages):
    """The batch of one row whose spans are labelled as the pictures' columns."""
    labels = {role: ids for stage in stages for role, ids in labelled(stage.columns).items()}
    rng, batch = np.random.default_rng(4), {}
    for role in layout.embedded_roles():
        ids = np.array([labels[role]], np.int32)
        batch[f"{role}_segment_ids"] = ids
        batch[f"{role}_tokens"] = np.where(ids, rng.integers(3, 15, ids.shape), 0).astype(np.int32)
        positions = [np.sum(ids[0, :i] == number) for i, number in enumerate(ids[0])]
        batch[f"{role}_positions"] = np.where(ids, positions, 0).astype(np.int32)
    return batch


def drawn_influence(layout, stages, memories):
    """Role -> role -> [positions, inputs]: which inputs a path through the pictures leads from."""
    labels = {role: ids for stage in stages for role, ids in labelled(stage.columns).items()}
    carried = {
        role: {
            read: np.eye(len(labels[role]), len(labels[read]), dtype=bool) & (role == read)
            for read in labels
        }
        for role in labels
    }
    memories = iter(memories)
    for stage, picture in zip(layout.stages, stages, strict=True):
        ended = {role: dict(reach) for role, reach in carried.items()}
        edges = [(*edge, next(memories).matrix) for edge in stage.memory]
        for _ in range(stage.layers):
            after = {}
            for query in stage.roles:
                seen = {key: picture.block(query, key) for key in stage.roles}
                after[query] = {
                    read: carried[query][read]
                    | np.any([seen[key] @ carried[key][read] for key in stage.roles], axis=0)
                    for read in labels
                }
            for reader, memory, mask in edges:
                for read in labels:
                    after[reader][read] |= mask @ ended[memory][read]
            carried |= after
    return carried


def last_states_of_shifted(model, batch, shifts):
    """Every role's last states with each role's input vectors moved, to differentiate by them."""
    embed_spans = model._embed_spans

    def shifted(batch, roles):
        return {r: states + shifts[r] for r, states in embed_spans(batch, roles).items()}

    object.__setattr__(model, "_embed_spans", shifted)
    spans, ended, _ = model._run(batch, model.plan.stages, True)
    return ended | spans


def test_one_register_layer_hides_the_source():
    """With one layer no path source -> register -> target exists; with two it does (spec 13)."""
    layout = LAYOUTS["register"]
    assert "source" not in layout.with_layers((1,)).reachable("target")
    assert "source" in layout.with_layers((2,)).reachable("target")


@pytest.mark.parametrize(
    ("name", "ends"),
    [(name, ends) for name in LAYOUTS for ends in ({}, ENDS)] + [("register", {"positions": ()})],
)
def test_stepping_equals_teacher_forcing(name, ends):
    """Also with a table of each side, two heads, learned positions, GELU and no scale."""
    methods = (Adaption(8),) if "source" in LAYOUTS[name].stages[-1].roles else ()
    methods += ends.get("methods", ())
    compare_steps(small_config(name, norm="pre", **ends | {"methods": methods}))


def compare_steps(config):
    """Compares logits of prefill and steps with those of teacher forcing, at every position."""
    layout = LAYOUTS[config.layout]
    batch = unpacked(layout, random_pairs(3, seed=5), pad=1)
    model, params = make(config)
    logits = apply(model, params, batch)
    static = {k: v for k, v in batch.items() if not k.startswith("target")}
    steps = logits.shape[1]
    cache = apply(model, params, static, beam=2, max_steps=steps + 1, method="prefill")
    advance = jax.jit(
        lambda tokens, cache: model.apply({"params": params}, tokens, cache, method="step")
    )
    compared = 0
    for step in range(steps):
        tokens = np.repeat(batch["target_tokens"][:, step : step + 1], 2, axis=1)
        found, cache = advance(tokens, cache)
        real = batch["target_segment_ids"][:, step] != 0
        for beam in range(2):
            np.testing.assert_allclose(np.asarray(found)[real, beam], logits[real, step], atol=ATOL)
        compared += int(real.sum())
    assert compared == int((batch["target_segment_ids"] != 0).sum()) > 6


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**16), factor=st.sampled_from([0.75, 1.0, 1.25, 2.0]))
@pytest.mark.parametrize("name", ["register", "two_stage_trigger"])
def test_random_packings_agree(name, seed, factor):
    layout = LAYOUTS[name]
    pairs = random_pairs(3, seed)
    spans = [spans_of(layout, *pair, factor) for pair in pairs]
    batch = pack([spans, spans[::-1]], lengths_of(layout))
    split, dense = (np.asarray(forward(batch)) for forward in compiled_paths(name))
    valid = batch["target_segment_ids"] != 0
    np.testing.assert_allclose(split[valid], dense[valid], atol=ATOL)
    for number in range(3):
        here = split[0, batch["target_segment_ids"][0] == number + 1]
        there = split[1, batch["target_segment_ids"][1] == 3 - number]
        np.testing.assert_allclose(here, there, atol=ATOL)
        assert len(here) > 1


@functools.cache
def compiled_paths(name):
    """The split and the dense forward pass, compiled once for all drawn batches."""
    model, params = make(small_config(name))
    oracle = model.clone(config=dataclasses.replace(model.config, attention="dense"))
    return [jax.jit(functools.partial(path.apply, {"params": params})) for path in (model, oracle)]


def test_attention_implementations_share_a_signature():
    assert set(IMPLEMENTATIONS) == {"dense", "split", "fused"}
    for module in IMPLEMENTATIONS.values():
        assert callable(module.make_masks)
        assert callable(module.attend)


@pytest.mark.parametrize("name", ["register", "encoder_decoder"])
def test_remat_changes_nothing_but_memory(name):
    layout = LAYOUTS[name]
    batch = unpacked(layout, random_pairs(2, seed=7))
    config = small_config(name)
    model, params = make(config)

    def loss(params, model):
        return (model.apply({"params": params}, batch) ** 2).mean()

    gradient = jax.jit(jax.grad(loss), static_argnums=1)
    expected = gradient(params, model)
    for remat in ("elementwise", "mlp", True):
        found = gradient(params, model.clone(config=dataclasses.replace(config, remat=remat)))
        assert jax.tree.structure(expected) == jax.tree.structure(found)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=ATOL), expected, found)


def test_remat_computes_again_what_it_says():
    """Products in the gradient's program, of two layers of source and target.

    The last layer computes only keys and values of the source, so there are three feed-forward
    layers, whose first product is saved, and three products of queries and keys, which are not.
    """
    config = small_config("prefix", stage_layers=(2,))
    batch = unpacked(LAYOUTS["prefix"], random_pairs(2, seed=7))

    def products(remat):
        model, params = make(dataclasses.replace(config, remat=remat))

        def loss(params):
            return model.apply({"params": params}, batch).sum()

        return str(jax.make_jaxpr(jax.grad(loss))(params)).count("dot_general[")

    stored, scores, mlp, layers = map(products, (False, "elementwise", "mlp", True))
    assert scores - stored == 3
    assert mlp - scores == 3
    assert layers > mlp


def test_adaption_needs_the_source_beside_the_target():
    config = small_config("encoder_decoder", methods=(Adaption(8),))
    with pytest.raises(ValueError, match="adaption: layout 'encoder_decoder' has no source"):
        make(config)
