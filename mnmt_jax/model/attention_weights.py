"""Attention weights of each layer, computed from the model's queries and keys."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mnmt_jax.design.layout import Layout, Sees, Stage
from mnmt_jax.design.objective import Intermediate
from mnmt_jax.design.plan import Plan, Sublayer
from mnmt_jax.model.attention.core import masked_softmax, pair_mask
from mnmt_jax.model.forward_passes import ForwardPasses
from mnmt_jax.model.intermediates import KEYS, QUERIES
from mnmt_jax.model.network import Network
from mnmt_jax.model.sublayers import CrossAttention, SelfAttention


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
