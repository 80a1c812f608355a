"""TOML files: read, with one-line errors."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mnmt_jax.errors import UserError


def read_toml(path: Path, *, parse_float: Callable[[str], Any] = float) -> dict[str, Any]:
    """Read a TOML file without checking its fields.

    Args:
        path: path of the file.
        parse_float: makes the value of a number with a fraction from its text.

    Raises:
        UserError: if it cannot be read or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"), parse_float=parse_float)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # also of encodings and numbers
        raise UserError(f"{path}: is not TOML ({error})") from error
