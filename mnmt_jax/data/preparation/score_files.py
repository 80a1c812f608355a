"""Scores of sentence pairs from files, such as LASER's or those of a quality estimation model."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from mnmt_jax.data.corpus import DropReport, FileCorpus
from mnmt_jax.data.text_reader import Flaw, read_lines
from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.language_codes import Direction

ScoredPair = tuple[tuple[str, str], tuple[float, ...]]


@dataclasses.dataclass(frozen=True)
class ScoreFiles:
    """Files of one score: a number for each line of the text, also of lines that are dropped.

    Attributes:
        name: name of the score, the `column` of the step `score`.
        pattern: path with `{split}` and `{pair}` (`de-en`; either order is tried); gzip if it ends
            in `.gz`.
    """

    name: str
    pattern: str

    @classmethod
    def parse(cls, text: str) -> ScoreFiles:
        """Parse `NAME=PATTERN`.

        Raises:
            UserError: if it has another form.
        """
        name, separator, pattern = text.partition("=")
        if not (name and separator and pattern):
            raise UserError(f"--scores={text}: write NAME=PATTERN, e.g. laser=data/{{pair}}.laser")
        return cls(name, pattern)

    def path(self, split: str, direction: Direction) -> Path:
        """Return the file of a direction.

        Raises:
            UserError: if there is none.
        """
        names = ["-".join(pair) for pair in (direction, direction[::-1])]
        paths = [Path(self.pattern.replace("{split}", split).replace("{pair}", n)) for n in names]
        present = [path for path in dict.fromkeys(paths) if path.is_file()]
        if len(present) > 1:
            raise UserError(f"{present[0]}, {present[1]}: are of the same pair; remove one")
        if not present:
            raise UserError(
                f"{paths[0]}: no such file; --scores needs one for each pair of languages, whose "
                "place in its name is {pair}"
            )
        return present[0]

    def read(self, split: str, direction: Direction) -> Iterator[float]:
        """Yield the score of each line.

        Raises:
            UserError: if a line is not a number.
        """
        path = self.path(split, direction)
        for number, line in enumerate(read_lines(str(path)), start=1):
            text = "" if isinstance(line, Flaw) else line
            try:
                yield float(text)
            except ValueError:
                raise UserError(f"{path}:{number}: {text[:40]!r} is not a number") from None


def scored_pairs(
    corpus: FileCorpus,
    split: str,
    direction: Direction,
    files: Sequence[ScoreFiles],
    report: DropReport,
) -> Iterator[ScoredPair]:
    """Yield the pairs of a direction with their scores.

    Args:
        corpus: the text.
        split: name of the split.
        direction: source and target language.
        files: files of scores; there may be none.
        report: counts what is read and dropped.

    Raises:
        UserError: if a file of scores is missing, wrong, or shorter or longer than the text.
    """
    pairs = corpus.counted_pairs(split, direction, report)
    if not files:
        yield from ((pair, ()) for pair in pairs)
        return
    columns = _read_columns(split, direction, files)
    paths = ", ".join(str(item.path(split, direction)) for item in files)
    number, scores = 0, None
    for pair in pairs:
        while number < report.line:
            number, scores = number + 1, next(columns, None)
        if scores is None:
            raise UserError(
                f"{paths}: fewer lines than the text, which has {number} and more; write a score "
                "for each line"
            )
        yield pair, scores
    number += sum(1 for _ in columns)
    if report.lines and number != report.lines:
        raise UserError(
            f"{paths}: {number} lines, but the text has {report.lines}; write a score for each line"
        )


def _read_columns(
    split: str, direction: Direction, files: Sequence[ScoreFiles]
) -> Iterator[tuple[float, ...]]:
    """Yield the scores of each line of the text.

    Raises:
        UserError: if a file is wrong, or shorter than another.
    """
    columns = (item.read(split, direction) for item in files)
    for number, scores in enumerate(itertools.zip_longest(*columns)):
        if None in scores:
            shorter = files[scores.index(None)].path(split, direction)
            longer = next(
                item.path(split, direction)
                for item, score in zip(files, scores, strict=True)
                if score is not None
            )
            raise UserError(
                f"{shorter}: {number} lines, but {longer} has more; write a score for each line of "
                "the text"
            )
        yield scores
