"""The table of the rows that the tests of this folder ran."""

from tests.tables.row_runs import FOLDER, REPORT


def pytest_terminal_summary(terminalreporter):
    """Print the rows that have been run in this folder, also before this session."""
    if FOLDER and (FOLDER / REPORT).is_file():
        terminalreporter.write_line((FOLDER / REPORT).read_text(encoding="utf-8"))
