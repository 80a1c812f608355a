"""What a text corpus is, and the cleaning that corpora in files share."""

from __future__ import annotations

import abc
import hashlib
import itertools
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mnmt_jax.data.cldr import SPLITS
from mnmt_jax.data.encodings import EncodingCheck
from mnmt_jax.data.pair_checks import has_words_on_one_side
from mnmt_jax.data.text_reader import NUL, REPEATED, Cleaning, Flaw, check_sentence
from mnmt_jax.errors import UserError, join_names, pluralize
from mnmt_jax.files.path_checks import check_name
from mnmt_jax.vocabulary.language_codes import canonical_codes
from mnmt_jax.vocabulary.languages import Direction

_log = logging.getLogger(__name__)
_DRAW_SEED = 1  # published: see `Selection.drawn`
_UNDECODABLE = ("bad_utf8", NUL.reason)
_MAX_BAD_RUN = 1_000_000
"""Lines in a row that may be dropped: a few kilobytes of gzip can hold billions."""


class NoFilesError(UserError):
    """Tells that none of a corpus's files are where they were looked for."""


@dataclass
class DropReport:
    """Counts what a pass over one split and direction left out.

    Attributes:
        kept: sentence pairs yielded.
        dropped: lines left out, by reason.
        first: place of the first dropped line, "FILE:LINE"; empty if there is none.
        wordless: pairs kept that have punctuation alone on one side.
    """

    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    first: str = ""
    wordless: int = 0

    def __str__(self) -> str:
        """Sums up in one line."""
        total = self.dropped.total()
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(self.dropped.items()))
        return f"dropped {total} of {self.kept + total} lines ({reasons}; first: {self.first})"


@dataclass(frozen=True)
class Share:
    """Which part of a corpus's training pairs is kept (`mnmt_jax.data.subsample`).

    Attributes:
        of_pairs: above 0, up to 1.
        seed: of the choice.
    """

    of_pairs: float
    seed: int = 0

    def __post_init__(self) -> None:
        """Checks both values.

        Raises:
            UserError: if one cannot be.
        """
        if not 0 < self.of_pairs <= 1:
            raise UserError(f"--share={self.of_pairs} must be above 0 and at most 1, such as 0.1")
        if self.seed < 0:
            raise UserError(f"--share_seed={self.seed} must be 0 or more")


class Corpus(abc.ABC):
    """Gives sentence pairs by split and direction.

    Attributes:
        name: short name; tasks are called NAME_SOURCE_TARGET.
        languages: canonical codes (`mnmt_jax.vocabulary.language_codes`) of the languages it has.
        reports: what the latest full pass over a (split, direction) left out.
        least_languages: that it must have.
        share: of the training pairs there are that it serves; None for all.
    """

    min_languages = 2
    share: Share | None = None

    def __init__(self, name: str, languages: Sequence[str]) -> None:
        self.name = check_name(name, "corpus name")
        self.languages = canonical_codes(languages, f"corpus {name!r}")
        least, count = self.min_languages, len(self.languages)
        if count < least:
            raise UserError(
                f"corpus {name!r}, languages {' '.join(self.languages)!r}: name "
                f"{'two' if least == 2 else 'one'} or more, each once"
            )
        self.reports: dict[tuple[str, Direction], DropReport] = {}
        self._sizes: dict[tuple[str, Direction], int] = {}

    @abc.abstractmethod
    def splits(self) -> tuple[str, ...]:
        """Lists the splits it has, of "train", "validation" and "test"."""

    @abc.abstractmethod
    def directions(self, split: str) -> tuple[Direction, ...]:
        """Lists the directions a split has."""

    def present(self) -> set[str]:
        """Returns the languages that are known to have text."""
        every = (pair for split in self.splits() for pair in self.directions(split))
        return set(itertools.chain.from_iterable(every))

    def missing_files(self, split: str, direction: Direction) -> tuple[str, ...]:
        """Lists the files that a split and direction would need; empty if they are not known."""
        return ()

    def files(self, split: str, direction: Direction) -> tuple[str, ...]:
        """Lists the files that a split and direction has; empty if they are not known."""
        return ()

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


@dataclass(frozen=True)
class Selection:
    """Says which of the good sentence pairs are taken.

    Attributes:
        first: pairs taken at most, the first ones, by split; a split not named is taken whole.
        lines: first and last line of the files, counted from 1, that are read of a split; a split
            not named is read whole. Files that end before are refused.
        held_out: splits whose pairs are left out of the other splits; what remains of those comes
            once. Keeps 8 bytes (of a hash) per pair in memory.
        drawn: training pairs taken at most, by direction: those that come first after
            `numpy.random.shuffle` with seed 1, in the order of the files. Reads them twice.
    """

    first: Mapping[str, int] = field(default_factory=dict)
    lines: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    held_out: tuple[str, ...] = ()
    drawn: Mapping[Direction, int] = field(default_factory=dict)


