"""Flags of training directions; `--directions bridge` and `--bridge` read a bridge strategy."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from mnmt_jax.errors import UserError, docs_page
from mnmt_jax.vocabulary.language_codes import check_distinct_matches, find_code

if TYPE_CHECKING:
    from mnmt_jax.data.parallel_corpora import Corpus
    from mnmt_jax.vocabulary.bridge_strategy import BridgeStrategy
    from mnmt_jax.vocabulary.language_codes import Direction

BRIDGE = "bridge"
"""The value of `--directions` that needs `--bridge`."""

DIRECTION_FLAGS = ("directions", "bridge")
"""Flags that choose the training directions of a corpus."""

BRIDGE_HELP = "TOML file of groups of languages and their bridges, or mitre for MITRE's"


def add_direction_flags(group: argparse._ArgumentGroup) -> None:
    """Add the flags that choose the training directions of a corpus."""
    group.add_argument(
        "--directions",
        metavar="LIST",
        help="training directions: english_centric, many_to_many, bridge (with --bridge), or a "
        "list such as en-de,de-en; default: those of the mixture, or all in your files",
    )
    group.add_argument("--bridge", metavar="FILE", help=f"{BRIDGE_HELP}, for --directions bridge")


def check_direction_flags(arguments: argparse.Namespace) -> None:
    """Check that `--directions bridge` and `--bridge` occur together.

    Raises:
        UserError: if one of them is missing.
    """
    if arguments.directions == BRIDGE and not arguments.bridge:
        raise UserError(
            "--directions=bridge needs --bridge FILE, or --bridge mitre; "
            f"{docs_page('data.md')} explains the file"
        )
    if arguments.bridge is not None and arguments.directions != BRIDGE:
        raise UserError(f"--bridge={arguments.bridge} needs --directions bridge")


def read_bridge(text: str) -> BridgeStrategy:
    """Read the strategy that `--bridge` names.

    Args:
        text: value of the flag: a file, or the name of a strategy in this package.

    Raises:
        UserError: if there is no such file, or it is malformed.
    """
    from mnmt_jax.vocabulary.bridge_strategy import PACKAGED, read_bridge_strategy

    path = PACKAGED.get(text) or Path(text)
    if not path.is_file():
        raise UserError(
            f"--bridge={text}: no such file; give a TOML file of groups, or {' or '.join(PACKAGED)}"
        )
    return read_bridge_strategy(path)


def corpus_bridge_directions(text: str, corpus: Corpus) -> tuple[Direction, ...]:
    """Return the directions of a strategy in the codes of a corpus.

    Args:
        text: value of `--bridge`.
        corpus: corpus that has all languages of the strategy; it may have others.

    Raises:
        UserError: as `read_bridge`, or if the corpus lacks a language or has one code for two.
    """
    from mnmt_jax.vocabulary.bridge_strategy import bridge_directions

    strategy = read_bridge(text)
    codes = {
        code: find_code(code, corpus.languages, f"--bridge={text}, language")
        for code in strategy.languages
    }
    if missing := [code for code, match in codes.items() if match is None]:
        raise UserError(
            f"--bridge={text}: has '{missing[0]}', which is not among "
            f"{' '.join(corpus.languages)}; add its text and name it in --languages, or use a "
            "file without it"
        )
    check_distinct_matches(codes, f"--bridge={text}")
    return tuple(
        (str(codes[source]), str(codes[target])) for source, target in bridge_directions(strategy)
    )
