"""Lengths of spans that a table of learned positions allows."""

from __future__ import annotations

import math
from collections.abc import Mapping

from mnmt_jax.config.sections import Model
from mnmt_jax.design.layouts import REGISTER, SOURCE, TARGET, TRIGGER
from mnmt_jax.errors import UserError

# Settings that limit the length of a role's span, in training and in translation.
_LENGTH_SETTINGS = {
    SOURCE: "Data.source_length or Decode.buckets",
    REGISTER: "Data.source_length, Data.max_segments or Decode.buckets",
    TRIGGER: "Data.max_segments",
    TARGET: "Data.target_length or Decode.max_length",
}


def check_lengths(config: Model, lengths: Mapping[str, int], settings: str = "") -> None:
    """Check that every position of the spans has a position vector.

    Args:
        config: sizes of the model.
        lengths: role -> length of its span.
        settings: settings that limit the lengths, for the message; empty names the usual ones.

    Raises:
        UserError: if positions are learned and a span is longer than their table.
    """
    rows = config.positions[1] if "learned" in config.positions else math.inf
    for role, length in lengths.items():
        if length > rows:
            raise UserError(
                f"Model.positions=('learned', {rows}): the {role} span has {length} positions; "
                f"use at least as many rows, or lower {settings or _LENGTH_SETTINGS[role]}"
            )
