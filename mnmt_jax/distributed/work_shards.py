"""Several processes that share one task by its parts, and never speak to each other.

Each has the same command but for its number, does its own parts, and keeps them on storage that all
see; the one that ends last puts them together. A process that is lost costs its own unfinished
parts alone: it is started again.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Sequence

from mnmt_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class WorkShard:
    """One of several processes.

    Attributes:
        process: its number, from 0.
        processes: how many there are.
    """

    process: int = 0
    processes: int = 1

    def holds(self, number: int) -> bool:
        """Returns whether a part is this process's, by the number of the part."""
        return number % self.processes == self.process

    def all(self) -> Iterator[WorkShard]:
        """Yields the shares of all processes."""
        return (WorkShard(number, self.processes) for number in range(self.processes))

    def __str__(self) -> str:
        """Says which it is, as files are named."""
        return f"{self.process}-of-{self.processes}"


WHOLE = WorkShard()


def add_work_shard_flags(parser: argparse.ArgumentParser, parts: str) -> None:
    """Adds the flags that say which of several processes this is.

    Args:
        parser: of a command.
        parts: what each process does some of.
    """
    group = parser.add_argument_group("several processes")
    group.add_argument(
        "--num_processes",
        type=int,
        metavar="N",
        help=f"so many processes with the same command each do every N-th of the {parts}; the last "
        "one to end writes the output, and one that is lost is started again",
    )
    group.add_argument("--process_id", type=int, metavar="I", help="which of them this is, from 0")


def work_shard_of(flags: argparse.Namespace) -> WorkShard:
    """Returns the share that the flags of `add_work_shard_flags` name; the whole without them.

    Raises:
        UserError: if one is missing or out of range.
    """
    if not are_given(flags, ("num_processes", "process_id")):
        return WHOLE
    return WorkShard(flags.process_id, flags.num_processes)


def are_given(flags: argparse.Namespace, names: Sequence[str]) -> bool:
    """Returns whether flags of several processes were given.

    Args:
        flags: as parsed.
        names: of those that belong together, `num_processes` and `process_id` among them.

    Raises:
        UserError: if some are missing beside others, or the process's number is out of range.
    """
    missing = [name for name in names if getattr(flags, name) is None]
    if missing and len(missing) < len(names):
        raise UserError(f"--{missing[0]} is missing beside the other flags of several processes")
    if missing:
        return False
    if flags.num_processes < 1:
        raise UserError(f"--num_processes={flags.num_processes} must be at least 1")
    if not 0 <= flags.process_id < flags.num_processes:
        raise UserError(
            f"--process_id={flags.process_id} must be from 0 to --num_processes - 1 = "
            f"{flags.num_processes - 1}"
        )
    return True
