"""Sentence splitters compared on lines of sentences in many languages (docs/guide.md).

Example:
    pip install pysbd sentence-splitter
    python benchmarks/sentence_splitting.py FOLDER --languages en,de,zh

FOLDER has `LANGUAGE.txt`, a sentence a line, such as NTREX-128. Five lines at a time are joined to
a paragraph. A boundary is right where a line ends; a line of two sentences counts as an error of
all splitters alike.
"""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from mnmt_jax.commands.common_flags import CommandParser, positive_int
from mnmt_jax.decoding.text.text_parts import split_sentences
from mnmt_jax.errors import UserError
from mnmt_jax.runtime.run_command import run_command

Split = Callable[[str], list[str]]
_SPACELESS = ("ja", "zh", "th", "km", "lo", "my")
_PARAGRAPH = 5  # lines


def main() -> None:
    """Print precision, recall and F1 of the boundaries, and speed."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--languages", required=True, metavar="CODES")
    parser.add_argument("--lines", type=positive_int, default=1000, metavar="N")
    flags = parser.parse_args()
    languages = flags.languages.split(",")
    paragraphs = {code: list(_paragraphs(flags.folder, code, flags.lines)) for code in languages}
    for name, make in _splitters().items():
        start = time.process_time()
        scores = {code: _score(make(code), paragraphs[code], code) for code in languages}
        seconds = time.process_time() - start
        characters = sum(len(line) for one in paragraphs.values() for para in one for line in para)
        means = [sum(column) / len(languages) for column in zip(*scores.values(), strict=True)]
        print(
            f"{name}: precision {means[0]:.3f}, recall {means[1]:.3f}, F1 {means[2]:.3f}, "
            f"{characters / seconds / 1e6:.2f} million characters/s"
        )
        print("   ", " ".join(f"{code} {score[2]:.2f}" for code, score in scores.items()))


def _splitters() -> dict[str, Callable[[str], Split]]:
    """Return the splitters that are installed, by name; each takes a language."""
    splitters: dict[str, Callable[[str], Split]] = {
        "sentencex": lambda code: lambda text: split_sentences(text, code)
    }
    for name, make in (("pysbd", _pysbd), ("sentence_splitter", _moses)):
        if importlib.util.find_spec(name) is None:
            print(f"{name} is not installed")
        else:
            splitters[name] = make
    return splitters


def _pysbd(code: str) -> Split:
    pysbd = importlib.import_module("pysbd")
    known = code if code in pysbd.languages.LANGUAGE_CODES else "en"
    split: Split = pysbd.Segmenter(language=known, clean=False).segment
    return split


def _moses(code: str) -> Split:
    package = importlib.import_module("sentence_splitter")
    try:
        split: Split = package.SentenceSplitter(language=code).split
    except package.SentenceSplitterException:
        split = package.SentenceSplitter(language="en").split
    return split


def _paragraphs(folder: Path, code: str, count: int) -> Iterator[list[str]]:
    path = folder / f"{code}.txt"
    if not path.is_file():
        raise UserError(f"{path}: no such file; give --languages of files in the folder")
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    lines = [line for line in lines if line][:count]
    for start in range(0, len(lines), _PARAGRAPH):
        yield lines[start : start + _PARAGRAPH]


def _score(
    split: Split, paragraphs: Sequence[Sequence[str]], code: str
) -> tuple[float, float, float]:
    """Return precision, recall and F1 of the boundaries within paragraphs."""
    right = found = actual = 0
    for lines in paragraphs:
        text = ("" if code in _SPACELESS else " ").join(lines)
        expected = _ends(lines)
        ends = _ends(split(text))
        if not ends or ends[-1] != expected[-1]:
            ends = expected[-1:]  # the splitter lost characters
        right += len(set(expected[:-1]) & set(ends[:-1]))
        found += len(set(ends[:-1]))
        actual += len(expected) - 1
    precision, recall = right / max(found, 1), right / max(actual, 1)
    return precision, recall, 2 * precision * recall / max(precision + recall, 1e-9)


def _ends(pieces: Sequence[str]) -> list[int]:
    """Return the number of characters that are no spaces up to the end of each piece."""
    ends, count = [], 0
    for piece in pieces:
        count += len("".join(piece.split()))
        ends.append(count)
    return ends


if __name__ == "__main__":
    run_command(main)
