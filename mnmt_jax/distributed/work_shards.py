"""Work shards: independent processes that each do a share of one task.

Every process runs the same command except for its number, does its units of work, and writes them
to shared storage. The last one to finish merges them. If a process fails, only its unfinished units
are lost: start it again.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Sequence

from mnmt_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class WorkShard:
    """The share of one of several processes.

    Attributes:
        process: its number, from 0.
        processes: number of processes.
    """

    process: int = 0
    processes: int = 1

    def holds(self, number: int) -> bool:
        """Return whether the unit of work with this number belongs to this process."""
        return number % self.processes == self.process

    def all(self) -> Iterator[WorkShard]:
        """Yield the shards of all processes."""
        return (WorkShard(number, self.processes) for number in range(self.processes))

    def __str__(self) -> str:
        """Return the shard as it appears in file names."""
        return f"{self.process}-of-{self.processes}"


WHOLE = WorkShard()


def add_work_shard_flags(parser: argparse.ArgumentParser, parts: str) -> None:
    """Add the flags that identify one of several processes.

    Args:
        parser: of a command.
        parts: the units of work, for the help text.
    """
    group = parser.add_argument_group("several processes")
    group.add_argument(
        "--num_processes",
        type=int,
        metavar="N",
        help="number of processes; start the same command N times, and each processes every N-th "
        f"of the {parts}; the last one to finish writes the output; restart a process that died; "
        "default: 1",
    )
    group.add_argument("--process_id", type=int, metavar="I", help="index of this process, from 0")


def work_shard_of(flags: argparse.Namespace) -> WorkShard:
    """Return the shard that the flags of `add_work_shard_flags` name; all work without them.

    Raises:
        UserError: if one is missing or out of range.
    """
    if not are_given(flags, ("num_processes", "process_id")):
        return WHOLE
    return WorkShard(flags.process_id, flags.num_processes)


def are_given(flags: argparse.Namespace, names: Sequence[str]) -> bool:
    """Return whether flags of several processes are set.

    Args:
        flags: as parsed.
        names: of flags that must be set together, including `num_processes` and `process_id`.

    Raises:
        UserError: if only some are set, or the process's number is out of range.
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
