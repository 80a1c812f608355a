"""Position disentangling as a method: its sizes, who moves what, and what translating keeps of it.

Its terms are held to loops in `tests/parity/test_position_terms.py`.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import signal
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

from mnmt_jax.config.sections import Mesh, Model
from mnmt_jax.design.layouts import LAYOUTS
from mnmt_jax.design.objective import Intermediate
from mnmt_jax.distributed.sharding import make_mesh
from mnmt_jax.errors import UserError
from mnmt_jax.methods.cut_residual import CutResidual
from mnmt_jax.methods.tpdm import TPDM, _Head, _Heads
from mnmt_jax.model.forward_passes import ForwardPasses
from mnmt_jax.model.intermediates import INTERMEDIATES, recorded
from mnmt_jax.model.network import build_model
from mnmt_jax.model.position_losses import (
    alignment,
    chance_loss,
    critic_loss,
    gate_divergence,
    information,
    mean_anchors,
)
from mnmt_jax.model.shapes import parameter_shapes
from mnmt_jax.training.learner import Learner, batch_loss, player_loss
from mnmt_jax.training.train import train
from tests.applied import apply
from tests.made_run import assert_same_training, make_cache, make_config, records
from tests.sample_batches import small_config
from tests.unit.test_players import (
    ATOL,
    assert_close,
    assert_same_update,
    by_hand,
    gradient_of,
    largest,
    rest_of,
    updated,
)
from tests.unit.test_train import stop_after

SIZES = {"layout": "encoder_decoder", "stage_layers": (1, 1)}
METHOD = TPDM(layer=1, clip=False, head_start=0, ramp=0, critic_steps=1)
GATED = dataclasses.replace(METHOD, gated=True)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return make_cache(tmp_path_factory.mktemp("tpdm"))


def size(tree) -> int:
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize(
    ("layers", "width", "layer", "backbone", "critic"),
    [(6, 512, 4, 44_138_496, 3_152_384), (3, 256, 2, 5_529_600, 789_760)],
    ids=["base", "small"],
)
def test_sizes_are_those_of_table_8(layers, width, layer, backbone, critic):
    """95.696 and 31.046 million: two heads and three norms, without the critic."""
    sizes = {"embed": width, "mlp": 4 * width, "heads": width // 64, "norm": "post"}
    model = Model("encoder_decoder", (layers, layers), methods=(TPDM(layer),), **sizes)
    shapes = parameter_shapes(model, 98_640)
    assert size(shapes["critic"]) == critic
    total = size(shapes) - critic
    assert total == backbone + 98_640 * width + 4 * width**2 + 10 * width
    assert round(total / 1e6, 3) == {512: 95.696, 256: 31.046}[width]


def test_translating_keeps_the_content_alone(cache):
    """Neither critic nor positions are parameters of prefill, step or the logits."""
    learner, state, batch, *_ = updated(cache, METHOD, **SIZES)
    kept = rest_of(state.params)
    heads = {n: v for n, v in kept["layer_0"]["disentangle"].items() if n != "position"}
    kept["layer_0"] = kept["layer_0"] | {"disentangle": heads}
    assert {"content", "content_norm"} == set(heads)
    given = {n: a[0] for n, a in batch.items()}
    static = {n: a for n, a in given.items() if n.startswith("source")}
    prefilled = apply(learner.model, kept, static, beam=2, max_steps=3, method="prefill")
    step = jax.jit(lambda *given: learner.model.apply({"params": kept}, *given, method="step"))
    logits, _ = step(jnp.ones((8, 2), jnp.int32), prefilled)
    assert logits.shape[:2] == (8, 2)
    found = apply(learner.model, kept, given)
    np.testing.assert_array_equal(found, apply(learner.model, state.params, given))


def test_each_player_moves_its_own(cache):
    """Without the model's terms, all but the critic and the position's head trains as without."""
    alone = dataclasses.replace(METHOD, information=0.0, alignment=0.0)
    _, state, _, after, metrics = updated(cache, alone, **SIZES)
    moved = jax.tree.map(lambda a, b: a - b, after.params, state.params)
    assert largest(moved["critic"]) > 1e-5
    assert largest(moved["layer_0"]["disentangle"]["position"]) == 0.0
    assert "information" not in metrics and metrics["critic"] > 0
    _, _, _, both, terms = updated(cache, METHOD, **SIZES)
    assert_close(both.params["critic"], after.params["critic"])  # the terms do not move it
    assert {"critic", "information", "alignment"} <= set(terms)
    other = jax.tree.map(lambda a, b: a - b, rest_of(both.params), rest_of(after.params))
    assert largest(other["layer_0"]["disentangle"]["position"]) > 1e-5
    # The bound reaches what contents are made of.
    assert largest(other["layer_0"]["attention"]) > 1e-6


def test_chance_is_the_loss_of_a_uniform_guess():
    """Of two sentences packed into a row, of 3 and 2 tokens."""
    ids = jnp.asarray([[1, 1, 1, 2, 2, 0]])
    positions = jnp.asarray(np.random.default_rng(0).standard_normal((1, 6, 4)), jnp.float32)
    expected = 3 * np.log(3) + 2 * np.log(2)
    assert float(chance_loss(ids)) == pytest.approx(expected, rel=1e-6)
    uniform = critic_loss(jnp.zeros_like(positions), positions, ids, 0.05)
    assert float(uniform) == pytest.approx(expected, rel=1e-5)


def by_loops(guesses, positions, temperature, clip):
    """The bound of a sentence, written out."""
    unit = [a / np.linalg.norm(a, axis=-1, keepdims=True) for a in (guesses, positions)]
    logits = unit[0] @ unit[1].T / temperature
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    count = len(logits)
    right = np.diagonal(log_probs)
    return (np.maximum(right, -np.log(count)) if clip else right) - log_probs.mean(axis=0)


def test_a_critic_worse_than_chance_lowers_the_strict_bound_alone():
    """Clipped, a sentence's bound is at least 0; it is the strict one where the critic is right."""
    rng = np.random.default_rng(1)
    positions = rng.standard_normal((5, 8))
    ids = jnp.ones((1, 5), jnp.int32)
    for guesses, sign in ((positions, 1), (np.roll(positions, 1, axis=0), -1)):
        arrays = jnp.asarray(guesses[None], jnp.float32), jnp.asarray(positions[None], jnp.float32)
        strict, clipped = (information(*arrays, ids, 0.5, clip=clip)[0] for clip in (False, True))
        for found, clip in ((strict, False), (clipped, True)):
            np.testing.assert_allclose(found, by_loops(guesses, positions, 0.5, clip), atol=1e-5)
        assert sign * float(strict.sum()) > 0.5 and float(clipped.sum()) > 0
        mean = information(*arrays, ids, 0.5, clip=True, reduction="mean")[0]
        np.testing.assert_allclose(mean, clipped / 5, atol=1e-6)
        right = sign > 0
        assert bool(jnp.allclose(strict, clipped)) is right


