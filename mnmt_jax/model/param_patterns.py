"""The one language of patterns that choose parameters, in `Model.lora` and `Optimizer.frozen`.

A pattern is parts joined by `/`; a part may hold the shell's wildcards `*`, `?` and `[...]`, which
never cross a `/`. It fits a path if its parts fit consecutive parts of the path, each whole:

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
    """Returns whether a pattern fits a path, e.g. `layer_0/attention/query/kernel`."""
    wanted, parts = pattern.split("/"), path.split("/")
    windows = zip(*(parts[start:] for start in range(len(wanted))), strict=False)
    return any(all(map(fnmatchcase, window, wanted)) for window in windows)


def check_patterns(flag: str, patterns: Sequence[str], paths: Iterable[str]) -> None:
    """Refuses a pattern that fits nothing: most likely a misspelt one.

    Args:
        flag: where the patterns stand, e.g. `Optimizer.frozen`.
        patterns: to check.
        paths: of everything they may choose.

    Raises:
        UserError: naming the flag, the pattern, and names that come close.
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
    return f"{meant(pattern, runs)}paths are made of {', '.join(known)}"


def meant(wanted: str, names: Iterable[str]) -> str:
    """Returns a question about names that come close to a wrong one; nothing if none does."""
    near = difflib.get_close_matches(wanted, sorted(names), n=3)
    return f"did you mean {' or '.join(near)}? " if near else ""
