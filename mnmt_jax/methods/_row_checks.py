"""Checks that the rows of a batch suit a method."""

from __future__ import annotations

from mnmt_jax.config.sections import Data
from mnmt_jax.errors import UserError


def check_one_pair_per_row(name: str, data: Data) -> None:
    """Check that each row has one pair, so that the update can translate it.

    Args:
        name: name of the method.
        data: settings of the data.

    Raises:
        UserError: if rows are packed.
    """
    if data.max_segments != 1:
        raise UserError(
            f"{name}: Data.max_segments={data.max_segments} packs pairs into rows, which cannot be "
            "translated inside the update; set Data.max_segments=1"
        )


def check_row_groups(section: str, groups: int, data: Data) -> None:
    """Check that groups of rows have equal size.

    Args:
        section: section of the method, e.g. `InstruCL`.
        groups: number of groups of a micro-batch's rows.
        data: settings of the data.

    Raises:
        UserError: if not.
    """
    if data.rows % groups:
        raise UserError(f"{section}.groups={groups} must divide Data.rows={data.rows}")
