"""Update the line numbers of the links in docs/walk.md to the current definitions."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "walk.md"
LINK = re.compile(r"\[`(\w+)`\]\(([^)#\s]+)#L(\d+)\)")


def main() -> None:
    """Update the page in place."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    PAGE.write_text(LINK.sub(_renumbered, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def _renumbered(link: re.Match[str]) -> str:
    """Return the link with the number of the nearest line that defines its name."""
    name, target, number = link.groups()
    lines = defining_lines(name, (PAGE.parent / target).read_text(encoding="utf-8"))
    if not lines:
        raise SystemExit(f"{PAGE.name} links `{name}` in {target}, which does not define it")
    nearest = min(lines, key=lambda line: abs(line - int(number)))
    return f"[`{name}`]({target}#L{nearest})"


def defining_lines(name: str, text: str) -> list[int]:
    """Return the numbers of the lines that define a name in a module, counted from 1."""
    defines = re.compile(rf"\s*(?:def|class) {name}\b|{name}\b.* = ")
    return [number for number, line in enumerate(text.splitlines(), 1) if defines.match(line)]


if __name__ == "__main__":
    main()
