"""Count the sentence pairs of a corpus, by split and direction."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from mnmt_jax.commands.common_flags import CommandParser, check_distinct, split_list
from mnmt_jax.commands.corpus_flags import add_corpus_flags, corpus_and_directions
from mnmt_jax.errors import UserError, join_names

_SPLITS = ("train", "validation", "test")


def make_parser() -> CommandParser:
    """Make the parser of the command line."""
    parser = CommandParser(description=__doc__)
    add_corpus_flags(parser)
    parser.add_argument(
        "--of",
        default="train",
        metavar="LIST",
        help="splits to count: train for the training directions, validation and test for all "
        "directions between their languages that have such text, or of your files if train is not "
        "counted; default: %(default)s",
    )
    parser.add_argument("--output", metavar="FILE", help="also write the counts as JSON")
    parser.add_argument(
        "--page", metavar="FILE", help="also write a page with a heat map of the directions"
    )
    return parser


def main() -> None:
    """Print the counts as a Markdown table, and write them as JSON."""
    flags = make_parser().parse_args()
    splits = _splits(flags.of)
    from mnmt_jax.data.pair_counts import count_pairs
    from mnmt_jax.evaluation.count_page import GENERATOR, count_page
    from mnmt_jax.files.atomic_write import check_replaced, check_writable, write_text
    from mnmt_jax.files.json_objects import is_object_with
    from mnmt_jax.pages.markdown_tables import markdown_table

    paths = [os.path.realpath(path) for path in (flags.output, flags.page) if path]
    if len(set(paths)) < len(paths):
        raise UserError(f"--page={flags.page}: is the file of --output; choose another")
    for flag in ("output", "page"):
        if path := getattr(flags, flag):
            check_writable(Path(path).parent, f"--{flag}")
    if flags.page:
        check_replaced(Path(flags.page), lambda text: GENERATOR in text, "--page")
    if flags.output:
        check_replaced(Path(flags.output), lambda text: is_object_with(text, "corpus", "sentences"))
    untrained = not flags.mixture and "train" not in splits
    corpus, directions = corpus_and_directions(flags, splits if untrained else ("train",))
    print(f"counting {corpus.name}", file=sys.stderr)
    counts = count_pairs(corpus, directions, splits)
    rows = [
        [split, direction, f"{count:,}"]
        for split, by_direction in counts.items()
        for direction, count in by_direction.items()
    ]
    totals = [[split, "all", f"{sum(counts[split].values()):,}"] for split in counts]
    print(markdown_table(["split", "direction", "sentences"], [*rows, *totals]))
    texts = {}
    if flags.output:
        facts = {"corpus": corpus.name, "sentences": counts}
        texts[Path(flags.output)] = json.dumps(facts, indent=1) + "\n"
    if flags.page:
        texts[Path(flags.page)] = count_page(corpus.name, counts)
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)


def _splits(text: str) -> list[str]:
    splits = split_list(text)
    if not splits or (unknown := [split for split in splits if split not in _SPLITS]):
        wrong = f"'{unknown[0]}' is none of them" if splits else "is empty"
        raise UserError(f"--of={text}: {wrong}; choose from {join_names(_SPLITS)}")
    check_distinct("--of", splits)
    return splits
