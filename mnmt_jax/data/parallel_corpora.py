"""Parallel corpora: CLDR phrases, parallel files, and TSV files.

    corpus = ParallelFiles("mine", "data/{split}.{language}", ("en", "de"))
    for source, target in corpus.pairs("train", ("en", "de")): ...

Nothing here needs TensorFlow. Files are streamed, so their size does not matter.
"""

from __future__ import annotations

import difflib
import itertools
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mnmt_jax.data.cldr import SPLITS, CldrCorpus
from mnmt_jax.data.corpus import Corpus, FileCorpus, Line, NoFilesError, Selection
from mnmt_jax.data.file_columns import TextColumn, find_text_column, pair_folders
from mnmt_jax.data.split_aliases import language_aliases
from mnmt_jax.data.text_reader import Cleaning, Flaw, read_lines, resolve
from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.language_codes import Direction, canonical_codes
from mnmt_jax.vocabulary.languages import MITRE_LANGUAGES

_STANDARD_SPLITS: Mapping[str, str] = {split: split for split in SPLITS}


class CldrPhrases(Corpus):
    """Corpus of phrases generated from the embedded CLDR data.

    Args:
        languages: codes of languages in CLDR.
        seed: seed of the choice of meanings.
        inventory: "small" or "large".
        sizes: sentence pairs per direction by split; a split that is not named does not exist.
        name: name of the corpus.
    """

    def __init__(
        self,
        languages: Sequence[str] = MITRE_LANGUAGES,
        seed: int = 0,
        *,
        inventory: str = "small",
        sizes: Mapping[str, int] | None = None,
        name: str = "cldr",
    ) -> None:
        super().__init__(name, languages)
        sizes = {"train": 10_000, "validation": 500, "test": 1000} if sizes is None else sizes
        for split in sizes:
            if split not in SPLITS:
                raise UserError(f"sizes: split {split!r} must be one of {' '.join(SPLITS)}")
        self._sizes_by_split = {split: sizes[split] for split in SPLITS if sizes.get(split)}
        self.cldr = CldrCorpus(languages, seed, inventory=inventory)

    def splits(self) -> tuple[str, ...]:
        """Return the splits that have a size."""
        return tuple(self._sizes_by_split)

    def directions(self, split: str) -> tuple[Direction, ...]:
        """Return all ordered pairs of the languages."""
        return (
            tuple(itertools.permutations(self.languages, 2))
            if split in self._sizes_by_split
            else ()
        )

    def pairs(self, split: str, direction: Direction) -> Iterator[tuple[str, str]]:
        """Yield (source, target) sentences; see the base class."""
        self._check(split, direction)
        return self.cldr.iter_pairs(split, direction, self._sizes_by_split[split])

    def size(self, split: str, direction: Direction) -> int:
        """Return the number of sentence pairs per direction."""
        self._check(split, direction)
        return self._sizes_by_split[split]


