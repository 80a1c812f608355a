"""Create, list or revoke the API keys of mnmt serve.

The database has only hashes of the keys. A running server sees every change at once.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from mnmt_jax.commands.common_flags import CommandParser, positive_int
from mnmt_jax.errors import UserError, say


def make_parser() -> CommandParser:
    """Make the parser of the command line."""
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="create|list|revoke")
    create = commands.add_parser("create", help="make a key and print it, once")
    create.add_argument(
        "--characters_per_month",
        type=positive_int,
        metavar="N",
        help="characters that the key may translate in a month (UTC); default: no limit",
    )
    revoke = commands.add_parser("revoke", help="make a key invalid; its usage is kept")
    for command in (create, revoke):
        command.add_argument(
            "--name", required=True, metavar="NAME", help="who has the key, e.g. weblate"
        )
    for command in (create, revoke, commands.add_parser("list", help="list keys and usage")):
        command.add_argument(
            "--database", required=True, metavar="FILE", help="database of mnmt serve --database"
        )
    return parser


def main() -> None:
    """Run the sub-command."""
    flags = make_parser().parse_args()
    if flags.command == "create":
        _create(flags)
        return
    if not Path(flags.database).is_file():
        raise UserError(f"--database={flags.database}: no such file; mnmt api-keys create makes it")
    if flags.command == "list":
        _list(flags.database)
    else:
        from mnmt_jax.serving.api_keys import ApiKeys
        from mnmt_jax.serving.database import Database

        ApiKeys(Database(flags.database)).revoke(flags.name)
        say(f"revoked the key of {flags.name}")


def _create(flags: argparse.Namespace) -> None:
    """Print a new key on standard output."""
    from mnmt_jax.serving.api_keys import ApiKeys
    from mnmt_jax.serving.database import Database

    quota, name = flags.characters_per_month, flags.name
    if not name.strip() or not name.isprintable():
        raise UserError(f"--name={name!r} must be printable text")
    key = ApiKeys(Database(flags.database)).create(name, quota)
    say(f"the key of {name}; it cannot be shown again:")
    print(key)


def _list(path: str) -> None:
    """Print a table of the keys, separated by tabs."""
    from mnmt_jax.serving.api_keys import ApiKeys
    from mnmt_jax.serving.database import Database
    from mnmt_jax.serving.usage import read_usage

    database = Database(path)
    keys, usage = ApiKeys(database).all(), read_usage(database)
    print("id\tname\tcreated\trevoked\tcharacters_this_month\tcharacters_per_month")
    for key in keys:
        limit = key.characters_per_month or "-"
        row = (key.id, key.name, key.created, key.revoked or "-", usage.get(key.id, 0), limit)
        print(*row, sep="\t")
