"""Write the built-in CLDR corpus as parallel files or TSV."""

from __future__ import annotations

import json
import sys

from mnmt_jax.commands.common_flags import CommandParser, amount, seed_value

_LINES = {"train": 10_000, "validation": 500, "test": 1000}  # by split, by default


def make_parser() -> CommandParser:
    """Make the parser of the command line."""
    parser = CommandParser(
        description="Write phrases from the Unicode CLDR, the same meanings in every language, as "
        "SPLIT.LANGUAGE files or one SPLIT.tsv per split. The same arguments give the same files.",
    )
    parser.add_argument("--output", required=True, metavar="DIR", help="folder to write to")
    parser.add_argument(
        "--languages",
        default="en,de,fr",
        metavar="CODES",
        help="language codes; default: %(default)s",
    )
    parser.add_argument(
        "--format",
        default="parallel",
        choices=("parallel", "tsv"),
        help="parallel: one file SPLIT.LANGUAGE per split and language; tsv: one SPLIT.tsv per "
        "split with a column per language; default: %(default)s",
    )
    for split, lines in _LINES.items():
        parser.add_argument(
            f"--{split}",
            type=amount,
            default=lines,
            metavar="N",
            help="lines; default: %(default)s",
        )
    parser.add_argument(
        "--seed",
        type=seed_value,
        default=0,
        metavar="N",
        help="random seed; default: %(default)s",
    )
    parser.add_argument(
        "--inventory",
        default="small",
        choices=("small", "large"),
        help="small: about 60 territories and few phrase types, learnt in minutes; large: all "
        "names, units and phrase types that the languages share; default: %(default)s",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace existing files")
    return parser


def main() -> None:
    """Write the files and print a summary as JSON on stdout."""
    arguments = make_parser().parse_args()

    from mnmt_jax.commands.common_flags import split_list
    from mnmt_jax.data.cldr import CldrCorpus
    from mnmt_jax.data.cldr_export import export_cldr
    from mnmt_jax.vocabulary.language_codes import canonical_codes

    corpus = CldrCorpus(
        canonical_codes(split_list(arguments.languages), "--languages"),
        arguments.seed,
        inventory=arguments.inventory,
    )
    sizes = {split: getattr(arguments, split) for split in _LINES}
    print(f"writing {arguments.output}", file=sys.stderr)
    files = export_cldr(
        corpus,
        arguments.output,
        file_format=arguments.format,
        sizes=sizes,
        overwrite=arguments.overwrite,
    )
    summary = {
        "output": arguments.output,
        "format": arguments.format,
        "lines": files,
        **corpus.describe(),
    }
    print(json.dumps(summary, ensure_ascii=False, indent=2))
