"""Lines of the log about failures, without words that may be a user's."""

from __future__ import annotations

import traceback

_FRAMES = 3  # of the code that are named


def describe_failure(error: Exception, *, log_text: bool) -> str:
    """Return the kind of an error and its place in the code.

    Args:
        error: the error.
        log_text: whether its words are added, which may be a user's.
    """
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    places = " < ".join(f"{frame.filename}:{frame.lineno}" for frame in reversed(frames))
    return f"{type(error).__name__} at {places}{f': {error}' if log_text else ''}"
