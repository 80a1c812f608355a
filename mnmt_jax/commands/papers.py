"""List the published tables and figures, or print the numbers of one."""

from __future__ import annotations

from mnmt_jax.commands.common_flags import CommandParser


def make_parser() -> CommandParser:
    """Make the parser of the command line."""
    parser = CommandParser(description=__doc__)
    parser.add_argument(
        "table",
        nargs="?",
        metavar="PAPER[/TABLE]",
        help="a paper, e.g. registers, or one of its tables, e.g. registers/table1; default: all",
    )
    return parser


def main() -> None:
    """Run the command."""
    flags = make_parser().parse_args()
    from mnmt_jax.papers.listing import list_papers, show_table
    from mnmt_jax.papers.tables import find_paper, find_table, load_papers

    if flags.table and "/" in flags.table:
        print(show_table(find_table(flags.table)))
    else:
        papers = [find_paper(flags.table)] if flags.table else list(load_papers().values())
        print(list_papers(papers))
