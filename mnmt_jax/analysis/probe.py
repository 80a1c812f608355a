"""Position probe: a classifier that predicts a token's position from its state.

Source: TPDM paper, section 2, Figures 1 and 2, and Table 4, after Liu et al. (2021). The model is
frozen; a classifier predicts the position of every source token. The classifier is linear or has
one hidden layer with ReLU. Weights are drawn from U(+-1 / sqrt(inputs)), biases are zero, and the
loss is plain cross entropy. Neither paper gives Adam's learning rate, the batch size or the number
of updates; these are ours, as is training on nine tenths of the sentences and on features computed
without dropout.
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

from mnmt_jax.analysis.defaults import PROBE_UPDATES
from mnmt_jax.analysis.probe_features import ProbeFeatures
from mnmt_jax.files.atomic_write import new_path

TRAINED_FRACTION = 0.9  # share of the sentences used for training
_PREDICT_BATCH = 8192  # tokens


@dataclasses.dataclass(frozen=True)
class ProbeSettings:
    """Architecture and training of the classifier.

    Attributes:
        hidden: use a hidden layer as wide as the states; otherwise the classifier is linear.
        updates: number of parameter updates, regardless of the number of tokens.
        batch: tokens per update.
        learning_rate: learning rate of Adam.
        seed: seed of the initial parameters, the order of tokens, and the held-out sentences.
    """

    hidden: bool = True
    updates: int = PROBE_UPDATES
    batch: int = 1024
    learning_rate: float = 1e-3
    seed: int = 0


def held_out_mask(texts: Int[np.ndarray, " tokens"], seed: int) -> Bool[np.ndarray, " tokens"]:
    """Select the held-out tokens: all tokens of a tenth of the texts.

    Args:
        texts: text number of each token.
        seed: seed of the selection.
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
    """Train a classifier of positions.

    Args:
        states: features, float32.
        positions: position of each token, from 0.
        classes: number of positions.
        probe: settings.

    Returns:
        Its parameters: `weight` and `bias` of each layer.
    """
    rng = np.random.default_rng(probe.seed)
    width = states.shape[1]
    sizes = [width, *([width] if probe.hidden else []), classes]
    params = [_init_layer(rng, *layer_sizes) for layer_sizes in zip(sizes, sizes[1:], strict=False)]
    optimizer = _optimizer(probe.learning_rate)
    moments = optimizer.init(params)
    batch_size = min(probe.batch, len(states))
    order = rng.permutation(len(states))
    start = 0
    for _ in range(probe.updates):
        if start + batch_size > len(order):
            order, start = rng.permutation(len(states)), 0
        batch_indices = order[start : start + batch_size]
        start += batch_size
        batch = states[batch_indices], positions[batch_indices]
        params, moments = _update(params, moments, *batch, probe.learning_rate)
    return params


def predict_positions(
    params: Any, states: Float[np.ndarray, "tokens embed"]
) -> Int[np.ndarray, " tokens"]:
    """Return the positions that a classifier predicts from states."""
    predictions = [
        np.asarray(_predict(params, np.asarray(states[start : start + _PREDICT_BATCH])))
        for start in range(0, len(states), _PREDICT_BATCH)
    ]
    return np.concatenate([np.zeros(0, np.int32), *predictions])


def evaluate_probe(
    train_features: ProbeFeatures,
    test_features: ProbeFeatures | None,
    location_index: int,
    *,
    probe: ProbeSettings,
    folder: Path,
) -> tuple[Bool[np.ndarray, " tokens"], Bool[np.ndarray, " others"]]:
    """Return which tokens' positions are predicted correctly from the states of a location.

    Args:
        train_features: training features, from which the held-out sentences are excluded.
        test_features: test features; None tests on the held-out sentences alone.
        location_index: index of the location.
        probe: settings.
        folder: cache of results, which are not computed again.

    Returns:
        Correctness of the held-out tokens, and of the tokens of `test_features`, empty if that is
        None.
    """
    names = "-".join(
        [
            train_features.digest,
            test_features.digest if test_features else "held_out",
            str(location_index),
        ]
        + [str(value) for value in dataclasses.astuple(probe)]
    )
    path = folder / f"{names}.npz"
    if (cached := _read_cached(path)) is not None:
        return cached
    held_out = held_out_mask(train_features.texts, probe.seed)
    max_position = max(
        int(features.positions.max())
        for features in (train_features, test_features)
        if features is not None
    )
    states = train_features.states(location_index)
    params = train_probe(
        states[~held_out], train_features.positions[~held_out], max_position + 1, probe
    )
    held_out_correct = (
        predict_positions(params, states[held_out]) == train_features.positions[held_out]
    )
    tested_correct = np.zeros(0, bool)
    if test_features is not None:
        tested_correct = (
            predict_positions(params, test_features.states(location_index))
            == test_features.positions
        )
    folder.mkdir(parents=True, exist_ok=True)
    with new_path(path) as partial, partial.open("wb") as file:
        np.savez(file, held_out=held_out_correct, tested=tested_correct)
    return held_out_correct, tested_correct


