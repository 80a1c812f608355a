"""Order of the test files: those that take longest start first, so that workers end together."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).with_name("seconds.json")
UNKNOWN_SECONDS = 5.0  # assumed for a file without a recorded time


def sort_files(items: list[Any], seconds: Mapping[str, float] | None = None) -> None:
    """Sort tests by the recorded seconds of their files; tests of a file keep their order.

    Args:
        items: collected tests, sorted in place.
        seconds: of the files, by their path in the repository; None reads `seconds.json`.
    """
    if seconds is None:
        seconds = json.loads(RECORDED.read_text(encoding="utf-8"))

    def rank(item: Any) -> tuple[float, str]:
        file = item.nodeid.partition("::")[0]
        return -seconds.get(file, UNKNOWN_SECONDS), file

    items.sort(key=rank)
