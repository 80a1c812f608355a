"""Text corpora behind one interface: CLDR phrases, parallel files, TSV files.

    corpus = ParallelFiles("mine", "data/{split}.{language}", ("en", "de"))
    for source, target in corpus.pairs("train", ("en", "de")): ...

Nothing here needs TensorFlow, and files are streamed: their size does not matter.
"""

from __future__ import annotations

import difflib
import itertools
import string
from collections.abc import Callable, Iterator, Mapping, Sequence

from mnmt_jax.data.cldr import SPLITS, CldrCorpus
from mnmt_jax.data.corpus import Corpus, FileCorpus, Line, NoFilesError, Selection
from mnmt_jax.data.file_columns import Place, find_place
from mnmt_jax.data.split_aliases import language_aliases
from mnmt_jax.data.text_reader import Cleaning, Flaw, read_lines, resolve
from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.language_codes import canonical_codes
from mnmt_jax.vocabulary.languages import MITRE_LANGUAGES, Direction

_STANDARD_SPLITS: Mapping[str, str] = {split: split for split in SPLITS}


class CldrPhrases(Corpus):
    """Serves phrases of the embedded corpus.

    Args:
        languages: codes of languages CLDR has.
        seed: picks the meanings.
        inventory: "small" or "large".
        sizes: sentence pairs per direction by split; splits left out are absent.
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
        self._wanted = {split: sizes[split] for split in SPLITS if sizes.get(split)}
        self.cldr = CldrCorpus(languages, seed, inventory=inventory)

    def splits(self) -> tuple[str, ...]:
        """Lists the splits that were given a size."""
        return tuple(self._wanted)

    def directions(self, split: str) -> tuple[Direction, ...]:
        """Lists all ordered pairs of the languages."""
        return tuple(itertools.permutations(self.languages, 2)) if split in self._wanted else ()

    def pairs(self, split: str, direction: Direction) -> Iterator[tuple[str, str]]:
        """Yields (source, target) sentences; see the base class."""
        self._check(split, direction)
        return self.cldr.iter_pairs(split, direction, self._wanted[split])

    def size(self, split: str, direction: Direction) -> int:
        """Returns the number of sentence pairs asked for."""
        self._check(split, direction)
        return self._wanted[split]


class PatternFiles(FileCorpus):
    """Reads parallel files from the first of several places that has them.

    Line i of one language is the translation of line i of another.

    Args:
        name: name of the corpus.
        patterns: places of each split, tried in order: paths with `{language}`, and `{pair}` where
            there is one set of files per pair ("de-en"; either order is found). A file may be gzip,
            its name then ends in ".gz". "PATH#COLUMN" is a column of a JSON-lines or Parquet file,
            and COLUMN too may have `{language}`.
        languages: codes.
        words: what `{language}` may stand for, where that is not the code.
        cleaning: what makes a line bad and what becomes of it.
        selection: which pairs are taken.
    """

    def __init__(
        self,
        name: str,
        patterns: Mapping[str, Sequence[str]],
        languages: Sequence[str],
        *,
        words: Mapping[str, Sequence[str]] | None = None,
        cleaning: Cleaning = Cleaning(),  # noqa: B008 - frozen
        selection: Selection = Selection(),  # noqa: B008 - frozen
    ) -> None:
        super().__init__(name, languages, {split: split for split in patterns}, cleaning, selection)
        self._patterns = patterns
        self._words = words or {}
        self._found: dict[str, dict[Direction, tuple[Place, Place]]] = {}
        if not self.splits():
            places = " or ".join(dict.fromkeys(itertools.chain(*patterns.values())))
            raise NoFilesError(
                f"corpus {name!r}: no files match {places} for languages {' '.join(self.languages)}"
            )

    def directions(self, split: str) -> tuple[Direction, ...]:
        """Lists the directions whose two files exist."""
        return tuple(self._places(split))

    def missing_files(self, split: str, direction: Direction) -> tuple[str, ...]:
        """Lists the files that are looked for and not there, by their first names."""
        names = [self._words.get(code, (code,))[0] for code in direction]
        files = [
            pattern.format(language=name, pair="-".join(names))
            for pattern in self._patterns.get(split, ())
            for name in names
        ]
        return tuple(file for file in files if find_place(file) is None)

    def files(self, split: str, direction: Direction) -> tuple[str, ...]:
        """Lists the two files."""
        return tuple(place.path for place in self._places(split)[direction])

    def _places(self, split: str) -> Mapping[Direction, tuple[Place, Place]]:
        """Returns the places of each direction's two sides; looks at the disk once."""
        if split not in self._found:
            known: dict[str, Place | None] = {}
            every = itertools.permutations(self.languages, 2)
            found = ((pair, self._find(split, pair, known)) for pair in every)
            self._found[split] = {pair: places for pair, places in found if places is not None}
        return self._found[split]

    def _find(
        self, split: str, direction: Direction, known: dict[str, Place | None]
    ) -> tuple[Place, Place] | None:
        names = [self._words.get(code, (code,)) for code in direction]
        for pattern in self._patterns.get(split, ()):
            pairs = [""]
            if "{pair}" in pattern:
                orders = (*itertools.product(*names), *itertools.product(*names[::-1]))
                pairs = [f"{first}-{second}" for first, second in orders]
            for pair in pairs:
                sides = [_first_place(pattern, pair, words, known) for words in names]
                if sides[0] is not None and sides[1] is not None:
                    return sides[0], sides[1]
        return None

    def _read(self, split: str, direction: Direction) -> Iterator[Line]:
        places = self._places(split)[direction]
        sides = [place.read(self._max_bytes) for place in places]
        for number, (source, target) in enumerate(itertools.zip_longest(*sides), start=1):
            where = (f"{places[0].path}:{number}", f"{places[1].path}:{number}")
            if source is None or target is None:
                here, there = where if target is None else where[::-1]
                file = there.rpartition(":")[0]
                missing = Flaw(
                    "unpaired",
                    f"{file} has {number - 1} lines only; if one is missing further up, all pairs "
                    "after it are wrong",
                )
                source, target = (missing if side is None else side for side in (source, target))
                where = (here, here)
            yield Line((source, target), where)


