"""Training objectives in addition to the cross entropy, and their interface to the network."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from mnmt_jax.design.generated_batch import Batch, GenerationModel
from mnmt_jax.design.layouts import SOURCE
from mnmt_jax.design.views import View

if TYPE_CHECKING:
    from jax import Array


@dataclasses.dataclass(frozen=True)
class States:
    """The states of a role after a layer.

    Attributes:
        layer: number of the layer, counted from 1 across stages; the role must be present in it. 0
            is the embedded input with positions, which objectives may not read.
        role: role of the states.
        view: view of the sentences; None is the batch itself.
        ended: whether to include the sublayers after the stage's last layer, which `layer` must
            then be; with pre-norm this is the final norm.
    """

    layer: int
    role: str = SOURCE
    view: View | None = None
    ended: bool = False


@dataclasses.dataclass(frozen=True)
class Intermediate:
    """A value that a sublayer records with `mnmt_jax.model.intermediates.record`.

    Attributes:
        path: path of the module and name of the value, e.g. `layer_3/disentangle/gate`.
        role: role of the states it was computed from.
    """

    path: str
    role: str = SOURCE


@dataclasses.dataclass(frozen=True)
class LogProbs:
    """Log-probabilities of the labels under teacher forcing, float32 [rows, length].

    They are 0 at padding and at labels below 0, which mark tokens that are not predicted.

    Attributes:
        name: name of the request; requests with equal names and functions share one pass.
        change: returns arrays that replace those of the batch; they are read in a separate pass
            with separate dropout. None reads the pass over the batch itself.
    """

    name: str = ""
    change: Callable[[GenerationModel], Batch] | None = None


Request = States | Intermediate | LogProbs


@dataclasses.dataclass(frozen=True)
class Player:
    """Parameters that have their own objectives and optimizer and are updated before the model.

    Attributes:
        name: name of the player.
        param_patterns: patterns (`mnmt_jax.model.param_patterns`) of its parameters;
            nothing else updates them.
        objectives: objectives that it minimises.
        optimizer: (field, value) pairs of `Optimizer` that differ from the run's.
        steps: its updates within one update of the run, all on the same batch.
    """

    name: str
    param_patterns: tuple[str, ...]
    objectives: tuple[Objective, ...]
    optimizer: tuple[tuple[str, Any], ...] = ()
    steps: int = 1


@runtime_checkable
class Forward(Protocol):
    """Forward passes over a micro-batch, as seen by an objective."""

    batch: Batch

    def view(self, view: View) -> Batch:
        """Return the arrays of a view under the names used in the batch."""

    def changed(self, request: LogProbs) -> Batch:
        """Return the arrays of the batch that a request reads."""

    def read(self, requested: Request) -> Array:
        """Return states, a recorded intermediate or log-probabilities, an item of `inputs`."""

    def map_logits(self, function: Callable[[Array], Array]) -> Array:
        """Return a function of the logits of the batch, a block of positions at a time.

        Args:
            function: takes float32 logits [rows, width, vocab] and returns [any rows, width].
        """

    def auxiliary(self, name: str, states: Array, role: str = SOURCE) -> Array:
        """Return the output of an auxiliary sublayer (`Plan.auxiliary`) for states of a role."""


@dataclasses.dataclass(frozen=True)
class Objective:
    """A term of the training loss.

    Attributes:
        name: name in `metrics.jsonl`, where it is reported in nats per target token: of the
            micro-batches that the player trains on, for the model including generated batches.
        inputs: everything that `value` reads. All inputs from the batch itself share one pass; each
            view has a separate pass with separate dropout, which runs only the layers it needs. The
            run's batches contain the views of all inputs.
        value: returns the term of a micro-batch in nats, a float32 scalar that is added to the loss
            summed over target tokens.
        schedule: returns the factor of the term from the number of completed updates (int32
            scalar); None is a factor of 1. Metrics report the product.
        warning: returns a message for the user from the number of completed updates and the metric,
            or "" for none; it is printed once per start of a run.
    """

    name: str
    inputs: tuple[Request, ...]
    value: Callable[[Forward], Array]
    schedule: Callable[[Array], Array] | None = None
    warning: Callable[[int, float], str] | None = None

    def term(self, forward: Forward, step: Array | None) -> Array:
        """Compute the scheduled term of a micro-batch.

        Args:
            forward: the network's passes.
            step: number of completed updates, int32; None is after the end of every schedule.
        """
        value = self.value(forward)
        return value if self.schedule is None or step is None else self.schedule(step) * value
