"""Forward passes over a micro-batch and its views, for objectives and analyses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jaxtyping import Array, Float

from mnmt_jax.design.generated_batch import Batch
from mnmt_jax.design.layouts import LANGUAGES, SOURCE
from mnmt_jax.design.objective import Intermediate, LogProbs, Request, States
from mnmt_jax.design.views import View
from mnmt_jax.errors import UserError
from mnmt_jax.model.intermediates import INTERMEDIATES, recorded
from mnmt_jax.model.label_log_probs import label_log_probs, map_logits
from mnmt_jax.model.network import Network
from mnmt_jax.model.rng_offsets import RngOffset

ChangedBatches = Mapping[LogProbs, Batch]
_NO_CHANGE: ChangedBatches = {}


class ForwardPasses:
    """One pass over the batch, and one over each requested view, up to the last requested layer.

    Each pass has its own dropout, and gradients flow through all of them. Unused results are free:
    the compiler removes them.

    Attributes:
        batch: the arrays of the micro-batch.
        features: input of each head's table, [batch, target, embed].
    """

    batch: Batch
    features: tuple[Float[Array, "batch target embed"], ...]

    def __init__(
        self,
        model: Network,
        params: Any,
        batch: Batch,
        rng: Array | None = None,
        requests: Sequence[Request] = (),
        *,
        changed: ChangedBatches = _NO_CHANGE,
        chunk: int = 512,
    ) -> None:
        """Run the network.

        Args:
            model: the network.
            params: its parameters.
            batch: arrays [rows, length] of the pairs and of the views.
            rng: of dropout; None disables it.
            requests: everything that `read` will be called with.
            changed: the arrays that each `LogProbs.change` returned.
            chunk: tokens whose logits are in memory at a time, for log-probabilities.
        """
        self.batch, self._chunk, self._requests = batch, chunk, frozenset(requests)
        self._model, self._params, self._rng = model, params, rng
        self._states: dict[States, Array] = {}
        self._intermediates: Any = {}
        states = [r for r in dict.fromkeys(requests) if isinstance(r, States)]
        of_batch = tuple(s for s in states if not s.view)
        has_intermediates = any(isinstance(r, Intermediate) for r in requests)
        self.features, values = self._apply(
            "features_and_states", batch, of_batch, rng, has_intermediates
        )
        self._states |= zip(of_batch, values, strict=True)
        for number, view in enumerate(dict.fromkeys(s.view for s in states if s.view), start=1):
            of_view = tuple(s for s in states if s.view == view)
            view_rng = None if rng is None else jax.random.fold_in(rng, number)
            values = self._apply("states", self.view(view), of_view, view_rng)
            self._states |= zip(of_view, values, strict=True)
        self._changed = changed
        log_probs = [r for r in dict.fromkeys(requests) if isinstance(r, LogProbs)]
        self._log_probs = {r: self._label_log_probs(r, n) for n, r in enumerate(log_probs)}

    def view(self, view: View) -> Batch:
        """Return the arrays of a view under the batch's usual names.

        Args:
            view: which; the languages are those of its sentences.
        """
        if view.is_batch:
            return self.batch
        view_arrays = {n: array for n, array in self.batch.items() if n.startswith(view.prefix)}
        arrays = {name.removeprefix(view.prefix): array for name, array in view_arrays.items()}
        return arrays | dict.fromkeys(LANGUAGES, self.batch[f"{view.side}_lang"])

    def changed(self, request: LogProbs) -> Batch:
        """Return the arrays of the batch that a request reads, under the batch's usual names."""
        return {**self.batch, **self._changed.get(request, {})}

    def read(self, requested: Request) -> Array:
        """Return requested states, a recorded intermediate or log-probabilities.

        Args:
            requested: an item of `requests`.

        Raises:
            UserError: if it is not in `requests`, or no sublayer recorded it.
        """
        if requested not in self._requests:
            raise UserError(f"an objective reads {requested}: name it in `Objective.inputs` too")
        if isinstance(requested, States):
            return self._states[requested]
        if isinstance(requested, LogProbs):
            return self._log_probs[requested]
        return recorded(self._intermediates, requested)

    def map_logits(self, function: Callable[[Array], Array]) -> Array:
        """Return a function of the logits of the batch; see `Forward.map_logits`."""
        return map_logits(function, self._heads(self.features), chunk=self._chunk)

    def _heads(self, features: tuple[Array, ...]) -> list[tuple[Array, Array]]:
        tables = [self._params[head.table] for head in self._model.plan.heads]
        return list(zip(features, tables, strict=True))

    def auxiliary(self, name: str, states: Array, role: str = SOURCE) -> Array:
        """Return the output of a sublayer of `Plan.auxiliary`.

        Args:
            name: of the sublayer.
            states: [batch, length of the role, embed].
            role: of the states.
        """
        rng = None if self._rng is None else jax.random.fold_in(self._rng, RngOffset.AUXILIARY)
        output: Any = self._model.apply(
            {"params": self._params},
            self.batch,
            name,
            states,
            role,
            deterministic=self._rng is None,
            method="apply_auxiliary",
            rngs=None if rng is None else {"dropout": rng},
        )
        return output

    def _label_log_probs(self, request: LogProbs, number: int) -> Array:
        """Return the log-probabilities of a request, in a separate pass if it changes the batch."""
        batch, features = self.changed(request), self.features
        if request in self._changed:
            offset = RngOffset.CHANGED_PASS + number
            rng = None if self._rng is None else jax.random.fold_in(self._rng, offset)
            features, _ = self._apply("features_and_states", batch, (), rng)
        role = self._model.layout.generated
        return label_log_probs(
            self._heads(features),
            batch[f"{role}_labels"],
            (batch[f"{role}_segment_ids"] != 0) & (batch[f"{role}_labels"] >= 0),
            chunk=self._chunk,
        )

    def _apply(
        self,
        method: str,
        batch: Batch,
        requests: Any,
        rng: Array | None,
        with_intermediates: bool = False,
    ) -> Any:
        """Run the model: in train mode with a dropout rng, without dropout otherwise."""
        output = self._model.apply(
            {"params": self._params},
            batch,
            requests,
            deterministic=rng is None,
            method=method,
            rngs=None if rng is None else {"dropout": rng},
            mutable=[INTERMEDIATES] if with_intermediates else False,
        )
        if not with_intermediates:
            return output
        output, collections = output
        self._intermediates = collections[INTERMEDIATES]
        return output