def test_the_weight_of_the_bound_rises_after_the_head_start(cache):
    """No update before it minimises the bound, the critic's does."""
    late = dataclasses.replace(METHOD, head_start=3, ramp=4)
    (term,) = (each for each in late.objectives() if each.name == "information")
    weights = [float(term.schedule(jnp.int32(step))) for step in range(9)]
    assert weights == [0.0, 0.0, 0.0, 0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    _, _, _, after, metrics = updated(cache, late, **SIZES)
    _, _, _, without, _ = updated(cache, dataclasses.replace(METHOD, information=0.0), **SIZES)
    assert_close(after.params, without.params, ATOL)
    assert float(metrics["information"]) == 0.0


def test_a_critic_may_move_several_times_at_its_own_rate(cache):
    """Two of its updates on one batch, each with Adam's next state."""
    method = dataclasses.replace(METHOD, critic_steps=2, critic_learning_rate=0.02)
    learner, state, batch, after, _ = updated(cache, method, **SIZES)
    critic, rest = learner.player_updates
    assert (critic.steps, rest.steps) == (2, 1)
    assert int(after.opt_state["critic"].updates) == 2 * int(after.opt_state[""].updates) == 2
    moved = by_hand_twice(learner, critic, state, batch)
    assert_close(after.params["critic"], jax.device_get(moved["critic"]), ATOL)


def test_the_critics_rate_follows_the_updates_of_the_run(cache):
    """A constant gradient moves a parameter by the learning rate, in each step of an update."""
    config = make_config(
        cache,
        model={**SIZES, "heads": 4, "methods": (dataclasses.replace(METHOD, critic_steps=4),)},
        optimizer={"schedule": "cosine", "warmup_steps": 2, "eps": 1e-12},
        train={"steps": 12},
    )
    learner = Learner.from_config(config, 20, make_mesh(Mesh(), jax.devices()[:1]))
    (critic, _), params = learner.player_updates, {"critic": {"bias": jnp.zeros(4)}}
    state, shifts = critic.optimizer.init(params), []
    for _ in range(10 * critic.steps):
        updates, state = critic.optimizer.update(jax.tree.map(jnp.ones_like, params), state, params)
        shifts.append(float(jnp.abs(updates["critic"]["bias"]).max()))
    expected = np.repeat([float(learner.schedule(jnp.int32(step))) for step in range(10)], 4)
    np.testing.assert_allclose(shifts, expected, rtol=1e-4)
    assert expected[-1] > 0


def by_hand_twice(learner, turn, state, batch):
    rng = jax.random.fold_in(jax.random.key(learner.seed), state.step)
    params, optimizer = state.params, state.opt_state[turn.name]
    for _ in range(2):
        gradients, _ = turn.trainable.split(gradient_of(learner, turn)(params, batch, rng))
        own, _ = turn.trainable.split(params)
        updates, optimizer = turn.optimizer.update(gradients, optimizer, own)
        params = {**params, **optax.apply_updates(own, updates)}
    return params


def test_a_critic_at_chance_is_warned_of_once_it_should_know():
    def warner(**settings):
        return TPDM(layer=2, **{"clip": False, **settings}).players()[0].objectives[1].warning

    warning = warner(head_start=100, ramp=0)
    assert warning(400, 0.0) == "" and warning(600, -0.2) == ""
    assert "critic_minus_chance -0.01 nats" in warning(600, -0.01)
    assert "TPDM.clip=True prevents it" in warning(600, -0.01)
    assert warner(information=0.0)(600, 0.0) == ""
    assert warner(head_start=500, ramp=500)(900, 0.0) == ""
    assert warner(clip=True, head_start=0, ramp=0)(600, 0.0) == ""  # nothing to exploit


def test_a_run_that_ends_before_the_bound_has_its_weight_is_warned_of(cache, capsys):
    def said(steps: int, method: TPDM) -> str:
        config = make_config(cache, train={"steps": steps})
        method.check(config, None)
        return capsys.readouterr().err

    assert "no effect in the first 400 updates and only 0% of its weight at" in said(300, TPDM(2))
    assert "only 50% of its weight at the end of a run of 600; set lower" in said(600, TPDM(2))
    assert said(800, TPDM(2)) == said(300, TPDM(2, information=0.0)) == said(0, TPDM(2)) == ""


def test_gates_are_drawn_and_logged(cache):
    _, state, _, after, metrics = updated(cache, GATED, **SIZES)
    metric_names = {objective.name for objective in GATED.players()[0].objectives}
    assert metric_names == {"critic", "critic_minus_chance", "mean_gate"}
    assert 0 < float(metrics["mean_gate"]) < 1 and float(metrics["gate_divergence"]) > 0
    gates = ("gate_first", "gate_last")
    heads = state.params["layer_0"]["disentangle"], after.params["layer_0"]["disentangle"]
    assert all(
        largest(jax.tree.map(lambda a, b: a - b, heads[0][n], heads[1][n])) > 0 for n in gates
    )


@pytest.mark.parametrize(
    ("method", "layout", "layers", "message"),
    [
        (TPDM(3), "encoder_decoder", (2, 2), "TPDM.layer=3"),
        (TPDM(1), "causal_lm", (2,), "'causal_lm' is a language model's; take a"),
        (TPDM(2), "masked_lm", (2,), "'masked_lm' is a language model's; take a"),
    ],
)
def test_what_it_needs_is_said(method, layout, layers, message):
    with pytest.raises(UserError, match=re.escape(message)):
        build_model(Model(layout, layers, embed=16, mlp=24, heads=2, methods=(method,)), 20)


def test_sinusoidal_anchors_need_an_even_width():
    def build(**fields) -> None:
        sizes = {"embed": 9, "heads": 3, "mlp": 8, "positions": ()}
        method = TPDM(2, anchors="sinusoidal", **fields)
        build_model(Model("encoder_decoder", (2, 2), methods=(method,), **sizes), 20)

    with pytest.raises(UserError, match="^TPDM.anchors='sinusoidal' needs an even Model.embed, no"):
        build()
    build(alignment=0.0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"gated": True, "information": 0.0}, "TPDM.gated=True with TPDM.information=0: gates"),
        ({"prior": 0.3}, "TPDM.prior=0.3: is of gates; set TPDM.gated=True, or leave it out"),
        ({"gate": 0.0}, "TPDM.gate=0.0: is of gates"),
        ({"gate_temperature": 2.0}, "TPDM.gate_temperature=2.0: is of gates"),
    ],
)
def test_settings_that_nothing_reads_are_refused(fields, message):
    with pytest.raises(UserError, match=re.escape(message)):
        TPDM(2, **fields)


