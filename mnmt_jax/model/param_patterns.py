"""Patterns that select parameters by path, used by `Model.lora` and `Optimizer.frozen`.

A pattern consists of components joined by `/`; a component may contain the shell wildcards `*`, `?`
and `[...]`, which never match a `/`. It matches a path if its components match consecutive complete
components of the path:

    query             layer_0/attention/query/kernel, layer_9/memory_attention/query/bias
    attention/query   the first of these, not the second
    layer_[0-5]       the first, not the second
    *attention/query  both
    quer              neither
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from mnmt_jax.errors import UserError


def matches(pattern: str, path: str) -> bool:
    """Return whether a pattern matches a path, e.g. `layer_0/attention/query/kernel`."""
    pattern_parts, path_parts = pattern.split("/"), path.split("/")
    windows = zip(*(path_parts[start:] for start in range(len(pattern_parts))), strict=False)
    return any(all(map(fnmatchcase, window, pattern_parts)) for window in windows)


def check_patterns(flag: str, patterns: Sequence[str], paths: Iterable[str]) -> None:
    """Raise an error for a pattern that matches nothing, which is most likely misspelt.

    Args:
        flag: that holds the patterns, e.g. `Optimizer.frozen`.
        patterns: to check.
        paths: all paths that they may select.

    Raises:
        UserError: with the flag, the pattern, and similar names.
    """
    paths = list(paths)
    for pattern in patterns:
        if not any(matches(pattern, path) for path in paths):
            hint = _hint(pattern, paths)
            raise UserError(f"{flag}={patterns!r}: '{pattern}' matches nothing; {hint}")


def _hint(pattern: str, paths: Sequence[str]) -> str:
    split = {tuple(re.sub(r"_\d+", "_*", path).split("/")) for path in paths}
    known = sorted({part for parts in split for part in parts})
    runs = {"/".join(parts[n:m]) for parts in split for m in range(5) for n in range(m)}
    return f"{suggest_paths(pattern, runs)}paths are made of {', '.join(known)}"


def suggest_paths(name: str, names: Iterable[str]) -> str:
    """Return a question that suggests names similar to a wrong one; empty if there are none."""
    near = difflib.get_close_matches(name, sorted(names), n=3)
    return f"did you mean {' or '.join(near)}? " if near else ""
