"""Several optimizers in one update: who moves what, in which order, and what a checkpoint keeps."""

from __future__ import annotations

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from mnmt_jax.config.sections import Mesh, Train
from mnmt_jax.distributed.sharding import make_mesh
from mnmt_jax.errors import UserError
from mnmt_jax.model.network import build_model
from mnmt_jax.training.learner import Learner, PlayerUpdate, player_loss
from mnmt_jax.training.losses import per_token
from mnmt_jax.training.state import LogWindow, TrainState, make_init
from mnmt_jax.training.train_step import train_step
from tests.applied import apply
from tests.made_run import make_cache, make_config
from tests.sharded.test_meshes import make_batch, start
from tests.toy_players import Guessed

VOCAB = 20
ATOL = 2e-6


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return make_cache(tmp_path_factory.mktemp("players"))


def configure(cache, method: Guessed | None = Guessed(), **model):  # noqa: B008  frozen
    methods = (method,) if method else ()
    sizes = {"stage_layers": (2,), "heads": 4, "methods": methods, "dropout": 0.1} | model
    return make_config(
        cache,
        model=sizes,
        optimizer={"accumulate": 2, "initial_learning_rate": 1e-3, "eps": 1e-3},
        train={"steps": 6, "log_every": 1, "eval_every": 3, "save_every": 3},
    )


@functools.cache
def updated(cache, method: Guessed | None = Guessed(), mesh: Mesh = Mesh(), **model):  # noqa: B008
    """Returns learner, state and batch, and the state and metrics after an update."""
    devices = make_mesh(mesh, jax.devices()[: 1 if mesh == Mesh() else 8])
    learner = Learner.from_config(configure(cache, method, **model), VOCAB, devices)
    state, step, placed, _ = start(learner, devices)
    after, metrics = step(state, placed)
    return learner, state, make_batch(learner), jax.device_get(after), jax.device_get(metrics)


def rest_of(params):
    return {name: leaf for name, leaf in params.items() if name != "critic"}


def assert_close(found, expected, atol=0.0):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=atol, rtol=0), found, expected)


def largest(tree) -> float:
    return max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(tree))


def test_the_critic_is_drawn_counted_and_in_no_pass(cache):
    learner, state, batch, *_ = updated(cache)
    assert set(state.params["critic"]) == {"wi", "wo"}
    assert set(state.opt_state) == {"critic", ""}
    without = rest_of(state.params)
    static = {n: a[0] for n, a in batch.items() if n.startswith("source")}
    cache_of = apply(learner.model, without, static, beam=2, max_steps=3, method="prefill")
    tokens = jnp.ones((8, 2), jnp.int32)
    step = jax.jit(lambda *given: learner.model.apply({"params": without}, *given, method="step"))
    logits, _ = step(tokens, cache_of)
    assert logits.shape == (8, 2, VOCAB)
    plain = build_model(dataclasses.replace(learner.model.config, methods=()), VOCAB)
    expected = apply(plain, without, {n: a[0] for n, a in batch.items()})
    found = apply(learner.model, state.params, {n: a[0] for n, a in batch.items()})
    np.testing.assert_array_equal(found, expected)


def test_without_its_term_the_model_trains_as_without_the_critic(cache):
    _, state, _, after, metrics = updated(cache, Guessed(weight=0.0))
    _, plain, _, expected, plain_metrics = updated(cache, None)
    assert_close(rest_of(state.params), plain.params)
    assert_close(rest_of(after.params), expected.params, ATOL)
    assert metrics["loss"] == plain_metrics["loss"] and metrics["guess"] > 0.1
    assert (
        largest(jax.tree.map(jnp.subtract, after.params["critic"], state.params["critic"])) > 0.01
    )


def test_each_player_has_gradients_of_its_own_parameters_alone(cache):
    """Even of a loss of all parameters: the critic's never reaches the rest."""
    learner, state, batch, *_ = updated(cache)
    critic, rest = learner.player_updates
    one = {name: jnp.asarray(array[0]) for name, array in batch.items()}
    gradients = jax.jit(jax.grad(lambda p: player_loss(learner, critic, p, one)[0]))(state.params)
    assert largest(rest_of(gradients)) == 0 and largest(gradients["critic"]) > 0.1
    assert set(rest.trainable.split(state.params)[0]) == set(rest_of(state.params))
    assert set(critic.trainable.split(state.params)[0]) == {"critic"}


@functools.cache
def gradient_of(learner: Learner, turn: PlayerUpdate):
    """Returns the mean gradient of a turn over the micro-batches of a batch."""

    def total(params, micro_batch, rng):
        loss, sums = player_loss(learner, turn, params, micro_batch, rng)
        return loss, sums["tokens"]

    of_micro_batch = jax.jit(jax.grad(total, has_aux=True))

    def gradient(params, batch, rng):
        micro_batches = [{name: array[n] for name, array in batch.items()} for n in range(2)]
        totals, tokens = zip(
            *(
                of_micro_batch(params, micro_batch, jax.random.fold_in(rng, number))
                for number, micro_batch in enumerate(micro_batches)
            ),
            strict=True,
        )
        return jax.tree.map(lambda *parts: sum(parts) / sum(tokens), *totals)

    return gradient


