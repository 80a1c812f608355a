"""Tests of pages as Chromium lays them out; without it they do not run (`tests/conftest.py`)."""
