"""Files of the packaged recipes."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent / "recipes"


def recipe_names() -> tuple[str, ...]:
    """Return the names of the packaged recipes."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))