class PatternFiles(FileCorpus):
    """Parallel files; each direction uses the first path pattern whose files exist.

    Line i of one language is the translation of line i of another.

    Args:
        name: name of the corpus.
        patterns: path patterns of each split, tried in order. A path has `{language}`, and `{pair}`
            if each pair has its own files ("de-en"; either order is tried). A file may be gzip; its
            name then ends in ".gz". "PATH#COLUMN" is a column of a JSON-lines or Parquet file;
            COLUMN may have `{language}` too.
        languages: codes.
        language_names: values of `{language}` by code, where they differ from the code.
        cleaning: which lines are bad, and whether they are errors or dropped.
        selection: which pairs are taken.
    """

    def __init__(
        self,
        name: str,
        patterns: Mapping[str, Sequence[str]],
        languages: Sequence[str],
        *,
        language_names: Mapping[str, Sequence[str]] | None = None,
        cleaning: Cleaning = Cleaning(),  # noqa: B008 - frozen
        selection: Selection = Selection(),  # noqa: B008 - frozen
    ) -> None:
        super().__init__(name, languages, {split: split for split in patterns}, cleaning, selection)
        self._patterns = patterns
        self._words = language_names or {}
        self._columns_by_split: dict[str, dict[Direction, tuple[TextColumn, TextColumn]]] = {}
        if not self.splits():
            places = " or ".join(dict.fromkeys(itertools.chain(*patterns.values())))
            codes = " ".join(self.languages)
            raise NoFilesError(
                f"corpus {name!r}: no files match {places} for languages {codes}", self
            )

    def directions(self, split: str) -> tuple[Direction, ...]:
        """Return the directions whose two files exist."""
        return tuple(self._places(split))

    def missing_files(self, split: str, direction: Direction) -> tuple[str, ...]:
        """Return the missing files of a direction, by the first name of each language."""
        patterns = self._patterns.get(split, ())
        files = [file for pattern in patterns for file in self._first_paths(pattern, direction)]
        return tuple(file for file in files if find_text_column(file) is None)

    def _first_paths(self, pattern: str, direction: Direction) -> tuple[str, ...]:
        """Return the two paths of a direction by a pattern and the first name of each language."""
        names = [self._words.get(code, (code,))[0] for code in direction]
        pattern = pattern.replace("{pair}", "-".join(names))
        return tuple(pattern.replace("{language}", name) for name in names)

    @property
    def expected_splits(self) -> tuple[str, ...]:
        """The splits that have path patterns, whether files exist or not."""
        return tuple(self._patterns)

    def last_line(self, split: str) -> int:
        """Return the last line that a split reads of its files; 0 if it reads all of them."""
        return self._selection.lines.get(split, (0, 0))[1]

    def expected_files(self, split: str, direction: Direction) -> tuple[str, ...]:
        """Return the two paths of a direction that are tried first, whether they exist or not."""
        return self._first_paths(self._patterns[split][0], direction)

    def files(self, split: str, direction: Direction) -> tuple[str, ...]:
        """Return the two files of a direction."""
        return tuple(place.path for place in self._places(split)[direction])

    def settings(self) -> dict[str, Any]:
        """Return those of the base class and the columns that are read."""
        places = {split: itertools.chain(*self._places(split).values()) for split in self._patterns}
        columns = {split: sorted({one.column for one in sides}) for split, sides in places.items()}
        return {**super().settings(), "columns": columns}

    def _places(self, split: str) -> Mapping[Direction, tuple[TextColumn, TextColumn]]:
        """Return the places of both sides of each direction; searches the disk only once."""
        if split not in self._columns_by_split:
            cache: dict[str, TextColumn | None] = {}
            directions = itertools.permutations(self.languages, 2)
            patterns = {one: pair_folders(one) for one in self._patterns.get(split, ())}
            candidates = (
                (direction, self._find_places(patterns, direction, cache))
                for direction in directions
            )
            self._columns_by_split[split] = {
                direction: places for direction, places in candidates if places is not None
            }
        return self._columns_by_split[split]

    def _find_places(
        self,
        patterns: Mapping[str, frozenset[str] | None],
        direction: Direction,
        cache: dict[str, TextColumn | None],
    ) -> tuple[TextColumn, TextColumn] | None:
        names = [self._words.get(code, (code,)) for code in direction]
        for pattern, folders in patterns.items():
            pairs = [""]
            if "{pair}" in pattern:
                name_pairs = (*itertools.product(*names), *itertools.product(*names[::-1]))
                pairs = [f"{source_name}-{target_name}" for source_name, target_name in name_pairs]
            for pair in pairs:
                if folders is not None and pair.casefold() not in folders:
                    continue
                sides = [_first_text_column(pattern, pair, words, cache) for words in names]
                if sides[0] is not None and sides[1] is not None:
                    return sides[0], sides[1]
        return None

    def _read(self, split: str, direction: Direction) -> Iterator[Line]:
        places = self._places(split)[direction]
        sides = [place.read(self._max_bytes) for place in places]
        for number, (source, target) in enumerate(itertools.zip_longest(*sides), start=1):
            where = (f"{places[0].path}:{number}", f"{places[1].path}:{number}")
            if source is None or target is None:
                longer, shorter = where if target is None else where[::-1]
                file = shorter.rpartition(":")[0]
                missing = Flaw(
                    "unpaired",
                    f"{file} has only {number - 1} lines; if an earlier line is missing, all pairs "
                    "after it are misaligned",
                )
                source, target = (missing if side is None else side for side in (source, target))
                where = (longer, longer)
            yield Line((source, target), where)


