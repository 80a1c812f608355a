"""Checks of names used in paths, and of links in untrusted folders."""

from __future__ import annotations

import os
from pathlib import Path, PurePath

from mnmt_jax.errors import UserError

MAX_NAME_BYTES = 200
"""Longest name in bytes of UTF-8: file systems allow 255, and commands append endings."""


MAX_JOINED_BYTES = 240
"""Longest name in bytes that is composed of several names, such as a task's of corpus and
languages."""


def check_name(name: str, label: str, *, max_bytes: int = MAX_NAME_BYTES) -> str:
    """Check a name that becomes a file or folder name below a known folder.

    Args:
        name: such as "mine", for "CACHE/tasks/mine_en_de".
        label: the flag or field that it comes from, such as "--name".
        max_bytes: maximum length of the name, in bytes of UTF-8.

    Returns:
        The name.

    Raises:
        UserError: if it is empty, ".", "..", longer than `max_bytes`, or contains a path separator,
            a control character, or a character that cannot be written as UTF-8.
    """
    if flaw := _name_flaw(name, max_bytes):
        shown = repr(name) if len(name) <= 80 else f"{name[:80]!r}..."
        raise UserError(
            f"{label}={shown}: {flaw}, but becomes part of a path; choose a name of letters, "
            "digits, '-', '_' and '.'"
        )
    return name


def _name_flaw(name: str, max_bytes: int) -> str:
    """Return a description of what is wrong with a name; empty if it is valid."""
    if not name.strip():
        return "is empty"
    if name in (".", ".."):
        return "is no name"
    if any(mark in name for mark in "/\\"):
        return "has a separator of folders"
    if any(ord(character) < 32 or ord(character) == 127 for character in name):
        return "has a control character"
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "is not Unicode text"
    return f"is longer than {max_bytes} bytes" if size > max_bytes else ""


def is_outside(name: str) -> bool:
    """Return whether a path such as "tasks/mine" would leave the folder that it is joined to."""
    path = PurePath(name)
    return path.is_absolute() or ".." in path.parts


def check_inside(path: Path, folder: Path) -> None:
    """Check that a path is inside a folder after all links are resolved.

    Args:
        path: path of a file or folder.
        folder: untrusted folder; its own path may contain links.

    Raises:
        UserError: if a link leads out of the folder.
    """
    real, root = os.path.realpath(path), os.path.realpath(folder)
    if os.path.commonpath([real, root]) != root:
        raise UserError(
            f"{path}: is a link to {real}, outside of {folder}; replace the link by a copy if you "
            "trust it"
        )
