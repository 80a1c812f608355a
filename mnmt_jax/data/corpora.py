"""Text corpora behind one interface: CLDR phrases, parallel files, TSV files.

    corpus = ParallelFiles("mine", "data/{split}.{language}", ("en", "de"))
    for source, target in corpus.pairs("train", ("en", "de")): ...

Nothing here needs TensorFlow, and files are streamed: their size does not matter.
"""

from __future__ import annotations

import abc
import difflib
import itertools
import logging
import string
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mnmt_jax.data.cldr import SPLITS, CldrCorpus
from mnmt_jax.data.text_lines import Cleaning, Flaw, check_sentence, read_lines, resolve
from mnmt_jax.errors import UserError
from mnmt_jax.languages import MITRE_LANGUAGES, Direction, language

_log = logging.getLogger(__name__)

_STANDARD_SPLITS: Mapping[str, str] = {split: split for split in SPLITS}


@dataclass
class DropReport:
    """Counts what a pass over one split and direction left out.

    Attributes:
        kept: sentence pairs yielded.
        dropped: lines left out, by reason.
        first: place of the first dropped line, "FILE:LINE"; empty if there is none.
    """

    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    first: str = ""

    def __str__(self) -> str:
        """Sums up in one line."""
        total = self.dropped.total()
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(self.dropped.items()))
        return f"dropped {total} of {self.kept + total} lines ({reasons}; first: {self.first})"


class Corpus(abc.ABC):
    """Gives sentence pairs by split and direction.

    Attributes:
        name: short name; tasks are called NAME_SOURCE_TARGET.
        languages: codes of the languages it has.
        reports: what the latest full pass over a (split, direction) left out.
    """

    def __init__(self, name: str, languages: Sequence[str]) -> None:
        self.name = name
        self.languages = tuple(language(code).code for code in languages)
        if len(self.languages) < 2 or len(set(self.languages)) < len(self.languages):
            raise UserError(
                f"corpus {name!r}, languages {' '.join(self.languages)!r}: name two or more, "
                "each once"
            )
        self.reports: dict[tuple[str, Direction], DropReport] = {}
        self._sizes: dict[tuple[str, Direction], int] = {}

    @abc.abstractmethod
    def splits(self) -> tuple[str, ...]:
        """Lists the splits it has, of "train", "validation" and "test"."""

    @abc.abstractmethod
    def directions(self, split: str) -> tuple[Direction, ...]:
        """Lists the directions a split has."""

    @abc.abstractmethod
    def pairs(self, split: str, direction: Direction) -> Iterator[tuple[str, str]]:
        """Yields (source, target) sentences, always in the same order.

        Raises:
            UserError: if the split or direction is missing, or a line is bad and lines must not be.
        """

    def size(self, split: str, direction: Direction) -> int:
        """Counts the sentence pairs of a split and direction (reads the files once)."""
        key = (split, direction)
        if key not in self._sizes:
            self._sizes[key] = sum(1 for _ in self.pairs(split, direction))
        return self._sizes[key]

    def _check(self, split: str, direction: Direction) -> None:
        """Raises unless the split exists and both languages are different and known here."""
        if split not in self.splits():
            raise UserError(
                f"corpus {self.name!r} has no split {split!r}: it has {' '.join(self.splits())}"
            )
        for code in direction:
            if code not in self.languages:
                raise UserError(
                    f"corpus {self.name!r}, direction {'-'.join(direction)}: {code!r} is not among "
                    f"its languages {' '.join(self.languages)}"
                )
        if direction[0] == direction[1]:
            raise UserError(f"direction {'-'.join(direction)}: source and target are the same")


class CldrText(Corpus):
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


