"""What training may minimise beside the cross entropy, and what it may read of the network."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from mnmt_jax.design.layouts import SOURCE
from mnmt_jax.design.views import View

if TYPE_CHECKING:
    from jax import Array


Batch = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class States:
    """Names the states of a role after a layer.

    Attributes:
        layer: counted from 1 through all stages; the role must pass it. 0 is before all: its
            vectors with positions; of objectives none may read it.
        role: whose states.
        view: of which sentences; None is the batch itself.
        ended: after what the role passes at the end of its stage besides, whose last layer this
            must be: with norms first, the norm there.
    """

    layer: int
    role: str = SOURCE
    view: View | None = None
    ended: bool = False


@dataclasses.dataclass(frozen=True)
class Intermediate:
    """Names what a sublayer hands out besides its change, by `mnmt_jax.model.intermediates.record`.

    Attributes:
        path: of the module and the name it gave, e.g. `layer_3/disentangle/gate`.
        role: of whose states it was made.
    """

    path: str
    role: str = SOURCE


@dataclasses.dataclass(frozen=True)
class Player:
    """Parameters that move by objectives of their own, before the rest and by their own optimizer.

    Attributes:
        name: of the player.
        owns: patterns (`mnmt_jax.model.param_patterns`) of its parameters, which nobody else moves.
        objectives: what it minimises.
        optimizer: fields of `Optimizer` in which its own differs from the run's.
        steps: its updates within one update of the run, all on the same batch.
    """

    name: str
    owns: tuple[str, ...]
    objectives: tuple[Objective, ...]
    optimizer: tuple[tuple[str, Any], ...] = ()
    steps: int = 1


@runtime_checkable
class Forward(Protocol):
    """The network's passes over a micro-batch, as an objective meets them."""

    batch: Batch

    def view(self, view: View) -> Batch:
        """Returns the arrays of a view under the names of the batch's own."""

    def read(self, what: States | Intermediate) -> Array:
        """Returns states, or what a sublayer handed out; one of the objective's `reads`."""

    def auxiliary(self, name: str, states: Array, role: str = SOURCE) -> Array:
        """Returns what a sublayer beside the plan (`Plan.aside`) makes of states of a role."""


@dataclasses.dataclass(frozen=True)
class Objective:
    """A term of what training minimises.

    Attributes:
        name: under which `metrics.jsonl` reports it, in nats per target token.
        reads: what `value` reads. All that is read of the batch itself comes from one pass; each
            view has a pass of its own, with dropout of its own, and no layer more than it needs.
            The batches of the run have the views that are read.
        value: returns the term of a micro-batch in nats, a float32 scalar that is added to the loss
            summed over target tokens.
        schedule: returns the factor of the term, given the number of updates done (int32 scalar);
            None is a factor of 1. Metrics report the product.
        warning: returns a line for the person watching, given the number of updates done and the
            metric, or "" if there is nothing to say; it is printed once per start of a run.
    """

    name: str
    reads: tuple[States | Intermediate, ...]
    value: Callable[[Forward], Array]
    schedule: Callable[[Array], Array] | None = None
    warning: Callable[[int, float], str] | None = None

    def term(self, forward: Forward, step: Array | None) -> Array:
        """Compute the scheduled term of a micro-batch.

        Args:
            forward: the network's passes.
            step: number of updates done, int32; None is after the end of every schedule.
        """
        value = self.value(forward)
        return value if self.schedule is None or step is None else self.schedule(step) * value
