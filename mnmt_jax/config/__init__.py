"""Configuration: gin files to frozen dataclasses. Besides t5x the only room with gin."""

from __future__ import annotations

import importlib
from typing import Any

_PUBLIC = ("sections", "loading")


def __getattr__(name: str) -> Any:
    """Finds what other code asks of the room itself, such as `Model` or `load_config`."""
    for module in _PUBLIC if not name.startswith("_") else ():
        found = importlib.import_module(f"{__name__}.{module}")
        if hasattr(found, name):
            return getattr(found, name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