class _FileCorpus(Corpus):
    """Cleans sentence pairs read from files; subclasses find and read the files."""

    def __init__(
        self, name: str, languages: Sequence[str], splits: Mapping[str, str], cleaning: Cleaning
    ) -> None:
        super().__init__(name, languages)
        for split in splits:
            if split not in SPLITS:
                raise UserError(f"splits: {split!r} must be one of {' '.join(SPLITS)}")
        self._split_names = {split: splits[split] for split in SPLITS if split in splits}
        self._cleaning = cleaning
        # UTF-8 takes four bytes at most for a character; the line's end takes two.
        self._max_bytes = 4 * cleaning.max_characters + 2

    def splits(self) -> tuple[str, ...]:
        """Lists the splits that have files."""
        return tuple(split for split in self._split_names if self.directions(split))

    def pairs(self, split: str, direction: Direction) -> Iterator[tuple[str, str]]:
        """Yields (source, target) sentences; see the base class.

        A pass that ends leaves its `DropReport` in `reports` and, where it dropped something, logs
        it as a warning, once per split and direction.
        """
        self._check(split, direction)
        if direction not in self.directions(split):
            raise UserError(f"corpus {self.name!r} has no files for {split} {'-'.join(direction)}")
        return self._clean(split, direction)

    @abc.abstractmethod
    def _read(self, split: str, direction: Direction) -> Iterator[_Line]:
        """Yields each line's two sentences or its flaw."""

    def _clean(self, split: str, direction: Direction) -> Iterator[tuple[str, str]]:
        report = DropReport()
        for line in self._read(split, direction):
            flaw, place = line.flaw(self._cleaning)
            if flaw is None:
                report.kept += 1
                yield line.sentences()
                continue
            if self._cleaning.on_bad_line == "error":
                raise UserError(
                    f"{place}: {flaw.detail}; mend it, or set on_bad_line='drop' to leave such "
                    "lines out"
                )
            report.dropped[flaw.reason] += 1
            report.first = report.first or place
        if report.dropped and (split, direction) not in self.reports:
            _log.warning("%s %s %s: %s", self.name, split, "-".join(direction), report)
        self.reports[split, direction] = report


@dataclass
class _Line:
    """One line of a corpus: the sides as read, and where each stands."""

    sides: tuple[str | Flaw, str | Flaw]
    places: tuple[str, str]

    def flaw(self, cleaning: Cleaning) -> tuple[Flaw | None, str]:
        """Returns the first flaw and its place."""
        for side, place in zip(self.sides, self.places, strict=True):
            flaw = side if isinstance(side, Flaw) else check_sentence(side, cleaning)
            if flaw is not None:
                return flaw, place
        return None, ""

    def sentences(self) -> tuple[str, str]:
        """Returns both sentences of a line without flaw."""
        source, target = (side.strip() for side in self.sides if isinstance(side, str))
        return source, target


