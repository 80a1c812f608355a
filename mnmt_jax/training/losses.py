"""Label-smoothed cross entropy as fairseq computes it, plain and without ever holding all logits.

Both functions return sums, never means: the trainer adds them over devices and micro-batches and
divides once by the global number of tokens (MITRE spec 6.1).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from mnmt_jax.distributed.per_device import on_own_rows, row_shards
from mnmt_jax.errors import UserError


class LossSums(NamedTuple):
    """Sums over the valid tokens of a batch, float32.

    Attributes:
        smoothed: label-smoothed loss in nats; what training minimises.
        nll: negative log-likelihood in nats.
        tokens: number of valid tokens.
    """

    smoothed: Float[Array, ""]
    nll: Float[Array, ""]
    tokens: Float[Array, ""]


# Float32 scalars by name: those of `LossSums`, each further objective's term in nats, and of each
# derived batch, which the former include, its smoothed loss and, as `{name}_tokens`, its tokens.
Sums = Mapping[str, Any]
_TOKENS = "tokens"
NLL_TOKENS = f"nll_{_TOKENS}"
"""Of a model that fills masks: the tokens that `nll` is of. Otherwise it is of all."""
Arrays = tuple[Array, ...]
Part = tuple[Arrays, Array, Array]  # features of each head, labels, valid


def per_token(sums: Sums) -> dict[str, Array]:
    """Divides sums by their target tokens.

    Returns:
        `loss` (label-smoothed), `nll` and the term of every objective, in nats per target token;
        what training minimises is `loss` + the terms. Of a derived batch, the loss per target token
        of its own, a part of `loss`.
    """

    def tokens(name: str) -> Array:
        return jnp.maximum(sums.get(f"{name}_{_TOKENS}", sums[_TOKENS]), 1.0)

    return {name: total / tokens(name) for name, total in reported_sums(sums).items()}


def reported_sums(sums: Sums) -> dict[str, Any]:
    """Returns the sums that are divided by tokens, under the names they are reported by."""
    names = {"smoothed": "loss"}
    counts = {_TOKENS, *(f"{name}_{_TOKENS}" for name in sums)}
    return {names.get(name, name): sums[name] for name in sums if name not in counts}


def with_derived(sums: Sums, name: str, derived: LossSums) -> Sums:
    """Adds what a derived batch gave to the sums of its micro-batch.

    Both count as target tokens do: a mean over the tokens of the two together.

    Args:
        sums: of the micro-batch.
        name: of the derived batch.
        derived: its sums.
    """
    whole = {field: sums[field] + total for field, total in derived._asdict().items()}
    own = {name: derived.smoothed, f"{name}_{_TOKENS}": derived.tokens}
    return {**sums, **whole, **own}


def token_loss(
    logits: Float[Array, "*b vocab"],
    labels: Int[Array, "*b"],
    valid: Bool[Array, "*b"],
    label_smoothing: float,
) -> LossSums:
    """Sums the label-smoothed loss over tokens, the slow and obvious way.

    Args:
        logits: of every token.
        labels: id of the right next token.
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
    """Computes `token_loss` of the sum of `features @ table.T`, a few tokens' logits at a time.

    Under differentiation the gradients are computed in the same pass as the loss, so each logit is
    computed once, and a table's gradient only if it is asked for. Only `smoothed` carries a
    gradient; to train on the plain likelihood set `label_smoothing` to 0.

    Args:
        heads: features, float32 or bfloat16, each with its table, of which the logits are the sum;
            products are accumulated in float32.
        labels: id of the right next token.
        valid: whether the position counts.
        label_smoothing: as in `token_loss`.
        chunk: tokens whose logits exist at one time, over all devices together.

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
    """Reshapes to [chunks, tokens of a chunk], padding when no fitting divisor exists."""
    tokens = labels.size
    least = -(-tokens // chunk)
    chunks = next((n for n in range(least, 2 * least) if tokens % n == 0), least)
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
        def add(sums: tuple[Array, Array], part: Part) -> tuple[Any, None]:
            smoothed, nll, _ = _chunk_loss(label_smoothing, tables, *part)
            return (sums[0] + smoothed, sums[1] + nll), None

        zero = jnp.zeros((), jnp.float32)
        parts = _split(features, labels, valid, max(chunk // shards, 1))
        return _scan(add, (zero, zero), parts)[0]

    cast = _cast(tables, features)
    return on_own_rows(sums, shards, ("sum", "sum"))(cast, features, labels, valid)


def _cast(arrays: Arrays, like: Arrays) -> Arrays:
    return tuple(one.astype(other.dtype) for one, other in zip(arrays, like, strict=True))


def _fused_forward(
    label_smoothing: float, chunk: int, *arguments: Any
) -> tuple[tuple[Array, Array], tuple[Arrays, dict[int, Array]]]:
    """Sums as `_fused_loss`, with its gradients; every argument says whether it is perturbed.

    A frozen table is not: its gradient, the size of the vocabulary, is then never formed. Each
    device adds its rows' gradients up over all chunks; the devices exchange them once.
    """
    features, tables, labels, valid = jax.tree.map(lambda each: each.value, arguments)
    trained = [number for number, table in enumerate(arguments[1]) if table.perturbed]
    shards = row_shards(labels)

    def gradients(tables: Arrays, features: Arrays, labels: Array, valid: Array) -> Arrays:
        def add(carry: tuple[Any, ...], part: Part) -> tuple[tuple[Any, ...], Arrays]:
            smoothed, nll, grad_logits = _chunk_loss(label_smoothing, tables, *part)
            by_features, by_tables = _products(grad_logits, tables, part[0], trained)
            by_tables = tuple(map(jnp.add, carry[2:], by_tables))
            sums = carry[0] + smoothed, carry[1] + nll
            return (*sums, *by_tables), _cast(by_features, tables)

        zero = jnp.zeros((), jnp.float32)
        start = (zero, zero, *(jnp.zeros(tables[n].shape, jnp.float32) for n in trained))
        parts = _split(features, labels, valid, max(chunk // shards, 1))
        (smoothed, nll, *by_tables), by_features = _scan(add, start, parts)
        found = (
            grad.reshape(-1, states.shape[-1])[: labels.size].reshape(states.shape)
            for grad, states in zip(by_features, features, strict=True)
        )
        return (smoothed, nll, *found, *by_tables)

    kinds = ("sum", "sum", *["rows"] * len(features), *["table"] * len(trained))
    cast = _cast(tables, features)
    smoothed, nll, *found = on_own_rows(gradients, shards, kinds)(cast, features, labels, valid)
    by_features, by_tables = found[: len(features)], found[len(features) :]
    by_number = {n: g.astype(tables[n].dtype) for n, g in zip(trained, by_tables, strict=True)}
    return (smoothed, nll), (tuple(by_features), by_number)


def _products(
    grad_logits: Array, tables: Arrays, features: Arrays, trained: Sequence[int]
) -> tuple[Arrays, Arrays]:
    """Returns a chunk's gradients by the features and by the tables that train, float32."""
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
            "tv,tm->vm",
            grad_logits.astype(features[n].dtype),
            features[n],
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

    every = (by_tables.get(number) for number in range(len(by_features)))
    return tuple(map(scaled, by_features)), tuple(map(scaled, every)), None, None


