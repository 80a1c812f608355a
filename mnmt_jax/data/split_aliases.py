"""Words of file names: for splits that were not found, and for languages in any form of code."""

from __future__ import annotations

import collections
import glob
import re
from collections.abc import Iterable, Iterator, Sequence

from mnmt_jax.vocabulary.language_codes import canonical_code, canonical_code_or_input

_LIKELY = {"train": "train", "validation": "val|dev", "test": "test|tst|newstest"}
_FIELDS = ("{split}", "{language}", "{pair}")


def guess_split_name(pattern: str, languages: Sequence[str], split: str) -> str:
    """Returns the word for a split that most files have; empty if no file looks like it.

    Args:
        pattern: path with `{split}`, and perhaps `{language}` and `{pair}`.
        languages: codes that `{language}` stands for, in any form.
        split: "train", "validation" or "test".
    """
    codes = {canonical_code_or_input(code) for code in languages}
    matches = _matches(pattern, {"split": rf"(?:{_LIKELY[split]})[\w-]*", "language": r"[\w@-]+"})
    words = collections.Counter(
        match["split"]
        for match in matches
        if "{language}" not in pattern or canonical_code_or_input(match["language"]) in codes
    )
    return words.most_common(1)[0][0] if words else ""


def language_aliases(
    patterns: Iterable[str], languages: Iterable[str]
) -> dict[str, tuple[str, ...]]:
    """Return what `{language}` may stand for in names of files, by canonical code.

    Args:
        patterns: paths, perhaps with `{language}`, `{pair}`, `*`.
        languages: codes in any form.

    Returns:
        The form given, the canonical form, and the forms that files have.
    """
    words = {canonical_code(code): {code: None, canonical_code(code): None} for code in languages}
    for pattern in patterns:
        for match in _matches(pattern, {"language": r"[\w@-]+"}):
            if (code := canonical_code_or_input(match.groupdict().get("language") or "")) in words:
                words[code][match["language"]] = None
    return {code: tuple(forms) for code, forms in words.items()}


def _matches(pattern: str, words: dict[str, str]) -> Iterator[re.Match[str]]:
    """Yield the matches of a pattern's files, in the order of their names.

    Args:
        pattern: path; what follows `#` is a column.
        words: regular expressions of fields, which become groups.
    """
    path = pattern.partition("#")[0]
    if not any(field in path for field in _FIELDS):
        return
    form, shape = path, re.escape(path)
    for name, word in words.items():
        field = re.escape(f"{{{name}}}")
        shape = shape.replace(field, f"(?P<{name}>{word})", 1).replace(field, f"(?P={name})")
    shape = shape.replace(r"\{pair\}", r"[\w@-]+").replace(r"\*\*", ".*").replace(r"\*", "[^/]*")
    form = "".join(
        part if part in (*_FIELDS, "*", "**") else glob.escape(part)
        for part in re.split(r"(\{split\}|\{language\}|\{pair\}|\*\*|\*)", path)
    )
    for field in _FIELDS:
        form = form.replace(field, "*")
    files = glob.glob(form, recursive=True) + glob.glob(f"{form}.gz", recursive=True)
    for file in sorted(set(files)):
        if match := re.fullmatch(shape, file.removesuffix(".gz")) or re.fullmatch(shape, file):
            yield match
