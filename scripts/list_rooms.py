"""Dependency layers of the package: rooms (subpackages) by floor, imports, and import cycles."""

from __future__ import annotations

import argparse
import ast
from pathlib import Path

from mnmt_jax.runtime.run_command import run_command

PACKAGE = Path(__file__).resolve().parent.parent / "mnmt_jax"


def imported_names(path: Path) -> set[str]:
    """Return the dotted names that a file imports, also in functions and for types.

    Args:
        path: path of a Python file.
    """
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def imported_rooms(path: Path, names: set[str]) -> set[str]:
    """Return the rooms that a file imports.

    Args:
        path: path of a Python file.
        names: names of all rooms.
    """
    parts = (name.split(".") for name in imported_names(path) if name.startswith("mnmt_jax."))
    return {part[1] for part in parts} & names


def file_imports(package: Path = PACKAGE) -> dict[str, set[str]]:
    """Return the modules of the package that every module of it imports.

    Args:
        package: folder of the package.
    """
    modules = {
        ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): path
        for path in package.rglob("*.py")
    }
    imports = {}
    for module, path in modules.items():
        names = imported_names(path)
        modules_of_names = {name if name in modules else name.rpartition(".")[0] for name in names}
        imports[module] = (modules_of_names & modules.keys()) - {module}
    return imports


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
    """Return the rooms, or files, by floor: each is one above the highest that it imports.

    Args:
        imports: room -> rooms that it imports.

    Returns:
        Floors from the lowest up. What is in an import cycle, or imports that, is absent.
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
    files = file_imports()
    print(
        f"{len(imports)} rooms on {len(by_floor)} floors, "
        f"{sum(map(len, imports.values()))} imports between rooms, "
        f"in or above import cycles: {', '.join(_in_cycles(imports)) or 'no room'} and "
        f"{', '.join(_in_cycles(files)) or 'no file'}"
    )


def _in_cycles(imports: dict[str, set[str]]) -> list[str]:
    """Return what has no floor."""
    placed = {name for names in floors(imports) for name in names}
    return sorted(imports.keys() - placed)


if __name__ == "__main__":
    run_command(main)
