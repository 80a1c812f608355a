"""Lines in and out of files and pipes, plain or gzip. No JAX here: commands load it late."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from mnmt_jax.data import text_lines
from mnmt_jax.errors import UserError, flush_output, naming
from mnmt_jax.partial import new_file, open_text
from mnmt_jax.storage import refusal

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
    """Checks that a file can be written and is not the one that is read.

    Args:
        output: the name of the one.
        source: the name of the other; None is standard input.

    Raises:
        UserError: if it is, also by a link, or if `output` is a folder or in none that is there.
    """
    if is_stream(output):
        return
    if os.path.isdir(output):
        raise UserError(f"--output={output}: is a folder; name a file in it")
    folder = os.path.dirname(os.path.realpath(output))
    trouble = refusal(Path(folder), 0)
    if trouble:
        raise UserError(
            f"--output={output}: cannot be written ({folder}: {trouble}); make the folder, or "
            "choose another --output"
        )
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


def is_stream(path: str) -> bool:
    """Returns whether a path is no file to replace: a device, a pipe, an output of the process."""
    if os.path.abspath(path) in ("/dev/stdout", "/dev/stderr"):
        return True
    if os.path.realpath(os.path.dirname(path)).startswith("/proc/"):
        return True
    return os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path))


@contextlib.contextmanager
def open_output(path: str | None) -> Iterator[IO[str]]:
    """Opens a file that appears under its name only when everything has been written.

    Args:
        path: a name, compressed if it ends in `.gz`; links are followed, devices and pipes written
            directly. None writes to standard output.

    Raises:
        OSError: if it cannot be written; names it.
    """
    if path is None:
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
        with naming("standard output"):
            yield sys.stdout
        flush_output()
    elif is_stream(path):
        with naming(path), open_text(Path(path), path) as file:
            yield file
    else:
        with naming(path, os.path.realpath(path)), new_file(Path(os.path.realpath(path))) as file:
            yield file


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
