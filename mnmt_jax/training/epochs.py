"""Training length in epochs, converted to updates.

One epoch is as many draws from the mixture as show each pair of the largest task once: fairseq's
default virtual size. With `Data.temperature=1` each pair is drawn about once. A higher temperature
draws pairs of smaller tasks more often, and the epoch grows, up to 1.5 times the number of pairs.
Draws of pairs that are longer than a row count. The updates of an epoch follow from packing the
drawn pairs into rows, so the lengths in the cache determine them before training.
"""

from __future__ import annotations

import dataclasses

from mnmt_jax.config.sections import Config
from mnmt_jax.data.cache import TokenCache
from mnmt_jax.data.converter import BatchExtras
from mnmt_jax.data.input_pipeline import Pipeline
from mnmt_jax.design.layouts import get_layout
from mnmt_jax.errors import UserError, join_names


def convert_epochs(config: Config, cache: TokenCache) -> Config:
    """Return the configuration with `Train.steps` instead of `Train.epochs`, if epochs are set.

    Args:
        config: configuration of the run.
        cache: its token cache.
    """
    if not config.train.epochs:
        return config
    steps = count_updates(config, cache, config.train.epochs)
    return dataclasses.replace(
        config, train=dataclasses.replace(config.train, steps=steps, epochs=0.0)
    )


def count_updates(config: Config, cache: TokenCache, epochs: float) -> int:
    """Return the number of updates of some epochs, at least 1.

    Args:
        config: configuration of the run; its tasks, packing and seed determine the batches.
        cache: its token cache.
        epochs: number of epochs.

    Raises:
        UserError: if the weights of tasks change during the training.
    """
    pipeline = _pipeline(config, cache)
    if pipeline.new_weights:
        raise UserError(
            "Train.epochs: passes over the data have no length while Data.weights changes; set "
            "Train.steps"
        )
    batches = pipeline.count_batches(max(1, round(epochs * pipeline.epoch_examples)))
    return max(1, -(-batches // config.optimizer.accumulate))


def describe_epochs(epochs: float, draws: int, steps: int) -> str:
    """Describe the length of a training in epochs; empty if it is set in updates.

    Args:
        epochs: `Train.epochs` as it was set.
        draws: pairs drawn in an epoch.
        steps: updates of all epochs.
    """
    return f"Train.epochs={epochs:g} of {draws:,} pairs: {steps:,} updates" if epochs else ""


def describe_new_weights(pipeline: Pipeline, config: Config) -> str:
    """Describe when the weights of tasks change; empty if they do not.

    Args:
        pipeline: pipeline of the run.
        config: configuration of the run.
    """
    changes = []
    for pairs in pipeline.new_weights:
        update = pipeline.count_batches(pairs) // config.optimizer.accumulate
        end = ", after the last one" if update >= config.train.steps else ""
        changes.append(f"pair {pairs:,} (about update {update:,}{end})")
    return f"Data.weights changes at {join_names(changes)}" if changes else ""


def _pipeline(config: Config, cache: TokenCache) -> Pipeline:
    return Pipeline(
        cache,
        get_layout(config.model.layout, config.model.stage_layers),
        config.data,
        extras=BatchExtras.of(config),
        seed=config.train.seed,
    )
