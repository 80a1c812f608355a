"""Per-device computation with `shard_map`, where the compiler would otherwise move rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array

from mnmt_jax.distributed.sharding import (
    MESH_AXES,
    RULES,
    axis_shards,
    first_row,
    gather_table_width,
    has_mesh,
)

_SUM = PartitionSpec()  # replicated


def row_shards(rows: Array) -> int:
    """Return the number of shards that `shard_map_rows` can split rows into.

    Args:
        rows: [rows, ...].

    Returns:
        1 unless `jit_with_mesh` set a mesh whose `data` and `fsdp` divide the rows.
    """
    shards = _axis_shards("batch")
    return 1 if rows.shape[0] % shards else shards


def vocab_shards() -> int:
    """Return the number of devices that share the vocabulary of a table or of logits."""
    return _axis_shards("vocab")


def shard_map_rows(function: Callable, shards: int, kinds: Sequence[str]) -> Callable:
    """Run a function on the rows of each device, reducing sums over devices only once.

    By default the compiler reduces over devices in every iteration of a loop that forms a sum.

    Args:
        function: takes parameter tables, [vocab, embed], and arrays [rows, ...] or tuples of such
            arrays. The tables are unsplit along `embed`, and split over `tensor` even where the
            parameters are not.
        shards: from `row_shards`.
        kinds: of each result. `rows`: its first axis holds rows. `sum`: it is summed over devices.
            `table`: it is summed, and each device keeps its shard of the width, as for a parameter.
    """

    def split(tables: tuple[Array, ...], *rows: Any) -> tuple[Array, ...]:
        if has_mesh():
            spec = PartitionSpec(RULES["vocab"], None)
            tables = tuple(jax.lax.with_sharding_constraint(table, spec) for table in tables)
        return function(tables, *rows)

    if shards == 1:
        return split
    axes = RULES["batch"]
    embed_axes = RULES["embed"]
    specs = {
        "rows": PartitionSpec(axes),
        "sum": _SUM,
        "table": PartitionSpec(None, embed_axes),
    }

    def reduce_result(result: Array, kind: str) -> Array:
        return result if kind == "rows" else _sum_and_shard(specs[kind], result, axes)

    def local(tables: tuple[Array, ...], *rows: Any) -> tuple[Array, ...]:
        return tuple(map(reduce_result, split(tables, *rows), kinds))

    def call(tables: tuple[Array, ...], *rows: Any) -> tuple[Array, ...]:
        out_specs = tuple(specs[kind] for kind in kinds)
        return _per_device(local, PartitionSpec(), rows, out_specs)(tables, *rows)

    return call


def sharded_embedding_lookup(table: Array, tokens: Array) -> Array:
    """Look up rows of a table whose width `fsdp` may split.

    The devices of an `fsdp` group look up the tokens of all of them, each in its part of the width,
    and exchange the vectors. So neither the table nor its gradient is gathered, unless it has fewer
    rows than a device has tokens.

    Args:
        table: [vocab, embed].
        tokens: [rows, ...].

    Returns:
        The vectors, [rows, ..., embed].
    """
    (axis,), (vocab, embed) = RULES["embed"], table.shape
    shards, rows = _axis_shards("embed"), row_shards(tokens)
    if rows == 1 or shards == 1 or embed % shards or vocab_shards() > 1:
        return gather_table_width(table)[tokens]
    if tokens.size // rows >= vocab:
        return gather_table_width(table)[tokens]

    def local(part: Array, tokens: Array) -> Array:
        vectors = part[jax.lax.all_gather(tokens, axis, tiled=True)]
        return jax.lax.all_to_all(vectors, axis, 0, vectors.ndim - 1, tiled=True)

    batch = PartitionSpec(RULES["batch"])
    return _per_device(local, PartitionSpec(None, axis), (tokens,), batch)(table, tokens)


def batch_split_devices(rows: int, *, include_fsdp: bool = False) -> int:
    """Return the number of devices that split a batch; 1 if they also split other axes or unevenly.

    Args:
        rows: of the batch.
        include_fsdp: also count devices that split parameters (`fsdp`), since they may gather them.
    """
    if not has_mesh():
        return 1
    mesh = jax.sharding.get_abstract_mesh()
    shared = axis_shards("batch", mesh) if include_fsdp else mesh.shape["data"]
    return mesh.size if mesh.size == shared and not rows % mesh.size else 1


def sum_over_devices(
    function: Callable[[Any, Any], Any], replicated: Any, rows: Any, *, out_specs: Any = _SUM
) -> Any:
    """Compute on each of the devices of `batch_split_devices` separately, and sum the results.

    By default the compiler reduces over devices in every iteration of the loops inside.

    Args:
        function: takes `replicated` and `rows`; returns a tree of sums. Inside it nothing is split,
            and `mnmt_jax.distributed.sharding.first_row` gives the index of a device's first row.
        replicated: arrays that every device has, or gathers now if they are split.
        rows: tree of arrays [_, rows, ...].
        out_specs: partition spec of the sums, so that a device keeps its shard: for each sum, or
            for all below a node of the tree. By default every device keeps the full sums.
    """

    def reduce_tree(spec: PartitionSpec, tree: Any) -> Any:
        return jax.tree.map(lambda array: _sum_and_shard(spec, array, MESH_AXES), tree)

    def local(whole: Any, rows: Any) -> Any:
        return jax.tree.map(
            reduce_tree,
            out_specs,
            function(whole, rows),
            is_leaf=lambda x: isinstance(x, PartitionSpec),
        )

    return jax.shard_map(
        local,
        mesh=jax.sharding.get_abstract_mesh(),
        in_specs=(PartitionSpec(), PartitionSpec(None, RULES["batch"])),
        out_specs=out_specs,
        axis_names=set(MESH_AXES),
        check_vma=False,
    )(replicated, rows)


def _sum_and_shard(spec: PartitionSpec, array: Array, axes: Sequence[str]) -> Array:
    """Sum a result over devices and keep each device's shard.

    Args:
        spec: the shard that a device keeps.
        array: the result of this device, unsplit.
        axes: mesh axes to sum over.
    """
    scattered: set[str] = set()
    for dimension, entry in enumerate(spec):
        mesh_axes = () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
        if mesh_axes := tuple(axis for axis in mesh_axes if axis in axes):
            array = jax.lax.psum_scatter(array, mesh_axes, scatter_dimension=dimension, tiled=True)
            scattered.update(mesh_axes)
    return jax.lax.psum(array, tuple(axis for axis in axes if axis not in scattered))


def sharded_top_k(values: Array, count: int) -> tuple[Array, ...]:
    """Return what `jax.lax.top_k` returns, computed by each device on its rows.

    By default the compiler gathers all rows on every device: in a search, the logits of the whole
    batch in every step.

    Args:
        values: [rows, ...].
        count: number of values to return.
    """

    def local(_: Any, rows: Array) -> tuple[Array, ...]:
        # Reshape to a matrix: XLA's fast implementation on CPU supports nothing else.
        results = jax.lax.top_k(rows.reshape(-1, rows.shape[-1]), count)
        return tuple(result.reshape(*rows.shape[:-1], count) for result in results)

    if row_shards(values) == 1:
        return local((), values)
    return _per_device(local, PartitionSpec(), (values,), PartitionSpec(RULES["batch"]))((), values)


def shard_map_slots(function: Callable[..., Array], slots: Any, rows: tuple[Array, ...]) -> Array:
    """Apply a function to the rows of each device, whose positions select one of several slots.

    Parameters of slots that are split over `fsdp` are not moved: the rows of its devices are
    gathered, each device computes those that select its slots, and the results are scattered back.

    Args:
        function: takes `slots` and `rows`, and returns one array [rows, ...], 0 where a row selects
            none of the slots.
        slots: tree of parameters [slots, ...].
        rows: arrays [rows, ...]; the last, of integers, holds the slot of each position, negative
            for none.
    """
    if row_shards(rows[0]) == 1:
        return function(slots, *rows)
    (axis,) = RULES["slot"]
    count = jax.tree.leaves(slots)[0].shape[0]
    shards = jax.sharding.get_abstract_mesh().shape[axis]
    is_split = shards > 1 and count % shards == 0

    def compute_gathered(local_slots: Any, *rows: Array) -> Array:
        *inputs, indices = (jax.lax.all_gather(array, axis, tiled=True) for array in rows)
        indices = indices - jax.lax.axis_index(axis) * (count // shards)
        indices = jnp.where(indices < count // shards, indices, -1)
        outputs = function(local_slots, *inputs, indices)
        return jax.lax.psum_scatter(outputs, axis, tiled=True)

    spec = PartitionSpec(axis if is_split else None)
    compute = compute_gathered if is_split else function
    return _per_device(compute, spec, rows, PartitionSpec(RULES["batch"]))(slots, *rows)


def _per_device(
    function: Callable, parameters: PartitionSpec, rows: Sequence[Any], out_specs: Any
) -> Callable:
    """Return a function of parameters and rows that each device runs on its rows.

    Args:
        function: of one device's parameters and rows.
        parameters: how these are split among devices that hold rows.
        rows: arrays [rows, ...], or tuples of such arrays.
        out_specs: how the result is split.
    """
    axes = RULES["batch"]
    return jax.shard_map(
        function,
        mesh=jax.sharding.get_abstract_mesh(),
        in_specs=(parameters, *[PartitionSpec(axes)] * len(rows)),
        out_specs=out_specs,
        axis_names=set(axes),
        check_vma=False,
    )


def can_shard_rows_and_heads(states: Array) -> bool:
    """Return whether `shard_map_rows_and_heads` accepts an array [rows, length, heads, head_dim].

    True without a mesh set by `jit_with_mesh`, or if the mesh divides rows and heads.
    """
    rows, heads = states.shape[0], states.shape[2]
    return not rows % _axis_shards("batch") and not heads % _axis_shards("heads")


def _axis_shards(axis: str) -> int:
    return axis_shards(axis, jax.sharding.get_abstract_mesh()) if has_mesh() else 1


def shard_map_rows_and_heads(function: Callable[..., Array], like: Array) -> Callable[..., Array]:
    """Run a function on the rows and heads of each device, with their offsets in the whole array.

    Args:
        function: takes an array that every device has, the indices of the first row and the first
            head, int32 [2], a tree of arrays [rows, length, heads, head_dim] and one of arrays
            [rows, length]; returns an array like the former.
        like: an array like the former, which the mesh splits evenly.

    Returns:
        A function without the offsets.
    """
    if not has_mesh():
        row = first_row(like.shape[0])
        offsets = jnp.stack([jnp.int32(0) if row is None else row, jnp.int32(0)])
        return lambda replicated, *arrays: function(replicated, offsets, *arrays)
    mesh = jax.sharding.get_abstract_mesh()
    rows, heads = RULES["batch"], RULES["heads"]
    heads_per_device = like.shape[2] // _axis_shards("heads")
    sizes = jnp.array([like.shape[0] // _axis_shards("batch"), heads_per_device], jnp.int32)

    def local(replicated: Array, *arrays: Any) -> Array:
        shard_indices = jnp.stack([jax.lax.axis_index(rows), jax.lax.axis_index(heads)])
        return function(replicated, shard_indices * sizes, *arrays)

    states = PartitionSpec(rows, None, heads)
    return jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(PartitionSpec(), states, PartitionSpec(rows)),
        out_specs=states,
        axis_names=set(MESH_AXES),
        check_vma=False,
    )
