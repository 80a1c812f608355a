"""What meanings are made of: names, units and phrase types that every language owns.

The inventory is the intersection over MITRE's 24 languages and those asked for, so a corpus of any
of the 24 draws the same meanings, and each meaning can be rendered in all 24.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from mnmt_jax.data.cldr.renderer import NAME_PATHS, Renderer
from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.languages import MITRE_LANGUAGES

# Marks that our own compositions use: a name that has one would read as two phrases.
_COMPOSED = re.compile(r"[()\[\]（）/:：;；,，、–—―\"«»“”「」]")

# Codes CLDR names that are no territory or language of their own.
_PLACEHOLDERS = frozenset({"ZZ", "XA", "XB", "QO", "und", "mul", "mis", "zxx", "root", "XXX"})

# Where one form names two kinds of thing (Indonesian "Jerman" is Germany and German), the earlier
# kind keeps it; two things of one kind lose it both.
_PRECEDENCE = ("territory", "unit", "currency", "language", "zone")

# Angles share their names with times in most languages and would take these with them.
_SHADOWING_UNITS = frozenset({"angle-arc-minute", "angle-arc-second"})

_SMALL_TERRITORIES = (
    "AR AT AU BE BG BR CA CH CL CN CO CZ DE DK DZ EG ES ET FI FR GB GR HU ID IE IL IN IQ IR IS IT "
    "JP KE KR KZ MA MX MY NG NL NO NZ PE PH PK PL PT RO RU SA SE SG TH TR UA US UZ VE VN ZA"
).split()
_SMALL_LANGUAGES = (
    "am ar bn br bs ca cy en eo eu fa gl gu he hi jv km ko ku la mk ml mr ms my pa pt sk sw ta te "
    "th tk ur yi zh zu"
).split()
_SMALL_CURRENCIES = "AUD BRL CAD CHF CNY CZK DKK EUR GBP IDR INR JPY KRW MXN PLN SEK USD".split()
_SMALL_UNITS = (
    "duration-day duration-hour duration-minute duration-month duration-second duration-week "
    "duration-year length-centimeter length-kilometer length-meter length-mile length-millimeter "
    "mass-gram mass-kilogram mass-ton temperature-celsius volume-liter volume-milliliter "
    "digital-megabyte energy-kilojoule"
).split()


@dataclass(frozen=True)
class Inventory:
    """Lists the atoms that meanings are made of.

    Attributes:
        name: "small" or "large".
        names: codes by kind of name: "territory", "language", "currency", "zone".
        units: units of quantities.
        per_units: units that quantities and prices are given per.
        missing: phrase types some language owns no pattern for.
        years: first and last year.
        numbers: largest number of a quantity, a price or a relative time.
        decimals: whether quantities may have one decimal.
    """

    name: str
    names: Mapping[str, tuple[str, ...]]
    units: tuple[str, ...]
    per_units: tuple[str, ...]
    missing: frozenset[str]
    years: tuple[int, int]
    numbers: int
    decimals: bool


@functools.cache
def renderer(language: str) -> Renderer:
    """Returns the language's renderer, made once per process."""
    return Renderer(language)


def load_inventory(name: str, languages: Iterable[str] = ()) -> Inventory:
    """Builds an inventory that MITRE's languages and the given ones own.

    Args:
        name: "small" (some 60 territories, few phrase types: learnt in minutes) or "large".
        languages: codes.

    Raises:
        UserError: if the name is unknown or CLDR has no data for a language.
    """
    if name not in _INVENTORIES:
        raise UserError(f"inventory {name!r}: must be one of {' '.join(_INVENTORIES)}")
    return _INVENTORIES[name](_shared(frozenset((*MITRE_LANGUAGES, *languages))))


@functools.cache
def _shared(languages: frozenset[str]) -> Inventory:
    """Intersects what the languages own and drops what is ambiguous in one of them."""
    renderers = [renderer(language) for language in sorted(languages)]
    shared: dict[str, set[str]] = {
        kind: set.intersection(*(set(item.names[kind]) for item in renderers))
        for kind in NAME_PATHS
    }
    shared["territory"] = {code for code in shared["territory"] if re.fullmatch("[A-Z]{2}", code)}
    shared["unit"] = set.intersection(*(set(item.units()) for item in renderers))
    candidates = {(kind, code) for kind, codes in shared.items() for code in codes}
    excluded = _PLACEHOLDERS | _SHADOWING_UNITS
    candidates = {atom for atom in candidates if atom[1] not in excluded}
    for item in renderers:
        candidates -= _unclear(item, candidates)
        candidates -= _symbols(item, shared["unit"])
    kept = {kind: tuple(sorted(c for k, c in candidates if k == kind)) for kind in shared}
    units = kept.pop("unit")
    return Inventory(
        name="large",
        names=kept,
        units=units,
        per_units=tuple(u for u in units if all("per" in r.unit_patterns(u) for r in renderers)),
        missing=frozenset().union(*(item.missing_phrases() for item in renderers)),
        years=(1900, 2099),
        numbers=999,
        decimals=True,
    )


def _unclear(item: Renderer, candidates: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Finds the atoms one language gives the same form as another, or writes with our marks."""
    owners: dict[str, set[tuple[str, str]]] = defaultdict(set)
    unclear = set()
    for kind, code in candidates:
        for form in _forms(item, kind, code):
            owners[form.casefold()].add((kind, code))
            if _COMPOSED.search(form):
                unclear.add((kind, code))
    for atoms in owners.values():
        first = min(_PRECEDENCE.index(kind) for kind, _ in atoms)
        keepers = {atom for atom in atoms if atom[0] == _PRECEDENCE[first]}
        unclear |= atoms - keepers if len(keepers) == 1 else atoms
    return unclear


def _symbols(item: Renderer, units: set[str]) -> set[tuple[str, str]]:
    """Finds the units one language only has English's abbreviation for (Korean "dec")."""
    found = set()
    for unit in units:
        short = {_letters(form) for form in renderer("en").unit_patterns(unit, "short").values()}
        short -= {_letters(form) for form in renderer("en").unit_patterns(unit).values()}
        if short & {_letters(form) for form in item.unit_patterns(unit).values()}:
            found.add(("unit", unit))
    return found


def _letters(pattern: str) -> str:
    """Returns what a unit's pattern has besides the number and spaces."""
    return pattern.replace("{0}", "").replace(" ", "")


def _forms(item: Renderer, kind: str, code: str) -> set[str]:
    """Lists every written form of an atom in one language."""
    if kind == "unit":
        return {text for tag, text in item.unit_patterns(code).items() if tag != "per"}
    forms = {item.names[kind][code]}
    if kind == "currency":
        forms |= set(item.currency_patterns(code).values())
    return forms


def _small(shared: Inventory) -> Inventory:
    """Takes well-known territories, languages, currencies and units only."""
    wanted = {
        "territory": _SMALL_TERRITORIES,
        "language": _SMALL_LANGUAGES,
        "currency": _SMALL_CURRENCIES,
    }
    return replace(
        shared,
        name="small",
        names={
            kind: tuple(code for code in shared.names[kind] if code in codes)
            for kind, codes in wanted.items()
        },
        units=tuple(unit for unit in shared.units if unit in _SMALL_UNITS),
        per_units=(),
        years=(1980, 2029),
        numbers=60,
        decimals=False,
    )


_INVENTORIES: dict[str, Callable[[Inventory], Inventory]] = {
    "small": _small,
    "large": lambda shared: shared,
}
INVENTORY_NAMES: tuple[str, ...] = tuple(_INVENTORIES)
"""Names that `load_inventory` takes."""