@pytest.mark.parametrize("order", [0, 1])
def test_a_cut_layer_gives_the_heads_no_norm(order):
    """Whichever method comes first; and the heads have no connection to cut."""

    def plan(cut):
        methods = (TPDM(2), cut) if order else (cut, TPDM(2))
        model = Model("encoder_decoder", (2, 2), embed=16, mlp=24, heads=2, methods=methods)
        return build_model(model, 20).plan

    _, layer = list(plan(CutResidual(2, norm="post")).layers())[1]
    assert [(each.norm, each.residual) for each in layer] == [
        ("post", False),
        ("none", False),
        ("post", True),
    ]
    with pytest.raises(UserError, match="has no residual connection|the layer has attention, mlp"):
        plan(CutResidual(2, sublayer="disentangle"))


@pytest.mark.parametrize("layout", ["register", "two_stage"])
def test_other_layouts_change_the_source_alone(layout):
    """Our extension: registers and targets do not pass the heads."""
    stages = (2, 2)[: len(LAYOUTS[layout].stages)]
    model = Model(layout, stages, embed=16, mlp=24, heads=2, methods=(TPDM(2),))
    plan = build_model(model, 20).plan
    ((stage, layer),) = [each for each in plan.layers() if len(each[1]) == 3]
    assert layer[1].roles == ("source",) and "source" in stage.roles


