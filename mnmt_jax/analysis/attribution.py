"""What the shared feed-forward and a language's branch contribute to the block they stand in.

Of each target position f(x) = sum_d (FFN(x) + t LSL(x))_d, where x is what the block sees. The path
goes from zero to x, integrals are sums over Gauss-Legendre nodes.

Source: third paper, section 5.4, Figure 5, which names Captum and neither f nor path: that f is the
sum over dimensions is our reading (language-layers spec 8). Integrated gradients: Sundararajan et
al. 2017, equation 1. Conductance: Dhamdhere et al. 2019, equation 2.
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
from mnmt_jax.model.intermediates import ENTERED
from mnmt_jax.model.network import Network

DEFAULT_NODES = 50  # Captum's default
COMPONENT_OUTPUTS = ("ffn1", "ffn2", "lsl1", "lsl2")
"""Layer outputs: of the first and second linear map of the shared feed-forward and the branch."""

States = Float[Array, "tokens embed"]
Units = Float[Array, "tokens units"]
PerToken = Float[Array, " tokens"]


def gauss_legendre_nodes(
    count: int = DEFAULT_NODES,
) -> tuple[Float[Array, " nodes"], Float[Array, " nodes"]]:
    """Returns nodes and weights of Gauss-Legendre quadrature from 0 to 1."""
    points, weights = np.polynomial.legendre.leggauss(count)
    return jnp.asarray((1 + points) / 2, jnp.float32), jnp.asarray(weights / 2, jnp.float32)


def integrated_gradients(
    function: Callable[[States], PerToken], states: States, nodes: int = DEFAULT_NODES
) -> States:
    """Attributes the value of a function at states, less that at zero, to their elements.

    Args:
        function: of each token by itself.
        states: where the path ends.
        nodes: of the quadrature.
    """
    gradient = jax.grad(lambda at: function(at).sum())

    def one(total: Array, node: tuple[Array, Array]) -> tuple[Array, None]:
        point, weight = node
        return total + weight * gradient(point * states), None

    total, _ = jax.lax.scan(one, jnp.zeros_like(states), gauss_legendre_nodes(nodes))
    return states * total


def conductance(
    inner: Callable[[States], Units],
    outer: Callable[[Units], PerToken],
    states: States,
    nodes: int = DEFAULT_NODES,
) -> Units:
    """Attributes what a function gains from zero to states to the units of a layer within it.

    Args:
        inner: states to units.
        outer: units to the function, as far as it depends on them.
        states: where the path ends.
        nodes: of the quadrature.

    Returns:
        The integral of d outer / d unit * d unit along the path.
    """
    gradient = jax.grad(lambda units: outer(units).sum())

    def one(total: Array, node: tuple[Array, Array]) -> tuple[Array, None]:
        point, weight = node
        units, moved = jax.jvp(inner, (point * states,), (states,))
        return total + weight * gradient(units) * moved, None

    shape = jax.eval_shape(inner, states)
    total, _ = jax.lax.scan(one, jnp.zeros(shape.shape, shape.dtype), gauss_legendre_nodes(nodes))
    return total


class BranchedBlock:
    """The block of a layer in the parts that attribution is of.

    Args:
        model: the network.
        params: its parameters.
        layer: which.
        slot: of the language's branch; negative is none.
    """

    def __init__(self, model: Network, params: Any, layer: BranchLayer, slot: Array) -> None:
        self._model, self._params, self._layer = model, params, layer
        branch = params[layer.path[0]][layer.path[1]]["branch"]
        own = jnp.maximum(slot, 0)
        self._branch = {
            name: (branch[name]["kernel"][own], branch[name]["bias"][own])
            for name in ("first", "second")
        }
        self.scale = jnp.where(slot >= 0, branch["scale"][own], 0.0)

    def inner(self) -> dict[str, Callable[[States], Units]]:
        """Returns what makes each of `COMPONENT_OUTPUTS` of states, before an activation."""
        ffn1, lsl1 = self._shared("wi"), self._linear("first")
        ffn2, lsl2 = self._shared("wo"), self._linear("second")
        return {
            "ffn1": ffn1,
            "ffn2": lambda states: ffn2(self._activated(ffn1(states))),
            "lsl1": lsl1,
            "lsl2": lambda states: lsl2(self._activated(lsl1(states))),
        }

    def outer(self) -> dict[str, Callable[[Units], PerToken]]:
        """Returns what f makes of each of `COMPONENT_OUTPUTS`."""
        ffn2, lsl2 = self._shared("wo"), self._linear("second")
        return {
            "ffn1": lambda units: ffn2(self._activated(units)).sum(axis=-1),
            "ffn2": lambda units: units.sum(axis=-1),
            "lsl1": lambda units: self.scale * lsl2(self._activated(units)).sum(axis=-1),
            "lsl2": lambda units: self.scale * units.sum(axis=-1),
        }

    def value(self, states: States) -> PerToken:
        """Returns f."""
        inner, outer = self.inner(), self.outer()
        return outer["ffn2"](inner["ffn2"](states)) + outer["lsl2"](inner["lsl2"](states))

    def _shared(self, name: str) -> Callable[[Array], Array]:
        """Returns a linear map of the shared feed-forward, as the model applies it."""
        number, sublayer = self._layer.number - 1, self._layer.name

        def apply(states: Array) -> Array:
            found: Any = self._model.apply(
                {"params": self._params},
                states,
                method=lambda model, at: getattr(getattr(model.layer[number], sublayer), name)(at),
            )
            return found

        return apply

    def _linear(self, name: str) -> Callable[[Array], Array]:
        kernel, bias = self._branch[name]
        return lambda states: states @ kernel + bias[None]

    def _activated(self, units: Array) -> Array:
        return self._layer.kind.activate(self._model.config)(units)


def attribute_block(
    block: BranchedBlock, states: States, nodes: int = DEFAULT_NODES
) -> dict[str, Any]:
    """Attributes f of each token.

    Args:
        block: of a layer and a language.
        states: what enters it.
        nodes: of the quadrature.

    Returns:
        `signed` and `absolute`: of each of `COMPONENT_OUTPUTS` the sum over its units of conductance, and of
        its absolute value; `output`, f(x) - f(0); `error`, what the sum of integrated gradients is
        beside that, which would be 0 with infinitely many nodes. All [tokens].
    """
    inner, outer = block.inner(), block.outer()
    units = {
        name: conductance(inner[name], outer[name], states, nodes) for name in COMPONENT_OUTPUTS
    }
    gained = block.value(states) - block.value(jnp.zeros_like(states))
    total = integrated_gradients(block.value, states, nodes).sum(axis=-1)
    return {
        "signed": {name: found.sum(axis=-1) for name, found in units.items()},
        "absolute": {name: jnp.abs(found).sum(axis=-1) for name, found in units.items()},
        "output": gained,
        "error": total - gained,
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
    """Attributes every target position of a batch in one language, [rows, length] each."""
    reads = [
        Intermediate("/".join((*each.path, ENTERED)), model.layout.generated) for each in layers
    ]
    passes = ForwardPasses(model, params, batch, reads=reads)
    found = []
    for each, tap in zip(layers, reads, strict=True):
        states = passes.read(tap)
        slot = jnp.asarray(each.kind.slots)[batch["target_lang"][0, 0]]
        flat = states.reshape(-1, states.shape[-1])
        tokens = attribute_block(BranchedBlock(model, params, each, slot), flat, nodes)
        found.append(jax.tree.map(lambda array: array.reshape(states.shape[:2]), tokens))  # noqa: B023
    return found


def compute_attributions(
    system: InferenceModel,
    every: Sequence[ForcedSentences],
    longest: int,
    layers: Sequence[int] = (),
    nodes: int = DEFAULT_NODES,
) -> dict[str, Any]:
    """Attributes the blocks of every layer with branches that the target passes.

    Args:
        system: the model, in float32.
        every: sentences by direction.
        longest: as in `iterate_batches`.
        layers: to keep to, counted from 1; () is all.
        nodes: of the quadrature.

    Returns:
        Facts: `directions`, each with `branch` (whether its target language has one), `layers` with
        means over its tokens, and `sentences` with each token.

    Raises:
        UserError: if there are no such layers.
    """
    chosen = _chosen(system.model, layers)
    found: dict[ForcedSentences, list[dict[str, Any]]] = {forced: [] for forced in every}
    for rows in iterate_batches(system, every, longest):
        parts = _attribute_batch(
            system.params, rows.batch, model=system.model, layers=chosen, nodes=nodes
        )
        parts = jax.tree.map(np.asarray, parts)
        found[rows.forced] += _sentences(system, rows, chosen, parts)
    return {
        "nodes": nodes,
        "directions": [
            _direction(system, forced, chosen, sentences) for forced, sentences in found.items()
        ],
    }


def _chosen(model: Network, layers: Sequence[int]) -> tuple[BranchLayer, ...]:
    passed = model.layout.layers_with(model.layout.generated)
    found = [each for each in branch_layers(model) if each.number in passed]
    numbers = [each.number for each in found]
    if wrong := [number for number in layers if number not in numbers]:
        raise UserError(
            f"--layers: layer {wrong[0]} has no branches that the target passes; choose from "
            f"{', '.join(map(str, numbers))}"
        )
    if not found:
        raise UserError("the target passes no layer that has branches; nothing is attributed")
    return tuple(each for each in found if not layers or each.number in layers)


def _sentences(
    system: InferenceModel,
    rows: ForcedBatch,
    layers: Sequence[BranchLayer],
    parts: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Returns the facts of each row's tokens, padding left out."""
    found = []
    for row in range(rows.size):
        tokens = row_tokens(system, rows, row)
        count, number = len(tokens["predicted"]), rows.first + row
        by_layer = [
            {"layer": each.number, **jax.tree.map(lambda a: a[row, :count], part)}  # noqa: B023
            for each, part in zip(layers, parts, strict=True)
        ]
        texts = {
            "source": rows.forced.sources[number],
            "target": rows.forced.targets[number],
        }
        found.append({**texts, "tokens": tokens["predicted"], "layers": by_layer})
    return found


def _direction(
    system: InferenceModel,
    forced: ForcedSentences,
    layers: Sequence[BranchLayer],
    sentences: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    source, target = forced.direction
    slots = layers[0].kind.slots
    means = []
    for place, each in enumerate(layers):
        parts = [sentence["layers"][place] for sentence in sentences]
        joined = {
            kind: {
                name: np.concatenate([p[kind][name] for p in parts]) for name in COMPONENT_OUTPUTS
            }
            for kind in ("signed", "absolute")
        }
        errors = np.concatenate([p["error"] for p in parts])
        means.append(
            {
                "layer": each.number,
                **jax.tree.map(lambda array: array.mean(), joined),
                "output": np.concatenate([p["output"] for p in parts]).mean(),
                "largest_error": np.abs(errors).max(),
            }
        )
    return {
        "source": source,
        "target": target,
        "branch": slots[system.vocabulary.language_index(target)] >= 0,
        "tokens": sum(len(sentence["tokens"]) for sentence in sentences),
        "layers": means,
        "sentences": list(sentences),
    }
