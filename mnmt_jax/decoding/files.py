"""Lines in and out of files and pipes, plain or gzip. No JAX here: commands load it late."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from mnmt_jax.data import text_lines
from mnmt_jax.errors import UserError
from mnmt_jax.partial import partial_path

if TYPE_CHECKING:
    from mnmt_jax.decoding.translate import Translation


def read_lines(path: str | None) -> Iterator[str]:
    """Yields the lines of a file as `text_lines.read_lines` does; each must be good.

    Args:
        path: a UTF-8 file, gzip or not; None reads standard input.

    Raises:
        UserError: if the file cannot be read or a line is not UTF-8.
    """
    name = path or "standard input"
    for number, line in enumerate(text_lines.read_lines(path or sys.stdin.buffer), start=1):
        if isinstance(line, text_lines.Flaw):
            raise UserError(f"{name}, line {number}: {line.detail}; convert the file")
        yield line


def check_output_file(output: str, source: str | None) -> None:
    """Checks that a file to write is not the one that is read.

    Args:
        output: the name of the one.
        source: the name of the other; None is standard input.

    Raises:
        UserError: if it is, also by a link.
    """
    try:
        read = os.stat(sys.stdin.fileno() if source is None else source)
        same = stat.S_ISREG(read.st_mode) and os.path.samestat(read, os.stat(output))
    except (OSError, ValueError):  # one of them is not there
        return
    if same:
        raise UserError(
            f"--output={output}: is the file that --input reads, which would be replaced; choose "
            "another --output"
        )


@contextlib.contextmanager
def open_output(path: str | None) -> Iterator[IO[str]]:
    """Opens a file that appears under its name only when everything has been written.

    Args:
        path: a name, compressed if it ends in `.gz`; None writes to standard output.

    Raises:
        UserError: if the file cannot be created.
    """
    if path is None:
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
        yield sys.stdout
        sys.stdout.flush()
        return
    final = Path(path)
    partial = partial_path(final)
    opener = gzip.open if final.suffix == ".gz" else open
    try:
        file = cast(IO[str], opener(partial, "wt", encoding="utf-8", newline="\n"))
    except OSError as error:
        raise UserError(f"--output={path}: cannot be written: {error.strerror}") from error
    try:
        with file:
            yield file
        partial.replace(final)
    finally:
        partial.unlink(missing_ok=True)


def format_json(number: int, source: str, translation: Translation) -> str:
    """Returns a line of JSON about one translated line.

    Args:
        number: of the line, from 1.
        source: the line.
        translation: what became of it.
    """
    record = {
        "line": number,
        "source": source,
        "translation": translation.text,
        "score": translation.score,
        "truncated": translation.truncated,
        "limited": translation.limited,
        "nbest": [{"text": h.text, "score": h.score} for h in translation.hypotheses],
    }
    return json.dumps(record, ensure_ascii=False)