@dataclasses.dataclass(frozen=True)
class TypeAccuracy:
    """Accuracy per token type, i.e. per id of the vocabulary.

    Attributes:
        ids: ids of the types, ascending.
        counts: number of tokens of each type.
        accuracy: share of a type's tokens predicted correctly.
    """

    ids: Int[np.ndarray, " types"]
    counts: Int[np.ndarray, " types"]
    accuracy: Float[np.ndarray, " types"]


def accuracy_by_type(
    ids: Int[np.ndarray, " tokens"], right: Bool[np.ndarray, " tokens"]
) -> TypeAccuracy:
    """Count tokens and correctly predicted tokens by their ids."""
    types, type_indices, counts = np.unique(ids, return_inverse=True, return_counts=True)
    correct = np.bincount(type_indices, weights=right.astype(np.float64), minlength=len(types))
    return TypeAccuracy(types, counts, correct / counts)


def accuracy_by_class(
    types: TypeAccuracy, classes: Mapping[int, frozenset[str]], min_count: int
) -> dict[str, dict[str, Any]]:
    """Return the accuracy of each class of tokens.

    Args:
        types: from `accuracy_by_type`.
        classes: classes of each id.
        min_count: minimum number of tokens of a type for it to count in `macro`.

    Returns:
        By class, `all` first: `tokens`; `micro`, the mean over tokens; `types`, the number of types
        with at least `min_count` tokens; and `macro`, the mean over these types, None if there are
        none.
    """
    members = {"all": np.ones(len(types.ids), bool)}
    for name in sorted({name for i in types.ids.tolist() for name in classes[i]}):
        members[name] = np.array([name in classes[i] for i in types.ids.tolist()])
    by_class = {}
    for name, member in members.items():
        counts, accuracy = types.counts[member], types.accuracy[member]
        frequent = accuracy[counts >= min_count]
        by_class[name] = {
            "tokens": int(counts.sum()),
            "micro": float((counts * accuracy).sum() / counts.sum()) if len(counts) else None,
            "types": len(frequent),
            "macro": float(frequent.mean()) if len(frequent) else None,
        }
    return by_class


def class_gains(
    first: TypeAccuracy, second: TypeAccuracy, classes: Mapping[int, frozenset[str]], min_count: int
) -> dict[str, Any]:
    """Return the classes of the types that a second model predicts better (Table 4).

    Args:
        first: accuracy of one model.
        second: accuracy of the other on the same sentences; its tags may differ.
        classes: classes of each id.
        min_count: minimum number of tokens of a type in both models.

    Returns:
        `types`, the number of common types, and `gained`, the number of improved ones; by class the
        percentage that belongs to the class among each: `all`, `gained`. Classes overlap, and some
        types belong to none.
    """
    common, first_indices, second_indices = np.intersect1d(
        first.ids, second.ids, assume_unique=True, return_indices=True
    )
    frequent = np.minimum(first.counts[first_indices], second.counts[second_indices]) >= min_count
    ids = common[frequent]
    improved = (second.accuracy[second_indices] > first.accuracy[first_indices])[frequent]
    names = sorted({name for i in ids.tolist() for name in classes[i]})
    shares = {}
    for name in names:
        member = np.array([name in classes[i] for i in ids.tolist()])
        shares[name] = {"all": _percent(member), "gained": _percent(member[improved])}
    return {"types": len(ids), "gained": int(improved.sum()), "classes": shares}


def _percent(member: Bool[np.ndarray, " types"]) -> float | None:
    return 100 * float(member.mean()) if len(member) else None


def _read_cached(path: Path) -> tuple[np.ndarray, np.ndarray] | None:
    """Return cached results; None if there are none or the file is damaged."""
    try:
        with np.load(path) as arrays:
            return arrays["held_out"], arrays["tested"]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return None


def _init_layer(rng: np.random.Generator, inputs: int, outputs: int) -> dict[str, np.ndarray]:
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
    """Take one step of Adam."""

    def loss(params: Any) -> Array:
        log_probs = jax.nn.log_softmax(_logits(params, states))
        return -jnp.take_along_axis(log_probs, labels[:, None], axis=1).mean()

    updates, moments = _optimizer(learning_rate).update(jax.grad(loss)(params), moments, params)
    return optax.apply_updates(params, updates), moments


@jax.jit
def _predict(params: Any, states: Array) -> Array:
    return _logits(params, states).argmax(axis=1).astype(jnp.int32)
