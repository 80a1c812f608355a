"""Text columns of files: lines of a text file, or a column of a JSON-lines or Parquet file.

A place is written PATH or PATH#COLUMN. COLUMN has no slash, so folders may have `#` in their names.
Dots in COLUMN lead into nested fields, as in "translation.de".
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mnmt_jax.data.text_reader import BLANK, Flaw, read_lines, resolve, surrogate_flaw
from mnmt_jax.errors import UserError, install_remedy
from mnmt_jax.files.json_objects import parse_json
from mnmt_jax.files.storage_errors import one_line

_MISSING = object()
_LINE_BREAKS = re.compile("[\r\n]+")
_JSON_FACTOR = 4  # room for other fields and escapes of six bytes
_JSON_EXTRA = 1 << 14


@dataclass(frozen=True)
class TextColumn:
    """Location of the sentences of one language.

    Attributes:
        path: path of an existing file.
        column: name of the column; "" for a plain text file.
    """

    path: str
    column: str = ""

    def read(self, max_bytes: int) -> Iterator[str | Flaw]:
        """Yield the sentences in order, or a flaw for a bad one.

        Args:
            max_bytes: maximum length of a sentence, in bytes of UTF-8.

        Raises:
            UserError: if the file cannot be read or lacks the column.
        """
        if not self.column:
            return read_lines(self.path, max_bytes)
        if self.path.endswith(".parquet"):
            return _parquet_column(self.path, self.column)
        return _json_column(self.path, self.column, _JSON_FACTOR * max_bytes + _JSON_EXTRA)


def split_column(name: str) -> tuple[str, str]:
    """Return the path and the column of PATH or PATH#COLUMN; "" is no column."""
    folder, slash, file = name.rpartition("/")
    file, _, column = file.partition("#")
    return f"{folder}{slash}{file}", column


def find_text_column(name: str) -> TextColumn | None:
    """Return the place that PATH or PATH#COLUMN names; None if the file does not exist."""
    path, column = split_column(name)
    resolved = resolve(path)
    return None if resolved is None else TextColumn(resolved, column)


def pair_folders(pattern: str) -> frozenset[str] | None:
    """Return the names of the files beside the folder `{pair}` of a path pattern.

    Of a hundred languages' 9,900 pairs, either order, most have no folder: looking for the files of
    every one takes a second.

    Returns:
        The names, casefolded; None if the pattern has no such folder, or its parent varies.
    """
    parent, separator, _ = pattern.partition("/{pair}/")
    if not separator or "{language}" in parent or "{pair}" in parent:
        return None
    try:
        return frozenset(map(str.casefold, os.listdir(f"{parent}/")))
    except FileNotFoundError:
        return frozenset()
    except OSError:
        return None


def _json_column(path: str, column: str, max_bytes: int) -> Iterator[str | Flaw]:
    for number, line in enumerate(read_lines(path, max_bytes), start=1):
        if isinstance(line, Flaw):
            yield line
            continue
        try:
            row = parse_json(line, finite=False, allow_surrogates=True)
        except ValueError as error:
            problem = getattr(error, "msg", None) or one_line(error)
            yield Flaw("bad_json", f"not JSON ({problem})")
        else:
            yield _field(row, column, f"{path}:{number}")


def _parquet_column(path: str, column: str) -> Iterator[str | Flaw]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise UserError(
            f"{path}: Parquet files need pyarrow; {install_remedy('parquet')}"
        ) from None
    top_level = column.partition(".")[0]
    try:
        file = parquet.ParquetFile(path)
    except (ArrowException, OSError) as error:
        raise UserError(f"{path}: not a Parquet file ({error}), copy it again") from None
    with file:
        if top_level not in file.schema_arrow.names:
            raise UserError(f"{path}: no column {top_level!r}; it has {file.schema_arrow.names}")
        number = 0
        try:
            for batch in file.iter_batches(columns=[top_level]):
                for row in batch.to_pylist():
                    number += 1
                    yield _field(row, column, f"{path}:{number}")
        except (ArrowException, OSError) as error:
            raise UserError(
                f"{path}: unreadable after row {number} ({one_line(error)}), copy it again"
            ) from None


def _field(row: Any, column: str, location: str) -> str | Flaw:
    """Return the text of a possibly nested field as one line, or its flaw; null is blank.

    Raises:
        UserError: if the field is missing or not text.
    """
    value = row
    for name in column.split("."):
        if value is None:
            break
        value = value.get(name, _MISSING) if isinstance(value, dict) else _MISSING
    if value is None:
        return Flaw(BLANK.reason, f"field {column!r} is null")
    if not isinstance(value, str):
        raise UserError(
            f"{location}: field {column!r} is missing or not text; name a field of text after '#' "
            "in the path, or remove the row"
        )
    return surrogate_flaw(value) or _LINE_BREAKS.sub(" ", value)
