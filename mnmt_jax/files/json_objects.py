"""Reads the small JSON files of a run, which somebody may have damaged or edited."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mnmt_jax.errors import UserError
from mnmt_jax.files.storage import one_line


def read_object(path: Path, *needed: str, remedy: str) -> dict[str, Any]:
    """Reads a JSON object.

    Args:
        path: of the file.
        *needed: keys that it must have.
        remedy: what to do if it is damaged.

    Raises:
        UserError: if it is no JSON object or lacks a key.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: is damaged ({one_line(error)}); {remedy}") from error
    if not isinstance(found, dict):
        raise UserError(f"{path}: is damaged (no JSON object); {remedy}")
    if missing := [key for key in needed if key not in found]:
        raise UserError(f"{path}: is damaged ('{missing[0]}' is missing); {remedy}")
    return found


def differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Returns the keys, in the order of letters, whose values differ or that one object lacks.

    Args:
        old: as it was read.
        new: as it is to be written; a tuple is the list that JSON makes of it.
    """
    new = json.loads(json.dumps(new))
    return [name for name in sorted({*old, *new}) if old.get(name, ...) != new.get(name, ...)]
