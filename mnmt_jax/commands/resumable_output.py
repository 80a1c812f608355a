"""Resumable output: translations stored beside the output file until it is complete.

OUTPUT.unfinished   {"made_by": {...}}, then one record per line (`text_files.make_record`), window
                    by window; within a window in the order of the batches

With several processes there are OUTPUT.unfinished.0-of-4 and so on, each with the lines of its
shard, and {"lines": N} at the end of a complete file.
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NoReturn, Protocol

from mnmt_jax.commands.text_files import UNFINISHED, format_record, make_record, unfinished_path
from mnmt_jax.decoding.encoded_lines import Line
from mnmt_jax.decoding.search_settings import changed_settings
from mnmt_jax.decoding.translation import Translation
from mnmt_jax.distributed.work_shards import WHOLE, WorkShard
from mnmt_jax.errors import UserError, join_names, name_os_errors, pluralize, say
from mnmt_jax.files.atomic_write import is_occupied, lock
from mnmt_jax.files.json_objects import parse_json

_LINES = "lines"  # key of the number of input lines, in the last record of a process's file
_LAST = 64  # bytes at the end of a file that contain this record


class TranslateFn(Protocol):
    """Function that translates the lines of a window that are not done, in any order."""

    def __call__(
        self, lines: Sequence[Line], /, *, done: Collection[int]
    ) -> Iterator[tuple[Line, Translation]]:
        """Yield (line, translation) as soon as a translation is complete."""


class ResumableOutput:
    """Partial translations of a file, kept until the output is complete.

    Used as a context manager: on an error the finished translations stay, and a line reports this.

    Args:
        output: name of the output file, checked by `check_output_file`.
        provenance: everything that translations depend on besides their sources.
        window: number of lines in memory together.
        work_shard: the lines of this process.

    Raises:
        UserError: if another process writes there, or partial output was made with other settings
            or by another number of processes: a slip in the command must not destroy finished work.
            With several processes also if the output exists without partial output: a process
            restarted after the end would translate its shard again for nothing.
    """

    def __init__(
        self, output: str, provenance: Mapping[str, Any], window: int, work_shard: WorkShard = WHOLE
    ) -> None:
        self.path = Path(unfinished_path(output, work_shard))
        self._output, self._window, self._work_shard = output, window, work_shard
        self._provenance = provenance
        self._paths = [Path(unfinished_path(output, shard)) for shard in work_shard.all()]
        self._header = (json.dumps({UNFINISHED: provenance}, sort_keys=True) + "\n").encode()
        self._completed = self._end = self._count = 0
        self._complete = self._is_waiting = False
        self._is_reusing = True
        self._first_file: IO[bytes] | None = None
        self._check_others()
        self._file = self.path.open("a+b")
        try:
            if not lock(self._file):
                raise UserError(
                    f"--output={output}: another process is writing it; wait for its end"
                )
            self._begin()
        except BaseException:
            with contextlib.suppress(OSError):  # the same error again, without a name
                self._file.close()
            raise

    def _check_others(self) -> None:
        """Check that no other partial output exists, by other numbers of processes or settings."""
        pattern = glob.escape(unfinished_path(self._output))
        partial = {Path(path) for path in (*glob.glob(pattern), *glob.glob(f"{pattern}.*-of-*"))}
        if unexpected := sorted(partial - set(self._paths)):
            raise UserError(
                f"{unexpected[0]}: was written with another number of processes; start the same "
                "number, or remove it"
            )
        if self._work_shard.processes > 1 and not partial and is_occupied(Path(self._output)):
            raise UserError(
                f"--output={self._output}: already exists, and is complete if these processes "
                "wrote it; remove it to translate again"
            )
        for path in partial - {self.path}:
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                header = file.readline()
                if header.endswith(b"\n") and not self._is_compatible(header):
                    self._raise_mismatch(path, header)

    def _begin(self) -> None:
        """Read the header with the settings of earlier translations."""
        self._file.seek(0)
        header = self._file.readline()
        if self._is_compatible(header):
            self._header = header  # may have another batch
        else:
            if self._file.readline():
                self._raise_mismatch(self.path, header)
            self._cut()
            self._write(self._header)
        self._end = len(self._header)

    def _is_compatible(self, header: bytes) -> bool:
        """Return whether translations after a header are those of this command."""
        recorded = _read(header).get(UNFINISHED)
        return isinstance(recorded, dict) and not changed_settings(recorded, self._provenance)

    def finish(
        self, lines: Iterator[Line], translate: TranslateFn, report: Callable[[int], None]
    ) -> None:
        """Translate the lines that are not done yet.

        Args:
            lines: all lines of the input, in order.
            translate: translates the remaining lines of a window.
            report: called with the number of newly translated lines; with 0 before each window.

        Raises:
            OSError: if the disk is full.
        """
        count = 0
        while window := list(itertools.islice(lines, self._window)):
            count += len(window)
            shard_lines = [line for line in window if self._work_shard.holds(line.number)]
            done = self._reuse(shard_lines) if self._is_reusing else set()
            if len(done) == len(shard_lines):
                continue
            if self._is_reusing:
                self._cut()
                if self._completed:
                    say(f"resumes after {pluralize(self._completed, 'line')}")
            done |= {line.number for line in window if not self._work_shard.holds(line.number)}
            report(0)
            for line, translation in translate(window, done=done):
                self._write(format_record(make_record(line, translation)).encode() + b"\n")
                self._completed += 1
                report(1)
        if self._is_reusing:
            self._cut()
        if self._work_shard.processes > 1:
            self._write(json.dumps({_LINES: count}).encode() + b"\n")
            self._count = count

    def is_last(self) -> bool:
        """Return whether all processes have finished; True in only one of them.

        Raises:
            UserError: if another process had other settings or another input.
        """
        if self._work_shard.processes == 1:
            return True
        unfinished = [path for path in self._paths if not self._is_done(path)]
        if not unfinished and self.path != self._paths[0]:
            with contextlib.suppress(FileNotFoundError):  # written by another process meanwhile
                self._first_file = self._paths[0].open("rb")
                lock(self._first_file, wait=True)
            unfinished = [path for path in self._paths if not self._is_done(path)]
        self._is_waiting = bool(unfinished)
        return not unfinished

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the complete records of all processes, in the order of the lines."""
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(path.open("rb")) for path in self._paths]
            for file in files:
                file.readline()
            readers = [_records(file) for file in files]
            for start in itertools.count(0, self._window):
                numbers = range(start, start + self._window)
                counts = (sum(map(shard.holds, numbers)) for shard in self._work_shard.all())
                slices = [
                    itertools.islice(*reader_and_count)
                    for reader_and_count in zip(readers, counts, strict=True)
                ]
                window = sorted(itertools.chain(*slices), key=lambda record: record["line"])
                yield from window
                if len(window) < len(numbers):
                    return

    def remove(self) -> None:
        """Remove the files of all processes, after the output has been written."""
        for path in self._paths:
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
        kept = self._kept_lines()
        with contextlib.suppress(OSError):  # of a refused write that has been reported already
            self._file.close()
        if self._first_file:
            self._first_file.close()
        if self._complete:
            return
        if self._is_waiting and not error:
            shard = self._work_shard
            status = f"process {shard.process} of {shard.processes} has finished its lines"
            return say(f"{status}; the last process to finish writes {self._output}")
        if kept:
            say(f"{kept} kept in {self.path}: run the same command again to resume")
        else:
            self.path.unlink(missing_ok=True)

    def _kept_lines(self) -> str:
        """Return the translated lines in the file, for a message; '' if it has none."""
        if self._is_reusing:  # an error before the file was read to its end
            has_lines = os.fstat(self._file.fileno()).st_size > len(self._header)
            return "translated lines" if has_lines else ""
        return pluralize(self._completed, "translated line") if self._completed else ""

    def _reuse(self, window: Sequence[Line]) -> set[int]:
        """Return the numbers of the finished lines of a window, up to the first bad record."""
        lines = {line.number: (line.text, list(line.contrast_sources)) for line in window}
        done: set[int] = set()
        while len(done) < len(window):
            stored = self._file.readline()
            record = _read(stored)
            number = record.get("line", 0) - 1
            source = record.get("source", ...), record.get("others", [])
            if number in done or lines.get(number) != source:
                break
            done.add(number)
            self._completed += 1
            self._end += len(stored)
        return done

    def _is_done(self, path: Path) -> bool:
        """Return whether a process has finished all lines of its shard."""
        try:
            with path.open("rb") as file:
                header = file.readline()
                file.seek(max(len(header), file.seek(0, os.SEEK_END) - _LAST))
                end = file.read()
                record = _read(end[end.rfind(b"\n", 0, -1) + 1 :])
        except FileNotFoundError:
            return False
        if record.get(_LINES) is None:
            return False
        if record[_LINES] != self._count:
            raise UserError(
                f"{path}: was made from {pluralize(record[_LINES], 'line')}, but this process read "
                f"{self._count}; give every process the same input"
            )
        return True

    def _raise_mismatch(self, path: Path, header: bytes) -> NoReturn:
        """Raise an error that names the settings in which a file differs."""
        recorded = _read(header).get(UNFINISHED)
        if not isinstance(recorded, dict):
            raise UserError(
                f"{path}: was not written by mnmt-jax; move it, or choose another --output"
            )
        changes = join_names(changed_settings(recorded, self._provenance))
        raise UserError(
            f"{path}: has translations made with other settings ({changes}); use the same "
            "settings, or remove the file to translate again"
        )

    def _cut(self) -> None:
        """Truncate the file after the last good record; the next ones are written there."""
        self._file.truncate(self._end)
        self._is_reusing = False

    def _write(self, text: bytes) -> None:
        with name_os_errors(str(self.path)):
            self._file.write(text)
            self._file.flush()


def _records(file: IO[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the records of lines in a complete file."""
    records = (parse_json(line, finite=False) for line in file)
    return (record for record in records if _LINES not in record)


def _read(text: bytes) -> dict[str, Any]:
    """Return a record; an empty one if it is truncated."""
    try:
        record = parse_json(text, finite=False) if text.endswith(b"\n") else {}
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}