def assert_same_update(cache, mesh: Mesh, *method, **model) -> set[str]:
    """Assert that an update on a mesh is that of one device; return the names of its metrics."""
    _, _, _, expected, expected_metrics = updated(cache, *method, **model)
    _, _, _, actual, metrics = updated(cache, *method, mesh=mesh, **model)
    assert_close(actual.params, expected.params, ATOL)
    assert metrics.keys() == expected_metrics.keys()
    for name, value in metrics.items():
        assert value == pytest.approx(expected_metrics[name], rel=1e-5), name
    return set(metrics)


def by_hand(learner: Learner, state, batch, order):
    """An update written out: one player after the other, each with its own Adam."""
    rng = jax.random.fold_in(jax.random.key(learner.seed), state.step)
    params = state.params
    for turn in order:
        gradients, _ = turn.trainable.split(gradient_of(learner, turn)(params, batch, rng))
        own, _ = turn.trainable.split(params)
        updates, _ = turn.optimizer.update(gradients, state.opt_state[turn.name], own)
        params = {**params, **optax.apply_updates(own, updates)}
    return params


def test_the_rest_moves_by_the_critic_that_has_moved(cache):
    learner, state, batch, after, _ = updated(cache)
    turns = sorted(learner.player_updates, key=lambda turn: turn.name, reverse=True)
    assert [turn.name for turn in turns] == ["critic", ""]
    expected, swapped = (by_hand(learner, state, batch, order) for order in (turns, turns[::-1]))
    assert_close(after.params, jax.device_get(expected), ATOL)
    apart = jax.tree.map(jnp.subtract, rest_of(expected), rest_of(swapped))
    assert largest(apart) > 50 * ATOL


def test_the_update_is_that_of_one_device(cache):
    metrics = assert_same_update(cache, Mesh(fsdp=2, tensor=2))
    assert metrics >= {"guess", "hidden", "loss"}


def test_terms_of_players_are_per_token_of_their_own_batch(monkeypatch):
    """The unnamed player also counts the tokens of generated batches and of copies."""
    sums = {
        "critic": {"guess": 30.0, "tokens": 10.0},
        "": {"smoothed": 50.0, "nll": 25.0, "tokens": 25.0, "hidden": 12.5},
    }
    sums = {name: jax.tree.map(jnp.float32, each) for name, each in sums.items()}
    names = tuple({**sums["critic"], **sums[""]})

    def update(learner, player, params_and_state, *_):
        return *params_and_state, sums[player.name], jnp.float32(1)

    monkeypatch.setattr("mnmt_jax.training.train_step._update_player", update)
    players = [types.SimpleNamespace(name=name, steps=2) for name in sums]
    learner = types.SimpleNamespace(
        seed=1, before=players[:1], player_updates=players, ema_decay=0.0, schedule=float
    )
    window = LogWindow.empty(("source",), names)
    state = TrainState(jnp.int32(0), {}, dict.fromkeys(sums), window)
    batch = dict.fromkeys(("source_segment_ids", "source_positions"), jnp.ones((1, 2, 3)))
    after, metrics = train_step(learner, state, batch)
    assert {name: float(metrics[name]) for name in ("guess", "hidden", "loss", "nll")} == {
        "guess": 3.0,
        "hidden": 0.5,
        "loss": 2.0,
        "nll": 1.0,
    }
    assert float(per_token(after.window.losses)["guess"]) == 3.0


@dataclasses.dataclass(frozen=True)
class Second(Guessed, name="second"):
    """Another player for the same parameters, by another name."""

    term: str = "other"

    def edit(self, plan, config):
        return plan

    def objectives(self):
        return ()

    def players(self):
        (player,) = super().players()
        own = dataclasses.replace(player.objectives[0], name=self.term)
        return (dataclasses.replace(player, name="second", objectives=(own,)),)


def test_what_players_may_not_do_is_refused(cache):
    devices = make_mesh(Mesh(), jax.devices()[:1])
    with pytest.raises(UserError, match="Train.methods=.'guessed',. changes the model"):
        Train(methods=(Guessed(),))
    both = configure(cache, Guessed(), methods=(Guessed(), Second()))
    learner = Learner.from_config(both, VOCAB, devices)
    init = make_init(learner, {n: array[0] for n, array in make_batch(learner).items()}, 3)
    with pytest.raises(UserError, match="two players own 'critic/w"):
        jax.eval_shape(init)
    taken = configure(cache, methods=(Guessed(), Second(term="nll")))
    with pytest.raises(UserError, match="objective 'nll': the name is taken"):
        Learner.from_config(taken, VOCAB, devices)
    deep = configure(cache, stage_layers=(1,))
    with pytest.raises(UserError, match="'hidden' reads 'source' after layer 2, which layout"):
        Learner.from_config(deep, VOCAB, devices)


def test_each_update_has_its_own_dropout(cache):
    learner, state, batch, *_ = updated(cache, None)
    step = jax.jit(functools.partial(train_step, learner))
    losses = [
        float(per_token(step(state.replace(step=state.step + n), batch)[0].window.losses)["loss"])
        for n in (0, 0, 1)
    ]
    assert losses[0] == losses[1] != losses[2]
