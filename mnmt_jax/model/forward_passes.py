"""The network's passes over a micro-batch, and what objectives and analyses read of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jaxtyping import Array, Float

from mnmt_jax.design.layouts import LANGUAGES, SOURCE
from mnmt_jax.design.objective import Batch, Intermediate, States
from mnmt_jax.design.views import View
from mnmt_jax.model.intermediates import INTERMEDIATES, recorded
from mnmt_jax.model.network import Network

_ASIDE = 2**30  # folded into the rng of what stands beside the plan; views count from 1


class ForwardPasses:
    """One pass over the batch, and one over each view that is read, as far as it is read.

    Each pass has dropout of its own, and gradients flow through all of them. What nobody reads
    costs nothing: the compiler leaves it out.

    Attributes:
        batch: the arrays of the micro-batch.
        features: what each head multiplies by its table, [batch, target, embed].
    """

    batch: Batch
    features: tuple[Float[Array, "batch target embed"], ...]

    def __init__(
        self,
        model: Network,
        params: Any,
        batch: Batch,
        rng: Array | None = None,
        reads: Sequence[States | Intermediate] = (),
    ) -> None:
        """Runs the network.

        Args:
            model: the network.
            params: its parameters.
            batch: arrays [rows, length], those of views beside those of the pairs.
            rng: of dropout; None is without.
            reads: all that `read` will be asked for.
        """
        self.batch = batch
        self._model, self._params, self._rng = model, params, rng
        self._found: dict[States, Array] = {}
        self._taps: Any = {}
        states = [each for each in dict.fromkeys(reads) if isinstance(each, States)]
        own = tuple(each for each in states if not each.view)
        taps = any(isinstance(each, Intermediate) for each in reads)
        self.features, found = self._apply("features_and_states", batch, own, rng, taps)
        self._found |= zip(own, found, strict=True)
        for number, view in enumerate(dict.fromkeys(s.view for s in states if s.view), start=1):
            of_view = tuple(each for each in states if each.view == view)
            own_rng = None if rng is None else jax.random.fold_in(rng, number)
            found = self._apply("states", self.view(view), of_view, own_rng)
            self._found |= zip(of_view, found, strict=True)

    def view(self, view: View) -> Batch:
        """Returns the arrays of a view under the names of the batch's own.

        Args:
            view: which; the languages are those of its sentences.
        """
        if view.is_batch:
            return self.batch
        own = {n: array for n, array in self.batch.items() if n.startswith(view.prefix)}
        arrays = {name.removeprefix(view.prefix): array for name, array in own.items()}
        return arrays | dict.fromkeys(LANGUAGES, self.batch[f"{view.side}_lang"])

    def read(self, what: States | Intermediate) -> Array:
        """Returns states, or what a sublayer handed out.

        Args:
            what: one of `reads`.

        Raises:
            KeyError: if it is none of them, or no sublayer handed it out.
        """
        return self._found[what] if isinstance(what, States) else recorded(self._taps, what)

    def auxiliary(self, name: str, states: Array, role: str = SOURCE) -> Array:
        """Returns what a sublayer beside the plan makes of states.

        Args:
            name: of the sublayer, in `Plan.aside`.
            states: [batch, length of the role, embed].
            role: where they stand.
        """
        rngs = None if self._rng is None else {"dropout": jax.random.fold_in(self._rng, _ASIDE)}
        found: Any = self._model.apply(
            {"params": self._params},
            *(self.batch, name, states, role, self._rng is None),
            method="change_aside",
            rngs=rngs,
        )
        return found

    def _apply(
        self, method: str, batch: Batch, reads: Any, rng: Array | None, taps: bool = False
    ) -> Any:
        """Runs the model: in train mode with an rng of dropout, without dropout otherwise."""
        found = self._model.apply(
            {"params": self._params},
            batch,
            reads,
            deterministic=rng is None,
            method=method,
            rngs=None if rng is None else {"dropout": rng},
            mutable=[INTERMEDIATES] if taps else False,
        )
        if not taps:
            return found
        found, collections = found
        self._taps = collections[INTERMEDIATES]
        return found
