"""Collection of the tests of this folder, and the table of the rows that they ran."""

from tests.tables.row_runs import FOLDER, REPORT

collect_ignore_glob = [] if FOLDER else ["test_*.py"]


def pytest_terminal_summary(terminalreporter):
    """Print the rows that have been run in this folder, also before this session."""
    if FOLDER and (FOLDER / REPORT).is_file():
        terminalreporter.write_line((FOLDER / REPORT).read_text(encoding="utf-8"))
