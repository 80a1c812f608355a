"""Work folders of resumable commands: a lock, a description and the finished units."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import IO

from mnmt_jax.errors import UserError

_LOCK = "lock"


def open_work_folder(folder: Path, flag: str = "--output") -> IO[str]:
    """Create a work folder, or open an existing one.

    Args:
        folder: the folder.
        flag: flag that selects another path.

    Returns:
        The open file for its lock (`mnmt_jax.files.atomic_write.lock`).

    Raises:
        UserError: if the folder has files but no lock, so it is not a work folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock_path = folder / _LOCK
    if any(folder.iterdir()) and not lock_path.exists():  # a lock may appear between the two
        raise UserError(
            f"{folder}: has files of something else; move them, or choose another {flag}"
        )
    return open(lock_path, "a", encoding="utf-8")


def clear_work_folder(description: Path) -> None:
    """Remove everything from a work folder but its lock.

    The description is removed first: units without a description are never continued, so the
    removal may stop at any moment.

    Args:
        description: file of the folder that describes its work; may be missing.
    """
    description.unlink(missing_ok=True)
    for path in description.parent.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != _LOCK:
            path.unlink()
