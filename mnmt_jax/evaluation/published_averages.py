"""Averages of the papers' result tables, computed as in the authors' scripts.

Unlike `averages`, some of them leave out directions whose value is exactly zero, and some count
unmeasured directions as zero.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType

from mnmt_jax.evaluation.averages import Average, mean_of_means, tier_averages
from mnmt_jax.vocabulary.language_codes import Direction
from mnmt_jax.vocabulary.languages import MITRE_GROUPS

Values = Mapping[Direction, float]
Table = dict[str, Average]


def mitre_table(values: Values) -> Table:
    """Average as in MITRE's tables: per group as source and as target, and over all directions.

    Args:
        values: the metric by direction.

    Source: registers.md 7.7 (Tables 3, 12, 13). English is a group; directions within a group
        count; zeros count.
    """
    groups = {"English": ("en",), **MITRE_GROUPS}
    table = {}
    for name, codes in groups.items():
        table[f"{name} →"] = _mean(v for (source, _), v in values.items() if source in codes)
        table[f"→ {name}"] = _mean(v for (_, target), v in values.items() if target in codes)
    return {**table, "avg": _mean(values.values())}


def ec40_table(values: Values, measured_languages: Collection[str] | None = None) -> Table:
    """Average as in EC-40's tables: per tier as source and as target, supervised, zero-shot, all.

    The average of a tier as source or target is the unweighted mean of its four tier-by-tier cells.
    "sup" is the mean of en→x and x→en. en→x, x→en, zero-shot and avg leave out zeros.

    Args:
        values: the metric by direction.
        measured_languages: languages that the metric was computed for; None for all. In the tiers,
            a direction with one unmeasured language counts as zero, as in the authors' script,
            which lowers the averages.

    Source: registers.md 7.7 (Tables 1, 10, 11; MITRE's ec_40 make_table.py).
    """
    tiers = tier_averages(
        lambda sources, targets: _tier_cell(values, sources, targets, measured_languages)
    )
    english = english_table(_measured_values(values, measured_languages), None)
    sup = mean_of_means([english["en →"], english["→ en"]])
    average = _nonzero_mean(_measured_values(values, measured_languages).values())
    return {**tiers, **english, "sup": sup, "avg": average}


def english_table(values: Values, measured_languages: Collection[str] | None = None) -> Table:
    """Average as in the two-stage paper's tables: from English, to English, zero-shot.

    Args:
        values: the metric by direction.
        measured_languages: languages that the metric was computed for; None for all.

    Source: two_stage.md 7.8 (make_table.py): zeros are left out of all means.
    """
    measured_values = _measured_values(values, measured_languages)
    return {
        "en →": _nonzero_mean(v for (source, _), v in measured_values.items() if source == "en"),
        "→ en": _nonzero_mean(v for (_, target), v in measured_values.items() if target == "en"),
        "zero": _nonzero_mean(v for pair, v in measured_values.items() if "en" not in pair),
    }


def ted30_table(values: Values) -> Table:
    """Average as in Graformer's tables: from English and to English, 30 directions each.

    Args:
        values: the metric by direction.

    Source: the captions of its Tables 1 and 2; confirmed by the means of the printed values.
    """
    return {
        "en →": _mean(v for (source, _), v in values.items() if source == "en"),
        "→ en": _mean(v for (_, target), v in values.items() if target == "en"),
    }


def iwslt17_table(values: Values) -> Table:
    """Average as in the language-specific layers paper's tables: from, to and without English.

    Args:
        values: the metric by direction.

    Source: the captions of its Tables 2 and 3. Zeros count.
    """
    zero = _mean(v for pair, v in values.items() if "en" not in pair)
    return {**ted30_table(values), "zero": zero}


TABLES: Mapping[str, Callable[..., Table]] = MappingProxyType(
    {
        "mitre": mitre_table,
        "ec40": ec40_table,
        "ted19": english_table,
        "ted30": ted30_table,
        "opus100": english_table,
        "iwslt17": iwslt17_table,
    }
)
"""Function that computes the averages of a paper's tables from `values`, by procedure.

Those with `measured_languages` take metrics that were not computed for all languages.
"""


def _tier_cell(
    values: Values,
    sources: Collection[str],
    targets: Collection[str],
    measured_languages: Collection[str] | None,
) -> Average:
    cell_values = []
    for (source, target), value in values.items():
        if source not in sources or target not in targets:
            continue
        is_measured = [
            measured_languages is None or code in measured_languages for code in (source, target)
        ]
        if any(is_measured):
            cell_values.append(value if all(is_measured) else 0.0)
    return _mean(cell_values)


def _measured_values(values: Values, measured_languages: Collection[str] | None) -> Values:
    """Return the values of directions between measured languages."""
    if measured_languages is None:
        return values
    codes = set(measured_languages)
    return {pair: value for pair, value in values.items() if codes.issuperset(pair)}


def _mean(values: Iterable[float]) -> Average:
    present = list(values)
    return Average(sum(present) / len(present) if present else None, len(present))


def _nonzero_mean(values: Iterable[float]) -> Average:
    return _mean(value for value in values if value != 0)
