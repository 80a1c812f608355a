"""Micro-batches that training generates with the current parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from mnmt_jax.design.layout import Layout

if TYPE_CHECKING:
    from jax import Array

Batch = Mapping[str, Any]
"""Arrays of a micro-batch, by name."""


@runtime_checkable
class GenerationModel(Protocol):
    """The inputs and the model available to `GeneratedBatch.make`, inside the update."""

    @property
    def batch(self) -> Batch:
        """The arrays of the micro-batch."""

    @property
    def rng(self) -> Array:
        """Random key; unique for each step, micro-batch and generated batch."""

    @property
    def layout(self) -> Layout:
        """Layout, with layer counts."""

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary; its last ids are the tags, in the order of the languages."""

    @property
    def prefix_length(self) -> int:
        """Number of target tokens that are not generated: the first input and a forced tag."""

    def greedy(self, batch: Batch, prefix: Array, limits: Array, steps: int) -> Array:
        """Translate greedily with the current parameters, without gradients.

        Args:
            batch: spans of the static roles, one sentence per row.
            prefix: int32 [rows, prefix], the first target input and any forced tokens.
            limits: int32 [rows], maximum number of generated tokens per row, without eos.
            steps: maximum number of generated tokens of any row, with eos.

        Returns:
            int32 [rows, steps]: tokens that end in eos, then pad.
        """


@dataclasses.dataclass(frozen=True)
class BatchChange:
    """A change of each micro-batch, given or generated, before it is trained on.

    Validation sees the original.

    Attributes:
        change: returns arrays that replace those of the micro-batch.
        copies: how often each row is in the changed micro-batch, in consecutive rows.
    """

    change: Callable[[GenerationModel], Batch]
    copies: int = 1


@dataclasses.dataclass(frozen=True)
class GeneratedBatch:
    """A batch generated from each micro-batch; its cross entropy is added to the loss.

    Attributes:
        name: name in `metrics.jsonl`, where its loss is reported in nats per generated target
            token.
        make: returns its arrays, named like those of the micro-batch.
    """

    name: str
    make: Callable[[GenerationModel], Batch]
