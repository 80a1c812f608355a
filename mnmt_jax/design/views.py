"""Views of a batch: sentences of the pairs laid out again as sources, for an objective."""

from __future__ import annotations

import dataclasses

from mnmt_jax.design.layouts import REGISTER, SOURCE, TARGET, TRIGGER


@dataclasses.dataclass(frozen=True)
class View:
    """One sentence of each pair as a source, with arrays in the batch.

    Attributes:
        name: prefix of the names of the arrays: `{name}_source_tokens` and so on.
        side: side of the pair that provides sentence and language, `source` or `target`.
        keep_tag: whether to keep the tag that it has in the pair, if any, rather than the tag
            for translation into its own language. The pair's source is then the batch's source, in
            a separate pass.
    """

    name: str
    side: str = TARGET
    keep_tag: bool = False

    def __post_init__(self) -> None:
        """Check that the side exists and that the name is not a role."""
        if self.side not in (SOURCE, TARGET):
            raise ValueError(f"View.side='{self.side}' must be '{SOURCE}' or '{TARGET}'")
        if self.name in (SOURCE, REGISTER, TRIGGER, TARGET):
            raise ValueError(f"View.name='{self.name}' is a role; choose another name")

    @property
    def is_batch(self) -> bool:
        """Whether its arrays are those of the batch."""
        return self.side == SOURCE and self.keep_tag

    @property
    def prefix(self) -> str:
        """Prefix of the names of its arrays; empty if they are the batch's."""
        return "" if self.is_batch else f"{self.name}_"
