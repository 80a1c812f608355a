"""A toy method with two players: a model, and a critic that predicts its states."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from mnmt_jax.design.fields import Weight
from mnmt_jax.design.layouts import SOURCE
from mnmt_jax.design.method import Method
from mnmt_jax.design.objective import Objective, Player, States
from mnmt_jax.design.plan import Sublayer
from mnmt_jax.model.sublayers import FeedForward

FIRST, LAST = States(1), States(2)


def guess(forward, held):
    """Return the summed distance of the last layer's states from the critic's prediction."""
    given, wanted = held(forward.read(FIRST)), held(forward.read(LAST))
    distances = ((forward.auxiliary("critic", given) - wanted) ** 2).mean(axis=-1)
    return jnp.where(forward.batch[f"{SOURCE}_segment_ids"] != 0, distances, 0.0).sum()


@dataclasses.dataclass(frozen=True)
class Guessed(Method, name="guessed"):
    """The critic learns to predict the states, the model to be hard to predict.

    Attributes:
        weight: of the model's term; 0 leaves it as without the critic.
        rate: the critic's learning rate.
    """

    weight: Weight = 0.1
    rate: Weight = 0.05

    def edit(self, plan, config):
        critic = Sublayer("critic", FeedForward(config, 8, "critic"))
        return dataclasses.replace(plan, auxiliary=(critic,))

    def players(self):
        own = Objective(
            "guess", (FIRST, LAST), lambda forward: guess(forward, jax.lax.stop_gradient)
        )
        changes = ("learning_rate", self.rate), ("schedule", "constant"), ("warmup_steps", 0)
        return (Player("critic", ("critic",), (own,), changes),)

    def objectives(self):
        reads = (FIRST, LAST)
        return (
            Objective("hidden", reads, lambda f: -self.weight * guess(f, lambda states: states)),
        )
