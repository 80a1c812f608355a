"""Strict reading of JSON from damaged, edited or hostile files."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mnmt_jax.errors import UserError
from mnmt_jax.files.storage_errors import one_line

_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # half of a pair, or alone


def parse_json(text: str | bytes, *, finite: bool = True, allow_surrogates: bool = False) -> Any:
    """Parse untrusted JSON text.

    Args:
        text: JSON text of a single value.
        finite: whether to reject NaN, Infinity and numbers that are too large for a float.
        allow_surrogates: whether to accept lone surrogates, for callers that check the texts.

    Raises:
        ValueError: for any error, including nesting that is too deep and lone surrogates.
    """
    if not allow_surrogates:
        # Both fail on lone surrogates, which `json.loads` lets pass.
        if isinstance(text, bytes):
            text = text.decode(json.detect_encoding(text))
        else:
            text.encode("utf-8")
    try:
        value = json.loads(
            text,
            parse_constant=_refuse_constant if finite else None,
            parse_float=_finite_float if finite else None,
        )
        if isinstance(text, str) and not allow_surrogates and _ESCAPED_SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return value


def read_json(path: Path, *, remedy: str) -> Any:
    """Read a JSON file, e.g. of another toolkit.

    Args:
        path: path of the file.
        remedy: what to do if it is damaged.

    Raises:
        UserError: if it is missing, or not JSON as in `parse_json`.
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
        path: path of the file.
        *needed: required keys.
        remedy: what to do if it is damaged.

    Raises:
        UserError: if it is not a JSON object or lacks a key.
    """
    try:
        value = parse_json(path.read_bytes(), finite=False)
    except ValueError as error:
        raise UserError(f"{path}: is damaged ({one_line(error)}); {remedy}") from error
    if not isinstance(value, dict):
        raise UserError(f"{path}: is damaged (no JSON object); {remedy}")
    if missing := [key for key in needed if key not in value]:
        raise UserError(f"{path}: is damaged ('{missing[0]}' is missing); {remedy}")
    return value


def is_object_with(text: str, *keys: str) -> bool:
    """Return whether a text is a JSON object that has all of some keys."""
    try:
        value = parse_json(text, finite=False)
    except ValueError:
        return False
    return isinstance(value, dict) and value.keys() >= {*keys}


def read_records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (line, object) for the records of a log with a number `step`.

    Other lines, such as the unfinished line of a killed process, are skipped.

    Args:
        path: path of a JSON lines file.
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
    """Return whether a JSON value is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max


def differing_keys(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the keys, sorted, whose values differ or that one of the objects lacks.

    Args:
        old: an object; tuples are compared as lists.
        new: the other object.
    """
    old, new = (json.loads(json.dumps(value)) for value in (old, new))
    return [name for name in sorted({*old, *new}) if old.get(name, ...) != new.get(name, ...)]
