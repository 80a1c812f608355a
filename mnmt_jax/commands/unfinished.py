"""The translations of a file while they are made, kept beside it so that the same command goes on.

OUTPUT.unfinished   {"made_by": {...}}, then one record per line (`files.make_record`), window by
                    window; within a window as the batches were done
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from mnmt_jax.commands.text_files import UNFINISHED, format_record, make_record, unfinished_path
from mnmt_jax.decoding.lines import Line, Translation
from mnmt_jax.errors import UserError, counted, listed, naming
from mnmt_jax.files.json_objects import differing
from mnmt_jax.files.partial import lock


class Translate(Protocol):
    """Translates the lines of a window but those that are done, in any order."""

    def __call__(
        self, lines: Sequence[Line], /, *, done: Collection[int]
    ) -> Iterator[tuple[Line, Translation]]:
        """Yields each line with its translation as soon as that is known."""


class Unfinished:
    """Keeps what is done of a file's translation until the whole is written.

    Used as a context: what was done stays if an error leaves it, and a line says so.

    Args:
        output: name of the file to be, which `check_output_file` has passed.
        made_by: whatever translations depend on besides their sources.
        window: lines that are in memory together.

    Raises:
        UserError: if another process writes there, or something is kept that was made by something
            else: a slip in the command must not cost what is done.
    """

    def __init__(self, output: str, made_by: Mapping[str, Any], window: int) -> None:
        self.path = Path(unfinished_path(output))
        self._window = window
        self._header = (json.dumps({UNFINISHED: made_by}, sort_keys=True) + "\n").encode()
        self._kept = self._end = 0
        self._complete = False
        self._file = self.path.open("a+b")
        try:
            if not lock(self._file):
                raise UserError(
                    f"--output={output}: another process is writing it; wait for its end"
                )
            self._begin()
        except BaseException:
            self._file.close()
            raise

    def _begin(self) -> None:
        """Reads what earlier translations were made by."""
        self._file.seek(0)
        found = self._file.readline()
        if found != self._header:
            if self._file.readline():
                raise UserError(
                    f"{self.path}: keeps translations made with other settings "
                    f"({_changes(found, self._header)}); give the same ones, or remove it to "
                    "translate anew"
                )
            self._cut()
            self._write(self._header)
        self._end = len(self._header)

    def finish(
        self, lines: Iterator[Line], translate: Translate, report: Callable[[int], None]
    ) -> None:
        """Translates what is not done yet.

        Args:
            lines: all lines of the input, in order.
            translate: translates those that are left of a window.
            report: called with a number of lines that were translated.

        Raises:
            OSError: if the disk is full.
        """
        going_on = True
        while window := list(itertools.islice(lines, self._window)):
            done = self._reuse(window) if going_on else set()
            if len(done) == len(window):
                continue
            if going_on:
                self._cut()
                if self._kept:
                    _say(f"goes on after {counted(self._kept, 'line')} translated before")
            going_on = False
            for line, translation in translate(window, done=done):
                self._write(format_record(make_record(line, translation)).encode() + b"\n")
                self._kept += 1
                report(1)
        if going_on:
            self._cut()

    def records(self) -> Iterator[dict[str, Any]]:
        """Yields what `finish` made complete, in the order of the lines."""
        self._file.seek(len(self._header))
        records = map(json.loads, self._file)
        while window := list(itertools.islice(records, self._window)):
            yield from sorted(window, key=lambda record: record["line"])

    def remove(self) -> None:
        """Removes the file: the whole is written."""
        self.path.unlink()
        self._complete = True

    def __enter__(self) -> Unfinished:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):  # of a write that was refused, and has been reported
            self._file.close()
        if self._complete:
            return
        if self._kept:
            kept = counted(self._kept, "translated line")
            _say(f"{kept} kept in {self.path}: the same command goes on")
        else:
            self.path.unlink(missing_ok=True)

    def _reuse(self, window: Sequence[Line]) -> set[int]:
        """Returns the numbers of a window's lines that are done, up to the first bad record."""
        lines = {line.number: (line.text, list(line.others)) for line in window}
        done: set[int] = set()
        while len(done) < len(window):
            found = self._file.readline()
            record = _read(found)
            number = record.get("line", 0) - 1
            told = record.get("source", ...), record.get("others", [])
            if number in done or lines.get(number) != told:
                break
            done.add(number)
            self._kept += 1
            self._end += len(found)
        return done

    def _cut(self) -> None:
        """Removes what stands after the last good record."""
        self._file.truncate(self._end)

    def _write(self, text: bytes) -> None:
        with naming(str(self.path)):
            self._file.write(text)
            self._file.flush()


def _read(text: bytes) -> dict[str, Any]:
    """Returns a record; an empty one if it was cut."""
    try:
        record = json.loads(text) if text.endswith(b"\n") else {}
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def _changes(found: bytes, wanted: bytes) -> str:
    """Lists what differs in what two files were made by."""
    old, new = (json.loads(text)[UNFINISHED] for text in (found, wanted))
    return listed(differing(old, new))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
