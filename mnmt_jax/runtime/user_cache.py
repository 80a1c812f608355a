"""Folder of the package in the user's cache."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache_folder() -> Path:
    """Return `mnmt_jax` below `$XDG_CACHE_HOME`, or below `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mnmt_jax"
