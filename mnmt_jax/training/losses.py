"""Label-smoothed cross entropy as in fairseq: a reference version and a chunked version.

The chunked version never holds all logits. Both return sums, never means: the trainer adds them
over devices and micro-batches and divides once by the global number of tokens (MITRE spec 6.1).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from mnmt_jax.distributed.per_device import row_shards, shard_map_rows, vocab_shards
from mnmt_jax.distributed.sharding import platform
from mnmt_jax.errors import UserError


class LossSums(NamedTuple):
    """Sums over the valid tokens of a batch, float32.

    Attributes:
        smoothed: label-smoothed loss in nats, which training minimises.
        nll: negative log-likelihood in nats.
        tokens: number of valid tokens.
    """

    smoothed: Float[Array, ""]
    nll: Float[Array, ""]
    tokens: Float[Array, ""]


# Float32 scalars by name: the fields of `LossSums`, the term of each further objective in nats, and
# for each generated batch its smoothed loss and, as `{name}_tokens`, its tokens. The fields of
# `LossSums` include those of generated batches; the tokens of each term are then there, too.
Sums = Mapping[str, Any]
_TOKENS = "tokens"
NLL_TOKENS = f"nll_{_TOKENS}"
"""Number of tokens that `nll` covers in a model that fills masks. In others it covers all."""
Arrays = tuple[Array, ...]
Part = tuple[Arrays, Array, Array]  # features of each head, labels, valid


def per_token(sums: Sums) -> dict[str, Array]:
    """Divide sums by their numbers of target tokens.

    Returns:
        `loss` (label-smoothed), `nll` and the term of every objective, in nats per target token.
        Training minimises `loss` plus the terms. The loss of a generated batch is per target token
        of that batch; `loss` includes it. The terms are then per target token of the other pairs,
        and have their share of all tokens as their factor in the update.
    """

    def tokens(name: str) -> Array:
        return jnp.maximum(sums.get(token_count_name(name), sums[_TOKENS]), 1.0)

    return {name: total / tokens(name) for name, total in reported_sums(sums).items()}


def token_count_name(name: str) -> str:
    """Return the name of the number of tokens that a sum is divided by, if not by all."""
    return f"{name}_{_TOKENS}"


def reported_sums(sums: Sums) -> dict[str, Any]:
    """Return the sums that are divided by tokens, under their reported names."""
    names = {"smoothed": "loss"}
    counts = {_TOKENS, *map(token_count_name, sums)}
    return {names.get(name, name): sums[name] for name in sums if name not in counts}


def add_generated_sums(sums: Sums, name: str, generated: LossSums) -> Sums:
    """Add the sums of a generated batch to the sums of its micro-batch.

    Target tokens of both count alike: the mean is over the tokens of the two together. The terms of
    objectives, which read the micro-batch alone, keep its tokens.

    Args:
        sums: sums of the micro-batch, with those of batches generated before.
        name: name of the generated batch.
        generated: sums of the generated batch.
    """
    combined = {field: sums[field] + total for field, total in generated._asdict().items()}
    separate = {name: generated.smoothed, token_count_name(name): generated.tokens}
    terms = reported_sums(sums).keys() - {"loss", "nll"}
    counts = {count: sums.get(count, sums[_TOKENS]) for count in map(token_count_name, terms)}
    return {**sums, **counts, **combined, **separate}


def merge_player_sums(sums_by_player: Mapping[str, Sums]) -> Sums:
    """Merge the sums of the players of an update.

    The terms of named players are scaled so that, divided by the tokens of the unnamed player,
    they are per token of their own batch. That has fewer tokens: the unnamed player also trains on
    generated batches and on copies.

    Args:
        sums_by_player: sums by the player's name, with those of the unnamed player.
    """
    main = sums_by_player[""]
    scaled = {
        name: total * (main[_TOKENS] / jnp.maximum(sums[_TOKENS], 1.0))
        for player, sums in sums_by_player.items()
        if player
        for name, total in sums.items()
    }
    return {**scaled, **main}


def token_loss(
    logits: Float[Array, "*b vocab"],
    labels: Int[Array, "*b"],
    valid: Bool[Array, "*b"],
    label_smoothing: float,
) -> LossSums:
    """Sum the label-smoothed loss over tokens; the simple reference implementation.

    Args:
        logits: logits of every token.
        labels: id of the correct next token.
        valid: whether the position counts.
        label_smoothing: probability epsilon taken from the label; every other class gets
            epsilon / (vocab - 1). 0 makes `smoothed` equal `nll`.

    Returns:
        The three sums in float32.

    Source: MITRE spec 6.1, fairseq's `label_smoothed_cross_entropy`.
    """
    log_probs = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    nll = -jnp.take_along_axis(log_probs, labels[..., None], axis=-1)[..., 0]
    gold, other = _class_weights(label_smoothing, logits.shape[-1])
    smoothed = gold * nll - other * log_probs.sum(axis=-1)
    return LossSums(
        jnp.where(valid, smoothed, 0.0).sum(),
        jnp.where(valid, nll, 0.0).sum(),
        valid.sum(dtype=jnp.float32),
    )


def chunked_token_loss(
    heads: Sequence[tuple[Float[Array, "*b embed"], Float[Array, "vocab embed"]]],
    labels: Int[Array, "*b"],
    valid: Bool[Array, "*b"],
    *,
    label_smoothing: float,
    chunk: int,
) -> LossSums:
    """Compute `token_loss` of the sum of `features @ table.T`, a chunk of tokens at a time.

    Under differentiation the gradients are computed in the same pass as the loss, so each logit is
    computed once, and the gradient of a table only if it is needed. Only `smoothed` carries a
    gradient; to train on the plain likelihood set `label_smoothing` to 0.

    Args:
        heads: pairs of features, float32 or bfloat16, and table. The logits are the sum of their
            products, accumulated in float32.
        labels: id of the correct next token.
        valid: whether the position counts.
        label_smoothing: as in `token_loss`.
        chunk: tokens whose logits are in memory at a time, over all devices together.

    Returns:
        The three sums in float32.

    Raises:
        UserError: if `chunk` is not positive.
    """
    if chunk < 1:
        raise UserError(f"chunk={chunk} must be at least 1")
    features, tables = zip(*heads, strict=True)
    smoothed, nll = _fused_loss(label_smoothing, chunk, features, tables, labels, valid)
    return LossSums(smoothed, jax.lax.stop_gradient(nll), valid.sum(dtype=jnp.float32))


def _split(features: Arrays, labels: Array, valid: Array, chunk: int) -> Part:
    """Reshape to [chunks, tokens per chunk], with padding if no suitable divisor exists."""
    tokens = labels.size
    min_chunks = -(-tokens // chunk)
    chunks = next((n for n in range(min_chunks, 2 * min_chunks) if tokens % n == 0), min_chunks)
    padding = -tokens % chunks

    def split(array: Array) -> Array:
        padded = jnp.pad(array, [(0, padding)] + [(0, 0)] * (array.ndim - 1)) if padding else array
        return padded.reshape(chunks, -1, *array.shape[1:])

    flat = [states.reshape(-1, states.shape[-1]) for states in features]
    labels, valid = labels.ravel(), valid.ravel()
    return tuple(map(split, flat)), split(labels), split(valid)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _fused_loss(
    label_smoothing: float,
    chunk: int,
    features: Arrays,
    tables: Arrays,
    labels: Array,
    valid: Array,
) -> tuple[Array, Array]:
    """Sums smoothed loss and nll over chunks."""
    shards = row_shards(labels)

    def sums(tables: Arrays, features: Arrays, labels: Array, valid: Array) -> tuple[Array, Array]:
        def add(sums: tuple[Array, Array], chunk_inputs: Part) -> tuple[Any, None]:
            smoothed, nll, _ = _chunk_loss(label_smoothing, tables, *chunk_inputs)
            return (sums[0] + smoothed, sums[1] + nll), None

        zero = jnp.zeros((), jnp.float32)
        chunks = _split(features, labels, valid, max(chunk // shards, 1))
        return _scan(add, (zero, zero), chunks)[0]

    cast = _cast(tables, features)
    return shard_map_rows(sums, shards, ("sum", "sum"))(cast, features, labels, valid)


def _cast(arrays: Arrays, like: Arrays) -> Arrays:
    return tuple(array.astype(other.dtype) for array, other in zip(arrays, like, strict=True))


def _fused_forward(
    label_smoothing: float, chunk: int, *arguments: Any
) -> tuple[tuple[Array, Array], tuple[Arrays, dict[int, Array]]]:
    """Compute the sums of `_fused_loss` and their gradients; every argument has a `perturbed` flag.

    The gradient of a frozen table, which is not perturbed, is never computed. Each device sums the
    gradients of its rows over all chunks; devices exchange the sums once.
    """
    features, tables, labels, valid = jax.tree.map(lambda argument: argument.value, arguments)
    trained = [number for number, table in enumerate(arguments[1]) if table.perturbed]
    shards = row_shards(labels)

    def gradients(tables: Arrays, features: Arrays, labels: Array, valid: Array) -> Arrays:
        def add(carry: tuple[Any, ...], chunk_inputs: Part) -> tuple[tuple[Any, ...], Arrays]:
            smoothed, nll, grad_logits = _chunk_loss(label_smoothing, tables, *chunk_inputs)
            by_features, by_tables = _chunk_gradients(grad_logits, tables, chunk_inputs[0], trained)
            by_tables = tuple(map(jnp.add, carry[2:], by_tables))
            sums = carry[0] + smoothed, carry[1] + nll
            return (*sums, *by_tables), _cast(by_features, tables)

        zero = jnp.zeros((), jnp.float32)
        start = (zero, zero, *(jnp.zeros(tables[n].T.shape, jnp.float32) for n in trained))
        chunks = _split(features, labels, valid, max(chunk // shards, 1))
        (smoothed, nll, *by_tables), by_features = _scan(add, start, chunks)
        feature_gradients = (
            grad.reshape(-1, states.shape[-1])[: labels.size].reshape(states.shape)
            for grad, states in zip(by_features, features, strict=True)
        )
        return (smoothed, nll, *feature_gradients, *(by_table.T for by_table in by_tables))

    kinds = ("sum", "sum", *["rows"] * len(features), *["table"] * len(trained))
    cast = _cast(tables, features)
    smoothed, nll, *all_gradients = shard_map_rows(gradients, shards, kinds)(
        cast, features, labels, valid
    )
    by_features, by_tables = all_gradients[: len(features)], all_gradients[len(features) :]
    by_number = {n: g.astype(tables[n].dtype) for n, g in zip(trained, by_tables, strict=True)}
    return (smoothed, nll), (tuple(by_features), by_number)


def _chunk_gradients(
    grad_logits: Array, tables: Arrays, features: Arrays, trained: Sequence[int]
) -> tuple[Arrays, Arrays]:
    """Return a chunk's float32 gradients by the features and by the transposed trained tables.

    On a CPU a product with the vocabulary as the last axis takes two thirds of the other's time.
    """
    by_features = tuple(
        jnp.einsum(
            "tv,vm->tm",
            grad_logits.astype(table.dtype),
            table,
            preferred_element_type=jnp.float32,
        )
        for table in tables
    )
    by_tables = tuple(
        jnp.einsum(
            "tm,tv->mv",
            features[n],
            grad_logits.astype(features[n].dtype),
            preferred_element_type=jnp.float32,
        )
        for n in trained
    )
    return by_features, by_tables


def _fused_backward(
    label_smoothing: float,
    chunk: int,
    gradients: tuple[Arrays, Mapping[int, Array]],
    cotangents: tuple[Array, Any],
) -> tuple[Any, Any, None, None]:
    scale, _ = cotangents
    by_features, by_tables = gradients

    def scaled(gradient: Array | None) -> Array | None:
        return None if gradient is None else gradient * scale.astype(gradient.dtype)

    table_gradients = (by_tables.get(number) for number in range(len(by_features)))
    return tuple(map(scaled, by_features)), tuple(map(scaled, table_gradients)), None, None


_fused_loss.defvjp(_fused_forward, _fused_backward, symbolic_zeros=True)


def _chunk_loss(
    label_smoothing: float, tables: Arrays, features: Arrays, labels: Array, valid: Array
) -> tuple[Array, Array, Array]:
    """Return smoothed sum, nll sum and the smoothed sum's gradient by the logits [tokens, vocab].

    The class weights sum to 1: loss = logsumexp(z) - sum_v w_v z_v, with gradient softmax - w.
    Only the exponentials are an array of their own: the shifted logits would be another.
    """
    terms = (
        jnp.einsum("tm,vm->tv", states, table, preferred_element_type=jnp.float32)
        for states, table in zip(features, tables, strict=True)
    )
    logits = functools.reduce(jnp.add, terms)
    largest = logits.max(axis=-1)
    exponentials = jnp.exp(logits - largest[:, None])
    total = exponentials.sum(axis=-1)
    vocab = logits.shape[-1]
    gold, other = _class_weights(label_smoothing, vocab)
    is_label = jax.lax.broadcasted_iota(labels.dtype, logits.shape, 1) == labels[:, None]
    label_logit = _label_logits(logits, labels, is_label) - largest
    logit_sum = logits.sum(axis=-1) - vocab * largest
    nll = jnp.log(total) - label_logit
    smoothed = jnp.log(total) - gold * label_logit - other * logit_sum
    softmax = exponentials / total[:, None]
    grad = jnp.where(valid[:, None], softmax - other - jnp.where(is_label, gold, 0.0), 0.0)
    return jnp.where(valid, smoothed, 0.0).sum(), jnp.where(valid, nll, 0.0).sum(), grad


def _label_logits(logits: Array, labels: Array, is_label: Array) -> Array:
    """Return the logit of each token's label.

    A CPU gathers them fastest. Elsewhere a comparison costs nothing beside the other sums, and a
    gather would collect a vocabulary that devices share.
    """
    if platform() == "cpu" and vocab_shards() == 1:
        return jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    return jnp.where(is_label, logits, 0.0).sum(axis=-1)


def _class_weights(label_smoothing: float, vocab: int) -> tuple[float, float]:
    """Return the weights of the label's negative log-probability and of every other class's."""
    other = label_smoothing / (vocab - 1)
    return 1.0 - label_smoothing - other, other


def _scan(body, start, chunks):  # noqa: ANN001, ANN202  as jax.lax.scan
    """Scan, but call the body directly if there is a single chunk."""
    if chunks[-1].shape[0] > 1:
        return jax.lax.scan(body, start, chunks)
    carry, out = body(start, jax.tree.map(lambda array: array[0], chunks))
    return carry, jax.tree.map(lambda array: array[None], out)
