"""Text input and output: files and pipes, plain or gzip. Independent of JAX."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from mnmt_jax.data import text_reader
from mnmt_jax.data.encodings import EncodingCheck
from mnmt_jax.distributed.work_shards import WHOLE, WorkShard
from mnmt_jax.errors import UserError, name_os_errors
from mnmt_jax.files.atomic_write import new_file, open_text, refuse_mount_point
from mnmt_jax.files.storage_errors import write_refusal
from mnmt_jax.runtime.run_command import flush_output

if TYPE_CHECKING:
    from mnmt_jax.decoding.encoded_lines import Line
    from mnmt_jax.decoding.translation import Hypothesis, Translation

BadLines = dict[str, list[int]]
"""Numbers of bad lines, from 1, by reason: "bad_utf8" or "too_long"."""

UNFINISHED = "made_by"
"""First key in a file of partial translations."""


def read_lines(
    path: str | None,
    bad_lines: BadLines | None = None,
    *,
    has_on_bad_line: bool = True,
    language: str | None = None,
) -> Iterator[str]:
    """Yield the lines of a file, as `text_reader.read_lines`.

    Args:
        path: a text file, gzip or not; None reads standard input.
        bad_lines: receives the numbers, from 1, of lines that are not UTF-8 or too long, which are
            read as blank; None raises an error at the first.
        has_on_bad_line: whether the command has `--on_bad_line`.
        language: code of the text's language in any form, if that is known; the likely encoding
            depends on it.

    Raises:
        UserError: if the file cannot be read, a line is bad without `bad_lines`, or more than a few
            lines are not UTF-8.
    """
    name, number = path or "standard input", 0
    undecodable = EncodingCheck()
    if path is None and sys.stdin is None:
        raise UserError("there is no standard input; name a file with --input")
    for number, line in enumerate(text_reader.read_lines(path or sys.stdin.buffer), start=1):
        if not isinstance(line, text_reader.Flaw):
            yield line
            continue
        if language:
            line = line.in_language(language)
        location, too_long = f"{name}, line {number}", line.reason == "too_long"
        if bad_lines is None:
            remedy = "split the line" if too_long else line.remedy
            drop = (
                ", or treat such lines as blank with --on_bad_line=drop" if has_on_bad_line else ""
            )
            raise UserError(f"{location}: {line.detail}; {remedy}{drop}")
        bad_lines.setdefault(line.reason, []).append(number)
        if not too_long:
            undecodable.add(location, line.encoding, number)
        yield ""
    undecodable.check(number)


def check_input_file(path: str | None, flag: str = "--input") -> None:
    """Check that an input file exists.

    Args:
        path: its name; None is standard input.
        flag: flag that names it.

    Raises:
        UserError: if it does not exist or is a folder.
    """
    if path is not None and (os.path.isdir(path) or not os.path.exists(path)):
        what = "is a folder" if os.path.isdir(path) else "no such file"
        raise UserError(f"{flag}={path}: {what}; name a file of text")


def check_output_file(
    output: str, source: str | None, flag: str = "--input", work_shard: WorkShard = WHOLE
) -> None:
    """Check that a file can be written, and neither it nor its `unfinished_path` is the input.

    Args:
        output: name of the output file.
        source: name of the input file; None is standard input.
        flag: flag that names the input file.
        work_shard: shard of this process.

    Raises:
        UserError: if the input would be replaced, also through a link, if `output` is a folder
            or a mounted file, or if its folder cannot be written.
    """
    if is_stream(output):
        return
    if os.path.isdir(output):
        raise UserError(f"--output={output}: is a folder; name a file in it")
    refuse_mount_point(Path(output))
    folder = os.path.dirname(os.path.realpath(output))
    trouble = write_refusal(Path(folder), 0)
    if trouble:
        raise UserError(
            f"--output={output}: cannot be written ({folder}: {trouble}); make the folder, or "
            "choose another --output"
        )
    for name in (output, unfinished_path(output, work_shard)):
        if _is_read(name, source):
            raise UserError(
                f"--output={output}: {name} is the file of {flag} and would be overwritten; choose "
                "another --output"
            )
    _check_unfinished(unfinished_path(output, work_shard))


def _is_read(path: str, source: str | None) -> bool:
    """Return whether a path is the input file, also through a link."""
    if source is None and sys.stdin is None:
        return False
    try:
        status = os.stat(sys.stdin.fileno() if source is None else source)
        return stat.S_ISREG(status.st_mode) and os.path.samestat(status, os.stat(path))
    except (OSError, ValueError):  # one of them does not exist
        return False


def unfinished_path(output: str, work_shard: WorkShard = WHOLE) -> str:
    """Return the path of a file's partial translations.

    Args:
        output: name of the file.
        work_shard: shard of this process; each of several processes has a separate file.
    """
    path = f"{os.path.realpath(output)}.unfinished"
    return f"{path}.{work_shard}" if work_shard.processes > 1 else path


def _check_unfinished(path: str) -> None:
    """Check that a file at the path of partial translations has that format."""
    if not os.path.exists(path):
        return
    with contextlib.suppress(IsADirectoryError), open(path, "rb") as file:
        start = file.readline(99)
        if not start or start.startswith(f'{{"{UNFINISHED}": {{'.encode()):
            return
    raise UserError(f"{path}: was not written by mnmt-jax; move it, or choose another --output")


def is_stream(path: str) -> bool:
    """Return whether a path is a device, a pipe or an output of the process, not a regular file."""
    if os.path.abspath(path) in ("/dev/stdout", "/dev/stderr"):
        return True
    if os.path.realpath(os.path.dirname(path)).startswith("/proc/"):
        return True
    return os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path))


@contextlib.contextmanager
def open_output(path: str | None) -> Iterator[IO[str]]:
    """Open a file that appears under its name only when everything has been written.

    If a file with text is replaced, a line on standard error reports it.

    Args:
        path: name of the file, compressed if it ends in `.gz`; links are followed, devices and
            pipes are written directly. None writes to standard output.

    Raises:
        OSError: if it cannot be written; the error names it.
    """
    if path is None:
        sys.stdout.reconfigure(  # type: ignore[union-attr]
            encoding="utf-8", newline="\n", line_buffering=True
        )
        with name_os_errors("standard output"):
            yield sys.stdout
        flush_output()
    elif is_stream(path):
        with name_os_errors(path), open_text(Path(path), path, append=True) as file:
            yield file
    else:
        if os.path.exists(path) and os.path.getsize(path):
            print(f"--output={path}: replaces the existing file", file=sys.stderr)
        with (
            name_os_errors(path, os.path.realpath(path)),
            new_file(Path(os.path.realpath(path))) as file,
        ):
            yield file


def make_record(line: Line, translation: Translation) -> dict[str, Any]:
    """Return the record of a translated line.

    Args:
        line: the line.
        translation: its translation.

    Returns:
        The fields of all lines; `others` if it was contrasted with other lines, `pivot` if it was
        translated through a pivot language, `unknown_characters` if its source has some, `retried`
        if its first translation failed the checks, `without_context` if `--context` translated it
        alone, `missing_terms` and `forbidden_terms` if it is not translated as the glossary
        demands.
    """
    record: dict[str, Any] = {"line": line.number + 1, "source": line.text}
    if line.contrast_sources:
        record["others"] = list(line.contrast_sources)
    if translation.pivot is not None:
        record["pivot"] = translation.pivot
    if translation.unknown_characters:
        record["unknown_characters"] = translation.unknown_characters
    if translation.retried:
        record["retried"] = translation.retried
    if translation.without_context:
        record["without_context"] = True
    for name in ("missing_terms", "forbidden_terms"):
        if terms := getattr(translation, name):
            record[name] = list(terms)
    return record | {
        "translation": translation.text,
        "score": translation.score,
        "truncated": translation.truncated,
        "limited": translation.limited,
        "nbest": [_hypothesis_record(hypothesis) for hypothesis in translation.hypotheses],
    }


def _hypothesis_record(hypothesis: Hypothesis) -> dict[str, Any]:
    record: dict[str, Any] = {"text": hypothesis.text, "score": hypothesis.score}
    return record if hypothesis.utility is None else record | {"utility": hypothesis.utility}


def read_record(record: Mapping[str, Any]) -> Translation:
    """Return the translation of a record, without tokens of its hypotheses and their alignment."""
    from mnmt_jax.decoding.translation import Hypothesis, Translation

    return Translation(
        hypotheses=tuple(
            Hypothesis(one["text"], one["score"], (), one.get("utility")) for one in record["nbest"]
        ),
        truncated=record["truncated"],
        limited=record["limited"],
        pivot=record.get("pivot"),
        unknown_characters=record.get("unknown_characters", ""),
        retried=record.get("retried"),
        missing_terms=tuple(record.get("missing_terms", ())),
        forbidden_terms=tuple(record.get("forbidden_terms", ())),
        without_context=record.get("without_context", False),
    )


def format_record(record: Mapping[str, Any]) -> str:
    """Return a record as a line of JSON."""
    return json.dumps(record, ensure_ascii=False)
