"""The states of any layer, of tokens or averaged over a sentence, without dropout, in float32."""

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
"""Roles that hold what is translated, of which a layout has the first or both."""

StateLocations = tuple[States, ...]


def state_locations(plan: Plan, roles: Sequence[str], layers: Sequence[int] = ()) -> StateLocations:
    """Returns where the states of roles are read, role by role.

    Args:
        plan: of the model.
        roles: whose; those that the layout lacks have none.
        layers: counted from 1 through all stages, 0 before all; () is 0 and all that a role passes.

    Returns:
        Of each role every layer wanted that it passes, and after the last of a stage, if something
        follows there (with norms first a norm, adaption modules), that too, as `ended`.

    Raises:
        UserError: if no role passes a layer.
    """
    layout = plan.layout
    passed = {role: layout.layers_with(role) for role in roles if role in layout.embedded_roles()}
    legal = {0}.union(*passed.values())
    if wrong := [number for number in layers if number not in legal]:
        raise UserError(
            f"--layers: there are no {' or '.join(passed)} states after layer {wrong[0]}; choose "
            f"from {', '.join(map(str, sorted(legal)))}"
        )
    ends = dict(zip(layout.ends, plan.stages, strict=True))
    found = []
    for role, numbers in passed.items():
        for number in (0, *numbers):
            if layers and number not in layers:
                continue
            found.append(States(number, role))
            end = ends.get(number)
            last = end is plan.stages[-1] and role != layout.generated
            if end and not last and any(each.passes(role) for each in end.after):
                found.append(States(number, role, ended=True))
    return tuple(found)


def source_side_locations(places: StateLocations) -> Iterator[tuple[int, States]]:
    """Yields the places of `SOURCE_SIDE_ROLES` with their numbers among all."""
    return (
        (number, place) for number, place in enumerate(places) if place.role in SOURCE_SIDE_ROLES
    )


def location_fields(place: States) -> dict[str, Any]:
    """Returns what tells a place: its role, its layer, and whether it is past the stage's end."""
    return {"role": place.role, "layer": place.layer, "ended": place.ended}


@functools.partial(jax.jit, static_argnames=("model", "places"))
def compute_layer_states(
    params: Any, batch: Mapping[str, Array], *, model: Network, places: StateLocations
) -> list[Float[Array, "batch length embed"]]:
    """Computes the states of a batch under teacher forcing.

    Args:
        params: of the model.
        batch: from `Converter.batch`.
        model: the network; computes in what its configuration says.
        places: whose states.

    Returns:
        float32 states of each; those of padding are any.
    """
    passes = ForwardPasses(model, params, batch, reads=places)
    return [passes.read(place).astype(jnp.float32) for place in places]


@functools.partial(jax.jit, static_argnames=("model", "places"))
def mean_states(
    params: Any, batch: Mapping[str, Array], *, model: Network, places: StateLocations
) -> Float[Array, "batch places embed"]:
    """Computes the mean of a sentence's states over all positions but padding, tag and eos too.

    Source: TDO paper, appendix A, and the released code's mask; arguments as of `compute_layer_states`.
    """
    found = compute_layer_states(params, batch, model=model, places=places)
    means = []
    for place, states in zip(places, found, strict=True):
        valid = (batch[f"{place.role}_segment_ids"] != 0).astype(jnp.float32)
        counts = jnp.maximum(valid.sum(axis=1, keepdims=True), 1)
        means.append(jnp.einsum("bl,blm->bm", valid, states) / counts)
    return jnp.stack(means, axis=1)


def sentence_states(
    system: InferenceModel, every: Sequence[ForcedSentences], longest: int, places: StateLocations
) -> dict[ForcedSentences, Float[np.ndarray, "sentences places embed"]]:
    """Returns the pooled states of sentences.

    Args:
        system: the model, in float32.
        every: sentences by direction.
        longest: as in `mnmt_jax.analysis.teacher_forcing.iterate_batches`.
        places: which.
    """
    parts: dict[ForcedSentences, list[np.ndarray]] = {forced: [] for forced in every}
    for rows in iterate_batches(system, every, longest):
        found = mean_states(system.params, rows.batch, model=system.model, places=places)
        parts[rows.forced].append(np.asarray(found)[: rows.size])
    empty = np.zeros((0, len(places), system.model.config.embed), np.float32)
    return {forced: np.concatenate([empty, *own]) for forced, own in parts.items()}


def token_states(
    system: InferenceModel, every: Sequence[ForcedSentences], longest: int, places: StateLocations
) -> Iterator[tuple[ForcedBatch, list[Float[np.ndarray, "batch length embed"]]]]:
    """Yields batches with the states of their tokens; arguments as of `sentence_states`."""
    for rows in iterate_batches(system, every, longest):
        found = compute_layer_states(system.params, rows.batch, model=system.model, places=places)
        yield rows, [np.asarray(each) for each in found]
