"""What a run minimises: the model, its loss on a micro-batch, and the optimizer that uses it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import optax
from jaxtyping import Array

from mnmt_jax.config import Config
from mnmt_jax.layouts import TARGET
from mnmt_jax.losses import LossSums, chunked_token_loss
from mnmt_jax.model import Translator, build_model
from mnmt_jax.optimizer import Schedule, make_optimizer, make_schedule
from mnmt_jax.sharding import batch_shards
from mnmt_jax.trainable import Trainable

Batch = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Learner:
    """What `train_step` needs besides state and batch: structure and constants of a run.

    Attributes:
        model: has `features`.
        optimizer: from `make_optimizer`.
        schedule: the optimizer's, for the record.
        label_smoothing: of the loss.
        chunk: tokens, over all devices, whose logits exist at one time.
        seed: of dropout.
        trainable: which parameters train.
    """

    model: Translator
    optimizer: optax.GradientTransformation
    schedule: Schedule
    label_smoothing: float
    chunk: int
    seed: int
    trainable: Trainable

    @classmethod
    def from_config(cls, config: Config, vocab_size: int, mesh: jax.sharding.Mesh) -> Learner:
        """Builds the learner that a configuration describes."""
        return cls(
            build_model(config.model, vocab_size),
            make_optimizer(config.optimizer, config.train.steps),
            make_schedule(config.optimizer, config.train.steps),
            config.optimizer.label_smoothing,
            config.train.loss_chunk * batch_shards(mesh),
            config.train.seed,
            Trainable.from_config(config.model, config.optimizer),
        )


def batch_loss(
    learner: Learner, params: Any, batch: Batch, rng: Array | None = None
) -> tuple[Array, LossSums]:
    """Computes what one micro-batch adds to the loss.

    Args:
        learner: the run's constants.
        params: of the model.
        batch: arrays [rows, length].
        rng: of dropout; None is without.

    Returns:
        The sum to differentiate, and the sums to report.
    """
    features: Any = learner.model.apply(
        {"params": params},
        batch,
        deterministic=rng is None,
        method="features",
        rngs=None if rng is None else {"dropout": rng},
    )
    sums = chunked_token_loss(
        features,
        params["embedding"],
        batch[f"{TARGET}_labels"],
        batch[f"{TARGET}_segment_ids"] != 0,
        label_smoothing=learner.label_smoothing,
        chunk=learner.chunk,
    )
    return sums.smoothed, sums
