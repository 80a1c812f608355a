"""Frozen parameters: bit-identical, without optimizer state or gradient."""

from __future__ import annotations

import dataclasses
import functools
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from mnmt_jax.distributed.sharding import make_mesh
from mnmt_jax.errors import UserError
from mnmt_jax.model.lora import split_lora
from mnmt_jax.model.trainable_params import Trainable, join
from mnmt_jax.training.learner import Learner, batch_loss
from mnmt_jax.training.state import create_state, make_init
from mnmt_jax.training.train_step import train_step
from tests.made_params import assert_same
from tests.made_run import make_config
from tests.sample_batches import random_pairs, unpacked

VOCAB = 997  # no other size of the program is this
TABLE = "f32[997,16]"
LORA = {"lora_rank": 2}
EMBEDDING = ("embedding",)
GRADIENT_ATOL = 1e-6
TREE = {
    "embedding": np.zeros((3, 2)),
    "layer_0": {
        "attention": {"query": {"kernel": np.ones(4), "lora_a": np.ones(2), "lora_b": np.ones(2)}},
        "mlp": {"wi": {"kernel": np.ones(5), "bias": np.ones(1)}},
    },
}


def test_split_and_join():
    trained, frozen = Trainable(frozen=("attention", "bias")).split(TREE)
    assert trained == {
        "embedding": TREE["embedding"],
        "layer_0": {
            "attention": {
                "query": {n: TREE["layer_0"]["attention"]["query"][n] for n in ("lora_a", "lora_b")}
            },
            "mlp": {"wi": {"kernel": TREE["layer_0"]["mlp"]["wi"]["kernel"]}},
        },
    }
    assert len(jax.tree.leaves(frozen)) == 2
    assert_same(join(trained, frozen), TREE)
    everything, nothing = Trainable().split(TREE)
    assert nothing == {} and Trainable().count(TREE) == 20
    assert_same(join(everything, nothing), TREE)


def test_only_lora_trains_unless_patterns_are_given():
    alone = Trainable(lora=("query",))
    assert_same(alone.split(TREE)[0], split_lora(TREE)[0])
    assert alone.count(TREE) == 4
    assert dataclasses.replace(alone, frozen=EMBEDDING).count(TREE) == 14


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (Trainable(frozen=("embeding",)), r"Optimizer.frozen=.*'embeding'.*did you mean embedding"),
        (
            Trainable(frozen=("lora_a",)),
            r"Optimizer.frozen=\('lora_a',\): 'lora_a' matches nothing",
        ),
        (Trainable(lora=("query", "values")), r"Model.lora=.*'values' matches nothing"),
        (
            Trainable(frozen=("bias", "mlp"), player_patterns=("wi",)),
            r"Optimizer.frozen=.*: 'bias' selects only parameters with an optimizer of their own",
        ),
        (Trainable(lora=("bias",)), r"Model.lora=\('bias',\): 'bias' matches nothing"),
    ],
)
def test_patterns_are_checked(rule, message):
    with pytest.raises(UserError, match=message):
        rule.split(TREE)


def test_a_pattern_may_match_parameters_of_a_player_among_others():
    rule = Trainable(frozen=("kernel",), player_patterns=("wi",))
    assert rule.count(TREE) == 10


def test_freezing_everything_is_refused():
    with pytest.raises(UserError, match="leaves nothing to train"):
        Trainable(frozen=("*",)).split(split_lora(TREE)[1])


@functools.cache
def trained(model: tuple, optimizer: tuple, steps: int = 2):
    """Return the learner, a batch, and the states and metrics of some updates at a rate of 0.1."""
    settings = {"schedule": "constant", "warmup_steps": 0, "learning_rate": 0.1, "clip_norm": 0.5}
    config = make_config(
        Path(),
        model={"dropout": 0.0} | dict(model),
        optimizer=settings | {"weight_decay": 0.5} | dict(optimizer),
    )
    mesh = make_mesh(config.mesh, jax.devices()[:1])
    learner = Learner.from_config(config, VOCAB, mesh)
    batch = unpacked(learner.model.layout, random_pairs(6))
    batch["target_labels"] = batch["target_tokens"]
    stacked = {name: array[None] for name, array in batch.items()}
    init = make_init(learner, batch, 0)
    states, metrics = [create_state(init, mesh)], []
    step = jax.jit(functools.partial(train_step, learner)).lower(states[0], stacked).compile()
    for _ in range(steps):
        state, measured = step(states[-1], stacked)
        states.append(state)
        metrics.append(measured)
    return learner, batch, states, metrics, step.as_text()