def test_the_bound_is_by_the_critic_that_has_moved(cache):
    """One update written out, and the same with the players' turns swapped."""
    learner, state, batch, after, _ = updated(cache, METHOD, **SIZES)
    turns = learner.player_updates
    assert [turn.name for turn in turns] == ["critic", ""]
    right, swapped = (
        jax.device_get(by_hand(learner, state, batch, order)) for order in (turns, turns[::-1])
    )
    assert_close(after.params, right, ATOL)
    assert largest(jax.tree.map(jnp.subtract, rest_of(right), rest_of(swapped))) > 50 * ATOL


def test_the_update_is_that_of_one_device(cache):
    """Anchors are of all devices' sentences, and gates draw alike."""
    metrics = assert_same_update(cache, Mesh(fsdp=4), GATED, **SIZES)
    assert metrics >= {"critic", "mean_gate", "alignment"}


def test_a_stopped_run_continues_bit_for_bit(
    cache, tmp_path, monkeypatch, one_device, kept_programs
):
    config = trained(cache, GATED, steps=6, dropout=0.1, accumulate=2)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert train(config, whole) is None
    with monkeypatch.context() as patch:
        stop_after(patch, 2, lambda: signal.raise_signal(signal.SIGTERM))
        assert train(config, broken) == "SIGTERM"
    assert train(config, broken) is None
    assert_same_training(broken, whole, 6)


