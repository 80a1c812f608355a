"""Resumable output: translations stored beside the output file until it is complete.

OUTPUT.unfinished   {"made_by": {...}}, then one record per line (`files.make_record`), window by
                    window; within a window as the batches were done

Several processes have OUTPUT.unfinished.0-of-4 and so on, each with the lines of its share, and
{"lines": N} at the end of what is complete.
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import json
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NoReturn, Protocol

from mnmt_jax.commands.text_files import UNFINISHED, format_record, make_record, unfinished_path
from mnmt_jax.decoding.encoded_lines import Line
from mnmt_jax.decoding.translate_lines import Translation
from mnmt_jax.distributed.work_shards import WHOLE, WorkShard
from mnmt_jax.errors import UserError, join_names, name_os_errors, pluralize
from mnmt_jax.files.atomic_write import lock
from mnmt_jax.files.json_objects import differing_keys, parse_json

_LINES = "lines"  # of the whole input: the word that ends the file of one of several processes
_LAST = 64  # bytes that hold that word


class TranslateFn(Protocol):
    """Translate the lines of a window but those that are done, in any order."""

    def __call__(
        self, lines: Sequence[Line], /, *, done: Collection[int]
    ) -> Iterator[tuple[Line, Translation]]:
        """Yield each line with its translation as soon as that is known."""


class ResumableOutput:
    """Keep what is done of a file's translation until the whole is written.

    Used as a context: what was done stays if an error leaves it, and a line says so.

    Args:
        output: name of the file to be, which `check_output_file` has passed.
        made_by: whatever translations depend on besides their sources.
        window: lines that are in memory together.
        share: which lines are this process's.

    Raises:
        UserError: if another process writes there, or something is kept that was made by something
            else, or by another number of processes: a slip in the command must not cost what is
            done. Of several processes also if the output is there and nothing is kept: one that is
            started again after the end would do its share once more, for nobody.
    """

    def __init__(
        self, output: str, made_by: Mapping[str, Any], window: int, share: WorkShard = WHOLE
    ) -> None:
        self.path = Path(unfinished_path(output, share))
        self._output, self._window, self._share = output, window, share
        self._parts = [Path(unfinished_path(output, each)) for each in share.all()]
        self._header = (json.dumps({UNFINISHED: made_by}, sort_keys=True) + "\n").encode()
        self._kept = self._end = self._count = 0
        self._complete = self._waits = False
        self._turn: IO[bytes] | None = None
        self._check_others()
        self._file = self.path.open("a+b")
        try:
            if not lock(self._file):
                raise UserError(
                    f"--output={output}: another process is writing it; wait for its end"
                )
            self._begin()
        except BaseException:
            with contextlib.suppress(OSError):  # the same refusal again, without a name
                self._file.close()
            raise

    def _check_others(self) -> None:
        """Refuse what another number of processes keeps, or others with other settings."""
        whole = glob.escape(unfinished_path(self._output))
        found = {Path(each) for each in (*glob.glob(whole), *glob.glob(f"{whole}.*-of-*"))}
        if others := sorted(found - set(self._parts)):
            raise UserError(
                f"{others[0]}: is kept by another number of processes; start as many, or remove it"
            )
        if self._share.processes > 1 and not found and os.path.exists(self._output):
            raise UserError(
                f"--output={self._output}: is there already, complete if it is of these processes; "
                "remove it to translate anew"
            )
        for path in found - {self.path}:
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                header = file.readline()
                if header != self._header and header.endswith(b"\n"):
                    self._refuse(path, header)

    def _begin(self) -> None:
        """Read what earlier translations were made by."""
        self._file.seek(0)
        first = self._file.readline()
        if first != self._header:
            if self._file.readline():
                self._refuse(self.path, first)
            self._cut()
            self._write(self._header)
        self._end = len(self._header)

    def finish(
        self, lines: Iterator[Line], translate: TranslateFn, report: Callable[[int], None]
    ) -> None:
        """Translate what is not done yet.

        Args:
            lines: all lines of the input, in order.
            translate: translates those that are left of a window.
            report: called with a number of lines that were translated.

        Raises:
            OSError: if the disk is full.
        """
        going_on, count = True, 0
        while window := list(itertools.islice(lines, self._window)):
            count += len(window)
            own = [line for line in window if self._share.holds(line.number)]
            done = self._reuse(own) if going_on else set()
            if len(done) == len(own):
                continue
            if going_on:
                self._cut()
                if self._kept:
                    _say(f"goes on after {pluralize(self._kept, 'line')} translated before")
            going_on = False
            done |= {line.number for line in window if not self._share.holds(line.number)}
            for line, translation in translate(window, done=done):
                self._write(format_record(make_record(line, translation)).encode() + b"\n")
                self._kept += 1
                report(1)
        if going_on:
            self._cut()
        if self._share.processes > 1:
            self._write(json.dumps({_LINES: count}).encode() + b"\n")
            self._count = count

    def is_last(self) -> bool:
        """Return whether every process has finished, to one of them alone.

        Raises:
            UserError: if another one had other settings, or another input.
        """
        if self._share.processes == 1:
            return True
        left = [path for path in self._parts if not self._is_done(path)]
        if not left and self.path != self._parts[0]:
            with contextlib.suppress(FileNotFoundError):  # written by another process meanwhile
                self._turn = self._parts[0].open("rb")
                lock(self._turn, wait=True)
            left = [path for path in self._parts if not self._is_done(path)]
        self._waits = bool(left)
        return not left

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield what all processes made complete, in the order of the lines."""
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(path.open("rb")) for path in self._parts]
            for file in files:
                file.readline()
            parts = [_records(file) for file in files]
            for first in itertools.count(0, self._window):
                numbers = range(first, first + self._window)
                own = (sum(map(share.holds, numbers)) for share in self._share.all())
                found = [itertools.islice(*each) for each in zip(parts, own, strict=True)]
                window = sorted(itertools.chain(*found), key=lambda record: record["line"])
                yield from window
                if len(window) < len(numbers):
                    return

    def remove(self) -> None:
        """Remove the files of all processes: the whole is written."""
        for path in self._parts:
            path.unlink(missing_ok=True)
        self._complete = True

    def __enter__(self) -> ResumableOutput:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):  # of a write that was refused, and has been reported
            self._file.close()
        if self._turn:
            self._turn.close()
        if self._complete:
            return
        if self._waits and not error:
            done = f"process {self._share.process} of {self._share.processes} has done its lines"
            return _say(f"{done}; the last one to end writes {self._output}")
        if self._kept:
            kept = pluralize(self._kept, "translated line")
            _say(f"{kept} kept in {self.path}: the same command goes on")
        else:
            self.path.unlink(missing_ok=True)

    def _reuse(self, window: Sequence[Line]) -> set[int]:
        """Return the numbers of a window's lines that are done, up to the first bad record."""
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

    def _is_done(self, path: Path) -> bool:
        """Return whether a process has done all lines of its share."""
        try:
            with path.open("rb") as file:
                header = file.readline()
                file.seek(max(len(header), file.seek(0, os.SEEK_END) - _LAST))
                end = file.read()
                last = _read(end[end.rfind(b"\n", 0, -1) + 1 :])
        except FileNotFoundError:
            return False
        if last.get(_LINES) is None:
            return False
        if last[_LINES] != self._count:
            raise UserError(
                f"{path}: is of {pluralize(last[_LINES], 'line')}, this process read {self._count}; "
                "give every process the same input"
            )
        return True

    def _refuse(self, path: Path, header: bytes) -> NoReturn:
        """State what a file was made by that is not this."""
        old, new = (_read(text).get(UNFINISHED) for text in (header, self._header))
        if old is None or new is None:
            raise UserError(f"{path}: is not of mnmt-jax; move it, or choose another --output")
        raise UserError(
            f"{path}: keeps translations made with other settings ({join_names(differing_keys(old, new))}); "
            "give the same ones, or remove it to translate anew"
        )

    def _cut(self) -> None:
        """Remove what stands after the last good record."""
        self._file.truncate(self._end)

    def _write(self, text: bytes) -> None:
        with name_os_errors(str(self.path)):
            self._file.write(text)
            self._file.flush()


def _records(file: IO[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the records of lines in a complete file."""
    records = (parse_json(line, finite=False) for line in file)
    return (record for record in records if _LINES not in record)


def _read(text: bytes) -> dict[str, Any]:
    """Return a record; an empty one if it was cut."""
    try:
        record = parse_json(text, finite=False) if text.endswith(b"\n") else {}
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
