"""A model with all that is needed to feed it text, on the devices that share its batches."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax

from mnmt_jax.data.converter import TASK, Converter, HostBatch, Lengths
from mnmt_jax.data.instruction import Instruction
from mnmt_jax.distributed.sharding import batch_shards, place_batch
from mnmt_jax.model.network import Network
from mnmt_jax.vocabulary.vocabulary import Vocabulary

_TIMES = 4  # rows of a batch by those of the next smaller one


@dataclasses.dataclass(frozen=True, eq=False)
class InferenceModel:
    """A model with all that is needed to feed it text.

    Attributes:
        model: the network.
        params: its parameters.
        vocabulary: text to ids and back.
        instruction: where tags stand.
        mesh: whose devices share the lines of a batch; None is the first device.
    """

    model: Network
    params: Any
    vocabulary: Vocabulary
    instruction: Instruction
    mesh: jax.sharding.Mesh | None = None

    def rows(self, most: int, lines: int) -> int:
        """Returns the fewest rows of a batch that hold lines, or the most that it may have.

        Args:
            most: `Decode.batch`.
            lines: how many have a shape, those that are done too: to go on is to compute alike.
        """
        rows = self.on_all_devices(1)
        while rows < lines:
            rows *= _TIMES
        return min(rows, self.on_all_devices(most))

    def on_all_devices(self, rows: int) -> int:
        """Returns as many rows or a few more, so that each device has one and all as many."""
        parts = batch_shards(self.mesh) if self.mesh else 1
        return max(-(-rows // parts), 1) * parts

    @contextlib.contextmanager
    def placed(self, batch: HostBatch) -> Iterator[Any]:
        """Gives a batch as programs take it that run in this context, on all devices."""
        if self.mesh is None:
            yield batch
            return
        with jax.set_mesh(self.mesh):
            yield place_batch(batch, self.mesh)

    def converter(self, bucket: int) -> Converter:
        """Returns the converter that lays out rows of one pair, both spans `bucket` long."""
        return Converter(
            self.vocabulary,
            self.instruction,
            self.model.layout.embedded_roles(),
            Lengths(bucket, bucket),
            self.model.config.register_factor,
        )


def model_inputs(batch: HostBatch) -> HostBatch:
    """Returns what a model reads of a batch."""
    return {name: array for name, array in batch.items() if name != TASK}
