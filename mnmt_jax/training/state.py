"""What a training run is at one moment: all that must be saved to continue it bit for bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from mnmt_jax.design.layouts import SOURCE, TARGET
from mnmt_jax.design.objective import Batch
from mnmt_jax.distributed.sharding import tree_sharding, wait_on_cpu
from mnmt_jax.training.learner import Learner
from mnmt_jax.training.losses import LossSums, Sums

NEVER = -1


@flax.struct.dataclass
class Window:
    """Sums over the updates since the last logged one.

    They are part of the state so that a line of the metrics file does not depend on where the run
    was interrupted.

    Attributes:
        updates: how many.
        losses: sums over their tokens.
        examples: sentence pairs.
        present: per role, positions that hold a token.
        first_bad: number of the first update whose loss or gradient was not finite, or `NEVER`.
    """

    updates: Int[Array, ""]
    losses: dict[str, Float[Array, ""]]
    examples: Float[Array, ""]
    present: dict[str, Float[Array, ""]]
    first_bad: Int[Array, ""]

    @classmethod
    def empty(cls, roles: tuple[str, ...], sums: Sequence[str] = LossSums._fields) -> Window:
        """Returns a window without updates.

        Args:
            roles: whose positions are counted.
            sums: names of those that an update reports.
        """
        zero = lambda: jnp.zeros((), jnp.float32)  # noqa: E731  buffers must not be shared: donated
        return cls(
            jnp.zeros((), jnp.int32),
            {name: zero() for name in sums},
            zero(),
            {role: zero() for role in roles},
            jnp.full((), NEVER, jnp.int32),
        )

    def widened(self, sums: Sums, batch: Batch, *, norm: Array, step: Array) -> Window:
        """Return the window with one more update.

        Args:
            sums: of the update, by the names that the window has.
            batch: arrays [micro-batches, rows, length].
            norm: of its gradient, whatever is finite exactly when the gradient is.
            step: its number, from 1.
        """
        finite = jnp.isfinite(sums["smoothed"]) & jnp.isfinite(norm)
        first_bad = jnp.where((self.first_bad == NEVER) & ~finite, step, self.first_bad)
        present = {
            role: count + (batch[f"{role}_segment_ids"] != 0).sum(dtype=jnp.float32)
            for role, count in self.present.items()
        }
        role = TARGET if TARGET in present else SOURCE
        starts = (batch[f"{role}_segment_ids"] != 0) & (batch[f"{role}_positions"] == 0)
        return Window(
            updates=self.updates + 1,
            losses={name: self.losses[name] + total for name, total in sums.items()},
            examples=self.examples + starts.sum(dtype=jnp.float32),
            present=present,
            first_bad=first_bad,
        )


@flax.struct.dataclass
class TrainState:
    """The state that `train_step` takes and returns.

    Attributes:
        step: updates done.
        params: float32 master weights, frozen ones too.
        opt_state: the optimizer's, of the parameters that train; of several players' by name.
        window: sums for the metrics.
    """

    step: Int[Array, ""]
    params: Any
    opt_state: Any
    window: Window


@dataclasses.dataclass(frozen=True, eq=False)
class Init:
    """The pure function that makes the state before the first update.

    Attributes:
        learner: the run's.
        shapes: of the arrays of one micro-batch.
        seed: of the parameters.
    """

    learner: Learner
    shapes: Mapping[str, jax.ShapeDtypeStruct]
    seed: int

    def __call__(self) -> TrainState:
        """Return the state."""
        zeros = {name: jnp.zeros(s.shape, s.dtype) for name, s in self.shapes.items()}
        params = self.learner.model.init(jax.random.key(self.seed), zeros)["params"]
        opt_state = self.learner.init_optimizers(params)
        window = Window.empty(roles_of(self.shapes), self.learner.sums)
        return TrainState(jnp.zeros((), jnp.int32), params, opt_state, window)


def make_init(learner: Learner, batch: Mapping[str, Any], seed: int) -> Init:
    """Returns the pure function that makes the state before the first update.

    Args:
        learner: the run's.
        batch: arrays or shapes of one micro-batch.
        seed: of the parameters.
    """
    shapes = {name: jax.ShapeDtypeStruct(a.shape, a.dtype) for name, a in batch.items()}
    return Init(learner, shapes, seed)


def abstract_state(init: Init, mesh: jax.sharding.Mesh) -> TrainState:
    """Returns shapes, types and shardings of a state, without computing it."""
    shapes = jax.eval_shape(init)
    return jax.tree.map(
        lambda a, sharding: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding),
        shapes,
        tree_sharding(mesh, shapes, init.learner.model.plan.param_axes()),
    )


def shardings_of(state: TrainState) -> TrainState:
    """Returns the sharding of every array of a state or of its abstract form."""
    return jax.tree.map(lambda a: a.sharding, state)


def create_state(init: Init, mesh: jax.sharding.Mesh) -> TrainState:
    """Computes the first state directly in its shards; the values do not depend on the mesh."""
    return wait_on_cpu(jax.jit(init, out_shardings=shardings_of(abstract_state(init, mesh)))())


def roles_of(batch: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the roles that a batch has spans of, sorted."""
    suffix = "_segment_ids"
    return tuple(sorted(name.removesuffix(suffix) for name in batch if name.endswith(suffix)))
