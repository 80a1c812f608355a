"""Selection of the test files that a change is most likely to break, within a time budget.

Test files are ordered by the length of the shortest import chain from them to a changed file:
changed tests first, then tests that import a changed module, then tests that import it indirectly.
At equal distance, faster files (tests/seconds.json) come first. The selection ends when the budget
is spent. Prints the files; `bash scripts/test.sh --quick` runs them.
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
UNKNOWN_SECONDS = 5.0  # assumed for a test file without a recorded time
# Files that are read but not imported: path prefix -> the tests that read them.
READERS = {
    "README.md": ("tests/unit/test_docs.py",),
    "docs/": ("tests/unit/test_docs.py", "tests/unit/test_claims.py"),
    "mnmt_jax/": ("tests/unit/test_docstrings.py",),
    "gin_configs/": ("tests/unit/test_configurations.py", "tests/unit/test_config.py"),
    "setup.cfg": ("tests/unit/test_extras.py",),
    "scripts/": ("tests/unit/test_launch_scripts.py",),
    "scripts/kubernetes/": ("tests/unit/test_kubernetes.py",),
}


def changed_files(root: Path = ROOT) -> set[str]:
    """Return the files that differ from the last commit; in a clean tree, the files of that commit.

    Args:
        root: root of the checkout.

    Raises:
        UserError: if it is not a git checkout.
    """

    def git(*arguments: str) -> list[str]:
        process = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
        if process.returncode:
            raise UserError(f"{root}: 'git {' '.join(arguments)}' failed; run in a git checkout")
        return process.stdout.splitlines()

    uncommitted = {*git("diff", "--name-only", "HEAD")}
    uncommitted |= {*git("ls-files", "--others", "--exclude-standard")}
    return uncommitted or {*git("diff", "--name-only", "HEAD~1")}


def import_graph(root: Path = ROOT) -> dict[str, set[str]]:
    """Return the files of the checkout that each of its Python files imports.

    Args:
        root: root of the checkout.

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
        changed: paths of the changed files.

    Returns:
        Path -> length of the chain, 0 for a changed file. Files without a chain are absent.
    """
    importers_of: dict[str, set[str]] = {}
    for path, imported in graph.items():
        for name in imported:
            importers_of.setdefault(name, set()).add(path)
    changed = [*changed]
    reached = {path: 0 for path in changed if path in graph}
    for prefix, readers in READERS.items():
        if any(path.startswith(prefix) for path in changed):
            reached |= {path: 1 for path in readers if path in graph and path not in reached}
    frontier = [*reached]
    while frontier:
        next_frontier = []
        for path in frontier:
            for importer in importers_of.get(path, set()) - reached.keys():
                reached[importer] = reached[path] + 1
                next_frontier.append(importer)
        frontier = next_frontier
    return reached


def choose(
    reached: Mapping[str, int], seconds: Mapping[str, float], budget: float
) -> tuple[list[str], int]:
    """Return test files within the budget, nearest and fastest first.

    Args:
        reached: from `distances`.
        seconds: recorded seconds of test files.
        budget: total seconds. The first file is chosen even if it takes longer.

    Returns:
        The chosen files, and the number of other files.
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
        report: file written by `pytest --junitxml`.
        root: root of the checkout.
    """
    seconds: dict[str, float] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        path = f"{case.attrib['classname'].replace('.', '/')}.py"
        if (root / path).is_file():
            seconds[path] = round(seconds.get(path, 0.0) + float(case.attrib["time"]), 1)
    return dict(sorted(seconds.items()))


def main() -> None:
    """Print the chosen files on stdout and a summary on stderr."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--budget", type=float, default=120.0, help="total seconds of the tests (default: 120)"
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
        f"{len(chosen)} test files of about {cost:.0f} s; {left_out} others that depend on the "
        "change run in the full suite only",
        file=sys.stderr,
    )
    print("\n".join(chosen))


def _module(path: Path, root: Path) -> str:
    name = ".".join(path.relative_to(root).with_suffix("").parts)
    return name.removesuffix(".__init__")


def _imported(path: Path) -> set[str]:
    """Return all dotted names in a file's imports that may be modules."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


if __name__ == "__main__":
    run_command(main)
