"""Several tables and heads against the model written out by hand, and what they cost."""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnmt_jax.config.sections import Mesh
from mnmt_jax.cost.describe import describe
from mnmt_jax.design.layouts import LAYOUTS, get_layout
from mnmt_jax.design.plan import Head, Table
from mnmt_jax.distributed.sharding import make_mesh
from mnmt_jax.errors import UserError
from mnmt_jax.interop.names import M2M100, parameter_entries
from mnmt_jax.model import layer_stack
from mnmt_jax.model.flops import Sentence, train_flops
from mnmt_jax.model.network import build_model
from mnmt_jax.model.trainable_params import Trainable, join
from mnmt_jax.training.learner import Learner, batch_loss
from tests.applied import apply
from tests.made_run import make_config
from tests.property.test_model import compare_steps
from tests.random_params import MILD, random_params
from tests.sample_batches import VOCAB, pack, random_pairs, small_config, spans_of, unpacked
from tests.toy_heads import ENDS, TABLES, TwoHeads

SMOOTHING = 0.1
SOURCE_TOKENS, TARGET_TOKENS = 5, 4  # of every pair: no padding


def make_learner(chunk: int = 3, **sizes) -> Learner:
    model = dataclasses.asdict(small_config("prefix", **sizes)) | sizes
    config = make_config("nowhere", model=model)
    learner = Learner.from_config(config, VOCAB, make_mesh(Mesh(), jax.devices()[:1]))
    return dataclasses.replace(learner, chunk=chunk)


def full_batch(rows: int, source: int = SOURCE_TOKENS, target: int = TARGET_TOKENS):
    """Random pairs of one length, with labels."""
    rng, layout = np.random.default_rng(3), LAYOUTS["prefix"]
    pairs = [
        (rng.integers(3, 15, source - 2).tolist(), rng.integers(3, 15, target - 1).tolist(), 15)
        for _ in range(rows)
    ]
    batch = unpacked(layout, pairs)
    return batch | {"target_labels": rng.integers(1, VOCAB, (rows, target)).astype(np.int32)}


def norm(states, weights):
    centred = states - states.mean(axis=-1, keepdims=True)
    scaled = centred / jnp.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
    return scaled * weights["scale"][None, None] + weights["bias"][None, None]


def project(states, weights):
    """A linear map written with two axes, whatever heads its parameters have."""
    kernel = weights["kernel"]
    bias = weights["bias"].reshape(-1)
    return states @ kernel.reshape(states.shape[-1], -1) + bias[None, None]


def attend(states, weights, mask, heads=2):
    def split(name):
        mapped = project(states, weights[name])
        return mapped.reshape(*mapped.shape[:2], heads, -1)

    queries, keys, values = map(split, ("query", "key", "value"))
    scores = jnp.einsum("bqhd,bkhd->bhqk", queries, keys) / math.sqrt(queries.shape[-1])
    shares = jax.nn.softmax(jnp.where(mask[None, None], scores, -jnp.inf), axis=-1)
    read = jnp.einsum("bhqk,bkhd->bqhd", shares, values)
    return project(read.reshape(states.shape), weights["out"])


def logits_by_hand(params, batch):
    """The toy model over source and target end to end, with one dense mask."""
    source, target, output = TABLES

    def vectors(table, role):
        rows = params[f"{table}_positions"][batch[f"{role}_positions"]]
        return params[table][batch[f"{role}_tokens"]] + rows

    states = jnp.concatenate([vectors(source, "source"), vectors(target, "target")], axis=1)
    places = np.arange(states.shape[1])
    mask = (places[None] < SOURCE_TOKENS) | (
        (places[None] <= places[:, None]) & (places[:, None] >= SOURCE_TOKENS)
    )
    after = []
    for number in range(2):
        layer = params[f"layer_{number}"]
        states = states + attend(norm(states, layer["attention_norm"]), layer["attention"], mask)
        inner = project(norm(states, layer["mlp_norm"]), layer["mlp"]["wi"])
        inner = 0.5 * inner * (1 + jax.lax.erf(inner / math.sqrt(2)))
        states = states + project(inner, layer["mlp"]["wo"])
        after.append(states[:, SOURCE_TOKENS:])
    middle = norm(after[0], params["middle_norm"])
    return middle @ params[target].T + norm(after[1], params["stage_0_norm"]) @ params[output].T


