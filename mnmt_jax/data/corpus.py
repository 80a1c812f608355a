"""Base classes of text corpora, and the cleaning of corpora that are read from files."""

from __future__ import annotations

import abc
import dataclasses
import hashlib
import heapq
import itertools
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mnmt_jax.data.cldr import SPLITS
from mnmt_jax.data.encodings import EncodingCheck
from mnmt_jax.data.pair_checks import has_words_on_one_side
from mnmt_jax.data.text_reader import NUL, REPEATED, Cleaning, Flaw, check_sentence
from mnmt_jax.errors import UserError, join_names, pluralize
from mnmt_jax.files.path_checks import check_name
from mnmt_jax.vocabulary.language_codes import Direction, canonical_codes

if TYPE_CHECKING:
    from mnmt_jax.data.document_context import Context
    from mnmt_jax.data.document_ids import DocumentIds

_log = logging.getLogger(__name__)
HASH_BITS = 64
_SAMPLE_SEED = 1  # fixed for reproducibility: see `Selection.drawn`
_UNDECODABLE = ("bad_utf8", NUL.reason)
_MAX_BAD_RUN = 1_000_000
"""Limit of consecutive dropped lines: a few kilobytes of gzip can hold billions."""


class NoFilesError(UserError):
    """Error: none of the files of a corpus exist at the expected paths.

    Attributes:
        corpus: the corpus, which knows the paths; None if it does not know its languages either.
    """

    def __init__(self, message: str, corpus: FileCorpus | None = None) -> None:
        super().__init__(message)
        self.corpus = corpus


@dataclass
class DropReport:
    """Counts of the lines that a pass over one split and direction dropped.

    Attributes:
        kept: number of sentence pairs yielded.
        dropped: number of dropped lines, by reason.
        first: place of the first dropped line, "FILE:LINE"; empty if there is none.
        wordless: number of yielded pairs with punctuation only on one side.
        line: number, from 1, of the line of the pair yielded last.
        lines: number of lines; 0 until all have been read.
    """

    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    first: str = ""
    wordless: int = 0
    line: int = 0
    lines: int = 0

    def __str__(self) -> str:
        """Return a one-line summary."""
        total = self.dropped.total()
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(self.dropped.items()))
        return f"dropped {total} of {self.kept + total} lines ({reasons}; first: {self.first})"


@dataclass(frozen=True)
class Share:
    """The fraction of a corpus's training pairs to keep (`mnmt_jax.data.subsample`).

    Attributes:
        of_pairs: fraction of the pairs, in (0, 1].
        seed: seed of the choice.
    """

    of_pairs: float
    seed: int = 0

    def __post_init__(self) -> None:
        """Check both values.

        Raises:
            UserError: if a value is out of range.
        """
        if not 0 < self.of_pairs <= 1:
            raise UserError(f"--share={self.of_pairs} must be above 0 and at most 1, such as 0.1")
        if self.seed < 0:
            raise UserError(f"--share_seed={self.seed} must be 0 or more")


