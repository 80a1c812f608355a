"""Inventory of meanings: names, units and phrase types that all languages have.

The inventory is the intersection over MITRE's 24 languages and the requested ones. So corpora of
any of the 24 languages draw the same meanings, and each meaning can be rendered in all 24.
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

# Punctuation of our compositions: a name that contains one would look like two phrases.
_PHRASE_MARKS = re.compile(r"[()\[\]（）/:：;；,，、–—―\"«»“”「」]")

# Codes with a CLDR name that are not actual territories or languages.
_PLACEHOLDERS = frozenset({"ZZ", "XA", "XB", "QO", "und", "mul", "mis", "zxx", "root", "XXX"})

# If a form is ambiguous between kinds (Indonesian "Jerman" is Germany and German), only the atom of
# the earlier kind is kept; if it is ambiguous within a kind, no atom is kept.
_PRECEDENCE = ("territory", "unit", "currency", "language", "zone")

# In most languages angles and times have the same names, so angles would exclude times.
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
    """Atoms that meanings are composed of.

    Attributes:
        name: "small" or "large".
        names: codes by kind of name: "territory", "language", "currency", "zone".
        units: units of quantities.
        per_units: units that quantities and prices may be given per.
        missing: phrase types for which some language has no pattern.
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
    """Return the renderer of a language, cached per process."""
    return Renderer(language)


def load_inventory(name: str, languages: Iterable[str] = ()) -> Inventory:
    """Return the inventory of the atoms that MITRE's languages and the requested ones have.

    Args:
        name: "small" (about 60 territories and few phrase types; learnt in minutes) or "large".
        languages: codes.

    Raises:
        UserError: if the name is unknown or CLDR has no data for a language.
    """
    if name not in _INVENTORIES:
        raise UserError(f"inventory {name!r}: must be one of {' '.join(_INVENTORIES)}")
    return _INVENTORIES[name](_common_inventory(frozenset((*MITRE_LANGUAGES, *languages))))


@functools.cache
def _common_inventory(languages: frozenset[str]) -> Inventory:
    """Return the atoms that all languages have, without those that are ambiguous in any of them."""
    renderers = [renderer(language) for language in sorted(languages)]
    common: dict[str, set[str]] = {
        kind: set.intersection(*(set(item.names[kind]) for item in renderers))
        for kind in NAME_PATHS
    }
    common["territory"] = {code for code in common["territory"] if re.fullmatch("[A-Z]{2}", code)}
    common["unit"] = set.intersection(*(set(item.units()) for item in renderers))
    candidates = {(kind, code) for kind, codes in common.items() for code in codes}
    excluded = _PLACEHOLDERS | _SHADOWING_UNITS
    candidates = {atom for atom in candidates if atom[1] not in excluded}
    for item in renderers:
        candidates -= _ambiguous_atoms(item, candidates)
        candidates -= _abbreviated_units(item, common["unit"])
    codes_by_kind = {
        kind: tuple(sorted(code for atom_kind, code in candidates if atom_kind == kind))
        for kind in common
    }
    units = codes_by_kind.pop("unit")
    return Inventory(
        name="large",
        names=codes_by_kind,
        units=units,
        per_units=tuple(
            unit for unit in units if all("per" in item.unit_patterns(unit) for item in renderers)
        ),
        missing=frozenset().union(*(item.missing_phrases() for item in renderers)),
        years=(1900, 2099),
        numbers=999,
        decimals=True,
    )


def _ambiguous_atoms(item: Renderer, candidates: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the atoms whose forms in a language are not unique or contain our punctuation."""
    atoms_by_form: dict[str, set[tuple[str, str]]] = defaultdict(set)
    ambiguous = set()
    for kind, code in candidates:
        for form in _forms(item, kind, code):
            atoms_by_form[form.casefold()].add((kind, code))
            if _PHRASE_MARKS.search(form):
                ambiguous.add((kind, code))
    for atoms in atoms_by_form.values():
        precedence = min(_PRECEDENCE.index(kind) for kind, _ in atoms)
        preferred = {atom for atom in atoms if atom[0] == _PRECEDENCE[precedence]}
        ambiguous |= atoms - preferred if len(preferred) == 1 else atoms
    return ambiguous


def _abbreviated_units(item: Renderer, units: set[str]) -> set[tuple[str, str]]:
    """Return the units for which a language has only the English abbreviation (Korean "dec")."""
    abbreviated = set()
    for unit in units:
        short = {_letters(form) for form in renderer("en").unit_patterns(unit, "short").values()}
        short -= {_letters(form) for form in renderer("en").unit_patterns(unit).values()}
        if short & {_letters(form) for form in item.unit_patterns(unit).values()}:
            abbreviated.add(("unit", unit))
    return abbreviated


def _letters(pattern: str) -> str:
    """Return a unit pattern without the number and spaces."""
    return pattern.replace("{0}", "").replace(" ", "")


def _forms(item: Renderer, kind: str, code: str) -> set[str]:
    """Return all written forms of an atom in one language."""
    if kind == "unit":
        return {text for tag, text in item.unit_patterns(code).items() if tag != "per"}
    forms = {item.names[kind][code]}
    if kind == "currency":
        forms |= set(item.currency_patterns(code).values())
    return forms


def _small(shared: Inventory) -> Inventory:
    """Return the inventory of well-known territories, languages, currencies and units."""
    codes_by_kind = {
        "territory": _SMALL_TERRITORIES,
        "language": _SMALL_LANGUAGES,
        "currency": _SMALL_CURRENCIES,
    }
    return replace(
        shared,
        name="small",
        names={
            kind: tuple(code for code in shared.names[kind] if code in codes)
            for kind, codes in codes_by_kind.items()
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
