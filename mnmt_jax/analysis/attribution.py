"""Attribution of a block's output to the shared feed-forward and the language branch.

The attributed function of each target position is f(x) = sum_d (FFN(x) + t LSL(x))_d, where x is
the input of the block. The path goes from zero to x. Integrals are Gauss-Legendre sums.

Source: Qu and Watanabe 2022, section 5.4, Figure 5. It names Captum but neither f nor the path;
that f is the sum over dimensions is our reading (language-layers spec 8). Integrated gradients:
Sundararajan et al. 2017, equation 1. Conductance: Dhamdhere et al. 2019, equation 2.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mnmt_jax.analysis.branches import BranchLayer, branch_layers
from mnmt_jax.analysis.defaults import NODES
from mnmt_jax.analysis.teacher_forcing import (
    ForcedBatch,
    ForcedSentences,
    iterate_batches,
    row_tokens,
)
from mnmt_jax.decoding.inference_model import InferenceModel
from mnmt_jax.design.objective import Intermediate
from mnmt_jax.errors import UserError
from mnmt_jax.model.forward_passes import ForwardPasses
from mnmt_jax.model.intermediates import BRANCH_INPUT
from mnmt_jax.model.network import Network

COMPONENT_OUTPUTS = ("ffn1", "ffn2", "lsl1", "lsl2")
"""Layer outputs: of the first and second linear map of the shared feed-forward and the branch."""

States = Float[Array, "tokens embed"]
Units = Float[Array, "tokens units"]
PerToken = Float[Array, " tokens"]


def gauss_legendre_nodes(
    count: int = NODES,
) -> tuple[Float[Array, " nodes"], Float[Array, " nodes"]]:
    """Return nodes and weights of Gauss-Legendre quadrature from 0 to 1."""
    points, weights = np.polynomial.legendre.leggauss(count)
    return jnp.asarray((1 + points) / 2, jnp.float32), jnp.asarray(weights / 2, jnp.float32)


def integrated_gradients(
    function: Callable[[States], PerToken], states: States, nodes: int = NODES
) -> States:
    """Attribute the difference of a function between the states and zero to the states' elements.

    Args:
        function: function of the states that treats each token independently.
        states: end of the path.
        nodes: number of quadrature nodes.
    """
    gradient = jax.grad(lambda inputs: function(inputs).sum())

    def step(total: Array, node: tuple[Array, Array]) -> tuple[Array, None]:
        point, weight = node
        return total + weight * gradient(point * states), None

    total, _ = jax.lax.scan(step, jnp.zeros_like(states), gauss_legendre_nodes(nodes))
    return states * total


def conductance(
    inner: Callable[[States], Units],
    outer: Callable[[Units], PerToken],
    states: States,
    nodes: int = NODES,
) -> Units:
    """Attribute the difference of a function between the states and zero to the units of a layer.

    Args:
        inner: maps states to units.
        outer: maps units to the part of the function that depends on them.
        states: end of the path.
        nodes: number of quadrature nodes.

    Returns:
        The integral of d outer / d unit * d unit along the path.
    """
    gradient = jax.grad(lambda units: outer(units).sum())

    def step(total: Array, node: tuple[Array, Array]) -> tuple[Array, None]:
        point, weight = node
        units, units_tangent = jax.jvp(inner, (point * states,), (states,))
        return total + weight * gradient(units) * units_tangent, None

    shape = jax.eval_shape(inner, states)
    total, _ = jax.lax.scan(step, jnp.zeros(shape.shape, shape.dtype), gauss_legendre_nodes(nodes))
    return total


class BranchedBlock:
    """The components of a layer's block that attribution distinguishes.

    Args:
        model: the network.
        params: its parameters.
        layer: the layer with branches.
        slot: index of the language's branch; negative if it has none.
    """

    def __init__(self, model: Network, params: Any, layer: BranchLayer, slot: Array) -> None:
        self._model, self._params, self._layer = model, params, layer
        branch = params[layer.path[0]][layer.path[1]]["branch"]
        index = jnp.maximum(slot, 0)
        self._branch = {
            name: (branch[name]["kernel"][index], branch[name]["bias"][index])
            for name in ("first", "second")
        }
        self.scale = jnp.where(slot >= 0, branch["scale"][index], 0.0)

    def inner(self) -> dict[str, Callable[[States], Units]]:
        """Return functions from states to each of `COMPONENT_OUTPUTS`, before an activation."""
        ffn1, lsl1 = self._shared("wi"), self._linear("first")
        ffn2, lsl2 = self._shared("wo"), self._linear("second")
        return {
            "ffn1": ffn1,
            "ffn2": lambda states: ffn2(self._activated(ffn1(states))),
            "lsl1": lsl1,
            "lsl2": lambda states: lsl2(self._activated(lsl1(states))),
        }

    def outer(self) -> dict[str, Callable[[Units], PerToken]]:
        """Return functions from each of `COMPONENT_OUTPUTS` to its term of f."""
        ffn2, lsl2 = self._shared("wo"), self._linear("second")
        return {
            "ffn1": lambda units: ffn2(self._activated(units)).sum(axis=-1),
            "ffn2": lambda units: units.sum(axis=-1),
            "lsl1": lambda units: self.scale * lsl2(self._activated(units)).sum(axis=-1),
            "lsl2": lambda units: self.scale * units.sum(axis=-1),
        }

    def value(self, states: States) -> PerToken:
        """Return f of the states."""
        inner, outer = self.inner(), self.outer()
        return outer["ffn2"](inner["ffn2"](states)) + outer["lsl2"](inner["lsl2"](states))

    def _shared(self, name: str) -> Callable[[Array], Array]:
        """Return a linear map of the shared feed-forward, as the model applies it."""
        number, sublayer = self._layer.number - 1, self._layer.name

        def apply(states: Array) -> Array:
            output: Any = self._model.apply(
                {"params": self._params},
                states,
                method=lambda model, inputs: getattr(getattr(model.layer[number], sublayer), name)(
                    inputs
                ),
            )
            return output

        return apply

    def _linear(self, name: str) -> Callable[[Array], Array]:
        kernel, bias = self._branch[name]
        return lambda states: states @ kernel + bias[None]

    def _activated(self, units: Array) -> Array:
        return self._layer.kind.activate(units)


def attribute_block(block: BranchedBlock, states: States, nodes: int = NODES) -> dict[str, Any]:
    """Attribute f of each token.

    Args:
        block: block of a layer and a language.
        states: input of the block.
        nodes: number of quadrature nodes.

    Returns:
        `signed` and `absolute`: for each of `COMPONENT_OUTPUTS` the sum of the conductance over its
        units, and the sum of its absolute value; `output`: f(x) - f(0); `error`: the sum of
        integrated gradients minus `output`, which tends to 0 as the number of nodes grows. All
        [tokens].
    """
    inner, outer = block.inner(), block.outer()
    units = {
        name: conductance(inner[name], outer[name], states, nodes) for name in COMPONENT_OUTPUTS
    }
    output = block.value(states) - block.value(jnp.zeros_like(states))
    total = integrated_gradients(block.value, states, nodes).sum(axis=-1)
    return {
        "signed": {name: conductances.sum(axis=-1) for name, conductances in units.items()},
        "absolute": {
            name: jnp.abs(conductances).sum(axis=-1) for name, conductances in units.items()
        },
        "output": output,
        "error": total - output,
    }


@functools.partial(jax.jit, static_argnames=("model", "layers", "nodes"))
def _attribute_batch(
    params: Any,
    batch: Mapping[str, Array],
    *,
    model: Network,
    layers: tuple[BranchLayer, ...],
    nodes: int,
) -> list[dict[str, Any]]:
    """Attribute every target position of a batch in one language, [rows, length] per array."""
    reads = [
        Intermediate("/".join((*layer.path, BRANCH_INPUT)), model.layout.generated)
        for layer in layers
    ]
    passes = ForwardPasses(model, params, batch, requests=reads)
    attributions = []
    for layer, intermediate in zip(layers, reads, strict=True):
        states = passes.read(intermediate)
        slot = jnp.asarray(layer.kind.settings.slots)[batch["target_lang"][0, 0]]
        flat = states.reshape(-1, states.shape[-1])
        tokens = attribute_block(BranchedBlock(model, params, layer, slot), flat, nodes)
        attributions.append(jax.tree.map(lambda array: array.reshape(states.shape[:2]), tokens))  # noqa: B023
    return attributions


def compute_attributions(
    inference_model: InferenceModel,
    sentence_sets: Sequence[ForcedSentences],
    max_length: int,
    layers: Sequence[int] = (),
    nodes: int = NODES,
) -> dict[str, Any]:
    """Attribute the blocks of every layer with branches that the target role passes through.

    Args:
        inference_model: the model, in float32.
        sentence_sets: sentences by direction.
        max_length: as in `iterate_batches`.
        layers: layers to include, counted from 1; () is all.
        nodes: number of quadrature nodes.

    Returns:
        A JSON-ready dict with `directions`. Each has `branch` (whether its target language has
        one), `layers` with means over tokens, and `sentences` with values per token.

    Raises:
        UserError: if a requested layer has no branches that the target passes, or if no layer does.
    """
    chosen = _select_layers(inference_model.model, layers)
    sentences_by_set: dict[ForcedSentences, list[dict[str, Any]]] = {
        forced: [] for forced in sentence_sets
    }
    for rows in iterate_batches(inference_model, sentence_sets, max_length):
        attributions = _attribute_batch(
            inference_model.params,
            rows.batch,
            model=inference_model.model,
            layers=chosen,
            nodes=nodes,
        )
        attributions = jax.tree.map(np.asarray, attributions)
        sentences_by_set[rows.forced] += _sentence_attributions(
            inference_model, rows, chosen, attributions
        )
    return {
        "nodes": nodes,
        "directions": [
            _direction_attributions(inference_model, forced, chosen, sentences)
            for forced, sentences in sentences_by_set.items()
        ],
    }


def _select_layers(model: Network, layers: Sequence[int]) -> tuple[BranchLayer, ...]:
    target_layers = model.layout.layers_with(model.layout.generated)
    branched = [layer for layer in branch_layers(model) if layer.number in target_layers]
    numbers = [layer.number for layer in branched]
    if invalid := [number for number in layers if number not in numbers]:
        raise UserError(
            f"--layers: layer {invalid[0]} has no branches that the target passes; choose from "
            f"{', '.join(map(str, numbers))}"
        )
    if not branched:
        raise UserError("the target passes no layer that has branches; nothing is attributed")
    return tuple(layer for layer in branched if not layers or layer.number in layers)


def _sentence_attributions(
    inference_model: InferenceModel,
    rows: ForcedBatch,
    layers: Sequence[BranchLayer],
    attributions: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Return the JSON-ready dict of each row, without padding."""
    sentences = []
    for row in range(rows.size):
        tokens = row_tokens(inference_model, rows, row)
        count, number = len(tokens["predicted"]), rows.first + row
        by_layer = [
            {"layer": layer.number, **jax.tree.map(lambda array: array[row, :count], attribution)}  # noqa: B023
            for layer, attribution in zip(layers, attributions, strict=True)
        ]
        texts = {
            "source": rows.forced.sources[number],
            "target": rows.forced.targets[number],
        }
        sentences.append({**texts, "tokens": tokens["predicted"], "layers": by_layer})
    return sentences


def _direction_attributions(
    inference_model: InferenceModel,
    forced: ForcedSentences,
    layers: Sequence[BranchLayer],
    sentences: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    source, target = forced.direction
    slots = layers[0].kind.settings.slots
    means = []
    for index, layer in enumerate(layers):
        layer_values = [sentence["layers"][index] for sentence in sentences]
        joined = {
            kind: {
                name: np.concatenate([values[kind][name] for values in layer_values])
                for name in COMPONENT_OUTPUTS
            }
            for kind in ("signed", "absolute")
        }
        errors = np.concatenate([values["error"] for values in layer_values])
        means.append(
            {
                "layer": layer.number,
                **jax.tree.map(lambda array: array.mean(), joined),
                "output": np.concatenate([values["output"] for values in layer_values]).mean(),
                "largest_error": np.abs(errors).max(),
            }
        )
    return {
        "source": source,
        "target": target,
        "branch": slots[inference_model.vocabulary.language_index(target)] >= 0,
        "tokens": sum(len(sentence["tokens"]) for sentence in sentences),
        "layers": means,
        "sentences": list(sentences),
    }