def loss_by_hand(params, batch):
    log_probs = jax.nn.log_softmax(logits_by_hand(params, batch))
    wanted = jax.nn.one_hot(batch["target_labels"], VOCAB)
    other = SMOOTHING / (VOCAB - 1)
    return -((wanted * (1 - SMOOTHING - other) + other) * log_probs).sum()


def test_logits_loss_and_gradients_are_those_of_the_model_by_hand():
    learner, batch = make_learner(norm="pre", **ENDS), full_batch(3)
    params = random_params(learner.model, moments=MILD)
    assert {name for name in params if "embedding" in name} == {
        *TABLES,
        "source_embedding_positions",
        "target_embedding_positions",
    }
    expected = jax.jit(logits_by_hand)(params, batch)
    np.testing.assert_allclose(apply(learner.model, params, batch), expected, atol=2e-5)
    loss = jax.jit(jax.value_and_grad(functools.partial(batch_loss, learner), has_aux=True))
    (total, _), gradients = loss(params, batch)
    total_by_hand, by_hand = jax.jit(jax.value_and_grad(loss_by_hand))(params, batch)
    np.testing.assert_allclose(total, total_by_hand, rtol=1e-5)
    assert jax.tree.structure(gradients) == jax.tree.structure(by_hand)
    for table in TABLES:
        assert np.abs(by_hand[table]).max() > 0.1
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=5e-5, rtol=1e-4), gradients, by_hand
    )


@pytest.mark.parametrize("ends", [{}, ENDS], ids=["plain", "two_heads"])
def test_steps_pass_what_stands_between_the_stages_of_the_target(ends):
    """First without, then with the source: the norm between them is the target's too."""
    compare_steps(small_config("grafted", norm="pre", **ends))


def test_a_head_reads_a_layer_within_a_loop(monkeypatch):
    ends = ENDS | {"methods": (TwoHeads(2),)}
    model = build_model(small_config("prefix", stage_layers=(4,), **ends), VOCAB)
    batch = unpacked(LAYOUTS["prefix"], random_pairs(2))
    params = random_params(model)
    expected = apply(model, params, batch)
    other = dataclasses.replace(model.config, methods=(TwoHeads(3),))
    assert np.abs(apply(build_model(other, VOCAB), params, batch) - expected).max() > 0.1
    monkeypatch.setattr(layer_stack, "_LOOPED_FROM", 4)
    assert "scan" in str(jax.make_jaxpr(model.apply)({"params": params}, batch))
    np.testing.assert_allclose(apply(model, params, batch), expected, atol=2e-4)


WIDE = dict(embed=64, mlp=128, heads=4, stage_layers=(3,))
FROZEN = [(), ("output_embedding",), ("target_embedding", "output_embedding", "*_positions")]


@pytest.fixture(scope="module")
def executed():
    """What frozen patterns leave of the FLOPs of a micro-batch's loss and gradient."""
    learner = make_learner(chunk=10**6, **WIDE, **ENDS | {"positions": ("learned", 32)})
    batch = full_batch(1, 32, 24)
    params = jax.eval_shape(learner.model.init, jax.random.key(0), batch)["params"]

    @functools.cache
    def flops(frozen: tuple[str, ...]) -> tuple[float, float]:
        rule = Trainable(frozen)

        def loss(trained, fixed, batch):
            return batch_loss(learner, join(trained, fixed), batch)[0]

        compiled = jax.jit(jax.grad(loss)).lower(*rule.split(params), batch).compile()
        model = learner.model
        sizes = model.config, model.layout, VOCAB, Sentence(32, 24)
        return compiled.cost_analysis()["flops"], train_flops(*sizes, trainable=rule)

    return flops


