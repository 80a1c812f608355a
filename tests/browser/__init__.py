"""Layout tests of pages in Chromium; skipped with a report without it (`tests/conftest.py`)."""
