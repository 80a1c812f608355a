"""Print the built-in table of languages, resolve language codes, or list a bridge strategy."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mnmt_jax.commands.bridge_flags import BRIDGE_HELP, read_bridge
from mnmt_jax.commands.common_flags import CommandParser
from mnmt_jax.errors import UserError, docs_page

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
    parser.add_argument(
        "--bridge",
        metavar="FILE",
        help=f"{BRIDGE_HELP}: print the numbers of directions and the training directions, in the "
        "form of a file for 'mnmt evaluate --trained_on'",
    )
    parser.add_argument("--format", choices=("text", "json"), default="text")
    return parser


def main() -> None:
    """Print one language per row, for given codes with the given code first; or directions."""
    flags = make_parser().parse_args()
    if flags.bridge is not None:
        if flags.codes:
            raise UserError(f"--bridge lists directions; leave out {' '.join(flags.codes)}")
        _print_bridge(flags.bridge, flags.format)
        return
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


def _print_bridge(name: str, output_format: str) -> None:
    """Print the counts of a bridge strategy as comments, and one training direction per line."""
    from mnmt_jax.vocabulary.bridge_strategy import direction_counts, directions_by_kind

    strategy = read_bridge(name)
    counts = direction_counts(strategy)
    kinds = {"-".join(pair): kind for pair, kind in directions_by_kind(strategy).items()}
    if output_format == "json":
        facts = {"languages": strategy.languages, "counts": counts, "directions": kinds}
        print(json.dumps(facts, ensure_ascii=False, indent=2))
        return
    print(f"# {len(strategy.languages)} languages: {' '.join(strategy.languages)}")
    for line in _aligned([(kind, str(count)) for kind, count in counts.items()]):
        print(f"# {line}")
    for line in _aligned([(direction, f"# {kind}") for direction, kind in kinds.items()]):
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