class Corpus(abc.ABC):
    """Sentence pairs by split and direction.

    Attributes:
        name: short name; tasks are called NAME_SOURCE_TARGET.
        languages: canonical codes (`mnmt_jax.vocabulary.language_codes`) of its languages.
        reports: drop report of the latest full pass over a (split, direction).
        min_languages: minimum number of languages.
        share: fraction of the training pairs that the corpus serves; None for all.
        document_ids: files with the document of each line; None if unknown.
        context: how its pairs were made of documents; None for single sentences.
    """

    min_languages = 2
    share: Share | None = None
    document_ids: DocumentIds | None = None
    context: Context | None = None

    def __init__(self, name: str, languages: Sequence[str]) -> None:
        self.name = check_name(name, "corpus name")
        self.languages = canonical_codes(languages, f"corpus {name!r}")
        minimum, count = self.min_languages, len(self.languages)
        if count < minimum:
            raise UserError(
                f"corpus {name!r}, languages {' '.join(self.languages)!r}: name "
                f"{'two' if minimum == 2 else 'one'} or more, each once"
            )
        self.reports: dict[tuple[str, Direction], DropReport] = {}
        self._sizes: dict[tuple[str, Direction], int] = {}

    @abc.abstractmethod
    def splits(self) -> tuple[str, ...]:
        """Return the available splits, of "train", "validation" and "test"."""

    @abc.abstractmethod
    def directions(self, split: str) -> tuple[Direction, ...]:
        """Return the directions of a split."""

    def part(self, split: str) -> Corpus:
        """Return the corpus that a split is read from: this one, or one of those it joins."""
        return self

    def present(self) -> set[str]:
        """Return the languages that are known to have text."""
        directions = (pair for split in self.splits() for pair in self.directions(split))
        return set(itertools.chain.from_iterable(directions))

    def missing_files(self, split: str, direction: Direction) -> tuple[str, ...]:
        """Return the missing files of a split and direction; empty if unknown."""
        return ()

    def files(self, split: str, direction: Direction) -> tuple[str, ...]:
        """Return the files of a split and direction; empty if unknown."""
        return ()

    def sample_size(self, split: str, direction: Direction) -> int | None:
        """Return the size of the sample that is drawn of the pairs; None if all are taken."""
        return None

    def settings(self) -> dict[str, Any]:
        """Return what its text depends on besides its name and files, by setting, for JSON."""
        return {}

    @abc.abstractmethod
    def pairs(self, split: str, direction: Direction) -> Iterator[tuple[str, str]]:
        """Yield (source, target) sentences in a fixed order.

        Raises:
            UserError: if the split or direction is missing, or a line is bad and `on_bad_line` is
                "error".
        """

    def size(self, split: str, direction: Direction) -> int:
        """Return the number of sentence pairs of a split and direction; the files are read once."""
        key = (split, direction)
        if key not in self._sizes:
            self._sizes[key] = sum(1 for _ in self.pairs(split, direction))
        return self._sizes[key]

    def _check(self, split: str, direction: Direction) -> None:
        """Check that the split exists and that both languages are known and different.

        Raises:
            UserError: if not.
        """
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
    """Selection among the clean sentence pairs.

    Attributes:
        first: maximum number of pairs by split, taken from the start; a split not named has no
            limit.
        lines: first and last line to read by split, counted from 1; a split not named is read
            completely. Files that end before the last line are an error.
        held_out: splits whose pairs are removed from the other splits. The other splits are also
            deduplicated. Keeps 8 bytes (of a hash) per pair in memory.
        refill: whether as many training pairs become validation pairs as validation text lost
            because it repeats a pair or is in a held-out split: those with the lowest hashes.
        sample_sizes: sample size of the training pairs by direction: the pairs that come first
            after `numpy.random.shuffle` with seed 1, in the order of the files. Reads the files
            twice.
    """

    first: Mapping[str, int] = field(default_factory=dict)
    lines: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    held_out: tuple[str, ...] = ()
    refill: bool = False
    sample_sizes: Mapping[Direction, int] = field(default_factory=dict)


