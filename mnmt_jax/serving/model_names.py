"""Names of served models: values of `--run`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from mnmt_jax.errors import UserError

_NAME = re.compile(r"[\w.-]+", re.ASCII)


def name_runs(values: Sequence[str]) -> dict[str, str]:
    """Return runs by their names in requests.

    Args:
        values: `RUN`, named after its last folder, or `NAME=RUN`.

    Raises:
        UserError: if a name does not fit in a path, or occurs twice.
    """
    runs: dict[str, str] = {}
    for value in values:
        name, run = _split(value)
        if not _NAME.fullmatch(name):
            raise UserError(
                f"--run={value}: the name '{name}' must consist of letters, digits, '.', '_', '-'"
            )
        if name in runs:
            raise UserError(f"--run={value}: two models are named {name}; name one: --run NAME=RUN")
        runs[name] = run
    return runs


def _split(value: str) -> tuple[str, str]:
    """Return the name and the run of a value; an `=` after a slash belongs to the run."""
    name, separator, run = value.partition("=")
    if separator and "/" not in name:
        return name, run
    folder = value.rstrip("/").rpartition("/")[2]
    if folder in ("", ".", ".."):
        folder = Path(value).resolve().name or "model"
    return re.sub(r"[^\w.-]+", "-", folder, flags=re.ASCII), value
