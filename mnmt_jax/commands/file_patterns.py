"""Suggested file patterns for messages, from the names of files that exist."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from mnmt_jax.data.cldr import SPLITS

_MAX_FILES = 10_000  # of a folder that are looked at
_FIELD = "{language}"


def suggest_pattern(prefix: str, languages: Sequence[str]) -> str:
    """Return the pattern of files with text in several languages.

    Args:
        prefix: a folder, or the start of the files' paths.
        languages: codes as in the names.

    Returns:
        The pattern that most files match, such as `clean/{split}.{pair}.{language}`; empty if there
        are no such files.
    """
    path = Path(prefix)
    folder, start = (path, "") if path.is_dir() else (path.parent, path.name)
    by_pattern: dict[str, list[str]] = defaultdict(list)
    wanted: set[str] = set()
    for name in _names(folder):
        pattern, language = _as_pattern(name, languages)
        if language:
            by_pattern[pattern].append(language)
            wanted |= {pattern} if name.startswith(start) else set()
    candidates = [pattern for pattern in wanted if len(set(by_pattern[pattern])) > 1]
    best = max(candidates, key=lambda name: (len(by_pattern[name]), name), default="")
    return str(folder / best) if best else ""


def _names(folder: Path) -> Iterator[str]:
    if folder.is_dir():
        for _, path in zip(range(_MAX_FILES), folder.iterdir(), strict=False):
            yield path.name


def _as_pattern(name: str, languages: Sequence[str]) -> tuple[str, str]:
    """Return the pattern of a file name, and its language; empty if it names none."""
    codes = "|".join(map(re.escape, sorted(languages, key=len, reverse=True)))
    pattern = re.sub(rf"(?<![^\W_])({codes})-({codes})(?![^\W_])", "{pair}", name)
    *_, last = [None, *re.finditer(rf"(?<![^\W_]|{{)({codes})(?![^\W_])", pattern)]
    if last is None:
        return name, ""
    pattern = pattern[: last.start()] + _FIELD + pattern[last.end() :]
    splits = "|".join(SPLITS)
    return re.sub(rf"(?<![^\W_])({splits})(?![^\W_])", "{split}", pattern, count=1), last[1]
