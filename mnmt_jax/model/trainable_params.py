"""Trainable parameters: patterns split a parameter tree into trained and frozen parameters.

Rows along the first axis of a trained parameter may be frozen too: their gradients are zeroed,
their moments stay 0, and they are restored after each update, bit for bit.

Gradients are computed for the trained parameters only, and the optimizer sees nothing else: frozen
parameters have no gradient, no moments, no share in the gradient's norm, and no weight decay.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from mnmt_jax.config.sections import Model, Optimizer
from mnmt_jax.design.method_hooks import Rows
from mnmt_jax.errors import UserError
from mnmt_jax.model.lora import is_lora
from mnmt_jax.model.param_patterns import check_patterns, matches


@dataclasses.dataclass(frozen=True)
class Trainable:
    """Selection of the parameters that a run trains.

    Attributes:
        frozen: patterns of parameters that do not train (`mnmt_jax.model.param_patterns`), from the
            user and from methods. LoRA parameters are never frozen; if there is LoRA and no
            pattern, everything else is frozen.
        lora: patterns of projections that carry LoRA; empty for a model without LoRA.
        player_patterns: patterns of parameters that other players train
            (`mnmt_jax.design.objective.Player`).
        rows: frozen rows of trained parameters.
    """

    frozen: tuple[str, ...] = ()
    lora: tuple[str, ...] = ()
    player_patterns: tuple[str, ...] = ()
    rows: tuple[Rows, ...] = ()

    @classmethod
    def from_config(cls, model: Model, optimizer: Optimizer) -> Trainable:
        """Return the selection that a configuration describes."""
        players = [player for method in model.methods for player in method.players()]
        player_patterns = tuple(pattern for player in players for pattern in player.param_patterns)
        rows = tuple(rows for method in model.methods for rows in method.frozen_rows())
        lora, frozen = model.lora if model.lora_rank else (), optimizer.frozen
        if frozen or not lora:  # LoRA without patterns freezes all other parameters
            frozen += tuple(p for method in model.methods for p in method.frozen_patterns(model))
        return cls(frozen, lora, player_patterns, rows)

    def trains(self, name: str) -> bool:
        """Return whether a parameter trains.

        Args:
            name: its path, e.g. `layer_0/attention/query/kernel`.
        """
        if any(matches(pattern, name) for pattern in self.player_patterns):
            return False
        if is_lora(name):
            return True
        if self.lora and not self.frozen:
            return False
        return not any(matches(pattern, name) for pattern in self.frozen)

    def split(self, params: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Split a parameter tree.

        Args:
            params: of the whole model, arrays or shapes.

        Returns:
            Trained and frozen parameters: trees without empty branches; `join` is the inverse.

        Raises:
            UserError: if a pattern matches no parameter or only those of other players, or nothing
                is left to train.
        """
        flat = traverse_util.flatten_dict(params, sep="/")
        self._check(list(flat))
        trained = {name: leaf for name, leaf in flat.items() if self.trains(name)}
        frozen = {name: leaf for name, leaf in flat.items() if name not in trained}
        if not trained:
            raise UserError(f"Optimizer.frozen={self.frozen!r} leaves nothing to train")
        return tuple(traverse_util.unflatten_dict(tree, sep="/") for tree in (trained, frozen))

    def names(self, params: Any) -> list[str]:
        """Return the paths of the trained parameters; arguments as for `count`."""
        return [name for name in traverse_util.flatten_dict(params, sep="/") if self.trains(name)]

    def count(self, params: Any) -> int:
        """Count the scalar values that train.

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
        """Return the rows of a parameter that do not train."""
        frozen = {i for pattern, rows in self.rows if matches(pattern, name) for i in rows}
        return tuple(sorted(frozen))

    def zero_frozen_rows(self, gradients: Any) -> Any:
        """Return the gradients of trained parameters, with 0 in the frozen rows."""
        return self._replace_frozen_rows(gradients, lambda _, leaf: jnp.zeros_like(leaf))

    def restore_frozen_rows(self, updated: Any, before: Any) -> Any:
        """Return trained parameters after an update, with the frozen rows restored bit for bit.

        Args:
            updated: after the update by the optimizer.
            before: before the update.
        """
        if not self.rows:
            return updated
        flat = traverse_util.flatten_dict(before, sep="/")
        return self._replace_frozen_rows(updated, lambda name, _: flat[name])

    def _replace_frozen_rows(self, tree: Any, replacement: Callable[[str, Any], Any]) -> Any:
        """Return a tree with other values in the frozen rows."""
        if not self.rows:
            return tree
        flat = traverse_util.flatten_dict(tree, sep="/")
        for name, leaf in flat.items():
            if rows := self.frozen_rows(name):
                is_frozen = np.isin(np.arange(leaf.shape[0]), rows)
                is_frozen = is_frozen.reshape(-1, *[1] * (leaf.ndim - 1))
                flat[name] = jnp.where(is_frozen, replacement(name, leaf), leaf)
        return traverse_util.unflatten_dict(flat, sep="/")

    def _check(self, names: list[str]) -> None:
        base_params = [name for name in names if not is_lora(name)]
        check_patterns("Optimizer.frozen", self.frozen, base_params)
        self._check_freezes(base_params)
        projections = [
            name.removesuffix("/kernel") for name in base_params if name.endswith("/kernel")
        ]
        check_patterns("Model.lora", self.lora, projections)
        carrying = {name.rpartition("/")[0] for name in names if is_lora(name)}
        for pattern in self.lora:
            if not any(matches(pattern, projection) for projection in carrying):
                raise UserError(
                    f"Model.lora={self.lora!r}: '{pattern}' selects only projections without LoRA, "
                    "such as those of language layers"
                )

    def _check_freezes(self, names: list[str]) -> None:
        """Check that each frozen pattern matches a parameter that no other player trains."""
        shared = [
            name
            for name in names
            if not any(matches(pattern, name) for pattern in self.player_patterns)
        ]
        for pattern in self.frozen:
            if not any(matches(pattern, name) for name in shared):
                raise UserError(
                    f"Optimizer.frozen={self.frozen!r}: '{pattern}' selects only parameters with "
                    "an optimizer of their own, such as a critic's, which cannot be frozen; leave "
                    "it out"
                )


@dataclasses.dataclass(frozen=True)
class PlayerParams(Trainable):
    """Selection of a player's parameters: those that its patterns match.

    Attributes:
        patterns: patterns of its parameters.
    """

    patterns: tuple[str, ...] = ()

    def trains(self, name: str) -> bool:
        """Return whether a parameter belongs to the player."""
        return any(matches(pattern, name) for pattern in self.patterns)

    def _check(self, names: list[str]) -> None:
        check_patterns("Player.param_patterns", self.patterns, names)


EVERYTHING = Trainable()


class FreezingSetting(NamedTuple):
    """A setting that freezes parameters.

    Attributes:
        title: as messages name it, e.g. `Optimizer.frozen=('embedding',)`.
        bindings: gin bindings of the other value, e.g. `Optimizer.frozen=()`; none for LoRA, and
            for a method that freezes without a field.
    """

    title: str
    bindings: tuple[str, ...] = ()


def find_freezing_setting(name: str, model: Model, optimizer: Optimizer) -> FreezingSetting | None:
    """Return the setting that freezes a parameter or rows of it; None if all of it trains.

    Args:
        name: its path.
        model: sizes and methods.
        optimizer: settings of training.
    """
    selection = Trainable.from_config(model, optimizer)
    is_players = any(matches(pattern, name) for pattern in selection.player_patterns)
    if is_players or (selection.trains(name) and not selection.frozen_rows(name)):
        return None
    if any(matches(pattern, name) for pattern in optimizer.frozen):
        return FreezingSetting(f"Optimizer.frozen={optimizer.frozen!r}", ("Optimizer.frozen=()",))
    if selection.lora and not selection.frozen:
        return FreezingSetting(f"Model.lora_rank={model.lora_rank}")
    for method in model.methods:
        patterns = *method.frozen_patterns(model), *(pattern for pattern, _ in method.frozen_rows())
        if any(matches(pattern, name) for pattern in patterns):
            return _freezing_fields(method)
    raise AssertionError(f"{name}: frozen by nothing")


def _freezing_fields(method: Any) -> FreezingSetting:
    """Return the fields of a method that are 'freeze' or list what is frozen."""
    fields = {
        f"{type(method).__name__}.{field.name}": value
        for field in dataclasses.fields(method)
        if (value := getattr(method, field.name)) == "freeze" or (field.name == "frozen" and value)
    }
    title = " and ".join(f"{field}={value!r}" for field, value in fields.items())
    bindings = (
        f"{field}={'tune' if value == 'freeze' else ()!r}" for field, value in fields.items()
    )
    return FreezingSetting(title or f"method '{method.name}'", tuple(bindings))


def join(trained: Any, fixed: Any) -> dict[str, Any]:
    """Merge the trees of `Trainable.split`."""
    flat = [traverse_util.flatten_dict(tree, sep="/") for tree in (trained, fixed)]
    return traverse_util.unflatten_dict(flat[0] | flat[1], sep="/")