def _first_text_column(
    pattern: str, pair: str, language_names: Sequence[str], cache: dict[str, TextColumn | None]
) -> TextColumn | None:
    """Return the first existing place that a pattern names with one of the words."""
    for word in language_names:
        name = pattern.replace("{language}", word).replace("{pair}", pair)
        if name not in cache:
            cache[name] = find_text_column(name)
        if (place := cache[name]) is not None:
            return place
    return None


class ParallelFiles(PatternFiles):
    """Plain parallel files whose path is a single pattern.

    Args:
        name: name of the corpus.
        pattern: path with `{language}`, and with `{split}` if there are several splits, e.g.
            "data/{split}.{language}"; also `{pair}` if each pair has its own files ("de-en"; either
            order is tried). A file may be gzip; its name then ends in ".gz".
        languages: codes; `{language}` stands for any form of them. The form in this list is tried
            first.
        splits: name of each split in the path, e.g. {"train": "train", "validation": "val"}.
        cleaning: which lines are bad, and whether they are errors or dropped.
    """

    def __init__(
        self,
        name: str,
        pattern: str,
        languages: Sequence[str],
        *,
        splits: Mapping[str, str] = _STANDARD_SPLITS,
        cleaning: Cleaning = Cleaning(),  # noqa: B008 - frozen
    ) -> None:
        needed = {"language"} if len(splits) == 1 else {"split", "language"}
        pattern = _checked_pattern(pattern, needed, {"split", "language", "pair"})
        patterns = {split: (pattern.replace("{split}", word),) for split, word in splits.items()}
        words = language_aliases(itertools.chain(*patterns.values()), languages)
        super().__init__(name, patterns, languages, language_names=words, cleaning=cleaning)


