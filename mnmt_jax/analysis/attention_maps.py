"""Which keys the queries of each layer attend to, from the model's own queries and keys.

Source: third paper, Figure 3, "self-attention". Its released code draws cross-attention, averaged
over heads (language-layers spec 8): here both are, and every map says which it is.
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
    """One attention of one role.

    Attributes:
        layer: counted from 1 through all stages.
        title: which attention it is.
        query: role of the queries.
        keys: roles of the keys, in the order of the columns.
        sees: what the query role sees of each.
        queries_tap: what hands the queries out.
        key_taps: what hands the keys of each role out.
    """

    layer: int
    title: str
    query: str
    keys: tuple[str, ...]
    sees: tuple[Sees, ...]
    query_intermediate: Intermediate
    key_intermediates: tuple[Intermediate, ...]


def attention_specs(plan: Plan) -> tuple[AttentionSpec, ...]:
    """Returns every attention of every role, layer by layer."""
    found: list[AttentionSpec] = []
    for number, (stage, layer) in enumerate(plan.layers(), start=1):
        side = _side(plan.layout, stage)
        for each in layer:
            roles = [role for role in stage.roles if each.passes(role)]
            if isinstance(each.kind, SelfAttention):
                found += (_self_attention(number, side, stage, each, role) for role in roles)
            elif isinstance(each.kind, CrossAttention):
                edges = [(role, stage.memory_role(role)) for role in roles]
                found += (_cross_attention(number, side, each, *e) for e in edges if e[1])
    return tuple(found)


@functools.partial(jax.jit, static_argnames=("model", "places"))
def attention_weights(
    params: Any, batch: Mapping[str, Array], *, model: Network, places: tuple[AttentionSpec, ...]
) -> list[Float[Array, "batch heads q k"]]:
    """Computes attention weights by the model's queries and keys and the layout's table.

    Args:
        params: of the model.
        batch: from `Converter.batch`.
        model: the network.
        places: whose weights.

    Returns:
        float32 weights of each; a query of padding has any.
    """
    reads = [tap for each in places for tap in (each.query_intermediate, *each.key_intermediates)]
    passes = ForwardPasses(model, params, batch, reads=reads)
    found = []
    for each in places:
        queries = passes.read(each.query_intermediate)
        keys = jnp.concatenate([passes.read(tap) for tap in each.key_intermediates], axis=1)
        asking = batch[f"{each.query}_segment_ids"]
        masks = [
            pair_mask(sees, asking, batch[f"{role}_segment_ids"])
            for sees, role in zip(each.sees, each.keys, strict=True)
        ]
        logits = jnp.einsum("bqhd,bkhd->bhqk", queries, keys, preferred_element_type=jnp.float32)
        found.append(masked_softmax(logits, jnp.concatenate(masks, axis=3)))
    return found


def compute_attention_maps(
    system: InferenceModel,
    every: Sequence[ForcedSentences],
    longest: int,
    layers: Sequence[int] = (),
    *,
    by_head: bool = False,
) -> dict[str, Any]:
    """Draws the attention of sentences under teacher forcing.

    Args:
        system: the model, in float32.
        every: sentences by direction.
        longest: as in `mnmt_jax.analysis.teacher_forcing.iterate_batches`.
        layers: to keep to, counted from 1; () is all.
        by_head: keep the heads, [heads, query, key] each, in the place of their average.

    Returns:
        Facts: `directions` with `sentences`, each with its `tokens` by role and `maps`.

    Raises:
        UserError: if there is no such layer.
    """
    model = system.model
    if wrong := [number for number in layers if number > model.layout.layers]:
        raise UserError(f"--layers: the model has {model.layout.layers} layers, not {wrong[0]}")
    places = tuple(p for p in attention_specs(model.plan) if not layers or p.layer in layers)
    sentences: dict[ForcedSentences, list[dict[str, Any]]] = {forced: [] for forced in every}
    for rows in iterate_batches(system, every, longest):
        found = attention_weights(system.params, rows.batch, model=model, places=places)
        weights = [np.asarray(each, np.float64) for each in found]
        sentences[rows.forced] += [
            _sentence(system, rows, row, [each[row] for each in weights], places, by_head)
            for row in range(rows.size)
        ]
    return {
        "heads": model.config.heads,
        "by_head": by_head,
        "directions": [
            {"source": forced.direction[0], "target": forced.direction[1], "sentences": own}
            for forced, own in sentences.items()
        ],
    }


def _sentence(
    system: InferenceModel,
    rows: ForcedBatch,
    row: int,
    weights: Sequence[np.ndarray],
    places: Sequence[AttentionSpec],
    by_head: bool,
) -> dict[str, Any]:
    """Returns the facts of a row, padding left out."""
    valid = {
        role: rows.batch[f"{role}_segment_ids"][row] != 0
        for role in system.model.layout.embedded_roles()
    }
    maps = []
    for each, heads in zip(places, weights, strict=True):
        columns = np.concatenate([valid[role] for role in each.keys])
        kept = heads[:, valid[each.query]][:, :, columns]
        shown = kept if by_head else kept.mean(axis=0)
        maps.append(
            {
                "layer": each.layer,
                "attention": each.title,
                "query": each.query,
                "keys": each.keys,
                "weights": np.round(shown, _DIGITS).tolist(),
            }
        )
    number = rows.first + row
    return {
        "source": rows.forced.sources[number],
        "target": rows.forced.targets[number],
        "tokens": row_tokens(system, rows, row),
        "maps": maps,
    }


def _side(layout: Layout, stage: Stage) -> str:
    """Returns `encoder ` or `decoder ` where a stage is either."""
    read = {role for each in layout.stages for _, role in each.memory}
    if stage.memory:
        return "decoder "
    return "encoder " if read & set(stage.roles) else ""


def _self_attention(
    number: int, side: str, stage: Stage, each: Sublayer, role: str
) -> AttentionSpec:
    keys, path = stage.key_roles(role), f"layer_{number - 1}/{each.name}"
    return AttentionSpec(
        number,
        f"{side}self-attention",
        role,
        keys,
        tuple(stage.visibility(role, key) for key in keys),
        Intermediate(f"{path}/{QUERIES}", role),
        tuple(Intermediate(f"{path}/{KEYS}", key) for key in keys),
    )


def _cross_attention(number: int, side: str, each: Sublayer, role: str, read: Any) -> AttentionSpec:
    path = f"layer_{number - 1}/{each.name}"
    return AttentionSpec(
        number,
        f"{side}cross-attention",
        role,
        (read,),
        (Sees.FULL,),
        Intermediate(f"{path}/{QUERIES}", role),
        (Intermediate(f"{path}/{KEYS}", role),),
    )
