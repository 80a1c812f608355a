"""Prints the test files that a change is most likely to break, within a time budget.

A test file is chosen by the shortest chain of imports that leads from it to a changed file: a
changed test itself first, then tests that import a changed module, then tests of what imports it.
Files of equal distance are taken in the order of their recorded seconds (tests/seconds.json), until
the budget is spent. `bash scripts/test.sh --quick` runs them.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.etree import ElementTree

from mnmt_jax.errors import UserError
from mnmt_jax.runtime.run_command import run_command

ROOT = Path(__file__).resolve().parent.parent
SECONDS = ROOT / "tests" / "seconds.json"
FOLDERS = ("mnmt_jax", "tasks", "scripts", "benchmarks", "tests")
UNKNOWN_SECONDS = 5.0  # of a test file without a recorded time
# Files that no import leads to: start of their path -> the tests that read them.
READERS = {
    "README.md": ("tests/unit/test_docs.py",),
    "docs/": ("tests/unit/test_docs.py", "tests/unit/test_claims.py"),
    "gin_configs/": ("tests/unit/test_configurations.py", "tests/unit/test_config.py"),
    "setup.cfg": ("tests/unit/test_extras.py",),
    "scripts/": ("tests/unit/test_launch_scripts.py",),
}


def changed_files(root: Path = ROOT) -> set[str]:
    """Return the files that differ from the last commit; of a clean tree, those of that commit.

    Args:
        root: of the checkout.

    Raises:
        UserError: if it is no git checkout.
    """

    def git(*arguments: str) -> list[str]:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
        if done.returncode:
            raise UserError(f"{root}: 'git {' '.join(arguments)}' failed; run in a git checkout")
        return done.stdout.splitlines()

    uncommitted = {*git("diff", "--name-only", "HEAD")}
    uncommitted |= {*git("ls-files", "--others", "--exclude-standard")}
    return uncommitted or {*git("diff", "--name-only", "HEAD~1")}


def import_graph(root: Path = ROOT) -> dict[str, set[str]]:
    """Return the files of the checkout that each of its Python files imports.

    Args:
        root: of the checkout.

    Returns:
        Path -> paths, both relative to the checkout. Imports inside functions count.
    """
    paths = [path for folder in FOLDERS for path in (root / folder).rglob("*.py")]
    by_module = {_module(path, root): path.relative_to(root).as_posix() for path in paths}
    return {
        path.relative_to(root).as_posix(): {
            by_module[name] for name in _imported(path) if name in by_module
        }
        for path in paths
    }


def distances(graph: Mapping[str, set[str]], changed: Iterable[str]) -> dict[str, int]:
    """Return the length of the shortest import chain from each file to a changed one.

    Args:
        graph: from `import_graph`.
        changed: paths.

    Returns:
        Path -> imports in the chain, 0 for a changed file; files that reach none are absent.
    """
    importers: dict[str, set[str]] = {}
    for path, imported in graph.items():
        for name in imported:
            importers.setdefault(name, set()).add(path)
    changed = [*changed]
    reached = {path: 0 for path in changed if path in graph}
    for start, readers in READERS.items():
        if any(path.startswith(start) for path in changed):
            reached |= {path: 1 for path in readers if path in graph and path not in reached}
    frontier = [*reached]
    while frontier:
        following = []
        for path in frontier:
            for importer in importers.get(path, set()) - reached.keys():
                reached[importer] = reached[path] + 1
                following.append(importer)
        frontier = following
    return reached


def choose(
    reached: Mapping[str, int], seconds: Mapping[str, float], budget: float
) -> tuple[list[str], int]:
    """Choose test files, nearest and quickest first.

    Args:
        reached: from `distances`.
        seconds: recorded seconds of test files.
        budget: seconds in all. The first file is chosen whatever it takes.

    Returns:
        The files, and the number of files that were left out.
    """
    tests = [path for path in reached if Path(path).name.startswith("test_")]
    tests.sort(key=lambda path: (reached[path], seconds.get(path, UNKNOWN_SECONDS), path))
    chosen: list[str] = []
    for path in tests:
        cost = seconds.get(path, UNKNOWN_SECONDS)
        if not chosen or cost <= budget:
            chosen.append(path)
            budget -= cost
    return chosen, len(tests) - len(chosen)


def record(report: Path, root: Path = ROOT) -> dict[str, float]:
    """Return the seconds of each test file in a JUnit report of pytest.

    Args:
        report: written by `pytest --junitxml`.
        root: of the checkout.
    """
    seconds: dict[str, float] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        path = f"{case.attrib['classname'].replace('.', '/')}.py"
        if (root / path).is_file():
            seconds[path] = round(seconds.get(path, 0.0) + float(case.attrib["time"]), 1)
    return dict(sorted(seconds.items()))


def main() -> None:
    """Parse the command line; print the chosen files on stdout, a summary on stderr."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--budget", type=float, default=120.0, help="seconds of processor time (default: 120)"
    )
    parser.add_argument(
        "--record",
        type=Path,
        metavar="REPORT",
        help="update tests/seconds.json from a JUnit report",
    )
    flags = parser.parse_args()
    if flags.record:
        SECONDS.write_text(json.dumps(record(flags.record), indent=1) + "\n", encoding="utf-8")
        return
    seconds = json.loads(SECONDS.read_text(encoding="utf-8")) if SECONDS.exists() else {}
    chosen, left_out = choose(distances(import_graph(), changed_files()), seconds, flags.budget)
    cost = sum(seconds.get(path, UNKNOWN_SECONDS) for path in chosen)
    print(
        f"{len(chosen)} test files of about {cost:.0f} s, {left_out} that the change reaches are "
        "left to the whole suite",
        file=sys.stderr,
    )
    print("\n".join(chosen))


def _module(path: Path, root: Path) -> str:
    name = ".".join(path.relative_to(root).with_suffix("").parts)
    return name.removesuffix(".__init__")


def _imported(path: Path) -> set[str]:
    """Return all dotted names that a file may import as modules."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


if __name__ == "__main__":
    run_command(main)
