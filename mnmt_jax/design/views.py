"""Views of a batch: sentences of the pairs, laid out as sources once more for an objective."""

from __future__ import annotations

import dataclasses

from mnmt_jax.design.layouts import REGISTER, SOURCE, TARGET, TRIGGER


@dataclasses.dataclass(frozen=True)
class View:
    """One sentence of each pair as a source of its own language, for which the batch has arrays.

    Attributes:
        name: begins the names of the arrays: `{name}_source_tokens` and so on.
        side: whose sentence and language it is, `source` or `target`.
    """

    name: str
    side: str = TARGET

    def __post_init__(self) -> None:
        """Checks that there is such a side, and that no array of a batch has the name already."""
        if self.side not in (SOURCE, TARGET):
            raise ValueError(f"View.side='{self.side}' must be '{SOURCE}' or '{TARGET}'")
        if self.name in (SOURCE, REGISTER, TRIGGER, TARGET):
            raise ValueError(f"View.name='{self.name}' is a role; choose another name")

    @property
    def prefix(self) -> str:
        """Begins the names of its arrays."""
        return f"{self.name}_"