def _first_place(
    pattern: str, pair: str, words: Sequence[str], known: dict[str, Place | None]
) -> Place | None:
    """Returns the place a pattern names with the first word that is there."""
    for word in words:
        name = pattern.format(language=word, pair=pair)
        if name not in known:
            known[name] = find_place(name)
        if (place := known[name]) is not None:
            return place
    return None


class ParallelFiles(PatternFiles):
    """Reads plain parallel files whose path is one pattern.

    Args:
        name: name of the corpus.
        pattern: path with `{split}`, unless there is but one, and `{language}`, e.g.
            "data/{split}.{language}"; also `{pair}` for one set of files per pair ("de-en"; either
            order is found). A file may be gzip, its name then ends in ".gz".
        languages: codes; `{language}` stands for any form of them, first for the form given here.
        splits: the files' word for each split, e.g. {"train": "train", "validation": "val"}.
        cleaning: what makes a line bad and what becomes of it.
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
        _check_pattern(pattern, needed, {"split", "language", "pair"})
        patterns = {split: (pattern.replace("{split}", word),) for split, word in splits.items()}
        words = language_aliases(itertools.chain(*patterns.values()), languages)
        super().__init__(name, patterns, languages, words=words, cleaning=cleaning)


class TsvFile(FileCorpus):
    """Reads tab-separated files, one column per language, whose first line names the languages.

    Args:
        name: name of the corpus.
        pattern: path with `{split}`, unless there is but one, e.g. "data/{split}.tsv"; a file may
            be gzip (".gz" is added).
        languages: codes of the columns to use, or None for all that the first file's header names.
        columns: codes of all columns in order, for files without a header.
        splits: the files' word for each split.
        cleaning: what makes a line bad and what becomes of it.
    """

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
        _check_pattern(pattern, set() if len(splits) == 1 else {"split"}, {"split"})
        self._paths = {
            split: path
            for split, word in splits.items()
            if (path := resolve(pattern.format(split=word)))
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
        """Lists all ordered pairs of the languages the split's file has."""
        here = [code for code in self.languages if code in self._columns.get(split, ())]
        return tuple(itertools.permutations(here, 2))

    def present(self) -> set[str]:
        """Returns those of the languages that columns have, also where they have but one."""
        return set(self.languages).intersection(itertools.chain(*self._columns.values()))

    def files(self, split: str, direction: Direction) -> tuple[str, ...]:
        """Lists the split's file."""
        return (self._paths[split],)

    def _read_header(self, path: str) -> tuple[str, ...]:
        """Reads the language codes in a file's first line."""
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
            flaw = Flaw("columns", f"{len(cells)} columns where {len(columns)} belong")
            yield Line((flaw, flaw), (place, place))


