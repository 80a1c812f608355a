"""Batches generated inside an update from a micro-batch and the current parameters."""

from __future__ import annotations

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


class StepModel:
    """A micro-batch and the model before its update; a `GenerationModel`.

    Attributes:
        batch: arrays of the micro-batch.
        rng: key of sampling.
        prefix_length: number of target tokens that are not generated.
    """

    batch: Batch
    rng: Array
    prefix_length: int

    def __init__(
        self,
        model: Network,
        params: Any,
        batch: Batch,
        rng: Array,
        prefix_length: int = 1,
        *,
        allow_unk: bool = False,
    ) -> None:
        """Store the arguments; nothing is computed.

        Args:
            model: the network.
            params: parameters of the network.
            batch: arrays [rows, length].
            rng: key of sampling.
            prefix_length: number of target tokens that are not generated.
            allow_unk: whether `<unk>` may be generated.
        """
        self.batch, self.rng, self.prefix_length = batch, rng, prefix_length
        self._model, self._params = model, jax.lax.stop_gradient(params)
        self._allow_unk = allow_unk

    @property
    def layout(self) -> Layout:
        """The layout of the model, with layer counts."""
        return self._model.layout

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary; its last ids are the tags, in the order of the languages."""
        return self._model.vocab_size

    def greedy(
        self,
        batch: Batch,
        prefix: Int[Array, "rows prefix"],
        limits: Int[Array, " rows"],
        steps: int,
    ) -> Int[Array, "rows steps"]:
        """Translate without dropout, as `GenerationModel.greedy`; rows of limit 0 stay empty."""
        request = Request(prefix, limits, limits > 0, max_steps=steps, allow_unk=self._allow_unk)
        variables = {"params": self._params}
        cache = self._model.apply(
            variables, batch, beam=1, max_steps=request.cache_steps(), method="prefill"
        )

        def step(tokens: Array, cache: Any) -> tuple[Array, Any]:
            result: Any = self._model.apply(variables, tokens, cache, method="step")
            return result

        return jnp.asarray(greedy(step, cache, request=request).tokens)[:, 0]


def generate_batch(
    spec: GeneratedBatch,
    number: int,
    network: tuple[Network, Any],
    batch: Batch,
    rng: Array,
    *,
    prefix_length: int = 1,
    allow_unk: bool = False,
) -> tuple[Batch, Array]:
    """Generate a batch from a micro-batch.

    Args:
        spec: specification of the generated batch.
        number: its index among the generated batches of the run.
        network: model and parameters.
        batch: arrays [rows, length] of the micro-batch.
        rng: key of the micro-batch's dropout.
        prefix_length: number of target tokens that are not generated.
        allow_unk: whether `<unk>` may be generated.

    Returns:
        The batch, and an rng for its dropout.
    """
    rng = jax.random.fold_in(rng, RngOffset.GENERATED_BATCH + number)
    sampling, dropout = jax.random.split(rng)
    generated = spec.make(StepModel(*network, batch, sampling, prefix_length, allow_unk=allow_unk))
    return jax.lax.stop_gradient(dict(generated)), dropout


def change_batch(
    change: Callable[[GenerationModel], Batch],
    number: int,
    network: tuple[Network, Any],
    batch: Batch,
    rng: Array | None,
    *,
    prefix_length: int = 1,
    allow_unk: bool = False,
) -> Batch:
    """Return the arrays of a `LogProbs.change`.

    Args:
        change: the function.
        number: its index among the requests of the player.
        network: model and parameters.
        batch: arrays [rows, length] of the micro-batch.
        rng: key of the micro-batch's dropout; None draws with a constant key.
        prefix_length: number of target tokens that are not generated.
        allow_unk: whether `<unk>` may be generated.
    """
    rng = jax.random.key(0) if rng is None else rng
    key = jax.random.fold_in(rng, RngOffset.CHANGE_DRAW + number)
    model = StepModel(*network, batch, key, prefix_length, allow_unk=allow_unk)
    return jax.lax.stop_gradient(dict(change(model)))
