"""Attention maps of each layer, computed from the model's queries and keys.

Source: Qu and Watanabe 2022, Figure 3, "self-attention". Its released code draws cross-attention,
averaged over heads (language-layers spec 8). Here both are drawn, and every map is labelled.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mnmt_jax.analysis.teacher_forcing import (
    ForcedBatch,
    ForcedSentences,
    iterate_batches,
    row_tokens,
)
from mnmt_jax.decoding.inference_model import InferenceModel
from mnmt_jax.design.layout import Layout, Sees, Stage
from mnmt_jax.design.objective import Intermediate
from mnmt_jax.design.plan import Plan, Sublayer
from mnmt_jax.errors import UserError
from mnmt_jax.model.attention.core import masked_softmax, pair_mask
from mnmt_jax.model.forward_passes import ForwardPasses
from mnmt_jax.model.intermediates import KEYS, QUERIES
from mnmt_jax.model.network import Network
from mnmt_jax.model.sublayers import CrossAttention, SelfAttention

_DIGITS = 6


@dataclasses.dataclass(frozen=True)
class AttentionSpec:
    """An attention sublayer of a query role.

    Attributes:
        layer: layer number, counted from 1 through all stages.
        title: kind of attention, e.g. `encoder self-attention`.
        query: role of the queries.
        keys: roles of the keys, in the order of the columns.
        sees: visibility of each key role to the query role.
        query_intermediate: intermediate that holds the queries.
        key_intermediates: intermediates that hold the keys, one per key role.
    """

    layer: int
    title: str
    query: str
    keys: tuple[str, ...]
    sees: tuple[Sees, ...]
    query_intermediate: Intermediate
    key_intermediates: tuple[Intermediate, ...]


def attention_specs(plan: Plan) -> tuple[AttentionSpec, ...]:
    """Return the attention of every role, layer by layer."""
    specs: list[AttentionSpec] = []
    for number, (stage, layer) in enumerate(plan.layers(), start=1):
        side = _stage_side(plan.layout, stage)
        for sublayer in layer:
            roles = [role for role in stage.roles if sublayer.passes(role)]
            if isinstance(sublayer.kind, SelfAttention):
                specs += (
                    _self_attention_spec(number, side, stage, sublayer, role) for role in roles
                )
            elif isinstance(sublayer.kind, CrossAttention):
                edges = [(role, stage.memory_role(role)) for role in roles]
                specs += (
                    _cross_attention_spec(number, side, sublayer, *edge)
                    for edge in edges
                    if edge[1]
                )
    return tuple(specs)


@functools.partial(jax.jit, static_argnames=("model", "specs"))
def attention_weights(
    params: Any, batch: Mapping[str, Array], *, model: Network, specs: tuple[AttentionSpec, ...]
) -> list[Float[Array, "batch heads q k"]]:
    """Compute attention weights from the model's queries and keys and the layout's visibility.

    Args:
        params: parameters of the model.
        batch: from `Converter.batch`.
        model: the network.
        specs: attentions to compute.

    Returns:
        float32 weights per attention; rows of padding queries are arbitrary.
    """
    reads = [
        intermediate
        for spec in specs
        for intermediate in (spec.query_intermediate, *spec.key_intermediates)
    ]
    passes = ForwardPasses(model, params, batch, requests=reads)
    weights = []
    for spec in specs:
        queries = passes.read(spec.query_intermediate)
        keys = jnp.concatenate(
            [passes.read(intermediate) for intermediate in spec.key_intermediates], axis=1
        )
        query_segments = batch[f"{spec.query}_segment_ids"]
        masks = [
            pair_mask(sees, query_segments, batch[f"{role}_segment_ids"])
            for sees, role in zip(spec.sees, spec.keys, strict=True)
        ]
        logits = jnp.einsum("bqhd,bkhd->bhqk", queries, keys, preferred_element_type=jnp.float32)
        weights.append(masked_softmax(logits, jnp.concatenate(masks, axis=3)))
    return weights


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


def _stage_side(layout: Layout, stage: Stage) -> str:
    """Return `encoder ` or `decoder ` if the stage is one of them, else an empty string."""
    memory_roles = {role for other_stage in layout.stages for _, role in other_stage.memory}
    if stage.memory:
        return "decoder "
    return "encoder " if memory_roles & set(stage.roles) else ""


def _self_attention_spec(
    number: int, side: str, stage: Stage, sublayer: Sublayer, role: str
) -> AttentionSpec:
    keys, path = stage.key_roles(role), f"layer_{number - 1}/{sublayer.name}"
    return AttentionSpec(
        number,
        f"{side}self-attention",
        role,
        keys,
        tuple(stage.visibility(role, key) for key in keys),
        Intermediate(f"{path}/{QUERIES}", role),
        tuple(Intermediate(f"{path}/{KEYS}", key) for key in keys),
    )


def _cross_attention_spec(
    number: int, side: str, sublayer: Sublayer, role: str, key_role: Any
) -> AttentionSpec:
    path = f"layer_{number - 1}/{sublayer.name}"
    return AttentionSpec(
        number,
        f"{side}cross-attention",
        role,
        (key_role,),
        (Sees.FULL,),
        Intermediate(f"{path}/{QUERIES}", role),
        (Intermediate(f"{path}/{KEYS}", role),),
    )
