"""Dependency layers of the package: rooms (subpackages) by floor, imports, and import cycles."""

from __future__ import annotations

import argparse
import ast
from pathlib import Path

from mnmt_jax.runtime.run_command import run_command

PACKAGE = Path(__file__).resolve().parent.parent / "mnmt_jax"


def imported_rooms(path: Path, names: set[str]) -> set[str]:
    """Return the rooms that a file imports, including imports in functions and for types.

    Args:
        path: path of a Python file.
        names: names of all rooms.
    """
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
    parts = (name.split(".") for name in modules if name.startswith("mnmt_jax."))
    return {part[1] for part in parts} & names


def room_imports(package: Path = PACKAGE) -> dict[str, set[str]]:
    """Return the rooms that every room imports; top-level modules are rooms too.

    Args:
        package: folder of the package.
    """
    folders = {
        path.parent.name: [*path.parent.rglob("*.py")] for path in package.glob("*/__init__.py")
    }
    files = {path.stem: [path] for path in package.glob("*.py") if not path.stem.startswith("__")}
    rooms = folders | files
    return {
        name: set().union(*(imported_rooms(path, {*rooms}) for path in paths)) - {name}
        for name, paths in rooms.items()
    }


def floors(imports: dict[str, set[str]]) -> list[list[str]]:
    """Return the rooms by floor: a room is one floor above the highest room that it imports.

    Args:
        imports: room -> rooms that it imports.

    Returns:
        Floors from the lowest up. Rooms in an import cycle, and rooms that import them, are absent.
    """
    floor_of: dict[str, int] = {}
    while ready := {
        name for name in imports.keys() - floor_of.keys() if imports[name] <= floor_of.keys()
    }:
        floor_of |= {
            name: 1 + max((floor_of[used] for used in imports[name]), default=-1) for name in ready
        }
    return [
        sorted(name for name, floor in floor_of.items() if floor == number)
        for number in range(max(floor_of.values(), default=-1) + 1)
    ]


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    imports = room_imports()
    by_floor = floors(imports)
    for number, rooms in reversed([*enumerate(by_floor)]):
        for room in rooms:
            print(f"{number}  {room:12} imports {', '.join(sorted(imports[room])) or 'nothing'}")
    placed = {room for rooms in by_floor for room in rooms}
    cycles = sorted(imports.keys() - placed)
    print(
        f"{len(imports)} rooms on {len(by_floor)} floors, "
        f"{sum(map(len, imports.values()))} imports between rooms, "
        f"in or above import cycles: {', '.join(cycles) or 'none'}"
    )


if __name__ == "__main__":
    run_command(main)
