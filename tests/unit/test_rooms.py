"""The rooms of the package: what may import what."""

import ast
from pathlib import Path

import mnmt_jax

PACKAGE = Path(mnmt_jax.__file__).parent


def imported(path: Path) -> set[str]:
    """Modules of the package that a file imports, wherever in it, for types alone too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
            assert not node.level, f"{path}: only imports by whole names are seen here"
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.startswith("mnmt_jax.")}


def rooms() -> dict[str, set[str]]:
    """Rooms that each room imports."""
    names = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    found: dict[str, set[str]] = {}
    for room in names:
        used = {
            name.split(".")[1] for path in (PACKAGE / room).rglob("*.py") for name in imported(path)
        }
        found[room] = (used & names) - {room}
    return found


def listed_rooms() -> list[str]:
    """Rooms in the order in which the package's docstring lists them."""
    table = (mnmt_jax.__doc__ or "").split("The rooms,")[1].split("\n\n")[1]
    return [name.strip(",") for line in table.splitlines() for name in line[:19].split()]


def test_rooms_import_only_rooms_above_them():
    order = listed_rooms()
    found = rooms()
    assert sorted(order) == sorted(found)
    wrong = [
        f"{room} imports {other}"
        for room, others in found.items()
        for other in others
        if order.index(other) > order.index(room)
    ]
    assert not wrong


def test_the_top_is_a_table_of_contents():
    files = {path.stem for path in PACKAGE.glob("*.py")}
    assert files == {"__init__", "__main__", "errors"}
    for name in files - {"__init__", "__main__"}:
        assert not {each.split(".")[1] for each in imported(PACKAGE / f"{name}.py")} & {*rooms()}
    for room in rooms():
        assert ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text())), room
