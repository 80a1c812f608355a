"""Save, load or merge the LoRA weights of a run."""

from __future__ import annotations

from mnmt_jax.commands.common_flags import (
    CommandParser,
    add_method_import,
    add_step,
    import_modules,
)


def main() -> None:
    """Parse the command line, run the sub-command, and print the folder written."""
    flags = make_parser().parse_args()

    import_modules(flags.module_import)
    from mnmt_jax.interop.adapters import load_adapter, merge_adapter, save_adapter

    if flags.command == "save":
        save_adapter(flags.run, flags.output, step=flags.step)
    elif flags.command == "load":
        load_adapter(flags.run, flags.adapter, flags.output, step=flags.step)
    else:
        merge_adapter(flags.run, flags.output, step=flags.step)
    print(flags.output)


def make_parser() -> CommandParser:
    """Make the parser of the command line."""
    parser = CommandParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="save|load|merge")
    save = commands.add_parser(
        "save",
        help="save the LoRA weights of a run to a folder",
        description="Write only the LoRA weights of a run; load applies them to the base run.",
    )
    save.add_argument("--run", required=True, metavar="RUN", help="run trained with LoRA")
    save.add_argument("--output", required=True, metavar="DIR", help="folder to write")
    load = commands.add_parser(
        "load",
        help="apply saved LoRA weights to a run",
        description="Write a new run: the base run with the LoRA weights that save wrote.",
    )
    load.add_argument(
        "--run", required=True, metavar="RUN", help="run that the LoRA weights were trained on"
    )
    load.add_argument("--adapter", required=True, metavar="DIR", help="folder written by save")
    load.add_argument("--output", required=True, metavar="RUN", help="run directory to write")
    merge = commands.add_parser(
        "merge",
        help="merge LoRA weights into the base weights",
        description="Write a new run without LoRA: its weights are the base weights plus the LoRA "
        "products.",
    )
    merge.add_argument("--run", required=True, metavar="RUN", help="run with LoRA")
    merge.add_argument("--output", required=True, metavar="RUN", help="run directory to write")
    for command in (save, load, merge):
        add_step(command)
        add_method_import(command)
    return parser
