"""Subpackages: their order, their imports, and the top of the package."""

import ast
from pathlib import Path

import mnmt_jax
from scripts.list_rooms import file_imports, floors, room_imports

PACKAGE = Path(mnmt_jax.__file__).parent
IMPORTS = room_imports(PACKAGE)


def listed_rooms() -> list[str]:
    """Return the subpackages in the order of the package's docstring."""
    table = (mnmt_jax.__doc__ or "").split("The rooms,")[1].split("\n\n")[1]
    return [line.split()[0] for line in table.splitlines()]


def test_packages_import_only_packages_above_them():
    """Imports inside functions and for types count."""
    order = listed_rooms()
    assert sorted(order) == sorted(IMPORTS)
    wrong = [
        f"{room} imports {imported}"
        for room, imports in IMPORTS.items()
        for imported in imports
        if order.index(imported) > order.index(room)
    ]
    assert not wrong


def test_package_imports_are_acyclic_with_at_most_nine_levels():
    by_floor = floors(IMPORTS)
    assert sorted(room for rooms in by_floor for room in rooms) == sorted(IMPORTS)
    assert len(IMPORTS) == 22 and len(by_floor) <= 9


def test_files_do_not_import_each_other():
    """Types count: what two files share is in a third."""
    imports = file_imports(PACKAGE)
    assert "mnmt_jax.design.method" in imports["mnmt_jax.methods.tpdm"]
    placed = {module for modules in floors(imports) for module in modules}
    assert len(imports) > 500 and sorted(imports.keys() - placed) == []
    imports["mnmt_jax.design.method"].add("mnmt_jax.methods.tpdm")
    placed = {module for modules in floors(imports) for module in modules}
    assert {"mnmt_jax.design.method", "mnmt_jax.methods.tpdm"} <= imports.keys() - placed


def test_imports_are_absolute():
    """Relative imports would be missed by `room_imports`."""
    paths = [*PACKAGE.rglob("*.py")]
    assert len(paths) > 100
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            assert not (isinstance(node, ast.ImportFrom) and node.level), path


def test_the_package_docstring_is_a_table_of_contents():
    files = {path.stem for path in PACKAGE.glob("*.py")}
    assert files == {"__init__", "__main__", "errors"}
    assert not IMPORTS["errors"]
    for path in PACKAGE.glob("*/__init__.py"):
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path
