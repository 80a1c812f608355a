"""Glossaries in requests: entries as TSV or CSV, and terms as an object."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from mnmt_jax.decoding.glossary import Glossary, plain_source
from mnmt_jax.errors import UserError
from mnmt_jax.serving.refused_error import RefusedError
from mnmt_jax.serving.request_fields import has_surrogates
from mnmt_jax.vocabulary.language_codes import is_same_in_any_region

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_PAIR_COLUMNS, _CSV_COLUMNS = 2, 4  # CSV may have the codes of the languages, too


class GlossaryResult(Protocol):
    """A translation with the results of its glossary, of a text or of a document."""

    @property
    def missing_terms(self) -> tuple[str, ...]:
        """Terms that are not translated as required."""

    @property
    def forbidden_terms(self) -> tuple[str, ...]:
        """Forbidden texts that the translation has."""


def parse_entries(text: str, kind: str, languages: tuple[str, str]) -> list[tuple[str, str]]:
    """Return the terms of a glossary and their translations.

    Args:
        text: a pair a line; blank lines and a byte order mark are left out.
        kind: `tsv` or `csv`; lines of the latter may name the languages after the pair.
        languages: codes of source and target language.

    Raises:
        RefusedError: with status 400 and the number of the line, if one is not a pair, repeats a
            term, or names other languages.
    """
    if kind not in ("tsv", "csv"):
        raise RefusedError(400, f"entries_format: '{kind}' must be tsv or csv")
    pairs: dict[str, tuple[str, str]] = {}
    for number, columns in _rows(text, kind):
        if len(columns) != _PAIR_COLUMNS and (kind == "tsv" or len(columns) != _CSV_COLUMNS):
            raise RefusedError(400, f"entries, line {number}: {len(columns)} columns instead of 2")
        source, target, *named = (column.strip() for column in columns)
        if named and not all(map(is_same_in_any_region, named, languages)):
            message = f"{' to '.join(named)} instead of {' to '.join(languages)}"
            raise RefusedError(400, f"entries, line {number}: {message}")
        if not source or not target:
            raise RefusedError(400, f"entries, line {number}: a term or its translation is empty")
        if _CONTROL.search(source + target):
            raise RefusedError(400, f"entries, line {number}: a control character")
        read_as = plain_source(source)
        if read_as in pairs:
            raise RefusedError(400, f"entries, line {number}: the term occurs twice")
        pairs[read_as] = source, target
    if not pairs:
        raise RefusedError(400, "entries: the glossary has no terms")
    return list(pairs.values())


def format_entries(pairs: Iterable[tuple[str, str]]) -> str:
    """Return terms and their translations as TSV."""
    return "\n".join(f"{source}\t{target}" for source, target in pairs)


def glossary_field(fields: Mapping[str, Any], name: str) -> Glossary | None:
    """Return the glossary in a field; None if there is none.

    Args:
        fields: of the request.
        name: of the field: an object of terms and their translations, or its JSON.

    Raises:
        RefusedError: with status 400, if it is something else.
    """
    value = fields.get(name)
    if value is None or value == "":
        return None
    is_broken = False
    if isinstance(value, str):
        try:
            value = json.loads(value)
            is_broken = has_surrogates(value)
        except (ValueError, RecursionError):
            value = None
    if not isinstance(value, dict):
        raise RefusedError(400, f"{name} must be an object of terms and their translations")
    if is_broken:
        raise RefusedError(400, f"{name} has halves of characters, such as \\ud800")
    try:
        return Glossary.of_mapping(value, name)
    except UserError as error:
        raise RefusedError(400, str(error)) from None


def lacking_terms(translation: GlossaryResult, names: tuple[str, str]) -> dict[str, list[str]]:
    """Return the terms of the glossary that a translation lacks, and forbidden ones that it has.

    Args:
        translation: the translation.
        names: names of the two fields; one without terms is left out.
    """
    terms = zip(names, (translation.missing_terms, translation.forbidden_terms), strict=True)
    return {name: list(values) for name, values in terms if values}


def _rows(text: str, kind: str) -> Iterator[tuple[int, Sequence[str]]]:
    """Yield the columns of each line that is not blank, with its number.

    Raises:
        RefusedError: with status 400, if quotes of CSV do not match.
    """
    text = text.removeprefix("\ufeff")
    if kind == "tsv":
        lines = enumerate(text.splitlines(), start=1)
        yield from ((number, line.split("\t")) for number, line in lines if line.strip())
        return
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for columns in reader:
            if any(column.strip() for column in columns):
                yield reader.line_num, columns
    except csv.Error as error:
        raise RefusedError(400, f"entries, line {reader.line_num}: {error}") from None
