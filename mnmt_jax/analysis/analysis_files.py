"""Output files of an analysis: `analysis.json` with the results, `analysis.html` with charts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mnmt_jax.errors import UserError, join_names
from mnmt_jax.files.atomic_write import check_replaced, check_writable, write_text
from mnmt_jax.files.json_objects import differing_keys, is_object_with, read_object
from mnmt_jax.pages.html_elements import Child
from mnmt_jax.pages.html_page import generator_mark, html_page

FORMAT_VERSION = 1
_GENERATOR = generator_mark("mnmt-jax analyse")
_JSON, _PAGE = "analysis.json", "analysis.html"
# What identifies an analysis; the same analysis may be replaced.
_IDENTITY_KEYS = ("analysis", "run", "parameters_fingerprint", "task", "others", "read_directions")
_SETTINGS, _SENTENCES = "settings", "sentences_fingerprint"
_FINGERPRINT, _LEGACY_FINGERPRINT = "parameters_fingerprint", "parameters"
_PROBE_SPLIT, _LEGACY_PROBE_SPLIT = "probe_split", "trained_on"


def check_analysis_folder(output: str | Path) -> None:
    """Check that an analysis may write to a folder: existing output files must be from an analysis.

    Raises:
        UserError: if a file to be replaced is not from an analysis, or the folder is not writable.
    """
    folder = Path(output)
    check_writable(folder)
    check_replaced(folder / _JSON, _is_analysis)
    check_replaced(folder / _PAGE, lambda text: _GENERATOR in text)


def check_same_analysis(output: str | Path, facts: Mapping[str, Any]) -> None:
    """Refuse to replace a finished analysis of another kind, run, task, sentences or settings.

    Args:
        output: folder that has passed `check_analysis_folder`.
        facts: results of the new analysis. The keys in `_IDENTITY_KEYS` and the `settings` are
            compared where both analyses have them.

    Raises:
        UserError: if the folder holds a different analysis. Keys that earlier versions did not
            write are not compared.
    """
    path = Path(output) / _JSON
    if not path.is_file() or not path.stat().st_size:
        return
    document = read_object(path, remedy="replace it with --overwrite")
    document = _with_current_keys(document)
    compared = {
        name: document[name] for name in _IDENTITY_KEYS if name in document and name in facts
    }
    changes = differing_keys(compared, {name: facts[name] for name in compared})
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


def _with_current_keys(document: dict[str, Any]) -> dict[str, Any]:
    """Rename the keys of earlier versions in an analysis to the current names."""
    models = [
        document,
        *(other for other in document.get("others") or () if isinstance(other, dict)),
    ]
    for model in models:
        if _LEGACY_FINGERPRINT in model:
            model.setdefault(_FINGERPRINT, model.pop(_LEGACY_FINGERPRINT))
    settings = document.get(_SETTINGS)
    if isinstance(settings, dict) and _LEGACY_PROBE_SPLIT in settings:
        settings.setdefault(_PROBE_SPLIT, settings.pop(_LEGACY_PROBE_SPLIT))
    return document


def write_analysis(
    output: str | Path, facts: Mapping[str, Any], title: str, sections: Sequence[Child]
) -> Path:
    """Write both files.

    Args:
        output: folder, created if missing.
        facts: results of the analysis; may contain NumPy and JAX numbers and arrays.
        title: title of the page.
        sections: sections of the page.

    Returns:
        The path of the page.
    """
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    document = {"format": FORMAT_VERSION, **facts}
    text = json.dumps(document, ensure_ascii=False, indent=1, default=_to_json_value)
    write_text(folder / _JSON, text + "\n")
    write_text(folder / _PAGE, html_page(title, sections, generator=_GENERATOR))
    return folder / _PAGE


def _to_json_value(value: Any) -> Any:
    """Return a number or an array as JSON values with the seven digits of float32."""
    array = np.asarray(value)
    if array.ndim:
        return [_to_json_value(item) for item in array]
    return float(f"{array.item():.7g}")


def _is_analysis(text: str) -> bool:
    return is_object_with(text, "format", "analysis", "run")
