"""The layers of a model that have a branch per language."""

from __future__ import annotations

import dataclasses

from mnmt_jax.errors import UserError
from mnmt_jax.methods.language_layers import LanguageMLP
from mnmt_jax.model.network import Network

NO_BRANCHES_MESSAGE = (
    "the run's model has no language-specific layers, which this analysis is of; name a run that "
    "was trained with Model.methods = ('language_layers',)"
)


@dataclasses.dataclass(frozen=True)
class BranchLayer:
    """A layer with branches.

    Attributes:
        number: counted from 1 through all stages.
        name: of the sublayer.
        kind: of the sublayer.
    """

    number: int
    name: str
    kind: LanguageMLP

    @property
    def path(self) -> tuple[str, str]:
        """Where its parameters are."""
        return f"layer_{self.number - 1}", self.name


def branch_layers(model: Network) -> tuple[BranchLayer, ...]:
    """Returns the layers with branches, in their order.

    Raises:
        UserError: if there are none.
    """
    found = tuple(
        BranchLayer(number, each.name, each.kind)
        for number, (_, layer) in enumerate(model.plan.layers(), start=1)
        for each in layer
        if isinstance(each.kind, LanguageMLP)
    )
    if not found:
        raise UserError(NO_BRANCHES_MESSAGE)
    return found
