"""Corpora in translation files: TMX, XLIFF and PO (`mnmt_jax.data.translation_files`)."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from mnmt_jax.data.corpus import FileCorpus, Line, NoFilesError
from mnmt_jax.data.text_reader import Cleaning, resolve
from mnmt_jax.data.translation_files import UNTRANSLATED, normalize_tag, read_units
from mnmt_jax.errors import UserError, join_names
from mnmt_jax.vocabulary.language_codes import Direction, parse_code


class BitextFiles(FileCorpus):
    """Corpus in TMX, XLIFF and PO files; a file serves both directions of its languages.

    Texts without a finished translation are skipped and counted. All files are read once at the
    start to find their languages.

    Args:
        name: name of the corpus.
        patterns: paths, with `{split}` in all or in none; an XML file may be gzip (".gz").
        languages: codes in any form. Tags that differ only in region are the same language. If a
            file has several of them ("en-US"), name the tag to read, or several in order of
            preference. Empty for all languages of the files.
        splits: name of each split in the paths; a single split if the patterns have no `{split}`.
        cleaning: which texts are bad, and whether they are errors or dropped.
        region_fallback: whether a requested tag with a region ("pt-BR") also names the tag without
            region ("pt") in files without the former.
    """

    def __init__(
        self,
        name: str,
        patterns: Sequence[str],
        languages: Sequence[str] = (),
        *,
        splits: Mapping[str, str],
        cleaning: Cleaning = Cleaning(),  # noqa: B008 - frozen
        region_fallback: bool = False,
    ) -> None:
        resolved = {
            split: [(pattern, resolve(pattern.replace("{split}", word))) for pattern in patterns]
            for split, word in splits.items()
        }
        all_resolved = list(itertools.chain(*resolved.values()))
        missing = [
            pattern for pattern, path in all_resolved if path is None and "{split}" not in pattern
        ]
        if missing or not any(path for _, path in all_resolved):
            raise NoFilesError(f"corpus {name!r}: no file {join_names(missing or list(patterns))}")
        self._paths = {
            split: [path for _, path in pattern_paths if path]
            for split, pattern_paths in resolved.items()
        }
        # By file: the tag sets of its units, in the order of the units.
        self._tags = {
            path: dict.fromkeys(tuple(unit.texts) for unit in read_units(path))
            for path in dict.fromkeys(itertools.chain(*self._paths.values()))
        }
        tags_by_file = {
            path: list(dict.fromkeys(itertools.chain(*tag_sets)))
            for path, tag_sets in self._tags.items()
        }
        all_tags = list(dict.fromkeys(itertools.chain(*tags_by_file.values())))
        requested = _wanted_tags(languages) or {_language_code(tag): [] for tag in all_tags}
        if len(requested) < 2 and not languages:
            available = join_names(all_tags) or "none"
            raise UserError(
                f"{join_names(patterns)}: no texts in two languages, but in {available}"
            )
        super().__init__(name, list(requested), splits, cleaning)
        # By file and language code: the tag to read.
        self._tag_by_code = {
            path: _tags_by_code(path, tags, requested, region_fallback)
            for path, tags in tags_by_file.items()
        }
        for path, tags in tags_by_file.items():
            if not any(self._serves(path, pair) for pair in itertools.combinations(requested, 2)):
                raise UserError(_no_pairs_message(path, tags, requested, self._tag_by_code[path]))

    def directions(self, split: str) -> tuple[Direction, ...]:
        """Return the directions between languages that a unit of the split's files has."""
        candidates = itertools.permutations(self.languages, 2)
        return tuple(direction for direction in candidates if self.files(split, direction))

    def files(self, split: str, direction: Direction) -> tuple[str, ...]:
        """Return the files of the split that have units with both languages."""
        return tuple(path for path in self._paths.get(split, []) if self._serves(path, direction))

    def settings(self) -> dict[str, Any]:
        """Return those of the base class, the tag of each language by file, and all files."""
        settings = super().settings()
        return {**settings, "languages": self._tag_by_code, "order_of_files": self._paths}

    def _serves(self, path: str, direction: Direction) -> bool:
        """Return whether a unit of a file has both languages."""
        needed_tags = {self._tag_by_code[path].get(code) for code in direction}
        return any(needed_tags.issubset(tags) for tags in self._tags[path])

    def _read(self, split: str, direction: Direction) -> Iterator[Line]:
        for path in self.files(split, direction):
            source, target = (self._tag_by_code[path][code] for code in direction)
            for unit in read_units(path):
                if source not in unit.texts or target not in unit.texts:
                    continue
                source_text, target_text = unit.texts[source], unit.texts[target]
                flaw = unit.flaw or (None if source_text and target_text else UNTRANSLATED)
                yield Line(
                    (flaw or source_text, flaw or target_text), (unit.location, unit.location)
                )