@pytest.mark.parametrize("frozen", FROZEN, ids=str)
def test_the_count_is_what_the_compiler_executes(frozen, executed):
    found, counted = executed(frozen)
    assert 0.95 < found / counted < 1.10


def test_a_table_that_does_not_train_costs_no_gradient(executed):
    """Neither counted nor executed; the compiler counts adding it up besides."""
    (all_found, all_counted), (found, counted) = executed(()), executed(FROZEN[1])
    product = 2 * 24 * 64 * VOCAB
    assert all_counted - counted == product
    assert product <= all_found - found < 1.1 * product


def test_tables_and_positions_are_counted_as_embedding():
    config = small_config("prefix", **ENDS)
    found = describe(config, VOCAB, source_length=8, target_length=4, beam=2)["parameters"]
    assert found["embedding"] == 3 * VOCAB * 16 + 2 * 16 * 16
    plain = describe(small_config("prefix"), VOCAB, source_length=8, target_length=4, beam=2)[
        "parameters"
    ]
    assert found["norms"] - plain["norms"] == 2 * 16


def test_other_toolkits_have_one_table():
    config = small_config("prefix", methods=(TwoHeads(),))
    with pytest.raises(UserError, match="tables source_embedding, .* and 2 heads") as caught:
        parameter_entries(config, get_layout("prefix", (2,)), M2M100, np.arange(VOCAB))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"tables": (Table(), Table("embedding", embeds=False))},
            "table 'embedding': names of tab",
        ),
        ({"tables": (Table("words"),)}, "table 'words': .* end in 'embedding'"),
        (
            {"tables": (Table("embedding", ("sauce",)),)},
            "'prefix' has no role sauce; it has source",
        ),
        ({"tables": (Table("embedding", ("source",)),)}, "role 'target' is embedded by 0 tables"),
        ({"tables": (Table(), Table("other_embedding"))}, "role 'source' is embedded by 2 tables"),
        ({"heads": (Head("other"),)}, "layer 0 and table 'other'; .* one of embedding"),
        ({"heads": (Head(layer=3),)}, "layer 3 and table 'embedding'; choose 0 or .* 1 to 2"),
        ({"heads": ()}, "without heads"),
        (
            {"tables": (Table(), Table("other_embedding", embeds=False))},
            "table 'other_embedding' embeds no role: use it in a head",
        ),
    ],
)
def test_a_plan_that_cannot_be_is_refused(changes, message):
    plan = dataclasses.replace(build_model(small_config("prefix"), VOCAB).plan, **changes)
    with pytest.raises(UserError, match=message) as caught:
        plan.check()
    assert "\n" not in str(caught.value)


def test_a_head_may_not_read_a_layer_that_the_target_does_not_pass():
    with pytest.raises(UserError, match="a head reads layer 1 .* layers 3 to 4"):
        build_model(small_config("encoder_decoder", methods=(TwoHeads(1),)), VOCAB)


def test_a_table_that_embeds_nobody_has_no_row_of_zeros():
    """As fairseq draws a projection that is not tied; rows for padding are for looking up."""
    model = build_model(small_config("prefix", methods=(TwoHeads(),)), VOCAB)
    spans = spans_of(LAYOUTS["prefix"], [3, 4], [5], 15)
    batch = pack([[spans]], dict.fromkeys(spans, 4))
    params = jax.jit(model.init)(jax.random.key(0), batch)["params"]
    zeros = {name for name in TABLES if not np.asarray(params[name])[0].any()}
    assert zeros == set(TABLES[:2])


def test_layers_that_no_head_reads_are_not_counted():
    plan = build_model(small_config("prefix", stage_layers=(4,)), VOCAB).plan
    early = dataclasses.replace(plan, heads=(Head(layer=2),))
    assert early.live_roles() == (
        frozenset({"source", "target"}),
        frozenset({"target"}),
        *2 * [frozenset()],
    )
    assert all("target" in roles for roles in plan.live_roles())
