"""Configuration: gin files to frozen dataclasses. Only this package and t5x use gin."""

from __future__ import annotations

import importlib
from typing import Any

_PUBLIC = ("sections", "loading")


def __getattr__(name: str) -> Any:
    """Resolve the public names of the submodules, such as `Model` or `load_config`."""
    for module in _PUBLIC if not name.startswith("_") else ():
        submodule = importlib.import_module(f"{__name__}.{module}")
        if hasattr(submodule, name):
            return getattr(submodule, name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