class FileCorpus(Corpus):
    """Base class of corpora in files: cleans the sentence pairs that a subclass reads."""

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
        self._moved_pairs: dict[Direction, dict[tuple[str, str], None]] = {}
        # A UTF-8 character takes at most four bytes, the line end takes two.
        self._max_bytes = 4 * cleaning.max_characters + 2

    def splits(self) -> tuple[str, ...]:
        """Return the splits that have files."""
        return tuple(split for split in self._split_names if self.directions(split))

    def sample_size(self, split: str, direction: Direction) -> int | None:
        """Return the sample size of training pairs; see the base class."""
        return self._selection.sample_sizes.get(direction) if split == "train" else None

    def settings(self) -> dict[str, Any]:
        """Return the rules for bad lines and the selection; see the base class."""
        return {**dataclasses.asdict(self._cleaning), "selection": repr(self._selection)}

    def pairs(self, split: str, direction: Direction) -> Iterator[tuple[str, str]]:
        """Yield (source, target) sentences; see the base class.

        A complete pass stores its `DropReport` in `reports`. Drops are logged as a warning, once
        per split and direction.
        """
        self._check_text(split, direction)
        return self._clean(split, direction)

    def counted_pairs(
        self, split: str, direction: Direction, report: DropReport
    ) -> Iterator[tuple[str, str]]:
        """Yield what `pairs` does; nothing is logged or stored.

        Args:
            split: name of the split.
            direction: source and target language.
            report: counts what the pass has read and dropped so far.

        Raises:
            UserError: as `pairs`.
        """
        self._check_text(split, direction)
        return self._count(split, direction, report)

    def _check_text(self, split: str, direction: Direction) -> None:
        """Check that the direction has files.

        Raises:
            UserError: if not.
        """
        self._check(split, direction)
        if direction not in self.directions(split):
            missing = self.missing_files(split, direction)
            absent_files = (
                f"file {join_names(missing)}"
                if missing
                else f"files for {split} {'-'.join(direction)}"
            )
            raise UserError(f"corpus {self.name!r}: no {absent_files}")

    @abc.abstractmethod
    def _read(self, split: str, direction: Direction) -> Iterator[Line]:
        """Yield the lines of a split and direction."""

    def _clean(self, split: str, direction: Direction) -> Iterator[tuple[str, str]]:
        report = DropReport()
        yield from self._count(split, direction, report)
        if (split, direction) not in self.reports:
            self._log_report(f"{self.name} {split} {'-'.join(direction)}", report)
        self.reports[split, direction] = report

    def _count(
        self, split: str, direction: Direction, report: DropReport
    ) -> Iterator[tuple[str, str]]:
        for pair in self._select_pairs(split, direction, report):
            report.kept += 1
            report.wordless += has_words_on_one_side(*pair)
            yield pair

    def _log_report(self, label: str, report: DropReport) -> None:
        """Log dropped lines and pairs without words on one side."""
        if report.dropped:
            _log.warning("%s: %s", label, report)
        if report.wordless:
            wordless = f"{report.wordless} of {pluralize(report.kept, 'pair')}"
            _log.warning("%s: punctuation alone on one side of %s; kept", label, wordless)

    def _select_pairs(
        self, split: str, direction: Direction, report: DropReport
    ) -> Iterator[tuple[str, str]]:
        """Yield the clean pairs that the selection takes."""
        limit = self._selection.first.get(split)
        sample_size = self.sample_size(split, direction)
        pairs = itertools.islice(self._refilled_pairs(split, direction, report), limit)
        if sample_size is None:
            return pairs
        second_pass = itertools.islice(self._refilled_pairs(split, direction, DropReport()), limit)
        return itertools.compress(pairs, _draw(sum(1 for _ in second_pass), sample_size))

    def _refilled_pairs(
        self, split: str, direction: Direction, report: DropReport
    ) -> Iterator[tuple[str, str]]:
        """Yield clean pairs; with `refill`, some training pairs belong to validation."""
        pairs = self._clean_pairs(split, direction, report)
        if not self._selection.refill or split == "test":
            return pairs
        moved = self._moved(direction)
        if direction != tuple(sorted(direction)):
            moved = {(second, first): None for first, second in moved}
        if split == "train":
            return (pair for pair in pairs if pair not in moved)
        return itertools.chain(pairs, moved)

    def _moved(self, direction: Direction) -> Mapping[tuple[str, str], None]:
        """Return the training pairs that refill validation, in the order of the sorted codes."""
        first, second = sorted(direction)
        in_order = first, second
        if in_order not in self._moved_pairs:
            report = DropReport()
            if in_order in self.directions("validation"):
                for _ in self._clean_pairs("validation", in_order, report):
                    pass
            count = report.dropped[REPEATED.reason]
            chosen: list[tuple[str, str]] = []
            if count and in_order in self.directions("train"):
                train = self._clean_pairs("train", in_order, DropReport())
                chosen = heapq.nsmallest(
                    count, train, key=lambda pair: hash_pair(pair, in_order, 0)
                )
            self._moved_pairs[in_order] = dict.fromkeys(chosen)
        return self._moved_pairs[in_order]

    def _clean_pairs(
        self, split: str, direction: Direction, report: DropReport
    ) -> Iterator[tuple[str, str]]:
        """Yield the pairs without a flaw that are in no held-out split; count the dropped ones."""
        seen = self._held_out_digests(split, direction)
        undecodable, number, last_good = EncodingCheck(), 0, 0
        for number, line in enumerate(self._split_lines(split, direction), start=1):
            flaw, place = line.flaw(self._cleaning, direction)
            if flaw is None:
                pair, last_good = line.sentences(), number
                if seen is None or add_if_new(pair, seen):
                    report.line = number
                    yield pair
                    continue
                flaw = REPEATED
            if self._cleaning.on_bad_line == "error" and not flaw.expected:
                raise UserError(
                    f"{place}: {flaw.detail}; {flaw.remedy}, or drop such lines with "
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
        report.lines = number

    def _split_lines(self, split: str, direction: Direction) -> Iterator[Line]:
        """Yield the lines of the files that belong to the split.

        Raises:
            UserError: if the files end before the last line of the split.
        """
        lines = self._read(split, direction)
        if split not in self._selection.lines:
            yield from lines
            return
        first_line, last_line = self._selection.lines[split]
        number = 0
        for number, line in enumerate(itertools.islice(lines, last_line), start=1):
            if number >= first_line:
                yield line
        if number < last_line:
            raise UserError(
                f"{join_names(self.files(split, direction))}: {pluralize(number, 'line')}, but "
                f"{split} text of corpus {self.name!r} is lines {first_line:,} to {last_line:,}; "
                "use the complete published files"
            )

    def _held_out_digests(self, split: str, direction: Direction) -> set[bytes] | None:
        """Return digests of the pairs of held-out splits; None if this split may repeat them."""
        held_out = self._selection.held_out
        if not held_out or split in held_out:
            return None
        available_splits = (
            held_out_split
            for held_out_split in held_out
            if direction in self.directions(held_out_split)
        )
        return {
            _digest(pair)
            for held_out_split in available_splits
            for pair in self.pairs(held_out_split, direction)
        }


def _draw(count: int, sample_size: int) -> np.ndarray:
    """Return which of `count` pairs are in the sample, bool `[count]`."""
    order = np.arange(count)
    np.random.RandomState(_SAMPLE_SEED).shuffle(order)
    is_sampled = np.zeros(count, bool)
    is_sampled[order[:sample_size]] = True
    return is_sampled


def add_if_new(sentences: tuple[str, ...], known: set[bytes]) -> bool:
    """Add sentences to a set of digests; return whether they were new."""
    before = len(known)
    known.add(_digest(sentences))
    return len(known) > before


def hash_pair(pair: tuple[str, str], direction: Direction, seed: int) -> int:
    """Return a hash of a pair, of `HASH_BITS` bits, the same for both directions."""
    sides = sorted(zip(direction, pair, strict=True))
    text = "\0".join((str(seed), *(field for side in sides for field in side)))
    return int.from_bytes(
        hashlib.blake2b(text.encode(), digest_size=HASH_BITS // 8).digest(), "big"
    )


def _digest(sentences: tuple[str, ...]) -> bytes:
    return hashlib.blake2b("\t".join(sentences).encode(), digest_size=8).digest()


@dataclass
class Line:
    """One line of a corpus.

    Attributes:
        sides: source and target text as read, or a flaw.
        locations: "FILE:LINE" of each side.
    """

    sides: tuple[str | Flaw, str | Flaw]
    locations: tuple[str, str]

    def flaw(self, cleaning: Cleaning, direction: Direction) -> tuple[Flaw | None, str]:
        """Return the first flaw and its place; None and "" if there is none."""
        is_one_text = self.locations[0] == self.locations[1]
        for side, place, code in zip(self.sides, self.locations, direction, strict=True):
            if isinstance(side, Flaw):
                return side.in_language(*(direction if is_one_text else (code,))), place
            if (flaw := check_sentence(side, cleaning)) is not None:
                return flaw, place
        return None, ""

    def sentences(self) -> tuple[str, str]:
        """Return both sentences, stripped, of a line without a flaw."""
        source, target = (side.strip() for side in self.sides if isinstance(side, str))
        return source, target
