"""The averages of the papers' result tables, computed as the authors' scripts compute them.

They differ from `averages` in what counts: some leave out directions whose value is exactly zero,
some count directions that were never measured as zero.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType

from mnmt_jax.evaluation.averages import Average
from mnmt_jax.vocabulary.languages import EC40_TIERS, MITRE_GROUPS, Direction

Values = Mapping[Direction, float]
Table = dict[str, Average]

EC40_TABLE_TIERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "High": ("en", *EC40_TIERS["high"]),
        "Med": EC40_TIERS["medium"],
        "Low": EC40_TIERS["low"],
        "XLow": EC40_TIERS["extra_low"],
    }
)
"""EC-40's tiers as its tables have them: English is in the first."""


def mitre_table(values: Values, measured: Collection[str] | None = None) -> Table:
    """Average as MITRE's tables: per group as source and as target, and over everything.

    Args:
        values: the metric per direction.
        measured: languages the metric was computed for; None is all. Not used: all are.

    Source: registers.md 7.7 (Tables 3, 12, 13). English is a group; directions within a group
        count; zeros count.
    """
    del measured
    groups = {"English": ("en",), **MITRE_GROUPS}
    table = {}
    for name, codes in groups.items():
        table[f"{name} →"] = _mean(v for (source, _), v in values.items() if source in codes)
        table[f"→ {name}"] = _mean(v for (_, target), v in values.items() if target in codes)
    return {**table, "avg": _mean(values.values())}


def ec40_table(values: Values, measured: Collection[str] | None = None) -> Table:
    """Average as EC-40's tables: per tier as source and as target, supervised, zero-shot, all.

    A tier's arrow is the unweighted mean of its four cells of tier by tier. "sup" is the mean of
    en→x and x→en. en→x, x→en, zero-shot and avg leave out zeros.

    Args:
        values: the metric per direction.
        measured: languages the metric was computed for; None is all. In the tiers a direction with
            one other language counts as zero, as the authors' script has it, which dilutes them.

    Source: registers.md 7.7 (Tables 1, 10, 11; MITRE's ec_40 make_table.py).
    """
    cells = {
        (first, second): _tier_cell(values, sources, targets, measured)
        for first, sources in EC40_TABLE_TIERS.items()
        for second, targets in EC40_TABLE_TIERS.items()
    }
    table = {}
    for name in EC40_TABLE_TIERS:
        table[f"{name} →"] = _mean_of_means([cells[name, other] for other in EC40_TABLE_TIERS])
        table[f"→ {name}"] = _mean_of_means([cells[other, name] for other in EC40_TABLE_TIERS])
    english = english_table(_only(values, measured), None)
    sup = _mean_of_means([english["en →"], english["→ en"]])
    everything = _nonzero_mean(_only(values, measured).values())
    return {**table, **english, "sup": sup, "avg": everything}


def english_table(values: Values, measured: Collection[str] | None = None) -> Table:
    """Average as the two-stage paper's tables: from English, to English, zero-shot.

    Args:
        values: the metric per direction.
        measured: languages the metric was computed for; None is all.

    Source: two_stage.md 7.8 (make_table.py): zeros are left out of every mean.
    """
    kept = _only(values, measured)
    return {
        "en →": _nonzero_mean(v for (source, _), v in kept.items() if source == "en"),
        "→ en": _nonzero_mean(v for (_, target), v in kept.items() if target == "en"),
        "zero": _nonzero_mean(v for pair, v in kept.items() if "en" not in pair),
    }


def ted30_table(values: Values, measured: Collection[str] | None = None) -> Table:
    """Average as Graformer's tables: from English and to English, 30 directions each.

    Args:
        values: the metric per direction.
        measured: languages the metric was computed for; None is all. Not used: all are.

    Source: the captions of its Tables 1 and 2; means of what is printed there come out so.
    """
    del measured
    return {
        "en →": _mean(v for (source, _), v in values.items() if source == "en"),
        "→ en": _mean(v for (_, target), v in values.items() if target == "en"),
    }


def iwslt17_table(values: Values, measured: Collection[str] | None = None) -> Table:
    """Average as the language-specific layers paper's tables: from, to and without English.

    Args:
        values: the metric per direction.
        measured: languages the metric was computed for; None is all. Not used: all are.

    Source: the captions of its Tables 2 and 3. Zeros count.
    """
    zero = _mean(v for pair, v in values.items() if "en" not in pair)
    return {**ted30_table(values, measured), "zero": zero}


TABLES: Mapping[str, Callable[[Values, Collection[str] | None], Table]] = MappingProxyType(
    {
        "mitre": mitre_table,
        "ec40": ec40_table,
        "ted19": english_table,
        "ted30": ted30_table,
        "opus100": english_table,
        "iwslt17": iwslt17_table,
    }
)
"""The averages of each paper's tables, by procedure."""


def _tier_cell(
    values: Values,
    sources: Collection[str],
    targets: Collection[str],
    measured: Collection[str] | None,
) -> Average:
    found = []
    for (source, target), value in values.items():
        if source not in sources or target not in targets:
            continue
        known = [measured is None or code in measured for code in (source, target)]
        if any(known):
            found.append(value if all(known) else 0.0)
    return _mean(found)


def _only(values: Values, measured: Collection[str] | None) -> Values:
    """Keep the directions between measured languages."""
    if measured is None:
        return values
    kept = set(measured)
    return {pair: value for pair, value in values.items() if kept.issuperset(pair)}


def _mean(values: Iterable[float]) -> Average:
    present = list(values)
    return Average(sum(present) / len(present) if present else None, len(present))


def _nonzero_mean(values: Iterable[float]) -> Average:
    return _mean(value for value in values if value != 0)


def _mean_of_means(cells: Iterable[Average]) -> Average:
    present = [cell for cell in cells if cell.mean is not None]
    means = [cell.mean for cell in present if cell.mean is not None]
    count = sum(cell.directions for cell in present)
    return Average(sum(means) / len(means) if means else None, count)
