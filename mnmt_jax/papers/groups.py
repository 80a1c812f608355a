"""Groups of directions that the cells of published tables average over."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from mnmt_jax.vocabulary.language_codes import Direction
from mnmt_jax.vocabulary.languages import EC40_TABLE_TIERS, EC40_TIERS, MITRE_GROUPS

Value = TypeVar("Value", float, np.ndarray)

TRAINING_GROUPS = ("supervised", "zero_shot")
"""Groups that depend on the directions of the training."""

_TIERS = dict(zip(EC40_TIERS, EC40_TABLE_TIERS.values(), strict=True))
_GROUPS: Mapping[str, tuple[str, ...]] = {
    **_TIERS,
    **{
        name.lower().replace("-", "_").replace(" ", "_"): codes
        for name, codes in MITRE_GROUPS.items()
    },
}


def group_mean(
    values: Mapping[Direction, Value | None],
    group: str,
    supervised: Iterable[Direction] | None,
    undefined: Collection[Direction] = (),
) -> Value | None:
    """Return the mean over a group's directions; None if none has a value.

    Args:
        values: a score, or an array of resampled scores, by direction.
        group: `supervised`, `zero_shot`, `all`, a direction (`de-fr`) or `A_to_B`, where A and B
            are a code, a tier or group of languages, `x` for any, or `non_english`.
        supervised: directions that the model was trained on; None if unknown.
        undefined: directions without a mean of their own, as in `average_groups`.
    """
    means: list[Value] = []
    for part in _averaged_groups(group):
        directions = _directions(part, tuple(values), supervised)
        if all(pair in undefined for pair in directions):
            continue
        if scores := [value for pair in directions if (value := values[pair]) is not None]:
            means.append(sum(scores[1:], scores[0]) / len(scores))
    return sum(means[1:], means[0]) / len(means) if means else None


def _averaged_groups(group: str) -> tuple[str, ...]:
    """Return the groups whose means a group averages.

    A tier of EC-40 to or from all languages is the mean of its four tier-by-tier means, as in the
    authors' script (`mnmt_jax.evaluation.published_averages.ec40_table`).
    """
    source, _, target = group.partition("_to_")
    if source in _TIERS and target == "x":
        return tuple(f"{source}_to_{tier}" for tier in _TIERS)
    if source == "x" and target in _TIERS:
        return tuple(f"{tier}_to_{target}" for tier in _TIERS)
    return (group,)


def _directions(
    group: str, directions: Sequence[Direction], supervised: Iterable[Direction] | None
) -> list[Direction]:
    if group == "all":
        return list(directions)
    if group in TRAINING_GROUPS:
        if supervised is None:
            return []
        trained = set(supervised)
        return [pair for pair in directions if (pair in trained) == (group == "supervised")]
    source, separator, target = group.partition("_to_")
    if separator:
        return [pair for pair in directions if _is_in(pair[0], source) and _is_in(pair[1], target)]
    return [pair for pair in directions if "-".join(pair) == group]


def _is_in(code: str, group: str) -> bool:
    """Return whether a language belongs to a group; a code is the group of itself."""
    if group == "non_english":
        return code != "en"
    return group == "x" or code in _GROUPS.get(group, (group,))