class JoinedCorpus(Corpus):
    """Takes each split from a corpus of its own: training text from one, tests from another.

    Args:
        name: name of the whole.
        languages: codes.
        parts: the corpus that has each split.
    """

    def __init__(self, name: str, languages: Sequence[str], parts: Mapping[str, Corpus]) -> None:
        super().__init__(name, languages)
        self._parts = {split: parts[split] for split in SPLITS if split in parts}

    def splits(self) -> tuple[str, ...]:
        """Lists the splits that parts have."""
        return tuple(split for split in self._parts if self.directions(split))

    def directions(self, split: str) -> tuple[Direction, ...]:
        """Lists the directions a split's part has between the languages."""
        part, known = self._parts.get(split), set(self.languages)
        return (
            tuple(pair for pair in part.directions(split) if known.issuperset(pair)) if part else ()
        )

    def pairs(self, split: str, direction: Direction) -> Iterator[tuple[str, str]]:
        """Yields (source, target) sentences; see the base class."""
        self._check(split, direction)
        return self._parts[split].pairs(split, direction)

    def size(self, split: str, direction: Direction) -> int:
        """Counts the sentence pairs of a split and direction."""
        self._check(split, direction)
        return self._parts[split].size(split, direction)


class MultilingualTsv(TsvFile):
    """Reads TSV files whose header has words of its own and whose cells may hold no sentence.

    Args:
        name: name of the corpus.
        pattern: path with `{split}`.
        words: the header's word for each language, by code; other columns are not read.
        splits: the files' word for each split.
        absent: a cell that contains this holds no sentence, nor does an empty one; pairs with such
            a side are left out and are no flaw.
        selection: which pairs are taken.
    """

    def __init__(
        self,
        name: str,
        pattern: str,
        words: Mapping[str, str],
        *,
        splits: Mapping[str, str] = _STANDARD_SPLITS,
        absent: str,
        selection: Selection = Selection(),  # noqa: B008 - frozen
    ) -> None:
        self._codes = {word: code for code, word in words.items()}
        self._absent = absent
        super().__init__(name, pattern, tuple(words), splits=splits)
        self._selection = selection

    def _read_header(self, path: str) -> tuple[str, ...]:
        """Returns the code of each column, "" for columns that are not read."""
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
    """Returns the cells of a file's first line; none if it cannot be read."""
    header = next(read_lines(path, 1 << 16), None)
    if not isinstance(header, str):
        said = "" if header is None else f"{header.detail}; "
        raise UserError(f"{path}:1: {said}the header must name the languages, separated by tabs")
    return header.split("\t")


def _check_pattern(pattern: str, needed: set[str], allowed: set[str]) -> None:
    """Raises unless a path pattern has the needed fields and no others."""
    try:
        fields = {name for _, name, _, _ in string.Formatter().parse(pattern) if name is not None}
    except ValueError as error:
        raise UserError(f"pattern {pattern!r}: {error}") from None
    if not needed <= fields <= allowed:
        words = " and ".join(f"{{{name}}}" for name in sorted(needed))
        raise UserError(f"pattern {pattern!r}: must have {words} and no other field in braces")


CORPORA: dict[str, Callable[[], Corpus]] = {}
"""Corpora by name; `register_corpus` adds to it."""


def register_corpus(name: str, make: Callable[[], Corpus]) -> None:
    """Registers a corpus under a name; it is made when it is first asked for.

    Raises:
        UserError: if the name is taken.
    """
    if name in CORPORA:
        raise UserError(f"corpus {name!r} is registered already: choose another name")
    CORPORA[name] = make


def get_corpus(name: str) -> Corpus:
    """Makes a registered corpus.

    Raises:
        UserError: if there is none of this name; names those that come close.
    """
    if name not in CORPORA:
        near = difflib.get_close_matches(name, CORPORA, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"one of {' '.join(CORPORA)}"
        raise UserError(f"unknown corpus {name!r}: {hint}")
    return CORPORA[name]()


register_corpus("cldr", lambda: CldrPhrases(inventory="large"))
register_corpus("cldr_small", lambda: CldrPhrases(inventory="small", name="cldr_small"))
