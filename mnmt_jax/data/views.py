"""Views of a batch: sentences of the pairs, laid out as sources once more for an objective."""

from __future__ import annotations

import dataclasses

from mnmt_jax.layouts import TARGET


@dataclasses.dataclass(frozen=True)
class View:
    """One sentence of each pair as a source of its own language, for which the batch has arrays.

    Attributes:
        name: begins the names of the arrays: `{name}_source_tokens` and so on.
        side: whose sentence and language it is, `source` or `target`.
    """

    name: str
    side: str = TARGET

    @property
    def prefix(self) -> str:
        """Begins the names of its arrays."""
        return f"{self.name}_"
