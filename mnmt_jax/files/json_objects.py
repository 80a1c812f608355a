"""Reads the small JSON files of a run, which somebody may have damaged or edited."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
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


def read_records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the lines of a log of JSON objects with a number `step`, and the objects.

    Other lines, such as one that a killed process was writing, are skipped.

    Args:
        path: of a file of JSON lines.
    """
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for line in file:
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict) and is_number(record.get("step")):
                yield line, record


def is_number(value: Any) -> bool:
    """Return whether a value of JSON is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max


def differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Returns the keys, in the order of letters, whose values differ or that one object lacks.

    Args:
        old: as it was read.
        new: as it is to be written; a tuple is the list that JSON makes of it.
    """
    new = json.loads(json.dumps(new))
    return [name for name in sorted({*old, *new}) if old.get(name, ...) != new.get(name, ...)]
