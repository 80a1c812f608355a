"""Index of the public modules, classes and functions of the package, from their docstrings."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from mnmt_jax.commands.common_flags import CommandParser
from mnmt_jax.errors import UserError, suggest
from mnmt_jax.runtime.run_command import run_command

PACKAGE = Path(__file__).resolve().parent.parent / "mnmt_jax"
_INDENT = "  "
_WIDEST_NAME = 44  # a longer name does not widen the column of its module

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclasses.dataclass(frozen=True)
class Entry:
    """A public name of the package.

    Attributes:
        kind: `module`, `class`, `function` or `method`.
        name: dotted name of a module, bare name of the others.
        summary: first line of its docstring; empty if it has none.
        path: path of the source file.
        line: line of the definition, counted from 1.
    """

    kind: str
    name: str
    summary: str
    path: Path
    line: int

    @property
    def depth(self) -> int:
        """Return the levels of indentation in the index."""
        return {"module": 0, "method": 2}.get(self.kind, 1)


def module_entries(path: Path, name: str) -> Iterator[Entry]:
    """Yield entries of a module, its public classes with their public methods, and its functions.

    Args:
        path: path of the source file.
        name: dotted name of the module.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    yield Entry("module", name, _summary(tree), path, 1)
    for node in _public(tree.body):
        kind = "class" if isinstance(node, ast.ClassDef) else "function"
        yield Entry(kind, node.name, _summary(node), path, node.lineno)
        if isinstance(node, ast.ClassDef):
            methods = [method for method in _public(node.body) if isinstance(method, _Function)]
            for method in methods:
                yield Entry("method", method.name, _summary(method), path, method.lineno)


def api_entries(package: Path = PACKAGE, room: str | None = None) -> list[Entry]:
    """Return the public names of the package, module by module in alphabetical order.

    Args:
        package: folder of the package.
        room: subpackage or top-level module; None for all.

    Raises:
        UserError: if the room does not exist.
    """
    files = [path for path in sorted(package.rglob("*.py")) if _is_public(path, package)]
    names = {path: _module_name(path, package) for path in files}
    rooms = {name.split(".")[1] for name in names.values() if "." in name}
    if room is not None and room not in rooms:
        raise UserError(
            f"--room={room}: no such room; {suggest(room, rooms)}"
            f"choose from {' '.join(sorted(rooms))}"
        )
    return [
        entry
        for path, name in names.items()
        if room is None or name.split(".")[1:2] == [room]
        for entry in module_entries(path, name)
    ]


def format_index(entries: Sequence[Entry]) -> str:
    """Return the index: the names of every module, with their summaries in a column."""
    lines: list[str] = []
    modules: list[list[Entry]] = []
    for entry in entries:
        if entry.kind == "module":
            modules.append([])
        modules[-1].append(entry)
    for module, *members in modules:
        lines += ["", module.name, f"{_INDENT}{module.summary}"]
        labels = [_INDENT * entry.depth + entry.name for entry in members]
        width = min(max(map(len, labels), default=0), _WIDEST_NAME)
        lines += [
            f"{label:{width}}  {entry.summary}".rstrip()
            for label, entry in zip(labels, members, strict=True)
        ]
    return "\n".join(lines[1:])


def main() -> None:
    """Print the index."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("--room", metavar="ROOM", help="list one room, e.g. data; default: all")
    parser.add_argument("--methods", action="store_true", help="list public methods too")
    flags = parser.parse_args()
    entries = api_entries(room=flags.room)
    if not flags.methods:
        entries = [entry for entry in entries if entry.kind != "method"]
    print(format_index(entries))


def _public(body: Sequence[ast.stmt]) -> Iterator[ast.ClassDef | _Function]:
    """Yield the definitions without a leading underscore; setters and overloads once."""
    seen: set[str] = set()
    for node in body:
        if isinstance(node, ast.ClassDef | _Function) and not node.name.startswith("_"):
            if node.name not in seen:
                yield node
            seen.add(node.name)


def _summary(node: ast.Module | ast.ClassDef | _Function) -> str:
    return (ast.get_docstring(node) or "").partition("\n")[0]


def _is_public(path: Path, package: Path) -> bool:
    """Return whether a module is public: packages are, `__main__` and private modules are not."""
    parts = path.relative_to(package).with_suffix("").parts
    return parts[-1] != "__main__" and not any(
        part.startswith("_") and part != "__init__" for part in parts
    )


def _module_name(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


if __name__ == "__main__":
    run_command(main)
