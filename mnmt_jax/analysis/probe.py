"""Whether the position of a token in its sentence can be read off its state: a probe.

Source: TPDM paper, section 2, Figures 1 and 2, and Table 4, after Liu et al. (2021): the model is
frozen, a classifier tells the position of every source token. Theirs is linear, or has one hidden
layer with ReLU; drawn from U(+-1 / sqrt(inputs)) with biases of zero, trained on the plain cross
entropy. What neither gives is ours: Adam's rate, the batch, the number of updates, that features
are made without dropout, and that nine tenths of the sentences are learned from.
"""

from __future__ import annotations

import dataclasses
import functools
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from mnmt_jax.analysis.probe_features import ProbeFeatures
from mnmt_jax.files.atomic_write import new_path

TRAINED_FRACTION = 0.9  # share of the sentences
_TESTED_AT_ONCE = 8192  # tokens


@dataclasses.dataclass(frozen=True)
class ProbeSettings:
    """How a classifier is made and trained.

    Attributes:
        hidden: with a hidden layer as wide as the states; otherwise linear.
        updates: of its parameters, however many tokens there are.
        batch: tokens of an update.
        learning_rate: of Adam.
        seed: of the first parameters, of the order of tokens, and of the sentences held out.
    """

    hidden: bool = True
    updates: int = 2000
    batch: int = 1024
    learning_rate: float = 1e-3
    seed: int = 0


def held_out_mask(texts: Int[np.ndarray, " tokens"], seed: int) -> Bool[np.ndarray, " tokens"]:
    """Chooses the tokens that are not learned from: of a tenth of the texts, all their tokens.

    Args:
        texts: number of the text of each token.
        seed: of the choice.
    """
    numbers = np.unique(texts)
    rng = np.random.default_rng(seed)
    count = min(len(numbers) - 1, int(np.ceil(len(numbers) * (1 - TRAINED_FRACTION) - 1e-9)))
    chosen = rng.permutation(numbers)[: max(count, 0)]
    return np.isin(texts, chosen)


def train_probe(
    states: Float[np.ndarray, "tokens embed"],
    positions: Int[np.ndarray, " tokens"],
    classes: int,
    probe: ProbeSettings,
) -> Any:
    """Trains a classifier of positions.

    Args:
        states: features, float32.
        positions: of each, from 0.
        classes: positions there are.
        probe: how.

    Returns:
        Its parameters: `weight`, and `bias` of each layer.
    """
    rng = np.random.default_rng(probe.seed)
    width = states.shape[1]
    sizes = [width, *([width] if probe.hidden else []), classes]
    params = [_drawn(rng, *pair) for pair in zip(sizes, sizes[1:], strict=False)]
    optimizer = _optimizer(probe.learning_rate)
    moments = optimizer.init(params)
    rows = min(probe.batch, len(states))
    order = rng.permutation(len(states))
    first = 0
    for _ in range(probe.updates):
        if first + rows > len(order):
            order, first = rng.permutation(len(states)), 0
        own = order[first : first + rows]
        first += rows
        batch = states[own], positions[own]
        params, moments = _update(params, moments, *batch, probe.learning_rate)
    return params


def predict_positions(
    params: Any, states: Float[np.ndarray, "tokens embed"]
) -> Int[np.ndarray, " tokens"]:
    """Returns the positions that a classifier tells of states."""
    found = [
        np.asarray(_best(params, np.asarray(states[first : first + _TESTED_AT_ONCE])))
        for first in range(0, len(states), _TESTED_AT_ONCE)
    ]
    return np.concatenate([np.zeros(0, np.int32), *found])


def evaluate_probe(
    learned: ProbeFeatures,
    tested: ProbeFeatures | None,
    number: int,
    *,
    probe: ProbeSettings,
    folder: Path,
) -> tuple[Bool[np.ndarray, " tokens"], Bool[np.ndarray, " others"]]:
    """Returns which tokens' positions a classifier of a place tells rightly.

    Args:
        learned: trained on, but for the sentences held out.
        tested: tested on; None tests on those held out alone.
        number: of the place.
        probe: how.
        folder: keeps what is found, which is not computed again.

    Returns:
        Of the tokens held out, and of those of `tested`, without which there are none.
    """
    names = "-".join(
        [learned.digest, tested.digest if tested else "held_out", str(number)]
        + [str(value) for value in dataclasses.astuple(probe)]
    )
    path = folder / f"{names}.npz"
    if (found := _read(path)) is not None:
        return found
    out = held_out_mask(learned.texts, probe.seed)
    most = max(int(each.positions.max()) for each in (learned, tested) if each is not None)
    states = learned.states(number)
    params = train_probe(states[~out], learned.positions[~out], most + 1, probe)
    right = predict_positions(params, states[out]) == learned.positions[out]
    others = np.zeros(0, bool)
    if tested is not None:
        others = predict_positions(params, tested.states(number)) == tested.positions
    folder.mkdir(parents=True, exist_ok=True)
    with new_path(path) as partial, partial.open("wb") as file:
        np.savez(file, held_out=right, tested=others)
    return right, others


