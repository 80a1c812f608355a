"""Selection of tests after a change, in a generated checkout."""

import subprocess
from pathlib import Path

import pytest

from mnmt_jax.errors import UserError
from scripts import choose_tests

ROOT = Path(__file__).resolve().parents[2]

FILES = {
    "mnmt_jax/low.py": "",
    "mnmt_jax/high.py": "from mnmt_jax import low\n",
    "mnmt_jax/other.py": "",
    "tests/test_low.py": "def test():\n    import mnmt_jax.low\n",
    "tests/test_high.py": "from mnmt_jax.high import nothing\n",
    "tests/test_other.py": "import mnmt_jax.other\n",
}


@pytest.fixture
def checkout(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    for command in ("init -q", "add -A", "commit -q -m files"):
        subprocess.run(
            ["git", "-c", "user.name=x", "-c", "user.email=x@x", *command.split()],
            cwd=tmp_path,
            check=True,
        )
    return tmp_path


def test_tests_are_ordered_by_import_distance(checkout):
    (checkout / "mnmt_jax/low.py").write_text("x = 1\n")
    changed = choose_tests.changed_files(checkout)
    assert changed == {"mnmt_jax/low.py"}
    reached = choose_tests.distances(choose_tests.import_graph(checkout), changed)
    assert reached["tests/test_low.py"] == 1 and reached["tests/test_high.py"] == 2
    assert choose_tests.choose(reached, {}, 100.0) == (
        ["tests/test_low.py", "tests/test_high.py"],
        0,
    )
    seconds = {"tests/test_low.py": 3.0, "tests/test_high.py": 3.0}
    assert choose_tests.choose(reached, seconds, 5.0) == (["tests/test_low.py"], 1)


def test_a_clean_tree_uses_its_last_commit(checkout):
    (checkout / "mnmt_jax/other.py").write_text("x = 1\n")
    subprocess.run(
        ["git", "-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qam", "change"],
        cwd=checkout,
        check=True,
    )
    changed = choose_tests.changed_files(checkout)
    reached = choose_tests.distances(choose_tests.import_graph(checkout), changed)
    assert choose_tests.choose(reached, {}, 9.0)[0] == ["tests/test_other.py"]


def test_a_folder_without_git_is_refused(tmp_path):
    with pytest.raises(UserError, match="run in a git checkout"):
        choose_tests.changed_files(tmp_path)


def test_seconds_are_read_from_a_report_of_pytest(checkout):
    report = checkout / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="tests.test_low" name="a" time="1.5"/>'
        '<testcase classname="tests.test_low" name="b" time="0.25"/>'
        '<testcase classname="tests.gone" name="c" time="9"/></testsuite></testsuites>'
    )
    assert choose_tests.record(report, checkout) == {"tests/test_low.py": 1.8}


def test_every_listed_test_file_exists():
    for readers in choose_tests.READERS.values():
        assert all((ROOT / path).is_file() for path in readers)
