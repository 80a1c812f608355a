"""The files of an analysis: its facts as `analysis.json`, a page of pictures as `analysis.html`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mnmt_jax.errors import UserError, join_names
from mnmt_jax.evaluation.html_elements import Child
from mnmt_jax.evaluation.html_page import generator_mark, html_page
from mnmt_jax.files.atomic_write import check_replaced, check_writable, write_text
from mnmt_jax.files.json_objects import differing_keys, parse_json, read_object

FORMAT_VERSION = 1
_GENERATOR = generator_mark("mnmt-jax analyse")
_JSON, _PAGE = "analysis.json", "analysis.html"
# What an analysis is of; the same again may be replaced.
_OWN = ("analysis", "run", "parameters_fingerprint", "task", "others", "read_directions")
_SETTINGS, _SENTENCES = "settings", "sentences_fingerprint"
_FINGERPRINT, _EARLIER_FINGERPRINT = "parameters_fingerprint", "parameters"


def check_analysis_folder(output: str | Path) -> None:
    """Checks that an analysis may write to a folder: what it would replace is an analysis.

    Raises:
        UserError: otherwise.
    """
    folder = Path(output)
    check_writable(folder)
    check_replaced(folder / _JSON, _is_analysis)
    check_replaced(folder / _PAGE, lambda text: _GENERATOR in text)


def check_same_analysis(output: str | Path, facts: Mapping[str, Any]) -> None:
    """Refuses to replace a finished analysis of another kind, run, task, sentences or settings.

    Args:
        output: folder that `check_analysis_folder` has passed.
        facts: of the analysis to make; those of `_OWN` and the `settings` are compared if both
            analyses have them.

    Raises:
        UserError: if there is one; what earlier versions did not write is not compared.
    """
    path = Path(output) / _JSON
    if not path.is_file() or not path.stat().st_size:
        return
    document = read_object(path, remedy="replace it with --overwrite")
    document = _renamed(document)
    kept = {name: document[name] for name in _OWN if name in document and name in facts}
    changes = differing_keys(kept, {name: facts[name] for name in kept})
    old, new = document.get(_SETTINGS), facts.get(_SETTINGS)
    if isinstance(old, dict) and isinstance(new, dict):
        changes += differing_keys(old, new)
    old, new = document.get(_SENTENCES), facts.get(_SENTENCES)
    if isinstance(old, dict) and isinstance(new, dict) and not changes:
        changes += ["sentences"] * any(old[split] != new[split] for split in old.keys() & new)
    if changes:
        raise UserError(
            f"--output={output}: holds a finished analysis of something else "
            f"({join_names(changes)}); choose another folder, or replace it with --overwrite"
        )


def _renamed(document: dict[str, Any]) -> dict[str, Any]:
    """Return an analysis with the names of today; earlier ones called the fingerprint otherwise."""
    models = [document, *(o for o in document.get("others") or () if isinstance(o, dict))]
    for model in models:
        if _EARLIER_FINGERPRINT in model:
            model.setdefault(_FINGERPRINT, model.pop(_EARLIER_FINGERPRINT))
    return document


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
    document = {"format": FORMAT_VERSION, **facts}
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
        document = parse_json(text, finite=False)
    except ValueError:
        return False
    return isinstance(document, dict) and {"format", "analysis", "run"} <= document.keys()
