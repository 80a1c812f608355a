"""Workflows: the suites that no push runs are run each week."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_other_suite_is_run_each_week():
    text = (ROOT / ".github" / "workflows" / "weekly.yml").read_text(encoding="utf-8")
    (listed,) = re.findall(r"suite: \[(.*)\]", text)
    scripts = (ROOT / "scripts").glob("test_*.sh")
    assert set(listed.split(", ")) == {path.stem.removeprefix("test_") for path in scripts}
