"""Layout measurements of pages in headless Chromium."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--disable-extensions", "--no-first-run", "--disable-background-networking"),
    *("--virtual-time-budget=60000", "--window-size=1400,1000", "--dump-dom"),
)
_MEASURED = re.compile(r'<pre id="measured">(.*?)</pre>', re.DOTALL)

_SCRIPT = Path(__file__).with_name("measure.js")


def find_chromium() -> str | None:
    """Return the path of Chromium: `CHROMIUM`, or one in PATH; None if there is none."""
    named = os.environ.get("CHROMIUM")
    return named or next(filter(None, map(shutil.which, _NAMES)), None)


def measure(pages: Mapping[str, str], widths: Sequence[int], folder: Path) -> dict[str, Any]:
    """Lay pages out and measure them.

    Args:
        pages: HTML by name.
        widths: of the window, in pixels.
        folder: for temporary files.

    Returns:
        By name and width (as text): `viewport` and `width` of the document; `broken`: words with a
        line break between two letters; `hidden`: table cells whose text cannot be scrolled into
        view uncovered; `outside`: elements beyond the window that are not in a box that scrolls;
        `colours` of the runs in the summary and its `background`; `sizes` of fonts by element;
        `chart_fonts`: the sizes on the screen of text in charts; `title`; number of `cells`.
    """
    chromium = find_chromium()
    assert chromium is not None
    inputs = f"const PAGES = {json.dumps(pages)}, WIDTHS = {json.dumps(list(widths))};"
    script = (inputs + _SCRIPT.read_text(encoding="utf-8")).replace("</", "<\\/")
    path = folder / "measure.html"
    path.write_text(
        f'<!DOCTYPE html><meta charset="utf-8"><body><script>{script}</script>', encoding="utf-8"
    )
    profile = f"--user-data-dir={folder / 'profile'}"
    done = subprocess.run(
        [chromium, *_FLAGS, profile, path.as_uri()],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    output = _MEASURED.search(done.stdout)
    assert output, f"Chromium measured nothing: {done.stderr[-2000:]}"
    measurements: dict[str, Any] = json.loads(html.unescape(output[1]))
    return measurements