@dataclasses.dataclass(frozen=True)
class TypeAccuracy:
    """How well the tokens of each type, an id of the vocabulary, are told.

    Attributes:
        ids: of the types, rising.
        counts: tokens of each.
        accuracy: share of them that is told rightly.
    """

    ids: Int[np.ndarray, " types"]
    counts: Int[np.ndarray, " types"]
    accuracy: Float[np.ndarray, " types"]


def accuracy_by_type(
    ids: Int[np.ndarray, " tokens"], right: Bool[np.ndarray, " tokens"]
) -> TypeAccuracy:
    """Counts tokens, and those that are told rightly, by their ids."""
    types, places, counts = np.unique(ids, return_inverse=True, return_counts=True)
    hits = np.bincount(places, weights=right.astype(np.float64), minlength=len(types))
    return TypeAccuracy(types, counts, hits / counts)


def accuracy_by_class(
    types: TypeAccuracy, classes: Mapping[int, frozenset[str]], least: int
) -> dict[str, dict[str, Any]]:
    """Returns the accuracy of each class of tokens.

    Args:
        types: from `accuracy_by_type`.
        classes: of each id.
        least: tokens that a type must have to count for `macro`.

    Returns:
        By class, `all` first: `tokens`; `micro`, over tokens; `types` of at least so many tokens,
        and `macro`, the mean over these, None if there are none.
    """
    members = {"all": np.ones(len(types.ids), bool)}
    for name in sorted({name for i in types.ids.tolist() for name in classes[i]}):
        members[name] = np.array([name in classes[i] for i in types.ids.tolist()])
    found = {}
    for name, member in members.items():
        counts, accuracy = types.counts[member], types.accuracy[member]
        frequent = accuracy[counts >= least]
        found[name] = {
            "tokens": int(counts.sum()),
            "micro": float((counts * accuracy).sum() / counts.sum()) if len(counts) else None,
            "types": len(frequent),
            "macro": float(frequent.mean()) if len(frequent) else None,
        }
    return found


def class_gains(
    first: TypeAccuracy, second: TypeAccuracy, classes: Mapping[int, frozenset[str]], least: int
) -> dict[str, Any]:
    """Returns what classes the types are of that a second model tells better (Table 4).

    Args:
        first: of one model.
        second: of the other, on the same sentences; its tags may be others.
        classes: of each id.
        least: tokens that a type must have with both.

    Returns:
        `types` that both have and `gained`; by class the percentage of each that is of the class:
        `all`, `gained`. Classes overlap, and some types are of none.
    """
    common, one, other = np.intersect1d(
        first.ids, second.ids, assume_unique=True, return_indices=True
    )
    frequent = np.minimum(first.counts[one], second.counts[other]) >= least
    ids, better = common[frequent], (second.accuracy[other] > first.accuracy[one])[frequent]
    names = sorted({name for i in ids.tolist() for name in classes[i]})
    shares = {}
    for name in names:
        member = np.array([name in classes[i] for i in ids.tolist()])
        shares[name] = {"all": _percent(member), "gained": _percent(member[better])}
    return {"types": len(ids), "gained": int(better.sum()), "classes": shares}


def _percent(member: Bool[np.ndarray, " types"]) -> float | None:
    return 100 * float(member.mean()) if len(member) else None


def _read(path: Path) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns what an earlier start found; nothing if it is not there or damaged."""
    try:
        with np.load(path) as found:
            return found["held_out"], found["tested"]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return None


def _drawn(rng: np.random.Generator, inputs: int, outputs: int) -> dict[str, np.ndarray]:
    limit = 1 / np.sqrt(inputs)
    weight = rng.uniform(-limit, limit, (inputs, outputs)).astype(np.float32)
    return {"weight": weight, "bias": np.zeros(outputs, np.float32)}


def _optimizer(learning_rate: float) -> optax.GradientTransformation:
    return optax.adam(learning_rate)


def _logits(params: Any, states: Float[Array, "rows embed"]) -> Float[Array, "rows classes"]:
    for number, layer in enumerate(params):
        if number:
            states = jax.nn.relu(states)
        states = states @ layer["weight"] + layer["bias"][None]
    return states


@functools.partial(jax.jit, static_argnames="learning_rate")
def _update(
    params: Any, moments: Any, states: Array, labels: Array, learning_rate: float
) -> tuple[Any, Any]:
    """Takes one step of Adam."""

    def loss(params: Any) -> Array:
        log_probs = jax.nn.log_softmax(_logits(params, states))
        return -jnp.take_along_axis(log_probs, labels[:, None], axis=1).mean()

    updates, moments = _optimizer(learning_rate).update(jax.grad(loss)(params), moments, params)
    return optax.apply_updates(params, updates), moments


@jax.jit
def _best(params: Any, states: Array) -> Array:
    return _logits(params, states).argmax(axis=1).astype(jnp.int32)
