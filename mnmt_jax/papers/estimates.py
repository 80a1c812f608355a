"""What a workflow costs before it runs: parameters, updates, FLOPs, device hours and disk."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from mnmt_jax.config.loading import load_config
from mnmt_jax.config.sections import Config
from mnmt_jax.cost.describe import describe
from mnmt_jax.data.mixtures import get_mixture
from mnmt_jax.data.published_corpora import PUBLISHED
from mnmt_jax.distributed.chips import chip_of
from mnmt_jax.papers.experiments import Experiment, gin_files
from mnmt_jax.vocabulary.language_codes import find_code

UTILIZATION = 0.4
"""Assumed share of the peak FLOP/s; measured on none of these machines."""
SENTENCE = 32
"""Assumed pieces of a sentence on each side, on which attention's FLOPs depend."""
MACHINES: Mapping[str, tuple[str, int]] = MappingProxyType(
    {
        "v5e-256": ("TPU v5e", 256),
        "v5p-128": ("TPU v5p", 128),
        "8 x H100": ("NVIDIA H100", 8),
    }
)
_BYTES_PER_PARAMETER = 12  # parameters and two moments, float32


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Cost of one training.

    Attributes:
        parameters: number of parameters of the model.
        directions: number of training directions.
        updates: number of updates.
        tokens: positions of target rows in an update, padding included.
        flops: FLOPs of all updates.
        disk: bytes of the checkpoints that are kept.
    """

    parameters: int
    directions: int
    updates: int
    tokens: int
    flops: float
    disk: int


def training_config(experiment: Experiment) -> Config:
    """Return the configuration of a training at full scale.

    A model that grows by a language is that before it: its new pieces are known after training.
    """
    data = experiment.data
    steps = [f"Train.steps={data.steps}"] if data.steps else []
    config = load_config(gin_files(experiment), [*steps, *experiment.bindings])
    mixture = experiment.sources[0].corpus if data.new_language else data.mixture
    corpus = PUBLISHED[get_mixture(mixture).corpus]
    return config.bind_languages(corpus.languages, find_code)


@functools.cache
def estimate(experiment: Experiment) -> Estimate:
    """Estimate the cost of a training at full scale, with the vocabulary that its model expects."""
    config = training_config(experiment)
    figures = describe(
        config.model,
        config.model.vocab_size,
        source_length=SENTENCE,
        target_length=SENTENCE,
        beam=1,
        optimizer=config.optimizer,
    )
    parameters = figures["parameters"]["total"]
    tokens = config.data.rows * config.optimizer.accumulate * config.data.target_length
    kept = config.train.keep_last + config.train.keep_best
    return Estimate(
        parameters=parameters,
        directions=len(get_mixture(experiment.data.mixture).directions),
        updates=config.train.steps,
        tokens=tokens,
        flops=figures["flops_per_target_token"]["train"] * float(tokens) * config.train.steps,
        disk=parameters * _BYTES_PER_PARAMETER * kept,
    )


def device_hours(flops: float) -> dict[str, float]:
    """Return the hours that some FLOPs take on each machine, at `UTILIZATION` of its peak."""
    chips = {name: (chip_of(kind), count) for name, (kind, count) in MACHINES.items()}
    return {
        name: flops / (count * chip.peak_flops * UTILIZATION) / 3600
        for name, (chip, count) in chips.items()
        if chip
    }


def total(estimates: Iterable[Estimate]) -> tuple[float, int]:
    """Return the sums of FLOPs and of disk."""
    items = list(estimates)
    return sum(item.flops for item in items), sum(item.disk for item in items)
