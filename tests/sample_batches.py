"""Batches and parameters for tests, made without the project's data pipeline."""

import math

import numpy as np

from mnmt_jax.config.sections import Model
from mnmt_jax.design.layout import Layout
from mnmt_jax.design.layouts import LAYOUTS
from mnmt_jax.model.network import build_model
from tests.random_params import MILD, random_params

VOCAB = 17
FIRST_TAG = 15


def stage_layers(name: str) -> tuple[int, ...]:
    """Return two layers per stage: enough for information to flow source -> register -> target."""
    return (2,) * len(LAYOUTS[name].stages)


def small_config(name: str, **changes) -> Model:
    defaults = dict(embed=16, mlp=24, heads=2, dropout=0.0, stage_layers=stage_layers(name))
    return Model(layout=name, **(defaults | changes))


def spans_of(layout: Layout, source: list[int], target: list[int], tag: int, factor: float = 1.0):
    """Return a pair's tokens per role: tag-first source, tag copies as registers, eos trigger."""
    source_row = [tag, *source, 1]
    target_row = [1, *target]
    spans = {"source": source_row, "target": target_row}
    spans["register"] = [tag] * math.ceil(len(source_row) / factor)
    spans["trigger"] = target_row[:1]
    return {role: spans[role] for role in layout.embedded_roles()}


def pack(rows: list[list[dict[str, list[int]]]], lengths: dict[str, int]) -> dict[str, np.ndarray]:
    """Lay examples of each row side by side, role by role, padded to `lengths`."""
    batch = {}
    for role, length in lengths.items():
        arrays = {
            kind: np.zeros((len(rows), length), np.int32)
            for kind in ("tokens", "positions", "segment_ids")
        }
        for number, examples in enumerate(rows):
            start = 0
            for segment, spans in enumerate(examples, start=1):
                end = start + len(spans[role])
                assert end <= length
                arrays["tokens"][number, start:end] = spans[role]
                arrays["positions"][number, start:end] = np.arange(end - start)
                arrays["segment_ids"][number, start:end] = segment
                start = end
        batch |= {f"{role}_{kind}": array for kind, array in arrays.items()}
    return batch


def random_pairs(count: int, seed: int = 0) -> list[tuple[list[int], list[int], int]]:
    rng = np.random.default_rng(seed)
    return [
        (
            rng.integers(3, FIRST_TAG, size=rng.integers(1, 6)).tolist(),
            rng.integers(3, FIRST_TAG, size=rng.integers(1, 6)).tolist(),
            int(rng.integers(FIRST_TAG, VOCAB)),
        )
        for _ in range(count)
    ]


def unpacked(
    layout: Layout, pairs, factor: float = 1.0, pad: int = 0, languages: bool = False
) -> dict[str, np.ndarray]:
    """Lay one pair in each row; `languages` adds those of a vocabulary of two.

    The target's language is that of the pair's tag, and the source's is the other one.
    """
    rows = [[spans_of(layout, *pair, factor)] for pair in pairs]
    lengths = {r: max(len(row[0][r]) for row in rows) + pad for r in layout.embedded_roles()}
    batch = pack(rows, lengths)
    if languages:
        target = np.array([[tag - FIRST_TAG] for _, _, tag in pairs], np.int32)
        batch |= {"source_lang": 1 - target, "target_lang": target}
    return batch


def make(config: Model, seed: int = 0):
    """Return the model and random parameters of the scale of its initialisers."""
    model = build_model(config, VOCAB)
    return model, random_params(model, seed, MILD)