class TsvFile(FileCorpus):
    """Tab-separated files with a column per language and a header line with the language codes.

    Args:
        name: name of the corpus.
        pattern: path, with `{split}` if there are several splits, e.g. "data/{split}.tsv"; a file
            may be gzip (".gz" is added).
        languages: codes of the columns to use; None for all in the header of the first file.
        columns: codes of all columns in order, for files without a header.
        splits: name of each split in the path.
        cleaning: which lines are bad, and whether they are errors or dropped.
    """

    _checks_fields = True

    def __init__(
        self,
        name: str,
        pattern: str,
        languages: Sequence[str] | None = None,
        *,
        columns: Sequence[str] | None = None,
        splits: Mapping[str, str] = _STANDARD_SPLITS,
        cleaning: Cleaning = Cleaning(),  # noqa: B008 - frozen
    ) -> None:
        if self._checks_fields:
            needed = set() if len(splits) == 1 else {"split"}
            pattern = _checked_pattern(pattern, needed, {"split"})
        self._paths = {
            split: path
            for split, word in splits.items()
            if (path := resolve(pattern.replace("{split}", word)))
        }
        if not self._paths:
            raise NoFilesError(
                f"corpus {name!r}: no files match {pattern!r} for splits "
                f"{' '.join(splits.values())}".rstrip()
            )
        self._header = columns is None
        self._columns = {
            split: canonical_codes(columns) if columns is not None else self._read_header(path)
            for split, path in self._paths.items()
        }
        super().__init__(name, languages or next(iter(self._columns.values())), splits, cleaning)

    def directions(self, split: str) -> tuple[Direction, ...]:
        """Return all ordered pairs of the languages in the split's file."""
        available = [code for code in self.languages if code in self._columns.get(split, ())]
        return tuple(itertools.permutations(available, 2))

    def present(self) -> set[str]:
        """Return the languages that have a column, even if it is the only one."""
        return set(self.languages).intersection(itertools.chain(*self._columns.values()))

    def files(self, split: str, direction: Direction) -> tuple[str, ...]:
        """Return the split's file."""
        return (self._paths[split],)

    def settings(self) -> dict[str, Any]:
        """Return those of the base class, the columns, and whether a header names them."""
        return {**super().settings(), "columns": self._columns, "header": self._header}

    def _read_header(self, path: str) -> tuple[str, ...]:
        """Read the language codes from the first line of a file."""
        cells = _first_cells(path)
        try:
            return canonical_codes(word.strip() for word in cells)
        except UserError as error:
            raise UserError(
                f"{path}:1: {error}; the header must name the languages, separated by tabs"
            ) from None

    def _read(self, split: str, direction: Direction) -> Iterator[Line]:
        path, columns = self._paths[split], self._columns[split]
        source, target = (columns.index(code) for code in direction)
        lines = enumerate(read_lines(path, len(columns) * (self._max_bytes + 1)), start=1)
        for number, line in itertools.islice(lines, int(self._header), None):
            place = f"{path}:{number}"
            if isinstance(line, Flaw):
                yield Line((line, line), (place, place))
                continue
            cells = line.split("\t")
            if len(cells) == len(columns):
                yield Line((cells[source], cells[target]), (place, place))
                continue
            flaw = Flaw("columns", f"{len(cells)} columns, but the header has {len(columns)}")
            yield Line((flaw, flaw), (place, place))


class JoinedCorpus(Corpus):
    """Corpus whose splits come from different corpora, such as training and test text.

    Args:
        name: name of the joined corpus.
        languages: codes.
        parts: corpus of each split.
    """

    def __init__(self, name: str, languages: Sequence[str], parts: Mapping[str, Corpus]) -> None:
        super().__init__(name, languages)
        self._by_split = {split: parts[split] for split in SPLITS if split in parts}

    def splits(self) -> tuple[str, ...]:
        """Return the splits that have text."""
        return tuple(split for split in self._by_split if self.directions(split))

    def directions(self, split: str) -> tuple[Direction, ...]:
        """Return the directions of a split between the languages."""
        corpus, known = self._by_split.get(split), set(self.languages)
        return (
            tuple(pair for pair in corpus.directions(split) if known.issuperset(pair))
            if corpus
            else ()
        )

    def part(self, split: str) -> Corpus:
        """Return the corpus of a split; itself for a split that none has."""
        return self._by_split.get(split, self)

    def missing_files(self, split: str, direction: Direction) -> tuple[str, ...]:
        """Return the missing files of a split and direction."""
        corpus = self._by_split.get(split)
        return corpus.missing_files(split, direction) if corpus else ()

    def files(self, split: str, direction: Direction) -> tuple[str, ...]:
        """Return the files of a split and direction."""
        return self._by_split[split].files(split, direction)

    def sample_size(self, split: str, direction: Direction) -> int | None:
        """Return the sample size of the split's corpus."""
        return self._by_split[split].sample_size(split, direction)

    def pairs(self, split: str, direction: Direction) -> Iterator[tuple[str, str]]:
        """Yield (source, target) sentences; see the base class."""
        self._check(split, direction)
        return self._by_split[split].pairs(split, direction)

    def size(self, split: str, direction: Direction) -> int:
        """Return the number of sentence pairs of a split and direction."""
        self._check(split, direction)
        return self._by_split[split].size(split, direction)


