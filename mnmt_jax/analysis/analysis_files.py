"""The files of an analysis: its facts as `analysis.json`, a page of pictures as `analysis.html`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mnmt_jax.evaluation.markup import Child
from mnmt_jax.evaluation.page import generator_mark, html_page
from mnmt_jax.files.partial import check_replaced, check_writable, write_text

FORMAT = 1
_GENERATOR = generator_mark("mnmt-jax analyse")
_JSON, _PAGE = "analysis.json", "analysis.html"


def check_analysis_folder(output: str | Path) -> None:
    """Checks that an analysis may write to a folder: what it would replace is an analysis.

    Raises:
        UserError: otherwise.
    """
    folder = Path(output)
    check_writable(folder)
    check_replaced(folder / _JSON, _is_analysis)
    check_replaced(folder / _PAGE, lambda text: _GENERATOR in text)


def write_analysis(
    output: str | Path, facts: Mapping[str, Any], title: str, sections: Sequence[Child]
) -> Path:
    """Writes both files.

    Args:
        output: folder, which is made.
        facts: of the analysis, numbers of NumPy and JAX among them.
        title: of the page.
        sections: of the page.

    Returns:
        The path of the page.
    """
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    document = {"format": FORMAT, **facts}
    text = json.dumps(document, ensure_ascii=False, indent=1, default=_plain)
    write_text(folder / _JSON, text + "\n")
    write_text(folder / _PAGE, html_page(title, sections, generator=_GENERATOR))
    return folder / _PAGE


def _plain(value: Any) -> Any:
    """Returns a number or an array as JSON has it, with the seven digits of float32."""
    found = np.asarray(value)
    if found.ndim:
        return [_plain(each) for each in found]
    return float(f"{found.item():.7g}")


def _is_analysis(text: str) -> bool:
    try:
        document = json.loads(text)
    except ValueError:
        return False
    return isinstance(document, dict) and {"format", "analysis", "run"} <= document.keys()
