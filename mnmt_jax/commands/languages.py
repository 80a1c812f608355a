"""Print the built-in table of languages, or resolve language codes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mnmt_jax.commands.common_flags import CommandParser
from mnmt_jax.errors import docs_page

if TYPE_CHECKING:
    from mnmt_jax.vocabulary.languages import Language

_COLUMNS = ("code", "flores", "name", "script", "family", "detector", "corpora")
_ABSENT = "-"


def make_parser() -> CommandParser:
    """Make the parser of the command line."""
    parser = CommandParser(
        description=__doc__ + " Codes outside the table work too, if they are valid BCP 47; "
        f"{docs_page('data.md')} explains which forms of a code are one language."
    )
    parser.add_argument(
        "codes",
        nargs="*",
        metavar="CODE",
        help="codes in any form, e.g. zho_Hans pb EN; default: the built-in table",
    )
    parser.add_argument("--format", choices=("text", "json"), default="text")
    return parser


def main() -> None:
    """Print one language per row; for given codes, with the given code first."""
    flags = make_parser().parse_args()
    from mnmt_jax.vocabulary.languages import LANGUAGES, get_language

    codes = flags.codes or list(LANGUAGES)
    rows = [_facts(get_language(code)) for code in codes]
    columns: Sequence[str] = _COLUMNS
    if flags.codes:
        columns = ("given", *_COLUMNS)
        rows = [{"given": code, **row} for code, row in zip(flags.codes, rows, strict=True)]
    if flags.format == "json":
        print(json.dumps(rows, ensure_ascii=False, indent=2))
        return
    for line in _aligned([columns, *([_cell(row[name]) for name in columns] for row in rows)]):
        print(line)


def _facts(language: Language) -> dict[str, Any]:
    """Return the properties of a language; `corpora` lists the built-in corpora with it."""
    from mnmt_jax.vocabulary import languages

    lists = {
        "cldr": languages.MITRE_LANGUAGES,
        "ec40": languages.EC40_LANGUAGES,
        "ted19": languages.TED19_LANGUAGES,
        "ted20": languages.TED20_LANGUAGES,
        "ted30": languages.TED30_LANGUAGES,
        "wmt14": languages.WMT14_LANGUAGES,
        "newscrawl": languages.NEWSCRAWL_LANGUAGES,
        "opus100": languages.OPUS100_LANGUAGES,
        "opus100_all": languages.OPUS100_ALL_LANGUAGES,
    }
    facts = dataclasses.asdict(language)
    corpora = [name for name, codes in lists.items() if language.code in codes]
    return {**{name: facts[name] for name in _COLUMNS[:-1]}, "corpora": corpora}


def _cell(value: str | Sequence[str] | None) -> str:
    """Return the text of a table cell."""
    text = value if isinstance(value, str) or value is None else " ".join(value)
    return text or _ABSENT


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table with columns of equal width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
