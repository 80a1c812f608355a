"""Aliases of splits and languages in file names."""

from __future__ import annotations

import collections
import glob
import re
from collections.abc import Iterable, Iterator, Sequence

from mnmt_jax.data.file_columns import split_column
from mnmt_jax.vocabulary.language_codes import canonical_code, canonical_code_or_input

_LIKELY = {"train": "train", "validation": "val|dev", "test": "test|tst|newstest"}
_FIELDS = ("{split}", "{language}", "{pair}")


def guess_split_name(pattern: str, languages: Sequence[str], split: str) -> str:
    """Return the most frequent file name part for a split; empty if no file matches.

    Args:
        pattern: path with `{split}`, and optionally `{language}` and `{pair}`.
        languages: codes that `{language}` stands for, in any form.
        split: "train", "validation" or "test".
    """
    codes = {canonical_code_or_input(code) for code in languages}
    matches = _matches(pattern, {"split": rf"(?:{_LIKELY[split]})[\w-]*", "language": r"[\w@-]+"})
    words = collections.Counter(
        match["split"]
        for match in matches
        if "language" not in match.groupdict()  # in the column alone, or nowhere
        or canonical_code_or_input(match["language"]) in codes
    )
    return words.most_common(1)[0][0] if words else ""


def language_aliases(
    patterns: Iterable[str], languages: Iterable[str]
) -> dict[str, tuple[str, ...]]:
    """Return the values of `{language}` in file names, by canonical code.

    Args:
        patterns: paths, optionally with `{language}`, `{pair}`, `*`.
        languages: codes in any form.

    Returns:
        For each code: the input form, the canonical form, and the forms in existing files.
    """
    words = {canonical_code(code): {code: None, canonical_code(code): None} for code in languages}
    for pattern in patterns:
        for match in _matches(pattern, {"language": r"[\w@-]+"}):
            if (code := canonical_code_or_input(match.groupdict().get("language") or "")) in words:
                words[code][match["language"]] = None
    return {code: tuple(forms) for code, forms in words.items()}


def find_files(pattern: str) -> list[str]:
    """Return the existing files of a pattern and of the pattern with ".gz", in the order of names.

    Args:
        pattern: path; its fields and `*` stand for any part of a name, `**` for any folders. All
            other characters, such as `[`, stand for themselves.
    """
    tokens = re.split(r"(\{split\}|\{language\}|\{pair\}|\*\*|\*)", pattern)
    wildcards = {"*": "*", "**": "**", **dict.fromkeys(_FIELDS, "*")}
    expression = "".join(wildcards.get(token) or glob.escape(token) for token in tokens)
    names = (expression, f"{expression}.gz")
    return sorted({path for name in names for path in glob.glob(name, recursive=True)})


def _matches(pattern: str, expressions: dict[str, str]) -> Iterator[re.Match[str]]:
    """Yield the matches of a pattern's existing files, in the order of their names.

    Args:
        pattern: path, or `PATH#COLUMN`.
        expressions: regular expressions by field, which become named groups.
    """
    path, _ = split_column(pattern)
    if not any(field in path for field in _FIELDS):
        return
    regex = re.escape(path)
    for name, expression in expressions.items():
        field = re.escape(f"{{{name}}}")
        regex = regex.replace(field, f"(?P<{name}>{expression})", 1).replace(field, f"(?P={name})")
    regex = regex.replace(r"\{pair\}", r"[\w@-]+").replace(r"\*\*", ".*").replace(r"\*", "[^/]*")
    for file in find_files(path):
        if match := re.fullmatch(regex, file.removesuffix(".gz")) or re.fullmatch(regex, file):
            yield match
