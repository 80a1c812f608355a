"""Places of line breaks in a translated text."""

from __future__ import annotations

import bisect
from collections.abc import Sequence


def nearest_space(spaces: Sequence[int], place: float, first: int) -> int | None:
    """Return the index of the space nearest to a place, in logarithmic time.

    Args:
        spaces: places of all spaces, ascending.
        place: the place; of two spaces at one distance the first is taken.
        first: index of the first space that may be taken.

    Returns:
        The index, or None if no space is left.
    """
    after = bisect.bisect(spaces, place, lo=first)
    candidates = range(max(first, after - 1), min(after + 1, len(spaces)))
    return min(candidates, key=lambda number: abs(spaces[number] - place), default=None)
