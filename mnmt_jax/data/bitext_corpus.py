"""Corpora in translators' files (`mnmt_jax.data.bitext`)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from mnmt_jax.data.bitext import UNTRANSLATED, normal_tag, read_units
from mnmt_jax.data.corpus import FileCorpus, Line, NoFilesError
from mnmt_jax.data.text_lines import Cleaning, resolve
from mnmt_jax.errors import UserError, listed
from mnmt_jax.languages import Direction, language


class BitextFiles(FileCorpus):
    """Reads TMX, XLIFF and PO files; each serves both directions of the languages that it has.

    Texts without a finished translation are left out and counted. All files are read once to know
    their languages.

    Args:
        name: name of the corpus.
        patterns: paths, with `{split}` in all or in none; a file of XML may be gzip (".gz").
        languages: codes, or tags where the files have several of a code ("en-US"); none for all
            that the files have.
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
            raise NoFilesError(f"corpus {name!r}: no file {listed(missing or list(patterns))}")
        self._paths = {split: [path for _, path in found if path] for split, found in named.items()}
        # Of each file, the sets of tags that its units have, in the order of the units.
        self._tags = {
            path: dict.fromkeys(tuple(unit.texts) for unit in read_units(path))
            for path in dict.fromkeys(itertools.chain(*self._paths.values()))
        }
        every = dict.fromkeys(tag for sets in self._tags.values() for tag in itertools.chain(*sets))
        self._codes = _match(languages, list(every))
        if len(self._codes) < 2:
            found = listed(list(every)) or "none"
            raise UserError(f"{listed(patterns)}: no texts in two languages, but in {found}")
        super().__init__(name, list(self._codes), splits, cleaning)

    def directions(self, split: str) -> tuple[Direction, ...]:
        """Lists the directions between languages that a unit of the split's files has."""
        every = itertools.permutations(self.languages, 2)
        return tuple(direction for direction in every if self.files(split, direction))

    def files(self, split: str, direction: Direction) -> tuple[str, ...]:
        """Lists the files of the split that have units with both languages."""
        wanted = {self._codes[code] for code in direction}
        paths = self._paths.get(split, [])
        return tuple(path for path in paths if any(wanted.issubset(s) for s in self._tags[path]))

    def _read(self, split: str, direction: Direction) -> Iterator[Line]:
        source, target = (self._codes[code] for code in direction)
        for path in self.files(split, direction):
            for unit in read_units(path):
                if source not in unit.texts or target not in unit.texts:
                    continue
                first, second = unit.texts[source], unit.texts[target]
                flaw = unit.flaw or (None if first and second else UNTRANSLATED)
                yield Line((flaw or first, flaw or second), (unit.place, unit.place))


def _match(wanted: Sequence[str], tags: Sequence[str]) -> dict[str, str]:
    """Returns the files' tag for each language by its code.

    A language that is wanted is a tag itself, or the first part of one if no other begins so. What
    the files do not have stays as it is: no unit will have it.

    Args:
        wanted: codes or tags; none for those of all tags.
        tags: of the files.

    Raises:
        UserError: if a language is unknown or wanted twice, or several tags begin with it.
    """
    found: dict[str, str] = {}
    for item in wanted or dict.fromkeys(map(_primary, tags)):
        tag, code = normal_tag(item), _code(item)
        if code in found:
            raise UserError(f"--languages: '{code}' is named twice; name one of its tags")
        alike = [other for other in tags if _primary(other) == code]
        exact = "-" in tag or not alike or (bool(wanted) and tag in alike)
        if not exact and len(alike) > 1:
            raise UserError(
                f"the files have {listed(alike)} for '{code}'; say with --languages which to read, "
                f"e.g. {alike[0]}"
            )
        found[code] = tag if exact else alike[0]
    return found


def _code(item: str) -> str:
    """Returns the code of a language or tag.

    Raises:
        UserError: if it is unknown.
    """
    try:
        return language(_primary(normal_tag(item))).code
    except UserError as error:
        raise UserError(f"{error}; name the languages to read with --languages") from None


def _primary(tag: str) -> str:
    return tag.partition("-")[0]
