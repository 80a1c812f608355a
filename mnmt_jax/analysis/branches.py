"""Layers of a model that have language-specific branches."""

from __future__ import annotations

import dataclasses

from mnmt_jax.errors import UserError
from mnmt_jax.methods.language_layers import LanguageMLP
from mnmt_jax.model.network import Network

NO_BRANCHES_MESSAGE = (
    "the run's model has no language-specific layers, which this analysis needs; choose a run that "
    "was trained with Model.methods = ('language_layers',)"
)


@dataclasses.dataclass(frozen=True)
class BranchLayer:
    """A layer with a branch per language.

    Attributes:
        number: number of the layer, counted from 1 through all stages.
        name: name of the sublayer with the branches.
        kind: kind of the sublayer.
    """

    number: int
    name: str
    kind: LanguageMLP

    @property
    def path(self) -> tuple[str, str]:
        """Path of the sublayer in the parameter tree."""
        return f"layer_{self.number - 1}", self.name


def branch_layers(model: Network) -> tuple[BranchLayer, ...]:
    """Return the layers with branches, in layer order.

    Raises:
        UserError: if there are none.
    """
    layers = tuple(
        BranchLayer(number, sublayer.name, sublayer.kind)
        for number, (_, layer) in enumerate(model.plan.layers(), start=1)
        for sublayer in layer
        if isinstance(sublayer.kind, LanguageMLP)
    )
    if not layers:
        raise UserError(NO_BRANCHES_MESSAGE)
    return layers
