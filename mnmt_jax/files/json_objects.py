"""Strict JSON reading for damaged, edited or hostile files."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mnmt_jax.errors import UserError
from mnmt_jax.files.storage_errors import one_line


def parse_json(text: str | bytes, *, finite: bool = True) -> Any:
    """Parse JSON text of any origin.

    Args:
        text: of one value.
        finite: refuse NaN, Infinity and numbers that are too large for a float.

    Raises:
        ValueError: for any fault, nesting that is too deep and lone surrogates included.
    """
    try:
        if not finite:
            return json.loads(text)
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite_float)
        if (b"\\u" if isinstance(text, bytes) else "\\u") in text:  # type: ignore[operator]
            json.dumps(value, ensure_ascii=False).encode("utf-8")  # fails on lone surrogates
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return value


def read_json(path: Path, *, remedy: str) -> Any:
    """Read a JSON file of another toolkit.

    Args:
        path: of the file.
        remedy: what to do if it is damaged.

    Raises:
        UserError: if it is missing or not valid JSON.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file; {remedy}")
    try:
        return parse_json(path.read_bytes())
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({one_line(error)}); {remedy}") from error


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is too large for a number")
    return value


def read_object(path: Path, *needed: str, remedy: str) -> dict[str, Any]:
    """Read a JSON object.

    Args:
        path: of the file.
        *needed: keys that it must have.
        remedy: what to do if it is damaged.

    Raises:
        UserError: if it is no JSON object or lacks a key.
    """
    try:
        found = parse_json(path.read_bytes(), finite=False)
    except ValueError as error:
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
                record = parse_json(line, finite=False)
            except ValueError:
                continue
            if isinstance(record, dict) and is_number(record.get("step")):
                yield line, record


def is_number(value: Any) -> bool:
    """Return whether a value of JSON is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max


def differing_keys(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the keys, in the order of letters, whose values differ or that one object lacks.

    Args:
        old: as it was read.
        new: as it is to be written; a tuple is the list that JSON makes of it.
    """
    new = json.loads(json.dumps(new))
    return [name for name in sorted({*old, *new}) if old.get(name, ...) != new.get(name, ...)]
