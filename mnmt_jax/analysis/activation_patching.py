"""Activation patching: a forward pass with some activations of another pass.

Source: Vig et al. 2020, "Investigating Gender Bias in Language Models Using Causal Mediation
Analysis"; Meng et al. 2022, "Locating and Editing Factual Associations in GPT".
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from mnmt_jax.design.generated_batch import Batch
from mnmt_jax.design.layout import Layout
from mnmt_jax.design.plan import Plan
from mnmt_jax.model.block import Block
from mnmt_jax.model.intermediates import INTERMEDIATES
from mnmt_jax.model.network import Network
from mnmt_jax.model.sublayers import Attention


class AttentionSublayer(NamedTuple):
    """An attention sublayer: its layer, counted from 1 through all stages, and its name."""

    layer: int
    attention: str


class StateSite(NamedTuple):
    """States of a role after a layer; layer 0 is the embedding."""

    layer: int
    role: str


class HeadOutputs(NamedTuple):
    """Outputs of the heads of an attention sublayer for the queries of a role."""

    attention: AttentionSublayer
    role: str


Site = StateSite | HeadOutputs
Edit = Callable[[Site, Array], Array]


class Patch(NamedTuple):
    """The activations to replace, for all positions of a role.

    Attributes:
        heads: attention -> whether to replace each head, in all roles.
        states: site -> whether to replace the states that the next layer reads.
    """

    heads: dict[AttentionSublayer, Bool[Array, "*patches heads"]]
    states: dict[StateSite, Bool[Array, "*patches"]]


class PatchedLogProbs(NamedTuple):
    """Log-probabilities of the first target token under two batches and their mixtures.

    Attributes:
        source: with the batch whose activations are copied.
        base: with the batch into which they are copied.
        patched: with the base batch and each patch.
    """

    source: Float[Array, " rows"]
    base: Float[Array, " rows"]
    patched: Float[Array, "patches rows"]


def attention_sublayers(plan: Plan) -> tuple[AttentionSublayer, ...]:
    """Return the attention sublayers, layer by layer."""
    return tuple(
        AttentionSublayer(number, sublayer.name)
        for number, (_, layer) in enumerate(plan.layers(), start=1)
        for sublayer in layer
        if isinstance(sublayer.kind, Attention)
    )


def state_sites(layout: Layout) -> tuple[StateSite, ...]:
    """Return the states that a layer reads, role by role."""
    return tuple(
        StateSite(layer - 1, role)
        for role in layout.embedded_roles()
        for layer in layout.layers_with(role)
    )


def run_with_activations(
    model: Network, params: Any, batch: Batch, position: int = 0, edit: Edit | None = None
) -> tuple[Float[Array, " rows"], dict[Site, Array]]:
    """Run the model, and record or edit its activations.

    Args:
        model: the network.
        params: its parameters.
        batch: from `Converter.batch`, one sentence per row.
        position: position of the first target token; 1 behind a tag that is a label.
        edit: returns the value to use at a site instead of the computed one; None changes nothing.

    Returns:
        The log-probability of the token at `position`, and the values before the edit by site.
    """
    activations: dict[Site, Array] = {}

    def visit(site: Site, value: Array) -> Array:
        activations[site] = value
        return value if edit is None else edit(site, value)

    target = model.layout.generated
    with nn.intercept_methods(functools.partial(_visit_method, visit)):
        logits, _ = model.apply(
            {"params": params},
            batch,
            target_indices=jnp.full((batch[f"{target}_tokens"].shape[0], 1), position),
            method="logits",
            mutable=[INTERMEDIATES],  # runs every layer under its name
        )
    labels = batch[f"{target}_labels"][:, position, None]
    log_probs = jnp.take_along_axis(jax.nn.log_softmax(logits[:, 0]), labels, axis=1)
    return log_probs[:, 0], activations


def _visit_method(
    visit: Edit,
    method: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    context: nn.module.InterceptorContext,
) -> Any:
    """Visit the states that a layer reads and the outputs of attention heads."""
    module: Any = context.module
    if isinstance(module, Block) and context.method_name == "__call__":
        layer = _layer_number(module.path[-1])
        spans, *others = args
        visited = {role: visit(StateSite(layer - 1, role), spans[role]) for role in spans}
        return method(visited, *others, **kwargs)
    output = method(*args, **kwargs)
    if isinstance(module, Attention) and context.method_name == "read":
        layer_name, name = module.path[-2:]
        sublayer = AttentionSublayer(_layer_number(layer_name), name)
        heads, keys_values = output
        edited = {role: visit(HeadOutputs(sublayer, role), heads[role]) for role in heads}
        return edited, keys_values
    return output


def _layer_number(name: str) -> int:
    """Return the number of a module `layer_i`, counted from 1."""
    return int(name.removeprefix("layer_")) + 1


@functools.partial(jax.jit, static_argnames=("model", "position"))
def patched_log_probs(
    params: Any, source: Batch, base: Batch, patches: Patch, *, model: Network, position: int
) -> tuple[PatchedLogProbs, dict[HeadOutputs, Array]]:
    """Copy activations from one batch into the pass over another.

    Args:
        params: parameters of the model.
        source: batch whose activations are copied.
        base: batch into which they are copied, with the same target and spans of the same lengths.
        patches: patches along the first axis of each array.
        model: the network.
        position: see `run_with_activations`.

    Returns:
        Log-probabilities of the target, and the outputs of all heads for `source`.
    """
    source_log_probs, copied = run_with_activations(model, params, source, position)
    base_log_probs, _ = run_with_activations(model, params, base, position)

    def patched(patch: Patch) -> Array:
        def edit(site: Site, value: Array) -> Array:
            if isinstance(site, HeadOutputs):
                return jnp.where(patch.heads[site.attention][:, None], copied[site], value)
            return jnp.where(patch.states[site], copied[site], value)

        return run_with_activations(model, params, base, position, edit)[0]

    by_patch = jax.lax.map(patched, patches)
    heads = {site: copied[site] for site in copied if isinstance(site, HeadOutputs)}
    return PatchedLogProbs(source_log_probs, base_log_probs, by_patch), heads
