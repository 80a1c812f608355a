"""Script of a text, by which codes of one language in several scripts are told apart."""

from __future__ import annotations

from collections.abc import Sequence

import regex

from mnmt_jax.data.preparation.character_rules import is_script, script_pattern
from mnmt_jax.vocabulary.language_codes import parse_code

# Both scripts are Han for Unicode; the encodings have the characters that are in use in each.
_ENCODINGS = {"Hans": "gb2312", "Hant": "big5"}


def sort_by_script(text: str, codes: Sequence[str]) -> list[str]:
    """Sort codes of languages by the number of letters of a text that are in their script.

    Codes of equal numbers, as those of one script, keep their order.

    Args:
        text: the text.
        codes: codes of any form.
    """
    scripts = {code: parse_code(code).written_script for code in codes}
    if len({*scripts.values()}) < 2:
        return list(codes)
    return sorted(codes, key=lambda code: -_count_letters(text, scripts[code]))


def _count_letters(text: str, script: str) -> int:
    if not is_script(script):
        return 0
    letters = "".join(regex.findall(f"[{script_pattern([script])}]", text))
    encoding = _ENCODINGS.get(script)
    return len(letters.encode(encoding, "ignore").decode(encoding) if encoding else letters)
