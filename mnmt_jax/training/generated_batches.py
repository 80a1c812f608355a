"""Batches that are made of a micro-batch inside the update, by the parameters as they are."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from mnmt_jax.decoding.search import Request, greedy
from mnmt_jax.design.generated_batch import GeneratedBatch
from mnmt_jax.design.layout import Layout
from mnmt_jax.design.objective import Batch
from mnmt_jax.model.network import Network

_DERIVED = 2**29  # folded into the rng of a micro-batch; views count from 1, `aside` has 2**30


class StepModel:
    """A micro-batch and the model that learns from it, before it has; a `GenerationModel`.

    Attributes:
        batch: the arrays of the micro-batch.
        rng: of draws.
    """

    batch: Batch
    rng: Array

    def __init__(self, model: Network, params: Any, batch: Batch, rng: Array) -> None:
        """Takes what there is; nothing is computed.

        Args:
            model: the network.
            params: its parameters.
            batch: arrays [rows, length].
            rng: of draws.
        """
        self.batch, self.rng = batch, rng
        self._model, self._params = model, jax.lax.stop_gradient(params)

    @property
    def layout(self) -> Layout:
        """Structure, with layer counts."""
        return self._model.layout

    @property
    def vocab_size(self) -> int:
        """Ids of the vocabulary, of which the last are the tags, in the order of the languages."""
        return self._model.vocab_size

    def greedy(
        self,
        batch: Batch,
        prefix: Int[Array, "rows prefix"],
        limits: Int[Array, " rows"],
        steps: int,
    ) -> Int[Array, "rows steps"]:
        """Translates without dropout; as `GenerationModel.greedy`. Rows of limit 0 are left empty."""
        request = Request(prefix, limits, limits > 0, max_steps=steps)
        variables = {"params": self._params}
        cache = self._model.apply(
            variables, batch, beam=1, max_steps=request.cache_steps(), method="prefill"
        )

        def step(tokens: Array, cache: Any) -> tuple[Array, Any]:
            after: Any = self._model.apply(variables, tokens, cache, method="step")
            return after

        return jnp.asarray(greedy(step, cache, request=request).tokens)[:, 0]


def generate_batch(
    derived: GeneratedBatch, number: int, network: tuple[Network, Any], batch: Batch, rng: Array
) -> tuple[Batch, Array]:
    """Makes a batch of a micro-batch.

    Args:
        derived: which.
        number: its place among those of the run.
        network: model and parameters.
        batch: arrays [rows, length] of the micro-batch.
        rng: of the micro-batch's dropout.

    Returns:
        The batch, and an rng for its dropout.
    """
    draws, dropout = jax.random.split(jax.random.fold_in(rng, _DERIVED + number))
    made = derived.make(StepModel(*network, batch, draws))
    return jax.lax.stop_gradient(dict(made)), dropout