_fused_loss.defvjp(_fused_forward, _fused_backward, symbolic_zeros=True)


def _chunk_loss(
    label_smoothing: float, tables: Arrays, features: Arrays, labels: Array, valid: Array
) -> tuple[Array, Array, Array]:
    """Returns smoothed sum, nll sum and the smoothed sum's gradient by the logits [tokens, vocab].

    The class weights add up to 1: loss = logsumexp(z) - sum_v w_v z_v, with gradient softmax - w.
    The label is picked by comparison: a gather would collect a vocabulary-sharded axis.
    """
    terms = (
        jnp.einsum("tm,vm->tv", states, table, preferred_element_type=jnp.float32)
        for states, table in zip(features, tables, strict=True)
    )
    logits = functools.reduce(jnp.add, terms)
    logits = logits - jax.lax.stop_gradient(logits.max(axis=-1, keepdims=True))
    exponentials = jnp.exp(logits)
    total = exponentials.sum(axis=-1)
    gold, other = _class_weights(label_smoothing, logits.shape[-1])
    is_label = jax.lax.broadcasted_iota(labels.dtype, logits.shape, 1) == labels[:, None]
    label_logit = jnp.where(is_label, logits, 0.0).sum(axis=-1)
    nll = jnp.log(total) - label_logit
    smoothed = jnp.log(total) - gold * label_logit - other * logits.sum(axis=-1)
    softmax = exponentials / total[:, None]
    grad = jnp.where(valid[:, None], softmax - other - jnp.where(is_label, gold, 0.0), 0.0)
    return jnp.where(valid, smoothed, 0.0).sum(), jnp.where(valid, nll, 0.0).sum(), grad


def _class_weights(label_smoothing: float, vocab: int) -> tuple[float, float]:
    """Returns the factor of the label's negative log-probability and that of every class's."""
    other = label_smoothing / (vocab - 1)
    return 1.0 - label_smoothing - other, other


def _scan(body, start, parts):  # noqa: ANN001, ANN202  as jax.lax.scan
    """Scans, but calls the body directly when there is one part."""
    if parts[-1].shape[0] > 1:
        return jax.lax.scan(body, start, parts)
    carry, out = body(start, jax.tree.map(lambda part: part[0], parts))
    return carry, jax.tree.map(lambda each: each[None], out)
