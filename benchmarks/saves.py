r"""Time that a checkpoint blocks training, compared with an update and with the write.

    python benchmarks/saves.py --workdir DIR --gin_file gin_configs/models/register_tiny.gin \
        --gin_file gin_configs/runs/cldr_quickstart.gin --gin.Data.cache="'CACHE'" \
        --gin.Model.embed=512

Trains some updates, saves, and trains until the checkpoint is on disk, several times. Prints
medians as JSON, in seconds: an `update` without a save, the call that starts the `save`, an update
`while_writing`, and the time until the checkpoint is `on_disk`. `waits` is the cost of a save in
updates: all time that it adds, including to the updates during the write, divided by an update.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import jax

from mnmt_jax.commands.common_flags import (
    CommandParser,
    add_gin_flags,
    import_modules,
    parse_command_line,
)
from mnmt_jax.config.loading import load_config
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.runtime.run_command import run_command
from mnmt_jax.training.build import build
from mnmt_jax.training.hooks import save_checkpoint
from mnmt_jax.training.open_run import open_session
from mnmt_jax.training.session import Session


def main() -> None:
    """Train, save and print the medians."""
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", required=True, metavar="DIR", help="new folder")
    parser.add_argument("--saves", type=int, default=5)
    parser.add_argument("--updates", type=int, default=10, help="timed updates between two saves")
    add_gin_flags(parser)
    flags, gin_files, bindings = parse_command_line(parser)
    import_modules(flags.module_import)
    config = load_config(gin_files, bindings)
    seconds: dict[str, list[float]] = {"update": [], "save": [], "while_writing": [], "on_disk": []}
    waits = []
    with open_session(build(config), RunDirectory.open(flags.workdir)) as session:
        _seconds(session.advance, session)  # compiles
        for _ in range(flags.saves):
            without_save = [_seconds(session.advance, session) for _ in range(flags.updates)]
            start = time.perf_counter()
            saving = _seconds(lambda: save_checkpoint(session), session)
            meanwhile = []
            while session.checkpoints.is_saving():
                meanwhile.append(_seconds(session.advance, session))
            seconds["on_disk"].append(time.perf_counter() - start)
            update = statistics.median(without_save)
            waits.append((saving + sum(meanwhile)) / update - len(meanwhile))
            seconds["update"] += without_save
            seconds["save"].append(saving)
            seconds["while_writing"] += meanwhile
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(session.state))
    medians = {name: statistics.median(times) for name, times in seconds.items() if times}
    medians["waits"] = statistics.median(waits)
    device = str(jax.devices()[0])
    print(json.dumps({"device": device, "state_bytes": size, **medians}, indent=2))


def _seconds(work: Callable[[], object], session: Session) -> float:
    start = time.perf_counter()
    work()
    jax.block_until_ready(session.state.step)
    return time.perf_counter() - start


if __name__ == "__main__":
    run_command(main)
