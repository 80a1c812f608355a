"""Inference models: network, parameters, vocabulary and instruction, on a mesh of devices."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax

from mnmt_jax.data.converter import TASK, Converter, HostBatch, Lengths
from mnmt_jax.data.instruction import Instruction
from mnmt_jax.decoding.ensemble import Ensemble
from mnmt_jax.distributed.sharding import batch_shards, place_batch
from mnmt_jax.model.network import Network
from mnmt_jax.vocabulary.vocabulary import Vocabulary

_GROWTH = 4  # ratio of consecutive batch sizes


@dataclasses.dataclass(frozen=True, eq=False)
class InferenceModel:
    """A network with everything needed to run it on text.

    Attributes:
        model: the network, or an ensemble of networks.
        params: parameters of the network.
        vocabulary: converts text to ids and back.
        instruction: positions of language tags.
        mesh: mesh of devices that share a batch; None is the first device.
    """

    model: Network
    params: Any
    vocabulary: Vocabulary
    instruction: Instruction
    mesh: jax.sharding.Mesh | None = None

    @functools.cached_property
    def param_bytes(self) -> int:
        """Memory of the parameters in bytes, of all members of an ensemble."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self.params))

    @property
    def first_member(self) -> InferenceModel:
        """The first member of an ensemble; the model if it is not one."""
        model: Any = self.model
        if not isinstance(model, Ensemble):
            return self
        return dataclasses.replace(self, model=model.members[0], params=self.params[0])

    def rows(self, max_rows: int, lines: int) -> int:
        """Return the smallest batch size that holds a number of lines, at most `max_rows`.

        Args:
            max_rows: `Decode.batch`.
            lines: number of lines of a shape, including finished ones, so that a resumed job
                computes the same.
        """
        rows = self.on_all_devices(1)
        while rows < lines:
            rows *= _GROWTH
        return min(rows, self.on_all_devices(max_rows))

    def on_all_devices(self, rows: int) -> int:
        """Round a number of rows up, so that all devices have the same number, at least one."""
        shards = batch_shards(self.mesh) if self.mesh else 1
        return max(-(-rows // shards), 1) * shards

    @contextlib.contextmanager
    def placed(self, batch: HostBatch) -> Iterator[Any]:
        """Yield a batch, placed on all devices for programs that run in this context."""
        if self.mesh is None:
            yield batch
            return
        with jax.set_mesh(self.mesh):
            yield place_batch(batch, self.mesh)

    def converter(self, bucket: int) -> Converter:
        """Return the converter to rows of one pair, with both spans `bucket` long."""
        return Converter(
            self.vocabulary,
            self.instruction,
            self.model.layout.embedded_roles(),
            Lengths(bucket, bucket),
            self.model.config.register_factor,
        )


def model_inputs(batch: HostBatch) -> HostBatch:
    """Return the arrays of a batch that a model reads."""
    return {name: array for name, array in batch.items() if name != TASK}
