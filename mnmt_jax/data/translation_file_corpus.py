"""Corpora in translators' files (`mnmt_jax.data.translation_files`)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from mnmt_jax.data.corpus import FileCorpus, Line, NoFilesError
from mnmt_jax.data.text_reader import Cleaning, resolve
from mnmt_jax.data.translation_files import UNTRANSLATED, normalize_tag, read_units
from mnmt_jax.errors import UserError, join_names
from mnmt_jax.vocabulary.language_codes import parse_code
from mnmt_jax.vocabulary.languages import Direction


class BitextFiles(FileCorpus):
    """Reads TMX, XLIFF and PO files; each serves both directions of the languages that it has.

    Texts without a finished translation are left out and counted. All files are read once to know
    their languages.

    Args:
        name: name of the corpus.
        patterns: paths, with `{split}` in all or in none; a file of XML may be gzip (".gz").
        languages: codes of any form. Tags that differ in region alone are one language here: where
            a file has several of them ("en-US"), name the one to read, or several in order, of
            which each file's first is read. None for all languages that the files have.
        splits: the files' word for each split; one, if the patterns have no `{split}`.
        cleaning: what makes a text bad and what becomes of it.
    """

    def __init__(
        self,
        name: str,
        patterns: Sequence[str],
        languages: Sequence[str] = (),
        *,
        splits: Mapping[str, str],
        cleaning: Cleaning = Cleaning(),  # noqa: B008 - frozen
    ) -> None:
        named = {
            split: [(pattern, resolve(pattern.replace("{split}", word))) for pattern in patterns]
            for split, word in splits.items()
        }
        places = list(itertools.chain(*named.values()))
        missing = [pattern for pattern, path in places if path is None and "{split}" not in pattern]
        if missing or not any(path for _, path in places):
            raise NoFilesError(f"corpus {name!r}: no file {join_names(missing or list(patterns))}")
        self._paths = {split: [path for _, path in found if path] for split, found in named.items()}
        # Of each file, the sets of tags that its units have, in the order of the units.
        self._tags = {
            path: dict.fromkeys(tuple(unit.texts) for unit in read_units(path))
            for path in dict.fromkeys(itertools.chain(*self._paths.values()))
        }
        in_file = {path: list(dict.fromkeys(itertools.chain(*s))) for path, s in self._tags.items()}
        every = list(dict.fromkeys(itertools.chain(*in_file.values())))
        wanted = _wanted_tags(languages) or {_code(tag): [] for tag in every}
        if len(wanted) < 2 and not languages:
            found = join_names(every) or "none"
            raise UserError(f"{join_names(patterns)}: no texts in two languages, but in {found}")
        super().__init__(name, list(wanted), splits, cleaning)
        # Of each file, the tag that it has for each language.
        self._codes = {path: _match(path, tags, wanted) for path, tags in in_file.items()}
        for path, tags in in_file.items():
            if not any(self._serves(path, pair) for pair in itertools.combinations(wanted, 2)):
                raise UserError(_unread(path, tags, wanted))

    def directions(self, split: str) -> tuple[Direction, ...]:
        """Lists the directions between languages that a unit of the split's files has."""
        every = itertools.permutations(self.languages, 2)
        return tuple(direction for direction in every if self.files(split, direction))

    def files(self, split: str, direction: Direction) -> tuple[str, ...]:
        """Lists the files of the split that have units with both languages."""
        return tuple(path for path in self._paths.get(split, []) if self._serves(path, direction))

    def _serves(self, path: str, direction: Direction) -> bool:
        """Returns whether a unit of a file has both languages."""
        wanted = {self._codes[path].get(code) for code in direction}
        return any(wanted.issubset(tags) for tags in self._tags[path])

    def _read(self, split: str, direction: Direction) -> Iterator[Line]:
        for path in self.files(split, direction):
            source, target = (self._codes[path][code] for code in direction)
            for unit in read_units(path):
                if source not in unit.texts or target not in unit.texts:
                    continue
                first, second = unit.texts[source], unit.texts[target]
                flaw = unit.flaw or (None if first and second else UNTRANSLATED)
                yield Line((flaw or first, flaw or second), (unit.place, unit.place))


def _wanted_tags(languages: Sequence[str]) -> dict[str, list[str]]:
    """Return the tags that are wanted for each language by its code.

    Raises:
        UserError: if a language is unknown, or a tag is named twice.
    """
    found: dict[str, list[str]] = {}
    for item in languages:
        tags = found.setdefault(_code(item), [])
        if normalize_tag(item) in tags:
            raise UserError(f"--languages: '{item}' is named twice; leave one of them out")
        tags.append(normalize_tag(item))
    return found


def _match(path: str, tags: Sequence[str], wanted: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Returns a file's tag for each language by its code; without those that it does not have.

    That is the first of the wanted tags that the file has, or else, where a wanted tag names no
    region or nothing more is said, the only tag of the language.

    Args:
        path: of the file.
        tags: that it has.
        wanted: tags of each language; none for its only one.

    Raises:
        UserError: if a file has several tags of a language and none of them is wanted.
    """
    found: dict[str, str] = {}
    for code, choice in wanted.items():
        alike = [tag for tag in tags if _code_or_none(tag) == code]
        chosen = [tag for item in choice for tag in alike if _is_same_tag(item, tag)]
        if not chosen and not (choice and all(map(_names_region, choice))):
            if len(alike) > 1:
                raise UserError(
                    f"{path}: has {join_names(alike)} for '{code}'; say with --languages which to "
                    f"read, e.g. {alike[0]}"
                )
            chosen = alike
        if chosen:
            found[code] = chosen[0]
    return found


def _unread(path: str, tags: Sequence[str], wanted: Mapping[str, Sequence[str]]) -> str:
    """Says that a file has no text in two of the languages.

    Args:
        path: of the file.
        tags: that it has.
        wanted: tags of each language; none if they are not the user's.
    """
    found = _match(path, tags, wanted)
    lacking = [tag for code, choice in wanted.items() if code not in found for tag in choice]
    absent, there = join_names(lacking) or "two languages", join_names(tags) or "none"
    remedy = ", or name its tags in --languages too" if tags and any(wanted.values()) else ""
    return f"{path}: no texts in {absent}, but in {there}; leave the file out{remedy}"


def _code(item: str) -> str:
    """Return the canonical code of a language or tag, without its region.

    Raises:
        UserError: if it is unknown.
    """
    try:
        return parse_code(item).without_region
    except UserError as error:
        raise UserError(f"{error}; name the languages to read with --languages") from None


def _code_or_none(tag: str) -> str | None:
    try:
        return _code(tag)
    except UserError:
        return None


def _is_same_tag(item: str, tag: str) -> bool:
    """Return whether a code of any form means a file's tag, whose region counts."""
    wanted = parse_code(item)
    return item == tag or bool(wanted.region) and wanted == parse_code(tag)


def _names_region(item: str) -> bool:
    """Return whether a code names a region, be it the default one."""
    regions = [part for part in item.split("-")[1:] if len(part) == 2 or part.isdecimal()]
    return bool(regions or parse_code(item).region)
