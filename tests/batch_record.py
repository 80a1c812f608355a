"""Checksums of the training batches, as they lie on the devices of all processes.

Import it in a training by `--module_import=tests.batch_record`. Variables of the environment:

- `BATCH_RECORD`: file to which process 0 appends a line per update.
- `STOP_AFTER`: update of this start at which process `STOP_PROCESS` sends itself SIGTERM.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp

from mnmt_jax.training import session

ROWS = 112  # of a batch, without those that stay empty: 8 divides them, 3 and 5 do not
_ODD = 2654435761  # spreads the positions, so that exchanged rows change the checksum
place_batch = session.place_batch


def checksum(batch: Mapping[str, jax.Array]) -> str:
    """Return a checksum of every number of a batch and its place.

    It is a sum modulo 2 ** 32, the same bits in any order and so on any mesh.

    Args:
        batch: arrays on the devices of all processes.
    """
    return f"{int(_checksum(dict(sorted(batch.items())))):08x}"


@jax.jit
def _checksum(batch: dict[str, jax.Array]) -> jax.Array:
    total = jnp.uint32(0)
    for number, array in enumerate(batch.values()):
        array = array[:, :ROWS]
        if array.dtype == jnp.float32:
            array = jax.lax.bitcast_convert_type(array, jnp.uint32)
        places = jnp.arange(array.size, dtype=jnp.uint32).reshape(array.shape)
        weights = (places * jnp.uint32(2) + jnp.uint32(2 * number + 1)) * jnp.uint32(_ODD)
        weights = weights ^ (weights >> jnp.uint32(15))
        total += (array.astype(jnp.uint32) * weights).sum(dtype=jnp.uint32)
    return total


def record_in(file: Path, stop_after: int = 0) -> None:
    """Append a line to a file for each update of this process.

    Args:
        file: only process 0 writes it.
        stop_after: update at which this process sends itself SIGTERM; 0 for none.
    """
    updates = itertools.count(1)

    def place(batch, mesh, leading=0):
        placed = place_batch(batch, mesh, leading)
        line = checksum(placed)
        if jax.process_index() == 0:
            with file.open("a", encoding="utf-8") as lines:
                lines.write(f"{line}\n")
        if next(updates) == stop_after:
            os.kill(os.getpid(), signal.SIGTERM)
        return placed

    session.place_batch = place


if "BATCH_RECORD" in os.environ:
    _stops = jax.process_index() == int(os.environ.get("STOP_PROCESS", "0"))
    record_in(
        Path(os.environ["BATCH_RECORD"]), int(os.environ.get("STOP_AFTER", "0")) if _stops else 0
    )
