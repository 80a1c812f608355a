"""Bridge strategy: training directions from groups of languages and their bridge languages.

A strategy is a TOML file; `mitre.toml` beside this module is one:

    hub = ["en"]                  # paired with every language
    extra_pairs = ["sv-it"]       # optional: pairs beyond the rule
    left_out_pairs = ["de-fr"]    # optional: pairs of the rule without training text

    [groups.Germanic]
    languages = ["de", "sv"]
    bridges = ["de"]              # paired with their group and with all bridges

    [groups.Romance]
    languages = ["fr", "it"]
    bridges = ["fr"]
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mnmt_jax.errors import UserError, join_names, suggest
from mnmt_jax.files.toml_files import read_toml
from mnmt_jax.vocabulary.language_codes import Direction, canonical_codes, find_code

PACKAGED: Mapping[str, Path] = {"mitre": Path(__file__).with_name("mitre.toml")}
"""Files of the strategies in this package, by name."""

_KEYS = ("hub", "groups", "extra_pairs", "left_out_pairs")
_GROUP_KEYS = ("languages", "bridges")


@dataclasses.dataclass(frozen=True)
class Group:
    """Related languages.

    Attributes:
        languages: all languages of the group.
        bridges: those that are paired with the entire group and with the bridges of all groups.
    """

    languages: tuple[str, ...]
    bridges: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class BridgeStrategy:
    """Languages and the rule for their training pairs, with canonical codes.

    Attributes:
        hub: languages that are paired with every language; they are in no group.
        groups: groups by name; a language is in one of them.
        extra_pairs: pairs beyond the rule.
        left_out_pairs: pairs of the rule that are not trained on.
    """

    hub: tuple[str, ...]
    groups: Mapping[str, Group]
    extra_pairs: tuple[Direction, ...] = ()
    left_out_pairs: tuple[Direction, ...] = ()

    @property
    def languages(self) -> tuple[str, ...]:
        """The hub, then the groups in their order."""
        return (*self.hub, *(code for group in self.groups.values() for code in group.languages))


def pairs_by_kind(strategy: BridgeStrategy) -> dict[str, tuple[Direction, ...]]:
    """List the training pairs by the rule that makes them, each pair in one orientation.

    Returns:
        Pairs of the kinds `hub` (hub languages with every language), `inside groups` (bridges with
        the other languages of their group), `between bridges` (also of one group) and `extra`.
    """
    left_out = set(map(frozenset, strategy.left_out_pairs))
    return {
        kind: tuple(pair for pair in pairs if frozenset(pair) not in left_out)
        for kind, pairs in (*_rule_pairs(strategy).items(), ("extra", strategy.extra_pairs))
    }


def bridge_directions(strategy: BridgeStrategy) -> tuple[Direction, ...]:
    """List the training directions: all pairs in the order of the kinds, then all reversed."""
    return tuple(directions_by_kind(strategy))


def directions_by_kind(strategy: BridgeStrategy) -> dict[Direction, str]:
    """Return the kind of each training direction, in the order of `bridge_directions`."""
    kinds = {pair: kind for kind, pairs in pairs_by_kind(strategy).items() for pair in pairs}
    return kinds | {(target, source): kind for (source, target), kind in kinds.items()}


def direction_counts(strategy: BridgeStrategy) -> dict[str, int]:
    """Count the directions of each kind, all training directions, and the zero-shot ones.

    Returns:
        The kinds of `pairs_by_kind`, then `training`, `zero-shot` and `all`.
    """
    counts = {kind: 2 * len(pairs) for kind, pairs in pairs_by_kind(strategy).items()}
    training, languages = sum(counts.values()), len(strategy.languages)
    total = languages * (languages - 1)
    return counts | {"training": training, "zero-shot": total - training, "all": total}


def read_bridge_strategy(path: Path) -> BridgeStrategy:
    """Read a strategy from a TOML file.

    Raises:
        UserError: naming the file and the key, if a key is missing, unknown or malformed, a
            language is unknown, in two groups or without a direction, a bridge is not in its group,
            an extra pair exists already, or a left-out pair does not exist.
    """
    fields = read_toml(path)
    _check_keys(f"{path}: ", fields, _KEYS, required=("hub", "groups"))
    hub = _codes(path, "hub", fields["hub"])
    groups = _groups(path, fields["groups"])
    _check_distinct(path, hub, groups)
    strategy = BridgeStrategy(hub, groups)
    extra, left_out = (_pairs(path, key, fields.get(key, []), strategy) for key in _KEYS[2:])
    _check_pairs(path, strategy, extra, left_out)
    strategy = dataclasses.replace(strategy, extra_pairs=extra, left_out_pairs=left_out)
    _check_directions(path, strategy)
    return strategy


def _rule_pairs(strategy: BridgeStrategy) -> dict[str, tuple[Direction, ...]]:
    """Return the pairs of the rule by kind, with the left-out ones."""
    codes, groups = strategy.languages, strategy.groups.values()
    bridges = [code for group in groups for code in group.bridges]
    return {
        "hub": tuple(
            (hub, code) for number, hub in enumerate(strategy.hub) for code in codes[number + 1 :]
        ),
        "inside groups": tuple(
            (bridge, code)
            for group in groups
            for bridge in group.bridges
            for code in group.languages
            if code not in group.bridges
        ),
        "between bridges": tuple(itertools.combinations(bridges, 2)),
    }


def _check_keys(
    place: str, fields: Any, known: Sequence[str], required: Sequence[str] = ()
) -> None:
    """Check that a table has the required keys and no unknown one.

    Raises:
        UserError: starting with the place, and naming the first wrong key.
    """
    if not isinstance(fields, dict):
        raise UserError(f"{place}is not a table; give it the keys {join_names(known)}")
    for key in fields:
        if key not in known:
            if key in _KEYS:  # TOML reads keys below a table as keys of the table
                raise UserError(f"{place}'{key}' is no key of a group; move it above [groups.NAME]")
            hint = suggest(key, known)
            raise UserError(f"{place}unknown key '{key}'; {hint}the keys are {join_names(known)}")
    for key in required or known:
        if key not in fields:
            example = "a table [groups.NAME]" if key == "groups" else f'{key} = ["en"] or []'
            raise UserError(f"{place}'{key}' is missing; write {example}")


def _groups(path: Path, tables: Any) -> dict[str, Group]:
    if not isinstance(tables, dict) or not tables:
        raise UserError(f"{path}: groups: has no group; write a table [groups.NAME] for each one")
    groups: dict[str, Group] = {}
    for name, fields in tables.items():
        key = f"groups.{name}"
        _check_keys(f"{path}: {key}: ", fields, _GROUP_KEYS)
        languages, bridges = (_codes(path, f"{key}.{part}", fields[part]) for part in _GROUP_KEYS)
        if not languages:
            raise UserError(f"{path}: {key}.languages: is empty; name its languages")
        if outside := [code for code in bridges if code not in languages]:
            raise UserError(
                f"{path}: {key}.bridges: '{outside[0]}' is not in the group's languages "
                f"{' '.join(languages)}; add it to them, or remove it from the bridges"
            )
        groups[name] = Group(languages, bridges)
    return groups


def _codes(path: Path, key: str, value: Any) -> tuple[str, ...]:
    return canonical_codes(_strings(path, key, value, '["en", "de"]'), f"{path}: {key}")


def _strings(path: Path, key: str, value: Any, example: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UserError(f"{path}: {key}: {value!r} is not a list of texts; write {key} = {example}")
    return value


def _check_distinct(path: Path, hub: Iterable[str], groups: Mapping[str, Group]) -> None:
    """Check that a language occurs in the hub or one group only."""
    keys = dict.fromkeys(hub, "hub")
    for name, group in groups.items():
        for code in group.languages:
            if code in keys:
                raise UserError(
                    f"{path}: groups.{name}.languages: '{code}' is in {keys[code]} too; keep it in "
                    "one of them"
                )
            keys[code] = f"groups.{name}.languages"


def _pairs(path: Path, key: str, value: Any, strategy: BridgeStrategy) -> tuple[Direction, ...]:
    """Return the pairs of a list; both orientations are one pair."""
    pairs: dict[frozenset[str], Direction] = {}
    for item in _strings(path, key, value, '["de-fr"]'):
        pair = _pair(f"{path}: {key}: '{item}'", item, strategy.languages)
        if frozenset(pair) in pairs:
            first = "-".join(pairs[frozenset(pair)])
            raise UserError(
                f"{path}: {key}: '{item}' is listed already, as '{first}'; a pair has both "
                "directions, so list it once"
            )
        pairs[frozenset(pair)] = pair
    return tuple(pairs.values())


def _pair(place: str, item: str, languages: Sequence[str]) -> Direction:
    texts = item.split("-")
    if len(texts) != 2 or not all(texts):
        raise UserError(f"{place} must be two codes, such as de-fr; write regions as pt_BR")
    try:
        codes = [find_code(text.strip(), languages) for text in texts]
    except UserError as error:
        raise UserError(f"{place}: {error}") from None
    if None in codes:
        unknown = texts[codes.index(None)].strip()
        raise UserError(
            f"{place} has '{unknown}', which is neither in the hub nor in a group; add it to one"
        )
    source, target = map(str, codes)
    if source == target:
        raise UserError(f"{place} has one language twice; name two languages")
    return source, target


def _check_pairs(
    path: Path,
    strategy: BridgeStrategy,
    extra: Iterable[Direction],
    left_out: Iterable[Direction],
) -> None:
    """Check that extra pairs are new, and that left-out ones are pairs of the rule."""
    kinds = {
        frozenset(pair): kind for kind, pairs in _rule_pairs(strategy).items() for pair in pairs
    }
    for pair in extra:
        if kind := kinds.get(frozenset(pair)):
            raise UserError(
                f"{path}: extra_pairs: '{'-'.join(pair)}' exists already ({kind}); remove it"
            )
    for pair in left_out:
        if frozenset(pair) not in kinds:
            raise UserError(
                f"{path}: left_out_pairs: '{'-'.join(pair)}' is no pair of the hub, inside a group "
                "or between bridges; remove it"
            )


def _check_directions(path: Path, strategy: BridgeStrategy) -> None:
    """Check that every language has a training direction."""
    paired = set(_members(bridge_directions(strategy)))
    if unpaired := [code for code in strategy.languages if code not in paired]:
        key = next(
            (f"groups.{n}" for n, g in strategy.groups.items() if unpaired[0] in g.languages), "hub"
        )
        raise UserError(
            f"{path}: {key}: '{unpaired[0]}' has no training direction; name a hub language or a "
            "bridge of its group, or give it an extra pair"
        )


def _members(directions: Iterable[Direction]) -> Iterator[str]:
    return itertools.chain.from_iterable(directions)