def trained(cache, method, steps, dropout, accumulate=1):
    sizes = {**SIZES, "heads": 4, "dropout": dropout, "methods": (method,)}
    return make_config(
        cache,
        model=sizes,
        optimizer={"learning_rate": 1e-2, "schedule": "constant", "accumulate": accumulate},
        train={"steps": steps, "log_every": steps // 3, "eval_every": steps, "save_every": steps},
    )


def test_gates_collapse_without_their_prior_alone(cache, tmp_path, one_device):
    shares = {}
    for weight in (1.0, 0.0):
        run, method = tmp_path / str(weight), dataclasses.replace(GATED, gate=weight)
        train(trained(cache, method, steps=120, dropout=0.0), run)
        shares[weight] = records(run)[-1]["mean_gate"]
    assert 0.3 < shares[1.0] < 0.6  # the prior is 0.4
    assert min(shares[0.0], 1 - shares[0.0]) < 0.05


def test_terms_of_bfloat16_states_are_of_float32():
    """Cosines in bfloat16 are wrong by a hundredth, logits by twenty times that."""
    rng = np.random.default_rng(0)
    guesses, positions = jnp.asarray(rng.standard_normal((2, 1, 12, 64)), jnp.bfloat16)
    ids, sizes = jnp.ones((1, 12), jnp.int32), (jnp.float32, jnp.bfloat16)
    for term in (critic_loss, information):
        exact, found = (
            term(*(s.astype(d) for s in (guesses, positions)), ids, 0.05) for d in sizes
        )
        assert found.dtype == jnp.float32
        np.testing.assert_array_equal(found, exact)
    unit = [s / jnp.linalg.norm(s, axis=-1, keepdims=True) for s in (guesses, positions)]
    assert unit[0].dtype == jnp.bfloat16
    wide = [s.astype(jnp.float32) for s in (guesses, positions)]
    wide = [s / jnp.linalg.norm(s, axis=-1, keepdims=True) for s in wide]
    rounded, true = (jnp.einsum("rie,rke->rik", *pair) / 0.05 for pair in (unit, wide))
    error = jnp.abs(rounded.astype(jnp.float32) - true).max()
    assert 0.01 < error < 1
    assert jnp.abs(rounded.astype(jnp.float32) - true).mean() > 1e-3


def test_the_head_by_hand():
    """A norm of the inner states, then ReLU, between two linear maps."""
    head = _Head(small_config("encoder_decoder"), True)
    states = np.random.default_rng(0).standard_normal((1, 3, 16)).astype(np.float32)
    params = head.init(jax.random.key(0), states)["params"]
    params = jax.tree.map(lambda leaf: np.asarray(leaf) + np.float32(0.1), params)
    inner = states @ params["wi"]["kernel"] + params["wi"]["bias"]
    centred = inner - inner.mean(-1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    normed = normed * params["norm"]["scale"] + params["norm"]["bias"]
    expected = np.maximum(normed, 0) @ params["wo"]["kernel"] + params["wo"]["bias"]
    np.testing.assert_allclose(head.apply({"params": params}, states), expected, atol=1e-4)


def test_the_gate_by_hand():
    """Two layers with ReLU between; noise is added to its logit before the temperature divides."""
    config = Model("encoder_decoder", (1, 1), embed=6, mlp=10, heads=2)
    states = np.random.default_rng(2).normal(size=(2, 5, 6)).astype(np.float32)
    info = types.SimpleNamespace(roles=("source",), deterministic=False)

    def gates(temperature):
        heads, rngs = _Heads(config, 0, temperature), {"dropout": jax.random.key(7)}
        variables = heads.init({"params": jax.random.key(1), **rngs}, states, info, method="change")
        _, collections = heads.apply(
            variables, states, info, method="change", rngs=rngs, mutable=[INTERMEDIATES]
        )
        logit, gate = (
            recorded(collections[INTERMEDIATES], Intermediate(name))
            for name in ("gate_logit", "gate")
        )
        params = jax.tree.map(np.asarray, nn.meta.unbox(variables["params"]))
        return params, np.asarray(logit), np.log(gate / (1 - gate)) * temperature

    params, logit, noisy = gates(0.5)
    first, last = params["gate_first"], params["gate_last"]
    hidden = np.maximum(states @ first["kernel"] + first["bias"], 0)
    expected = (hidden @ last["kernel"] + last["bias"])[..., 0]
    np.testing.assert_allclose(logit, expected, atol=1e-5)
    np.testing.assert_allclose(gates(2.0)[2], noisy, atol=1e-3)
    assert len({*np.round(np.ravel(noisy - logit), 3)}) == 10


@pytest.mark.parametrize("anchors", ["mean", "held"])
def test_terms_are_the_losses_of_what_the_layer_records(cache, anchors):
    """Each with its own parts of the batch: gates and padding, tokens per source token, anchors."""
    method = dataclasses.replace(GATED, anchors=anchors)
    learner, state, batch, *_ = updated(cache, method, **SIZES)
    one, rng = {name: jnp.asarray(array[0]) for name, array in batch.items()}, jax.random.key(3)
    names = ("content", "position", "gate_logit", "gate")
    reads = tuple(Intermediate(f"layer_0/disentangle/{name}") for name in names)
    ids, places = one["source_segment_ids"], one["source_positions"]
    tokens, sources = (float((one[f"{r}_segment_ids"] != 0).sum()) for r in ("target", "source"))
    assert tokens != sources and (ids == 0).any()

    def expected(params):
        forward = ForwardPasses(learner.model, params, one, rng, reads)
        content, position, logit, gate = map(forward.read, reads)
        guesses = forward.auxiliary("critic", content)
        bound = gate * information(guesses, position, ids, method.temperature)
        divergence = jnp.where(ids != 0, gate_divergence(logit, method.prior), 0.0)
        critic = critic_loss(guesses, position, ids, method.temperature) * tokens / sources
        means = mean_anchors(position, ids, places)
        means = jax.lax.stop_gradient(means) if anchors == "held" else means
        aligned = alignment(position, ids, places, method.temperature, anchors=means)
        sums = {"information": bound.sum(), "gate_divergence": divergence.sum(), "critic": critic}
        return aligned, sums

    def actual(params):
        sums = batch_loss(learner, params, one, rng)[1]
        return sums["alignment"], {name: sums[name] for name in ("information", "gate_divergence")}

    slopes, wanted = jax.jit(jax.grad(expected, has_aux=True))(state.params)
    found_slopes, found = jax.jit(jax.grad(actual, has_aux=True))(state.params)
    (critic,) = learner.player_updates[:1]
    lost = jax.jit(functools.partial(player_loss, learner, critic))(state.params, one, rng)[1]
    for name, value in (found | {"critic": lost["critic"]}).items():
        assert float(value) == pytest.approx(float(wanted[name]), rel=1e-4), name
    pairs = (tree["layer_0"]["disentangle"]["position"] for tree in (found_slopes, slopes))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4), *pairs)