def _wanted_tags(languages: Sequence[str]) -> dict[str, list[str]]:
    """Return the requested tags of each language, by its code.

    Raises:
        UserError: if a language is unknown, or a tag is named twice.
    """
    by_code: dict[str, list[str]] = {}
    for item in languages:
        tags = by_code.setdefault(_language_code(item), [])
        if normalize_tag(item) in tags:
            raise UserError(f"--languages: '{item}' is named twice; leave one of them out")
        tags.append(normalize_tag(item))
    return by_code


def _tags_by_code(
    path: str, tags: Sequence[str], requested: Mapping[str, Sequence[str]], region_fallback: bool
) -> dict[str, str]:
    """Return the tag to read for each language of a file, by language code.

    The first requested tag that the file has is used. If there is none, the tag without region is
    used with `region_fallback`, if a tag was requested. If there is none, and no tag was requested
    or a requested tag names no region, the only tag of the language is used.

    Args:
        path: path of the file.
        tags: tags in the file.
        requested: requested tags of each language; empty for its only tag.
        region_fallback: as in `BitextFiles`.

    Raises:
        UserError: if a file has several tags of a language and none of them was requested.
    """
    result: dict[str, str] = {}
    for code, wanted_tags in requested.items():
        same_language = [tag for tag in tags if _language_code_or_none(tag) == code]
        matches = [tag for item in wanted_tags for tag in same_language if _is_same_tag(item, tag)]
        if not matches and wanted_tags and region_fallback:
            matches = [tag for tag in same_language if not _names_region(tag)]
        if not matches and not (wanted_tags and all(map(_names_region, wanted_tags))):
            if len(same_language) > 1:
                raise UserError(
                    f"{path}: has {join_names(same_language)} for '{code}'; choose one with "
                    f"--languages, e.g. {same_language[0]}"
                )
            matches = same_language
        if matches:
            result[code] = matches[0]
    return result


def _no_pairs_message(
    path: str,
    tags: Sequence[str],
    requested: Mapping[str, Sequence[str]],
    available: Collection[str],
) -> str:
    """Return the error message for a file without text in two of the languages.

    Args:
        path: path of the file.
        tags: tags in the file.
        requested: requested tags of each language; empty if the user requested none.
        available: codes of the requested languages in the file.
    """
    lacking = [
        tag
        for code, wanted_tags in requested.items()
        if code not in available
        for tag in wanted_tags
    ]
    absent_names = join_names(lacking) or "two languages"
    available_names = join_names(tags) or "none"
    remedy = ", or name its tags in --languages too" if tags and any(requested.values()) else ""
    return (
        f"{path}: no texts in {absent_names}, but in {available_names}; leave the file out{remedy}"
    )


def _language_code(item: str) -> str:
    """Return the canonical code of a language or tag, without its region.

    Raises:
        UserError: if it is unknown.
    """
    try:
        return parse_code(item).without_region
    except UserError as error:
        raise UserError(f"{error}; name the languages to read with --languages") from None


def _language_code_or_none(tag: str) -> str | None:
    try:
        return _language_code(tag)
    except UserError:
        return None


def _is_same_tag(item: str, tag: str) -> bool:
    """Return whether a code in any form means a file's tag, including its region."""
    requested = parse_code(item)
    return item == tag or bool(requested.region) and requested == parse_code(tag)


def _names_region(item: str) -> bool:
    """Return whether a code names a region, even the default one."""
    regions = [subtag for subtag in item.split("-")[1:] if len(subtag) == 2 or subtag.isdecimal()]
    return bool(regions or parse_code(item).region)
