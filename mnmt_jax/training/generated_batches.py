"""Batches generated inside an update from a micro-batch and the current parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from mnmt_jax.decoding.search import Request, greedy
from mnmt_jax.design.generated_batch import Batch, GeneratedBatch, GenerationModel
from mnmt_jax.design.layout import Layout
from mnmt_jax.model.network import Network
from mnmt_jax.model.rng_offsets import RngOffset


@dataclasses.dataclass(frozen=True, eq=False)
class StepModel:
    """A micro-batch and the model before its update; a `GenerationModel`.

    Attributes:
        network: the network.
        params: parameters of the network.
        batch: arrays [rows, length] of the micro-batch.
        rng: key of sampling.
        prefix_length: number of target tokens that are not generated.
        allow_unk: whether `<unk>` may be generated.
    """

    network: Network
    params: Any
    batch: Batch
    rng: Array
    prefix_length: int = 1
    allow_unk: bool = False

    @property
    def layout(self) -> Layout:
        """The layout of the model, with layer counts."""
        return self.network.layout

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary; its last ids are the tags, in the order of the languages."""
        return self.network.vocab_size

    def greedy(
        self,
        batch: Batch,
        prefix: Int[Array, "rows prefix"],
        limits: Int[Array, " rows"],
        steps: int,
    ) -> Int[Array, "rows steps"]:
        """Translate without dropout, as `GenerationModel.greedy`; rows of limit 0 stay empty."""
        request = Request(prefix, limits, limits > 0, max_steps=steps, allow_unk=self.allow_unk)
        variables = {"params": jax.lax.stop_gradient(self.params)}
        cache = self.network.apply(
            variables, batch, beam=1, max_steps=request.cache_steps(), method="prefill"
        )

        def step(tokens: Array, cache: Any) -> tuple[Array, Any]:
            result: Any = self.network.apply(variables, tokens, cache, method="step")
            return result

        return jnp.asarray(greedy(step, cache, request=request).tokens)[:, 0]


def generate_batch(spec: GeneratedBatch, number: int, model: StepModel) -> tuple[Batch, Array]:
    """Generate a batch from a micro-batch.

    Args:
        spec: specification of the generated batch.
        number: its index among the generated batches of the run.
        model: the micro-batch, its rng and the model.

    Returns:
        The batch, and an rng for its dropout.
    """
    rng = jax.random.fold_in(model.rng, RngOffset.GENERATED_BATCH + number)
    sampling, dropout = jax.random.split(rng)
    generated = spec.make(dataclasses.replace(model, rng=sampling))
    return jax.lax.stop_gradient(dict(generated)), dropout


def change_batch(
    change: Callable[[GenerationModel], Batch], number: int, model: StepModel
) -> Batch:
    """Return the arrays of a `LogProbs.change` or a `BatchChange.change`.

    Args:
        change: the function.
        number: its index among the requests of the player, or among the changes of the run.
        model: the micro-batch, its rng and the model.
    """
    rng = jax.random.fold_in(model.rng, RngOffset.CHANGE_DRAW + number)
    return jax.lax.stop_gradient(dict(change(dataclasses.replace(model, rng=rng))))
