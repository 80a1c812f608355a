"""Grafting: a new run initialised from several source runs by a configured mapping.

For example, two runs may provide encoder and decoder, or one norm may be copied to three places.
The model is not changed. Parameters without a source are initialised randomly.

Source: Sun, Wang, Li 2021 ("Multilingual Translation via Grafting Pre-trained Language Models"),
section 3.3; the target of each parameter is in their code alone.
"""

from __future__ import annotations

import dataclasses

from mnmt_jax.config.sections import Model
from mnmt_jax.design.method import Method
from mnmt_jax.design.param_mapping import ParamMapping
from mnmt_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Graft(Method, name="graft"):
    """Parameters of a new run that are copied from source runs.

    Attributes:
        parts: (name of a source run, source path, target path) of each mapping, such as `('lm',
            'layer_{0-5}', 'layer_{12-17}')` (`mnmt_jax.design.param_mapping.ParamMapping`).
    """

    parts: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        """Check all mappings.

        Raises:
            UserError: if one is not valid.
        """
        super().__post_init__()
        for mapping in self.parts:
            if len(mapping) != 3:
                raise UserError(
                    f"Graft.parts={mapping!r} must be the name of a source run, a source path "
                    "and a target path, such as ('lm', 'layer_{0-5}', 'layer_{12-17}')"
                )
            try:
                ParamMapping(*mapping)
            except UserError as error:
                raise UserError(f"Graft.parts={error}") from error

    def param_mappings(self, config: Model) -> tuple[ParamMapping, ...]:
        """Return the mappings.

        Raises:
            UserError: if the list is empty.
        """
        del config
        if not self.parts:
            raise UserError(
                "Graft.parts=() names no parameters; set it, e.g. to (('lm', 'layer_{0-5}', "
                "'layer_{12-17}'),), or leave 'graft' out of the methods"
            )
        return tuple(ParamMapping(*mapping) for mapping in self.parts)

    def for_resume(self) -> None:
        """Return None: the method has no effect after creation."""
