r"""Times how long a checkpoint keeps the training waiting, beside an update and the writing itself.

    python benchmarks/saves.py --workdir DIR --gin_file gin_configs/models/register_tiny.gin \
        --gin_file gin_configs/runs/cldr_quickstart.gin --gin.Data.cache="'CACHE'" \
        --gin.Model.embed=512

Trains a few updates, saves, and goes on until the checkpoint is on disk, several times. Prints
JSON, medians: seconds of an `update` alone, of the call that `save`s, of an update `while_writing`,
and until the checkpoint is `on_disk`; `waits`, the updates that a save costs, is all that it adds
to those that run meanwhile, divided by an update.
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
    """Trains and saves, prints the figures."""
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", required=True, metavar="DIR", help="new folder")
    parser.add_argument("--saves", type=int, default=5)
    parser.add_argument("--updates", type=int, default=10, help="timed between two saves")
    add_gin_flags(parser)
    flags, gin_files, bindings = parse_command_line(parser)
    import_modules(flags.module_import)
    config = load_config(gin_files, bindings)
    found: dict[str, list[float]] = {"update": [], "save": [], "while_writing": [], "on_disk": []}
    waits = []
    with open_session(build(config), RunDirectory.open(flags.workdir)) as session:
        _seconds(session.advance, session)  # compiles
        for _ in range(flags.saves):
            alone = [_seconds(session.advance, session) for _ in range(flags.updates)]
            start = time.perf_counter()
            saving = _seconds(lambda: save_checkpoint(session), session)
            meanwhile = []
            while session.checkpoints.is_saving():
                meanwhile.append(_seconds(session.advance, session))
            found["on_disk"].append(time.perf_counter() - start)
            update = statistics.median(alone)
            waits.append((saving + sum(meanwhile)) / update - len(meanwhile))
            found["update"] += alone
            found["save"].append(saving)
            found["while_writing"] += meanwhile
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(session.state))
    figures = {name: statistics.median(times) for name, times in found.items() if times}
    figures["waits"] = statistics.median(waits)
    device = str(jax.devices()[0])
    print(json.dumps({"device": device, "state_bytes": size, **figures}, indent=2))


def _seconds(work: Callable[[], object], session: Session) -> float:
    start = time.perf_counter()
    work()
    jax.block_until_ready(session.state.step)
    return time.perf_counter() - start


if __name__ == "__main__":
    run_command(main)