class MultilingualTsv(TsvFile):
    """TSV files with custom column names and with cells that may hold no sentence.

    Args:
        name: name of the corpus.
        pattern: path with `{split}`.
        column_names: column name of each language, by code; other columns are not read.
        splits: name of each split in the path.
        missing_marker: marker of a cell without a sentence; an empty cell has none either. Pairs
            with such a cell are skipped and not counted as flaws.
        selection: which pairs are taken.
    """

    _checks_fields = False  # folders of published text may have braces

    def __init__(
        self,
        name: str,
        pattern: str,
        column_names: Mapping[str, str],
        *,
        splits: Mapping[str, str] = _STANDARD_SPLITS,
        missing_marker: str,
        selection: Selection = Selection(),  # noqa: B008 - frozen
    ) -> None:
        self._codes = {word: code for code, word in column_names.items()}
        self._absent = missing_marker
        super().__init__(name, pattern, tuple(column_names), splits=splits)
        self._selection = selection

    def _read_header(self, path: str) -> tuple[str, ...]:
        """Return the code of each column, "" for columns that are not read."""
        cells = _first_cells(path)
        if missing := sorted(self._codes.keys() - set(cells)):
            raise UserError(f"{path}:1: the header lacks column {missing[0]!r}")
        return tuple(self._codes.get(cell, "") for cell in cells)

    def _read(self, split: str, direction: Direction) -> Iterator[Line]:
        for line in super()._read(split, direction):
            if not any(isinstance(side, str) and self._is_absent(side) for side in line.sides):
                yield line

    def _is_absent(self, cell: str) -> bool:
        return not cell.strip() or self._absent in cell


def _first_cells(path: str) -> list[str]:
    """Return the cells of the first line of a file.

    Raises:
        UserError: if the file is empty or the line cannot be read.
    """
    header = next(read_lines(path, 1 << 16), None)
    if not isinstance(header, str):
        reason = "" if header is None else f"{header.detail}; "
        raise UserError(f"{path}:1: {reason}the header must name the languages, separated by tabs")
    return header.split("\t")


def _checked_pattern(pattern: str, required: set[str], allowed: set[str]) -> str:
    """Return a path pattern with its doubled braces as single ones, after a check of its fields.

    Raises:
        UserError: if it lacks a required field, or has one that is not allowed.
    """
    try:
        fields = {name for _, name, _, _ in string.Formatter().parse(pattern) if name is not None}
    except ValueError as error:
        raise UserError(f"pattern {pattern!r}: {error}") from None
    if not required <= fields <= allowed:
        words = " and ".join(f"{{{name}}}" for name in sorted(required))
        raise UserError(f"pattern {pattern!r}: must have {words} and no other field in braces")
    return pattern.replace("{{", "{").replace("}}", "}")


CORPORA: dict[str, Callable[[], Corpus]] = {}
"""Corpora by name; `register_corpus` adds to it."""


def register_corpus(name: str, factory: Callable[[], Corpus]) -> None:
    """Register a corpus under a name; `factory` is called when the corpus is requested.

    Raises:
        UserError: if the name is taken.
    """
    if name in CORPORA:
        raise UserError(f"corpus {name!r} is registered already: choose another name")
    CORPORA[name] = factory


def get_corpus(name: str) -> Corpus:
    """Return a new instance of a registered corpus.

    Raises:
        UserError: if no corpus has this name; suggests similar names.
    """
    if name not in CORPORA:
        similar = difflib.get_close_matches(name, CORPORA, n=3)
        hint = f"did you mean {' or '.join(similar)}?" if similar else f"one of {' '.join(CORPORA)}"
        raise UserError(f"unknown corpus {name!r}: {hint}")
    return CORPORA[name]()


register_corpus("cldr", lambda: CldrPhrases(inventory="large"))
register_corpus("cldr_small", lambda: CldrPhrases(inventory="small", name="cldr_small"))