class FileCorpus(Corpus):
    """Cleans sentence pairs read from files; subclasses find and read the files."""

    def __init__(
        self,
        name: str,
        languages: Sequence[str],
        splits: Mapping[str, str],
        cleaning: Cleaning,
        selection: Selection = Selection(),
    ) -> None:
        super().__init__(name, languages)
        self._selection = selection
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
            missing = self.missing_files(split, direction)
            what = (
                f"file {join_names(missing)}"
                if missing
                else f"files for {split} {'-'.join(direction)}"
            )
            raise UserError(f"corpus {self.name!r}: no {what}")
        return self._clean(split, direction)

    @abc.abstractmethod
    def _read(self, split: str, direction: Direction) -> Iterator[Line]:
        """Yields each line's two sentences or its flaw."""

    def _clean(self, split: str, direction: Direction) -> Iterator[tuple[str, str]]:
        report = DropReport()
        for pair in self._selected(split, direction, report):
            report.kept += 1
            report.wordless += has_words_on_one_side(*pair)
            yield pair
        if (split, direction) not in self.reports:
            self._warn(f"{self.name} {split} {'-'.join(direction)}", report)
        self.reports[split, direction] = report

    def _warn(self, part: str, report: DropReport) -> None:
        """Log what was left out of a split and direction, and what is odd about the rest."""
        if report.dropped:
            _log.warning("%s: %s", part, report)
        if report.wordless:
            pairs = f"{report.wordless} of {pluralize(report.kept, 'pair')}"
            _log.warning("%s: punctuation alone on one side of %s; kept", part, pairs)

    def _selected(
        self, split: str, direction: Direction, report: DropReport
    ) -> Iterator[tuple[str, str]]:
        """Yields the good pairs that the selection takes."""
        first, drawn = self._selection.first.get(split), self._selection.drawn.get(direction)
        pairs = itertools.islice(self._good(split, direction, report), first)
        if drawn is None or split != "train":
            return pairs
        again = itertools.islice(self._good(split, direction, DropReport()), first)
        return itertools.compress(pairs, _draw(sum(1 for _ in again), drawn))

    def _good(
        self, split: str, direction: Direction, report: DropReport
    ) -> Iterator[tuple[str, str]]:
        """Yields the pairs without a flaw that no held-out split has; counts the others."""
        known = self._held_out_pairs(split, direction)
        undecodable, number, last_good = EncodingCheck(), 0, 0
        for number, line in enumerate(self._wanted_lines(split, direction), start=1):
            flaw, place = line.flaw(self._cleaning)
            if flaw is None:
                pair, last_good = line.sentences(), number
                if known is None or add_if_new(pair, known):
                    yield pair
                    continue
                flaw = REPEATED
            if self._cleaning.on_bad_line == "error" and not flaw.expected:
                raise UserError(
                    f"{place}: {flaw.detail}; {flaw.remedy}, or leave such lines out with "
                    "--on_bad_line=drop (in Python: Cleaning(on_bad_line='drop'))"
                )
            if flaw.expected:
                last_good = number
            elif number - last_good > _MAX_BAD_RUN:
                raise UserError(
                    f"{place}: no sentence pair in {_MAX_BAD_RUN:,} lines up to here "
                    f"({flaw.detail}); remove these lines in all languages"
                )
            if flaw.reason in _UNDECODABLE:
                undecodable.add(place, flaw.encoding, number)
            report.dropped[flaw.reason] += 1
            report.first = report.first or place
        undecodable.check(number)

    def _wanted_lines(self, split: str, direction: Direction) -> Iterator[Line]:
        """Yields the lines of the files that belong to the split.

        Raises:
            UserError: if the files end before its last line.
        """
        lines = self._read(split, direction)
        if split not in self._selection.lines:
            yield from lines
            return
        first, last = self._selection.lines[split]
        number = 0
        for number, line in enumerate(itertools.islice(lines, last), start=1):
            if number >= first:
                yield line
        if number < last:
            raise UserError(
                f"{join_names(self.files(split, direction))}: {pluralize(number, 'line')}; {split} text "
                f"of corpus {self.name!r} is lines {first:,} to {last:,}: put the published files "
                "there, whole"
            )

    def _held_out_pairs(self, split: str, direction: Direction) -> set[bytes] | None:
        """Returns digests of the pairs of held-out splits; None if this split may repeat them."""
        held_out = self._selection.held_out
        if not held_out or split in held_out:
            return None
        present = (other for other in held_out if direction in self.directions(other))
        return {_digest(pair) for other in present for pair in self.pairs(other, direction)}


def _draw(count: int, drawn: int) -> np.ndarray:
    """Says of each of `count` pairs whether it is one of those drawn: bool [count]."""
    order = np.arange(count)
    np.random.RandomState(_DRAW_SEED).shuffle(order)
    chosen = np.zeros(count, bool)
    chosen[order[:drawn]] = True
    return chosen


def add_if_new(sentences: tuple[str, ...], known: set[bytes]) -> bool:
    """Tells whether sentences have not been met together, and remembers them."""
    before = len(known)
    known.add(_digest(sentences))
    return len(known) > before


def _digest(sentences: tuple[str, ...]) -> bytes:
    return hashlib.blake2b("\t".join(sentences).encode(), digest_size=8).digest()


@dataclass
class Line:
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