class ParallelFiles(_FileCorpus):
    """Reads plain parallel files: line i of one language is the translation of line i of another.

    Args:
        name: name of the corpus.
        pattern: path with `{split}` and `{language}`, e.g. "data/{split}.{language}"; also `{pair}`
            for one set of files per pair ("de-en"; either order is found). A file may be gzip, its
            name then ends in ".gz".
        languages: codes.
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
        super().__init__(name, languages, splits, cleaning)
        _check_pattern(pattern, {"split", "language"}, {"split", "language", "pair"})
        self._pattern = pattern
        if not self.splits():
            raise UserError(
                f"corpus {name!r}: no files match {pattern!r} for splits "
                f"{' '.join(self._split_names.values())} and languages {' '.join(self.languages)}"
            )

    def directions(self, split: str) -> tuple[Direction, ...]:
        """Lists the directions whose two files exist."""
        every = itertools.permutations(self.languages, 2)
        return tuple(direction for direction in every if self._paths(split, direction))

    def _paths(self, split: str, direction: Direction) -> tuple[str, str] | None:
        word = self._split_names.get(split)
        for pair in (direction, direction[::-1]):
            found = [
                resolve(self._pattern.format(split=word, language=code, pair="-".join(pair)))
                for code in direction
            ]
            if found[0] and found[1]:
                return found[0], found[1]
        return None

    def _read(self, split: str, direction: Direction) -> Iterator[_Line]:
        paths = self._paths(split, direction)
        assert paths is not None  # `pairs` has looked
        sides = [read_lines(path, self._max_bytes) for path in paths]
        for number, (source, target) in enumerate(itertools.zip_longest(*sides), start=1):
            places = (f"{paths[0]}:{number}", f"{paths[1]}:{number}")
            if source is None or target is None:
                here, there = places if target is None else places[::-1]
                missing = Flaw(
                    "unpaired", f"{there.rpartition(':')[0]} has {number - 1} lines only"
                )
                source, target = (missing if side is None else side for side in (source, target))
                places = (here, here)
            yield _Line((source, target), places)


class TsvFile(_FileCorpus):
    """Reads tab-separated files, one column per language, whose first line names the languages.

    Args:
        name: name of the corpus.
        pattern: path with `{split}`, e.g. "data/{split}.tsv"; a file may be gzip (".gz" is added).
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
        _check_pattern(pattern, {"split"}, {"split"})
        self._paths = {
            split: path
            for split, word in splits.items()
            if (path := resolve(pattern.format(split=word)))
        }
        if not self._paths:
            raise UserError(
                f"corpus {name!r}: no files match {pattern!r} for splits "
                f"{' '.join(splits.values())}"
            )
        self._header = columns is None
        self._columns = {
            split: tuple(columns) if columns is not None else _read_header(path)
            for split, path in self._paths.items()
        }
        super().__init__(name, languages or next(iter(self._columns.values())), splits, cleaning)

    def directions(self, split: str) -> tuple[Direction, ...]:
        """Lists all ordered pairs of the languages the split's file has."""
        here = [code for code in self.languages if code in self._columns.get(split, ())]
        return tuple(itertools.permutations(here, 2))

    def _read(self, split: str, direction: Direction) -> Iterator[_Line]:
        path, columns = self._paths[split], self._columns[split]
        source, target = (columns.index(code) for code in direction)
        lines = enumerate(read_lines(path, len(columns) * (self._max_bytes + 1)), start=1)
        for number, line in itertools.islice(lines, int(self._header), None):
            place = f"{path}:{number}"
            if isinstance(line, Flaw):
                yield _Line((line, line), (place, place))
                continue
            cells = line.split("\t")
            if len(cells) == len(columns):
                yield _Line((cells[source], cells[target]), (place, place))
                continue
            flaw = Flaw("columns", f"{len(cells)} columns where {len(columns)} belong")
            yield _Line((flaw, flaw), (place, place))


def _check_pattern(pattern: str, needed: set[str], allowed: set[str]) -> None:
    """Raises unless a path pattern has the needed fields and no others."""
    try:
        fields = {name for _, name, _, _ in string.Formatter().parse(pattern) if name is not None}
    except ValueError as error:
        raise UserError(f"pattern {pattern!r}: {error}") from None
    if not needed <= fields <= allowed:
        words = " and ".join(f"{{{name}}}" for name in sorted(needed))
        raise UserError(f"pattern {pattern!r}: must have {words} and no other field in braces")


def _read_header(path: str) -> tuple[str, ...]:
    """Reads the language codes in a TSV file's first line."""
    header = next(read_lines(path, 1 << 16), None)
    if not isinstance(header, str):
        raise UserError(f"{path}:1: the header must name the languages, separated by tabs")
    try:
        return tuple(language(code.strip()).code for code in header.split("\t"))
    except UserError as error:
        raise UserError(
            f"{path}:1: {error}; the header must name the languages, separated by tabs"
        ) from None


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


register_corpus("cldr", lambda: CldrText(inventory="large"))
register_corpus("cldr_small", lambda: CldrText(inventory="small", name="cldr_small"))
