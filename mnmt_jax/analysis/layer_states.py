"""Float32 layer states under teacher forcing, without dropout: per token or per sentence mean."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mnmt_jax.analysis.teacher_forcing import ForcedBatch, ForcedSentences, iterate_batches
from mnmt_jax.decoding.inference_model import InferenceModel
from mnmt_jax.design.layouts import REGISTER, SOURCE
from mnmt_jax.design.objective import States
from mnmt_jax.design.plan import Plan
from mnmt_jax.errors import UserError
from mnmt_jax.model.forward_passes import ForwardPasses
from mnmt_jax.model.network import Network

SOURCE_SIDE_ROLES = (SOURCE, REGISTER)
"""Roles that represent the source text. A layout has the first or both."""

StateLocations = tuple[States, ...]


def state_locations(plan: Plan, roles: Sequence[str], layers: Sequence[int] = ()) -> StateLocations:
    """Return the locations of the roles' states, role by role.

    Args:
        plan: plan of the model.
        roles: roles to read; roles that the layout lacks are skipped.
        layers: layer numbers, counted from 1 through all stages, 0 before the first layer; () is 0
            and all layers that a role passes.

    Returns:
        For each role every requested layer that it passes. If modules follow the last layer of a
        stage (the norm of a pre-norm model, adaption modules), the states after them too, as
        `ended`.

    Raises:
        UserError: if no role passes a layer.
    """
    layout = plan.layout
    layers_by_role = {
        role: layout.layers_with(role) for role in roles if role in layout.embedded_roles()
    }
    valid_layers = {0}.union(*layers_by_role.values())
    if unknown := [number for number in layers if number not in valid_layers]:
        raise UserError(
            f"--layers: there are no {' or '.join(layers_by_role)} states after layer "
            f"{unknown[0]}; choose from {', '.join(map(str, sorted(valid_layers)))}"
        )
    ends = dict(zip(layout.last_layers, plan.stages, strict=True))
    locations = []
    for role, numbers in layers_by_role.items():
        for number in (0, *numbers):
            if layers and number not in layers:
                continue
            locations.append(States(number, role))
            ending_stage = ends.get(number)
            is_final = ending_stage is plan.stages[-1] and role != layout.generated
            if (
                ending_stage
                and not is_final
                and any(module.passes(role) for module in ending_stage.after)
            ):
                locations.append(States(number, role, ended=True))
    return tuple(locations)


def source_side_locations(locations: StateLocations) -> Iterator[tuple[int, States]]:
    """Yield the locations of `SOURCE_SIDE_ROLES` with their index among all locations."""
    return (
        (index, location)
        for index, location in enumerate(locations)
        if location.role in SOURCE_SIDE_ROLES
    )


def location_fields(location: States) -> dict[str, Any]:
    """Return what identifies a location: role, layer, and whether its stage has ended."""
    return {"role": location.role, "layer": location.layer, "ended": location.ended}


@functools.partial(jax.jit, static_argnames=("model", "locations"))
def compute_layer_states(
    params: Any, batch: Mapping[str, Array], *, model: Network, locations: StateLocations
) -> list[Float[Array, "batch length embed"]]:
    """Compute the states of a batch under teacher forcing.

    Args:
        params: parameters of the model.
        batch: from `Converter.batch`.
        model: the network; computes in the dtype of its configuration.
        locations: locations of the states.

    Returns:
        float32 states per location; those of padding are arbitrary.
    """
    passes = ForwardPasses(model, params, batch, requests=locations)
    return [passes.read(location).astype(jnp.float32) for location in locations]


@functools.partial(jax.jit, static_argnames=("model", "locations"))
def mean_states(
    params: Any, batch: Mapping[str, Array], *, model: Network, locations: StateLocations
) -> Float[Array, "batch locations embed"]:
    """Compute the mean of a sentence's states over all non-padding positions, tag and eos included.

    Source: TDO paper, appendix A, and the mask of its released code. Arguments as in
    `compute_layer_states`.
    """
    all_states = compute_layer_states(params, batch, model=model, locations=locations)
    means = []
    for location, states in zip(locations, all_states, strict=True):
        valid = (batch[f"{location.role}_segment_ids"] != 0).astype(jnp.float32)
        counts = jnp.maximum(valid.sum(axis=1, keepdims=True), 1)
        means.append(jnp.einsum("bl,blm->bm", valid, states) / counts)
    return jnp.stack(means, axis=1)


def sentence_states(
    inference_model: InferenceModel,
    sentence_sets: Sequence[ForcedSentences],
    max_length: int,
    locations: StateLocations,
) -> dict[ForcedSentences, Float[np.ndarray, "sentences places embed"]]:
    """Return the mean states of sentences.

    Args:
        inference_model: the model, in float32.
        sentence_sets: sentences by direction.
        max_length: as in `mnmt_jax.analysis.teacher_forcing.iterate_batches`.
        locations: locations of the states.
    """
    means_by_set: dict[ForcedSentences, list[np.ndarray]] = {forced: [] for forced in sentence_sets}
    for rows in iterate_batches(inference_model, sentence_sets, max_length):
        means = mean_states(
            inference_model.params, rows.batch, model=inference_model.model, locations=locations
        )
        means_by_set[rows.forced].append(np.asarray(means)[: rows.size])
    empty = np.zeros((0, len(locations), inference_model.model.config.embed), np.float32)
    return {
        forced: np.concatenate([empty, *batch_means])
        for forced, batch_means in means_by_set.items()
    }


def token_states(
    inference_model: InferenceModel,
    sentence_sets: Sequence[ForcedSentences],
    max_length: int,
    locations: StateLocations,
) -> Iterator[tuple[ForcedBatch, list[Float[np.ndarray, "batch length embed"]]]]:
    """Yield batches with the states of their tokens; arguments as in `sentence_states`."""
    for rows in iterate_batches(inference_model, sentence_sets, max_length):
        all_states = compute_layer_states(
            inference_model.params, rows.batch, model=inference_model.model, locations=locations
        )
        yield rows, [np.asarray(states) for states in all_states]
