"""The train state: everything that is saved to continue a run bit for bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from mnmt_jax.design.generated_batch import Batch
from mnmt_jax.design.layouts import SOURCE, TARGET
from mnmt_jax.distributed.sharding import tree_sharding, wait_on_cpu
from mnmt_jax.training.learner import Learner
from mnmt_jax.training.losses import LossSums, Sums

NEVER = -1


@flax.struct.dataclass
class LogWindow:
    """Sums over the updates since the last logged one.

    They belong to the state so that the metrics file does not depend on where the run was
    interrupted.

    Attributes:
        updates: number of updates.
        losses: loss sums over tokens.
        examples: number of sentence pairs.
        present: number of tokens, by role.
        first_bad: number of the first update whose loss or gradient was not finite, or `NEVER`.
    """

    updates: Int[Array, ""]
    losses: dict[str, Float[Array, ""]]
    examples: Float[Array, ""]
    present: dict[str, Float[Array, ""]]
    first_bad: Int[Array, ""]

    @classmethod
    def empty(cls, roles: tuple[str, ...], sums: Sequence[str] = LossSums._fields) -> LogWindow:
        """Return a window without updates.

        Args:
            roles: roles whose tokens are counted.
            sums: names of the sums that an update reports.
        """
        zero = lambda: jnp.zeros((), jnp.float32)  # noqa: E731  buffers must not be shared: donated
        return cls(
            jnp.zeros((), jnp.int32),
            {name: zero() for name in sums},
            zero(),
            {role: zero() for role in roles},
            jnp.full((), NEVER, jnp.int32),
        )

    def widened(self, sums: Sums, batch: Batch, *, norm: Array, step: Array) -> LogWindow:
        """Return the window with one more update.

        Args:
            sums: sums of the update, with the names of the window's losses.
            batch: arrays [micro-batches, rows, length].
            norm: gradient norm, or any number that is finite exactly when the gradient is.
            step: number of the update, from 1.
        """
        finite = jnp.isfinite(sums["smoothed"]) & jnp.isfinite(norm)
        first_bad = jnp.where((self.first_bad == NEVER) & ~finite, step, self.first_bad)
        present = {
            role: count + (batch[f"{role}_segment_ids"] != 0).sum(dtype=jnp.float32)
            for role, count in self.present.items()
        }
        role = TARGET if TARGET in present else SOURCE
        starts = (batch[f"{role}_segment_ids"] != 0) & (batch[f"{role}_positions"] == 0)
        return LogWindow(
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
        step: number of updates done.
        params: float32 master weights, including frozen ones.
        opt_state: optimizer state of the trainable parameters; with several players, by name.
        window: sums for the metrics.
        average: exponential moving average of the parameters; empty without `Optimizer.ema_decay`.
    """

    step: Int[Array, ""]
    params: Any
    opt_state: Any
    window: LogWindow
    average: Any = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, eq=False)
class Init:
    """A pure function that creates the state before the first update.

    Attributes:
        learner: learner of the run.
        shapes: shapes of the arrays of one micro-batch.
        seed: seed of the parameters.
    """

    learner: Learner
    shapes: Mapping[str, jax.ShapeDtypeStruct]
    seed: int

    def __call__(self) -> TrainState:
        """Return the initial state."""
        zeros = {name: jnp.zeros(s.shape, s.dtype) for name, s in self.shapes.items()}
        return self.start_from(self.learner.model.init(jax.random.key(self.seed), zeros)["params"])

    def start_from(self, params: Any) -> TrainState:
        """Return the initial state of a run with initial parameters from elsewhere."""
        opt_state = self.learner.init_optimizers(params)
        window = LogWindow.empty(roles_of(self.shapes), self.learner.sums)
        average = jax.tree.map(jnp.copy, params) if self.learner.ema_decay else {}
        return TrainState(jnp.zeros((), jnp.int32), params, opt_state, window, average)


def make_init(learner: Learner, batch: Mapping[str, Any], seed: int) -> Init:
    """Return the pure function that creates the state before the first update.

    Args:
        learner: learner of the run.
        batch: arrays or shapes of one micro-batch.
        seed: seed of the parameters.
    """
    shapes = {name: jax.ShapeDtypeStruct(a.shape, a.dtype) for name, a in batch.items()}
    return Init(learner, shapes, seed)


def abstract_state(init: Init, mesh: jax.sharding.Mesh) -> TrainState:
    """Return shapes, types and shardings of a state, without computing it."""
    shapes = jax.eval_shape(init)
    return jax.tree.map(
        lambda a, sharding: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding),
        shapes,
        tree_sharding(mesh, shapes, init.learner.model.plan.param_axes()),
    )


def shardings_of(state: TrainState) -> TrainState:
    """Return the sharding of every array of a state or of its abstract form."""
    return jax.tree.map(lambda a: a.sharding, state)


def create_state(init: Init, mesh: jax.sharding.Mesh, params: Any = None) -> TrainState:
    """Compute the initial state directly in its shards; values do not depend on the mesh.

    Args:
        init: creates the state.
        mesh: mesh of all devices.
        params: initial parameters, sharded; None draws them.
    """
    shardings = shardings_of(abstract_state(init, mesh))
    if params is None:
        return wait_on_cpu(jax.jit(init, out_shardings=shardings)())
    return wait_on_cpu(jax.jit(init.start_from, out_shardings=shardings)(params))


def roles_of(batch: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the roles of a batch's arrays, sorted."""
    suffix = "_segment_ids"
    return tuple(sorted(name.removesuffix(suffix) for name in batch if name.endswith(suffix)))
