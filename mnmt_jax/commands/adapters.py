"""Saves the LoRA of a run alone, loads one onto a run, or merges it into the weights."""

from __future__ import annotations

from mnmt_jax.commands.arguments import CommandParser, add_step


def main() -> None:
    """Parses the command line, does what it says, and prints the folder made."""
    flags = make_parser().parse_args()

    from mnmt_jax.interop.adapters import load_adapter, merge_adapter, save_adapter

    if flags.command == "save":
        save_adapter(flags.run, flags.output, step=flags.step)
    elif flags.command == "load":
        load_adapter(flags.run, flags.adapter, flags.output, step=flags.step)
    else:
        merge_adapter(flags.run, flags.output, step=flags.step)
    print(flags.output)


def make_parser() -> CommandParser:
    """Makes the parser of the command line."""
    parser = CommandParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="save|load|merge")
    save = commands.add_parser("save", help="LoRA of a run -> a folder of its own")
    save.add_argument("--run", required=True, metavar="RUN", help="run trained with LoRA")
    save.add_argument("--output", required=True, metavar="DIR", help="folder to make")
    load = commands.add_parser("load", help="run without LoRA and such a folder -> a run with it")
    load.add_argument("--run", required=True, metavar="RUN", help="run that LoRA was trained on")
    load.add_argument("--adapter", required=True, metavar="DIR", help="folder that save made")
    load.add_argument("--output", required=True, metavar="RUN", help="run directory to make")
    merge = commands.add_parser("merge", help="run with LoRA -> an ordinary run")
    merge.add_argument("--run", required=True, metavar="RUN", help="run with LoRA")
    merge.add_argument("--output", required=True, metavar="RUN", help="run directory to make")
    for command in (save, load, merge):
        add_step(command)
    return parser
