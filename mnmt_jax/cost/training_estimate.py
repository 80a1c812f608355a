"""Costs of a training before it runs: parameters, updates, FLOPs, device hours and disk."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import jax
import jax.numpy as jnp

from mnmt_jax.config.sections import Config, Data, Mesh, Train
from mnmt_jax.cost.configurations import parameter_counts
from mnmt_jax.cost.state_memory import count_state_bytes
from mnmt_jax.data.converter import required_views
from mnmt_jax.distributed.chips import chip_of
from mnmt_jax.distributed.sharding import make_mesh
from mnmt_jax.errors import UserError
from mnmt_jax.model.flops import Sentence
from mnmt_jax.training.learner import Learner

UTILIZATION = 0.4
"""Assumed share of the peak FLOP/s; measured on none of these machines."""
SENTENCE = 32
"""Assumed pieces of a sentence on each side, on which attention's FLOPs depend."""
MACHINES: Mapping[str, tuple[str, int]] = MappingProxyType(
    {
        "v5e-256": ("TPU v5e", 256),
        "v5p-128": ("TPU v5p", 64),
        "8 x H100": ("NVIDIA H100", 8),
    }
)
"""Kind and number of chips by name; the name of a v5p slice has its cores, two per chip."""
_MATRIX = 1024  # rows and columns of the measured matrix product


@dataclasses.dataclass(frozen=True)
class TrainingEstimate:
    """Cost of one training.

    Attributes:
        parameters: number of parameters of the model.
        updates: number of updates; an estimate if the length is set in epochs.
        tokens: positions of target rows in an update, padding included.
        flops: FLOPs of all updates.
        disk: bytes of the checkpoints that are kept.
    """

    parameters: int
    updates: int
    tokens: int
    flops: float
    disk: int


def estimate_training(config: Config, epoch_draws: int = 0) -> TrainingEstimate:
    """Estimate the cost of a training, with the vocabulary that its model expects.

    Args:
        config: configuration of the training.
        epoch_draws: pairs drawn in an epoch, for a length in `Train.epochs`.

    Raises:
        UserError: if the length is set in epochs and the size of an epoch is unknown.
    """
    mesh = make_mesh(Mesh(), jax.local_devices()[:1])
    learner = Learner.from_config(config, config.model.vocab_size, mesh)
    updates = estimate_updates(config, epoch_draws)
    kept = config.train.keep_last + config.train.keep_best
    if config.train.keep_every:
        kept += updates // config.train.keep_every
    return TrainingEstimate(
        parameters=count_parameters(config),
        updates=updates,
        tokens=_tokens_per_update(config),
        flops=count_update_flops(config, learner) * updates,
        disk=_checkpoint_bytes(config) * kept,
    )


def count_update_flops(config: Config, learner: Learner) -> float:
    """Count an update's FLOPs, with rows full of sentence pairs of `SENTENCE` pieces.

    Args:
        config: configuration of the training.
        learner: its learner.
    """
    pairs = _tokens_per_update(config) / SENTENCE
    views = dict.fromkeys(required_views(config), float(SENTENCE))
    return pairs * learner.train_flops(Sentence(SENTENCE, SENTENCE), views)


def _checkpoint_bytes(config: Config) -> int:
    # Only the fields that the state depends on, so that trainings of one table share the count.
    train = Train(methods=config.train.methods)
    return _state_bytes(dataclasses.replace(config, data=Data(), train=train))


@functools.cache
def _state_bytes(config: Config) -> int:
    return sum(count_state_bytes(config, config.model.vocab_size).values())


def count_parameters(config: Config) -> int:
    """Return the number of parameters of a training's model."""
    return parameter_counts(config.model)["total"]


def estimate_updates(config: Config, epoch_draws: int) -> int:
    """Return the updates of a training; epochs are of pairs of `SENTENCE` pieces, fully packed.

    Args:
        config: configuration of the training.
        epoch_draws: pairs drawn in an epoch, for a length in `Train.epochs`.

    Raises:
        UserError: as `estimate_training`.
    """
    if not config.train.epochs:
        return config.train.steps
    if not epoch_draws:
        raise UserError(
            f"Train.epochs={config.train.epochs:g}: the size of an epoch is unknown; set "
            "'sentences' of the corpus in paper.toml"
        )
    sentences = config.train.epochs * epoch_draws
    return max(1, math.ceil(sentences * SENTENCE / _tokens_per_update(config)))


def _tokens_per_update(config: Config) -> int:
    return config.data.rows * config.optimizer.accumulate * config.data.target_length


def device_hours(flops: float) -> dict[str, float]:
    """Return the hours that some FLOPs take on each machine, at `UTILIZATION` of its peak."""
    chips = {name: (chip_of(kind), count) for name, (kind, count) in MACHINES.items()}
    peaks = {name: count * chip.peak_flops for name, (chip, count) in chips.items() if chip}
    peaks |= this_machine()
    return {name: flops / (peak * UTILIZATION) / 3600 for name, peak in peaks.items()}


@functools.cache
def this_machine() -> Mapping[str, float]:
    """Return the name of this machine and its peak in FLOP/s; empty without a free device.

    The peak of an unknown kind of device, a CPU for example, is measured by a matrix product.
    """
    try:
        devices = jax.local_devices()
    except RuntimeError:  # a TPU in use by another process
        return {}
    chip = chip_of(devices[0].device_kind)
    if chip:
        name = f"this machine ({len(devices)} x {devices[0].device_kind})"
        return {name: len(devices) * chip.peak_flops}
    return {f"this machine ({devices[0].platform}, measured)": _measured_flops()}


def _measured_flops() -> float:
    """Return the FLOP/s of the default device in a product of float32 matrices."""
    square = jnp.ones((_MATRIX, _MATRIX), jnp.float32)
    multiply = jax.jit(jnp.matmul).lower(square, square).compile()
    seconds = []
    for _ in range(20):
        start = time.perf_counter()
        multiply(square, square).block_until_ready()
        seconds.append(time.perf_counter() - start)
    return 2 * _MATRIX**3 / min(seconds)


def sum_estimates(estimates: Iterable[TrainingEstimate]) -> tuple[float, int]:
    """Return the sums of FLOPs and of disk."""
    items = list(estimates)
    return sum(item.flops for item in items), sum(item.disk for item in items)
