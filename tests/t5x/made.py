"""Configuration, batch and parameters for the tests of the t5x adapters."""

from __future__ import annotations

import dataclasses

import numpy as np

from mnmt_jax.config.sections import Config, Data, Decode, Mesh, Model, Optimizer, Train
from mnmt_jax.data.converter import Converter, Example, Lengths, required_views, segments_from_rows
from mnmt_jax.data.instruction import get_instruction
from mnmt_jax.design.layouts import LAYOUTS, get_layout
from mnmt_jax.interop.t5x.feature_names import LOSS_WEIGHTS, t5x_name
from tests.unit import made_text

_FEATURES = ("inputs", "targets", "source_lang", "target_lang")


def make_config(layout: str, **changes) -> Config:
    """Return a tiny configuration; `changes` maps a section's name to its changed fields."""
    layers = (1,) * len(LAYOUTS[layout].stages)
    sections = {
        "data": Data(instruction="4", rows=8, source_length=24, target_length=24, max_segments=3),
        "model": Model(layout, layers, embed=16, mlp=24, heads=2, dropout=0.0),
        # With so large an eps Adam's step depends on the scale of the gradient.
        "optimizer": Optimizer(warmup_steps=4, initial_learning_rate=1e-2, eps=1e-2),
        "train": Train(steps=8, eval_every=4, save_every=4),
        "decode": Decode(beam_size=3, max_length=12, buckets=(16,), batch=8),
        "mesh": Mesh(),
    }
    for name, fields in changes.items():
        sections[name] = dataclasses.replace(sections[name], **fields)
    return Config(**sections)


def make_converter(config: Config) -> Converter:
    data, layout = config.data, get_layout(config.model.layout, config.model.stage_layers)
    return Converter(
        made_text.vocabulary(),
        get_instruction(data.instruction),
        layout.embedded_roles(),
        Lengths(data.source_length, data.target_length, data.max_segments),
        config.model.register_factor,
        required_views(config),
    )


def make_batch(config: Config, seed: int = 0) -> dict[str, np.ndarray]:
    """Lay out one to three random pairs per row, so that rows have different numbers of tokens."""
    rng = np.random.default_rng(seed)

    def pair() -> Example:
        sides = [rng.integers(3, 57, rng.integers(1, 6)) for _ in range(2)]
        return Example(*sides, *rng.integers(0, 3, 2).tolist())

    count = config.data.rows * config.optimizer.accumulate
    rows = [[pair() for _ in range(1 + row % 3)] for row in range(count)]
    batch = make_converter(config).batch(segments_from_rows(rows), count)
    del batch["task"]
    return batch


def as_t5x(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    named = {t5x_name(name): array for name, array in batch.items()}
    return named | {LOSS_WEIGHTS: (batch["target_segment_ids"] != 0).astype(np.int32)}


def dataset(given: list[Example]):
    """Return a tf.data.Dataset of the features of the project's tasks."""
    import tensorflow as tf

    ids = tf.TensorSpec([None], tf.int32)

    def features():
        for e in given:
            yield {
                "inputs": e.source,
                "targets": e.target,
                "source_lang": [e.source_lang],
                "target_lang": [e.target_lang],
            }

    return tf.data.Dataset.from_generator(features, output_signature=dict.fromkeys(_FEATURES, ids))
