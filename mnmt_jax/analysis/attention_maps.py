"""Attention maps of each layer, computed from the model's queries and keys.

Source: Qu and Watanabe 2022, Figure 3, "self-attention". Its released code draws cross-attention,
averaged over heads (language-layers spec 8). Here both are drawn, and every map is labelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mnmt_jax.analysis.teacher_forcing import (
    ForcedBatch,
    ForcedSentences,
    iterate_batches,
    row_tokens,
)
from mnmt_jax.decoding.inference_model import InferenceModel
from mnmt_jax.errors import UserError
from mnmt_jax.model.attention_weights import AttentionSpec, attention_specs, attention_weights

_DIGITS = 6


def compute_attention_maps(
    inference_model: InferenceModel,
    sentence_sets: Sequence[ForcedSentences],
    max_length: int,
    layers: Sequence[int] = (),
    *,
    by_head: bool = False,
) -> dict[str, Any]:
    """Compute the attention maps of sentences under teacher forcing.

    Args:
        inference_model: the model, in float32.
        sentence_sets: sentences by direction.
        max_length: as in `mnmt_jax.analysis.teacher_forcing.iterate_batches`.
        layers: layers to include, counted from 1; () is all.
        by_head: return maps [heads, query, key] instead of their mean over heads.

    Returns:
        A JSON-ready dict with `directions`. Each has its `sentences` with `tokens` by role and
        `maps`.

    Raises:
        UserError: if a layer does not exist.
    """
    model = inference_model.model
    if unknown := [number for number in layers if number > model.layout.layers]:
        raise UserError(f"--layers: the model has {model.layout.layers} layers, not {unknown[0]}")
    specs = tuple(
        spec for spec in attention_specs(model.plan) if not layers or spec.layer in layers
    )
    sentences: dict[ForcedSentences, list[dict[str, Any]]] = {
        forced: [] for forced in sentence_sets
    }
    for rows in iterate_batches(inference_model, sentence_sets, max_length):
        batch_weights = attention_weights(
            inference_model.params, rows.batch, model=model, specs=specs
        )
        weights = [np.asarray(layer_weights, np.float64) for layer_weights in batch_weights]
        sentences[rows.forced] += [
            _sentence_maps(
                inference_model,
                rows,
                row,
                [layer_weights[row] for layer_weights in weights],
                specs,
                by_head,
            )
            for row in range(rows.size)
        ]
    return {
        "heads": model.config.heads,
        "by_head": by_head,
        "directions": [
            {
                "source": forced.direction[0],
                "target": forced.direction[1],
                "sentences": forced_sentences,
            }
            for forced, forced_sentences in sentences.items()
        ],
    }


def _sentence_maps(
    inference_model: InferenceModel,
    rows: ForcedBatch,
    row: int,
    weights: Sequence[np.ndarray],
    specs: Sequence[AttentionSpec],
    by_head: bool,
) -> dict[str, Any]:
    """Return the JSON-ready dict of a row without padding."""
    valid = {
        role: rows.batch[f"{role}_segment_ids"][row] != 0
        for role in inference_model.model.layout.embedded_roles()
    }
    maps = []
    for spec, heads in zip(specs, weights, strict=True):
        columns = np.concatenate([valid[role] for role in spec.keys])
        valid_weights = heads[:, valid[spec.query]][:, :, columns]
        shown = valid_weights if by_head else valid_weights.mean(axis=0)
        maps.append(
            {
                "layer": spec.layer,
                "attention": spec.title,
                "query": spec.query,
                "keys": spec.keys,
                "weights": np.round(shown, _DIGITS).tolist(),
            }
        )
    number = rows.first + row
    return {
        "source": rows.forced.sources[number],
        "target": rows.forced.targets[number],
        "tokens": row_tokens(inference_model, rows, row),
        "maps": maps,
    }
