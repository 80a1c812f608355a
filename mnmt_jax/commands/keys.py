"""List the gin keys: their values, default and meaning.

Without a name it lists the sections. With gin files or bindings it prints the values of that
configuration, and the defaults that they replace.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mnmt_jax.commands.common_flags import (
    CommandParser,
    add_gin_flags,
    import_modules,
    parse_command_line,
)

if TYPE_CHECKING:
    from mnmt_jax.commands.key_reference import GinKey

_WIDTH = 96


def make_parser() -> CommandParser:
    """Make the parser of the command line."""
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="SECTION[.KEY]",
        help="sections or keys, e.g. Decode or Train.steps; default: a list of all sections",
    )
    add_gin_flags(parser)
    return parser


def main() -> None:
    """Run the command."""
    flags, gin_files, bindings = parse_command_line(make_parser())
    from mnmt_jax.commands.key_reference import all_sections, find_keys, section_summary

    import_modules(flags.module_import)
    keys = [find_keys(name) for name in flags.names]
    values = _configured_values(gin_files, bindings)
    sections = all_sections()
    if not keys:
        width = max(map(len, sections))
        print(
            "\n".join(f"{title:{width}}  {section_summary(sections[title])}" for title in sections)
        )
        print("\nmnmt keys SECTION lists the keys of a section.")
    for group in keys:
        title = group[0].name.partition(".")[0]
        print(f"{title}: {section_summary(sections[title])}\n")
        print("\n".join(_describe(key, values) for key in group) + "\n")


def _configured_values(gin_files: list[str], bindings: list[str]) -> Mapping[str, Any]:
    """Return the values of a configuration by key; empty without gin files and bindings."""
    if not gin_files and not bindings:
        return {}
    from mnmt_jax.config.loading import key_values, load_config

    return key_values(load_config(gin_files, bindings))


def _describe(key: GinKey, values: Mapping[str, Any]) -> str:
    """Return a key with its default, or the configured value, and its meaning."""
    value = repr(values.get(key.name))
    is_set = key.name in values and value != key.default
    shown = f"{value}  (default: {key.default})" if is_set else key.default
    indent = " " * 4
    details = (
        textwrap.fill(text, _WIDTH, initial_indent=indent, subsequent_indent=indent)
        for text in (key.values, key.meaning)
    )
    return "\n".join((f"{key.name} = {shown}", *details))
