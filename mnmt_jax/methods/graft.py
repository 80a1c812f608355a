"""A new run whose parameters come from several runs, as gin says; the model stays as it is.

A pair of runs may give an encoder and a decoder, or one norm may be copied to three places. What
no run gives is freshly drawn.

Source: Sun, Wang, Li 2021 ("Multilingual Translation via Grafting Pre-trained Language Models"),
section 3.3; where each parameter goes is in their code alone.
"""

from __future__ import annotations

import dataclasses

from mnmt_jax.config.sections import Model
from mnmt_jax.design.method import Method
from mnmt_jax.design.param_mapping import ParamMapping
from mnmt_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Graft(Method, name="graft"):
    """What a new run takes from others, and where it puts it.

    Attributes:
        parts: the name of an origin, what is taken of it and where it is put, such as
            `('lm', 'layer_{0-5}', 'layer_{12-17}')`, for each of its parts
            (`mnmt_jax.design.param_mapping.ParamMapping`).
    """

    parts: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        """Check every part.

        Raises:
            UserError: if one is not a move.
        """
        super().__post_init__()
        for part in self.parts:
            if len(part) != 3:
                raise UserError(
                    f"Graft.parts={part!r} must be an origin, what is taken and where it is put, "
                    "such as ('lm', 'layer_{0-5}', 'layer_{12-17}')"
                )
            try:
                ParamMapping(*part)
            except UserError as error:
                raise UserError(f"Graft.parts={error}") from error

    def param_mappings(self, config: Model) -> tuple[ParamMapping, ...]:
        """Return the parts.

        Raises:
            UserError: if there are none.
        """
        del config
        if not self.parts:
            raise UserError(
                "Graft.parts=() takes nothing; name parts, such as (('lm', 'layer_{0-5}', "
                "'layer_{12-17}'),), or leave 'graft' out of the methods"
            )
        return tuple(ParamMapping(*part) for part in self.parts)

    def for_resume(self) -> None:
        """Return that it does nothing later."""
