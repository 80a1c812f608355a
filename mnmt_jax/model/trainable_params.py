"""Which parameters train: patterns divide a parameter tree into what trains and what is frozen.

Of a parameter that trains, rows along its first axis may be frozen too: they have no gradient
either, hold moments that stay 0, and are put back after each update, bit for bit.

Gradients are taken of the part that trains, and the optimizer is given nothing else: what is frozen
has no gradient, no moments, no share in the gradient's norm, and no weight decay.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from mnmt_jax.config.sections import Model, Optimizer
from mnmt_jax.design.method import Rows
from mnmt_jax.errors import UserError
from mnmt_jax.model.lora import is_lora
from mnmt_jax.model.param_patterns import check_patterns, matches


@dataclasses.dataclass(frozen=True)
class Trainable:
    """The rule of a run.

    Attributes:
        frozen: patterns of parameters that do not train (`mnmt_jax.model.param_patterns`), the user's and
            those of methods. LoRA's own are never frozen; where there is LoRA and no pattern,
            everything else is.
        lora: patterns of projections that carry LoRA; empty for a model without.
        others: patterns of parameters that other players move (`mnmt_jax.design.objective.Player`).
        rows: of parameters that train, rows that do not.
    """

    frozen: tuple[str, ...] = ()
    lora: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    rows: tuple[Rows, ...] = ()

    @classmethod
    def from_config(cls, model: Model, optimizer: Optimizer) -> Trainable:
        """Returns the rule that a configuration describes."""
        players = [player for method in model.methods for player in method.players()]
        others = tuple(pattern for player in players for pattern in player.owns)
        rows = tuple(rows for method in model.methods for rows in method.frozen_rows())
        lora, frozen = model.lora if model.lora_rank else (), optimizer.frozen
        if frozen or not lora:  # LoRA without patterns freezes all else
            frozen += tuple(p for method in model.methods for p in method.frozen_patterns(model))
        return cls(frozen, lora, others, rows)

    def trains(self, name: str) -> bool:
        """Returns whether a parameter trains.

        Args:
            name: its path, e.g. `layer_0/attention/query/kernel`.
        """
        if any(matches(pattern, name) for pattern in self.others):
            return False
        if is_lora(name):
            return True
        if self.lora and not self.frozen:
            return False
        return not any(matches(pattern, name) for pattern in self.frozen)

    def split(self, params: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Divides a parameter tree.

        Args:
            params: of the whole model, arrays or shapes.

        Returns:
            What trains and what is frozen: trees without empty branches; `join` is the inverse.

        Raises:
            UserError: if a pattern fits no parameter, or nothing is left to train.
        """
        flat = traverse_util.flatten_dict(params, sep="/")
        self._check(list(flat))
        trained = {name: leaf for name, leaf in flat.items() if self.trains(name)}
        fixed = {name: leaf for name, leaf in flat.items() if name not in trained}
        if not trained:
            raise UserError(f"Optimizer.frozen={self.frozen!r} leaves nothing to train")
        return tuple(traverse_util.unflatten_dict(part, sep="/") for part in (trained, fixed))

    def names(self, params: Any) -> list[str]:
        """Returns the paths of what trains; as `count`."""
        return [name for name in traverse_util.flatten_dict(params, sep="/") if self.trains(name)]

    def count(self, params: Any) -> int:
        """Counts the values that train.

        Args:
            params: of the whole model, arrays or shapes.
        """
        trained = traverse_util.flatten_dict(self.split(params)[0], sep="/")
        return sum(
            int(np.prod(leaf.shape[1:])) * (leaf.shape[0] - len(self.frozen_rows(name)))
            if leaf.ndim
            else 1
            for name, leaf in trained.items()
        )

    def frozen_rows(self, name: str) -> tuple[int, ...]:
        """Returns the rows of a parameter that do not train."""
        found = {i for pattern, rows in self.rows if matches(pattern, name) for i in rows}
        return tuple(sorted(found))

    def without_rows(self, gradients: Any) -> Any:
        """Returns the gradients of what trains, 0 in the frozen rows."""
        return self._exchanged(gradients, lambda _, leaf: jnp.zeros_like(leaf))

    def with_rows(self, updated: Any, before: Any) -> Any:
        """Returns what trains after an update, the frozen rows as before it, bit for bit.

        Args:
            updated: as the optimizer left it.
            before: the update.
        """
        if not self.rows:
            return updated
        flat = traverse_util.flatten_dict(before, sep="/")
        return self._exchanged(updated, lambda name, _: flat[name])

    def _exchanged(self, tree: Any, other: Callable[[str, Any], Any]) -> Any:
        """Returns a tree with other values in the frozen rows."""
        if not self.rows:
            return tree
        flat = traverse_util.flatten_dict(tree, sep="/")
        for name, leaf in flat.items():
            if rows := self.frozen_rows(name):
                chosen = np.isin(np.arange(leaf.shape[0]), rows)
                chosen = chosen.reshape(-1, *[1] * (leaf.ndim - 1))
                flat[name] = jnp.where(chosen, other(name, leaf), leaf)
        return traverse_util.unflatten_dict(flat, sep="/")

    def _check(self, names: list[str]) -> None:
        base = [name for name in names if not is_lora(name)]
        check_patterns("Optimizer.frozen", self.frozen, base)
        projections = [name.removesuffix("/kernel") for name in base if name.endswith("/kernel")]
        check_patterns("Model.lora", self.lora, projections)


@dataclasses.dataclass(frozen=True)
class Owned(Trainable):
    """The rule of a player: what its patterns fit trains, and nothing else.

    Attributes:
        owns: patterns of its parameters.
    """

    owns: tuple[str, ...] = ()

    def trains(self, name: str) -> bool:
        """Returns whether a parameter is the player's."""
        return any(matches(pattern, name) for pattern in self.owns)

    def _check(self, names: list[str]) -> None:
        check_patterns("Player.owns", self.owns, names)


EVERYTHING = Trainable()


def join(trained: Any, fixed: Any) -> dict[str, Any]:
    """Puts together what `Trainable.split` divided."""
    flat = [traverse_util.flatten_dict(part, sep="/") for part in (trained, fixed)]
    return traverse_util.unflatten_dict(flat[0] | flat[1], sep="/")
