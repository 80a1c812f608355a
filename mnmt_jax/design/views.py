"""Views of a batch: sentences of the pairs, laid out as sources once more for an objective."""

from __future__ import annotations

import dataclasses

from mnmt_jax.design.layouts import REGISTER, SOURCE, TARGET, TRIGGER


@dataclasses.dataclass(frozen=True)
class View:
    """One sentence of each pair as a source, for which the batch has arrays.

    Attributes:
        name: begins the names of the arrays: `{name}_source_tokens` and so on.
        side: whose sentence and language it is, `source` or `target`.
        as_it_stands: with the tag that it has in the pair, if any, and not as a source of its own
            language. The pair's source is then the batch's, read in a pass of its own.
    """

    name: str
    side: str = TARGET
    as_it_stands: bool = False

    def __post_init__(self) -> None:
        """Checks that there is such a side, and that no array of a batch has the name already."""
        if self.side not in (SOURCE, TARGET):
            raise ValueError(f"View.side='{self.side}' must be '{SOURCE}' or '{TARGET}'")
        if self.name in (SOURCE, REGISTER, TRIGGER, TARGET):
            raise ValueError(f"View.name='{self.name}' is a role; choose another name")

    @property
    def is_batch(self) -> bool:
        """Whether its arrays are those of the batch."""
        return self.side == SOURCE and self.as_it_stands

    @property
    def prefix(self) -> str:
        """Begins the names of its arrays; empty if they are the batch's."""
        return "" if self.is_batch else f"{self.name}_"
