"""Names in the sections `Args:` and `Attributes:` of docstrings."""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import mnmt_jax

PACKAGE = Path(mnmt_jax.__file__).parent
Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = ast.Module | ast.ClassDef | Function


def documented(node: Function | ast.ClassDef, section: str) -> set[str] | None:
    """Return the names that a section of a docstring describes; None if it has no such section."""
    text = re.search(rf"^{section}:\n((?: {{4}}.*\n?|\n)*)", ast.get_docstring(node) or "", re.M)
    entries = re.findall(r"^ {4}(\*{0,2}\w+(?:, \w+)*):", text[1], re.M) if text else []
    return {name.strip("*") for entry in entries for name in entry.split(", ")} if text else None


def functions(scope: Scope) -> Iterator[Function]:
    return (node for node in ast.iter_child_nodes(scope) if isinstance(node, Function))


def parameters(scope: Scope, function: Function) -> set[str]:
    """Return the parameters of a function, or of the one that `with_parameters_of` names."""
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "with_parameters_of":
            name = ast.unparse(decorator.args[0])
            (function,) = (node for node in functions(scope) if node.name == name)
    names = function.args
    stars = [names.vararg, names.kwarg]
    listed = [*names.posonlyargs, *names.args, *names.kwonlyargs, *filter(None, stars)]
    return {argument.arg for argument in listed} - {"self", "cls"}


def fields(node: ast.ClassDef) -> set[str]:
    """Return the public fields of a dataclass, named tuple or module."""
    names = {
        ast.unparse(line.target)
        for line in node.body
        if isinstance(line, ast.AnnAssign) and not ast.unparse(line.annotation).startswith("Class")
    }
    return {name for name in names if not name.startswith("_")}


def attributes(node: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> set[str]:
    """Return the names that a class and its bases in the package define or assign."""
    names = {function.name for function in functions(node)}
    for part in ast.walk(node):
        if isinstance(part, ast.Name | ast.Attribute) and isinstance(part.ctx, ast.Store):
            names.add(part.id if isinstance(part, ast.Name) else part.attr)
    bases = (classes[name] for name in map(ast.unparse, node.bases) if name in classes)
    return names.union(*(attributes(base, classes) for base in bases))


def wrong_names(tree: ast.Module, classes: Mapping[str, ast.ClassDef]) -> Iterator[str]:
    """Yield the docstrings whose names are not those of the code, with the differing names."""
    for scope in (node for node in ast.walk(tree) if isinstance(node, Scope)):
        known = {node.name: parameters(scope, node) for node in functions(scope)}
        wrong = {
            node.name: names ^ known[node.name]
            for node in functions(scope)
            if (names := documented(node, "Args")) is not None
        }
        if isinstance(scope, ast.ClassDef):
            if (names := documented(scope, "Args")) is not None:
                wrong[f"{scope.name}.__init__"] = names ^ known.get("__init__", set())
            if (names := documented(scope, "Attributes")) is not None:
                missing = set() if "__init__" in known else fields(scope) - names
                wrong[scope.name] = missing | (names - attributes(scope, classes))
        yield from (f"{name}: {' '.join(sorted(names))}" for name, names in wrong.items() if names)


def test_docstrings_name_the_parameters_and_attributes_of_the_code():
    trees = {
        path.relative_to(PACKAGE): ast.parse(path.read_text(encoding="utf-8"))
        for path in PACKAGE.rglob("*.py")
    }
    assert len(trees) > 500
    nodes = (node for tree in trees.values() for node in ast.walk(tree))
    classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
    wrong = [
        f"{path}: {line}" for path, tree in trees.items() for line in wrong_names(tree, classes)
    ]
    assert wrong == []
