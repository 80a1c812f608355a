"""Micro-batches that training makes of its own, with the model as it is at that moment."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from mnmt_jax.design.layout import Layout
from mnmt_jax.design.objective import Batch

if TYPE_CHECKING:
    from jax import Array


@runtime_checkable
class GenerationModel(Protocol):
    """What a batch may be made of, inside the update.

    Attributes:
        batch: the arrays of the micro-batch.
        rng: of draws; its own for every step, micro-batch and derived batch.
    """

    batch: Batch
    rng: Array

    @property
    def layout(self) -> Layout:
        """Structure, with layer counts."""

    @property
    def vocab_size(self) -> int:
        """Ids of the vocabulary, of which the last are the tags, in the order of the languages."""

    def greedy(self, batch: Batch, prefix: Array, limits: Array, steps: int) -> Array:
        """Translates with the parameters as they are; no gradient flows through it.

        Args:
            batch: spans of the static roles, one sentence per row.
            prefix: int32 [rows, prefix], the first target input and any forced tokens.
            limits: int32 [rows], generated tokens at most, without eos.
            steps: generated tokens at most of any row, with eos.

        Returns:
            int32 [rows, steps]: tokens that end in eos, then pad.
        """


@dataclasses.dataclass(frozen=True)
class GeneratedBatch:
    """A micro-batch made of each micro-batch, whose cross entropy is learnt beside its own.

    Attributes:
        name: under which `metrics.jsonl` reports its loss, in nats per target token of its own.
        make: returns its arrays, named as those of the micro-batch.
    """

    name: str
    make: Callable[[GenerationModel], Batch]
