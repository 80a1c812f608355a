"""Character histograms of languages: which characters are frequent.

A histogram is a text file named like the language's code. Each line starts with a character; the
lines are in the order of falling frequency. Characters after `]` are rare.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from mnmt_jax.errors import UserError
from mnmt_jax.files.atomic_write import write_text

FREQUENCY_LIMIT = "]"
_LINE_ENDS = "\n\r"


def read_histogram(path: Path, frequency_limit: str = FREQUENCY_LIMIT) -> str:
    """Return the frequent characters of a histogram, most frequent first.

    Args:
        path: file of the histogram.
        frequency_limit: the first character that is rare; all are frequent if it is absent.

    Raises:
        UserError: if there is no such file, it is not UTF-8 or has no frequent character.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise UserError(
            f"histogram: {path}: {error.strerror}; write it with "
            "mnmt_jax.data.preparation.histograms.write_histogram"
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(f"histogram: {path}: not UTF-8; write it again") from error
    characters, _, _ = "".join(line[0] for line in lines if line).partition(frequency_limit)
    if not characters:
        raise UserError(f"histogram: {path}: no character before {frequency_limit!r}")
    return characters


def write_histogram(path: Path, sentences: Iterable[str]) -> None:
    """Write the histogram of sentences.

    Lines are a character, a tab and its count, by falling count, then by code point.

    Args:
        path: file to write; its name is the language's code.
        sentences: clean text of the language, at least one character.

    Raises:
        UserError: if there is no text.
    """
    counts: Counter[str] = Counter()
    for sentence in sentences:
        counts.update(sentence.strip())
    for character in _LINE_ENDS:
        counts.pop(character, None)
    if not counts:
        raise UserError(f"{path}: no text to count characters of; give sentences of the language")
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    write_text(path, "".join(f"{character}\t{count}\n" for character, count in ordered))
