"""The order of the test files."""

import json
import types

from tests import longest_first


def order(names, seconds):
    items = [types.SimpleNamespace(nodeid=name) for name in names]
    longest_first.sort_files(items, seconds)
    return [item.nodeid for item in items]


def test_files_that_take_longest_come_first_and_their_tests_keep_their_order():
    names = ["tests/a.py::z", "tests/b.py::y[a::b]", "tests/c.py::b", "tests/c.py::a", "tests/d.py"]
    seconds = {"tests/a.py": 2.0, "tests/b.py": 60.0, "tests/c.py": 7.0}
    unknown_in_between = [*names[1:4], names[4], names[0]]
    assert order(names, seconds) == unknown_in_between


def test_tests_of_files_with_one_time_are_not_mixed():
    """A worker takes a file at once, and frees its programs after its last test."""
    names = ["tests/b.py::x", "tests/a.py::x", "tests/b.py::y", "tests/a.py::y"]
    assert order(names, {}) == [names[1], names[3], names[0], names[2]]


def test_this_run_has_that_order(request):
    items = list(request.session.items)
    longest_first.sort_files(items)
    assert items == request.session.items


def test_recorded_times_are_of_files_that_exist():
    recorded = json.loads(longest_first.RECORDED.read_text(encoding="utf-8"))
    root = longest_first.RECORDED.parents[1]
    assert len(recorded) > 100
    assert not [name for name in recorded if not (root / name).is_file()]