CASES = {
    "embedding": ((), (("frozen", EMBEDDING),)),
    "lora": (tuple(LORA.items()), ()),
    "lora and all but the embedding": (tuple(LORA.items()), (("frozen", EMBEDDING),)),
}


@pytest.mark.parametrize("case", CASES)
def test_frozen_parameters_stay_and_others_change(case):
    """With weight decay, which would shrink every frozen weight by 5 % per update."""
    learner, _, states, _, _ = trained(*CASES[case])
    (moved, kept), (first, frozen) = (
        learner.trainable.split(state.params) for state in (states[-1], states[0])
    )
    assert_same(kept, frozen)
    assert "embedding" in frozen
    change = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), moved, first)
    assert min(jax.tree.leaves(change)) > 0


@pytest.mark.parametrize("case", CASES)
def test_the_optimizer_has_state_only_for_trained_parameters(case):
    learner, _, states, _, _ = trained(*CASES[case])
    _, adam = states[-1].opt_state
    count = learner.trainable.count(states[0].params)
    for moments in (adam.first_moment, adam.second_moment):
        assert sum(leaf.size for leaf in jax.tree.leaves(moments)) == count
    total = sum(leaf.size for leaf in jax.tree.leaves(states[0].params))
    expected = {
        "embedding": total - VOCAB * 16,
        "lora": 2 * 2 * (16 + 16),  # query and value of one layer, rank 2, 16 in and out
        "lora and all but the embedding": total - VOCAB * 16,
    }
    assert count == expected[case]


@pytest.mark.parametrize("case", CASES)
def test_an_update_equals_that_of_the_trained_parameters(case):
    """The full gradient without its frozen part is clipped, averaged and applied."""
    learner, batch, (before, after, _), metrics, _ = trained(*CASES[case])
    gradient = jax.jit(jax.grad(lambda p, b: batch_loss(learner, p, b)[0]))
    everything = gradient(before.params, batch)
    part, _ = learner.trainable.split(everything)
    tokens = float((batch["target_segment_ids"] != 0).sum())
    part = jax.tree.map(lambda g: g / tokens, part)
    norm = optax.global_norm(part)
    assert float(metrics[0]["gradient_norm"]) == pytest.approx(float(norm), rel=1e-5)
    assert float(optax.global_norm(everything)) / tokens > 1.02 * float(norm) > 0.02
    clipped = jax.tree.map(lambda g: g * min(1.0, 0.5 / float(norm)), part)
    _, adam = after.opt_state
    jax.tree.map(
        lambda m, g: np.testing.assert_allclose(m, 0.1 * g, atol=GRADIENT_ATOL),
        adam.first_moment,
        clipped,
    )


def producers(program: str) -> set[str]:
    """Return the operations of compiled instructions whose result has the size of the embedding."""
    return set(re.findall(rf"= {re.escape(TABLE)}\S* ([\w-]+)\(", program))


@pytest.mark.parametrize("case", CASES)
def test_a_frozen_embedding_has_no_gradient_in_the_program(case):
    """Nothing of its size is computed; without freezing, products and sums of that size are."""
    assert producers(trained(*CASES[case])[-1]) <= {"parameter", "copy", "get-tuple-element"}
    assert {"dot", "scatter"} & producers(trained((), ())[-1])


def test_accumulation_computes_no_gradient_of_frozen_parameters():
    """The same inside the loop of accumulation, and where the loss has several chunks."""
    learner, batch, states, _, _ = trained(*CASES["lora"])
    learner = dataclasses.replace(learner, chunk=8)
    stacked = {name: np.stack([array, array]) for name, array in batch.items()}
    step = jax.jit(functools.partial(train_step, learner))
    program = step.lower(states[0], stacked).compile().as_text()
    assert producers(program) <= {"parameter", "copy", "get-tuple-element"}
    assert program.count("while(") >= 2
