"""What each device does by itself, of its own rows, where the compiler would let them travel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array

from mnmt_jax.distributed.sharding import MESH_AXES, RULES, axis_shards, first_row, has_mesh

_SUM = PartitionSpec()  # of what every device has whole


def row_shards(rows: Array) -> int:
    """Returns the number of parts that `on_own_rows` can split rows into.

    Args:
        rows: [rows, ...].

    Returns:
        1 unless `compile_on` set a mesh whose `data` and `fsdp` divide the rows.
    """
    shards = _parts("batch")
    return 1 if rows.shape[0] % shards else shards


def on_own_rows(function: Callable, shards: int, kinds: Sequence[str]) -> Callable:
    """Runs a function on the rows of each device, so that a sum it forms in a loop travels once.

    Left to itself the compiler sums over devices in every round of the loop.

    Args:
        function: takes parameter tables, [vocab, embed], and arrays [rows, ...] or tuples of
            such; the tables are whole in `embed`, and split over `tensor` even where the parameters
            stay whole.
        shards: from `row_shards`.
        kinds: of each result. `rows`: its first axis holds rows. `sum`: the devices' are added up.
            `table`: the same, and each device keeps its part of the width, as of a parameter.
    """

    def split(tables: tuple[Array, ...], *rows: Any) -> tuple[Array, ...]:
        if has_mesh():
            spec = PartitionSpec(RULES["vocab"], None)
            tables = tuple(jax.lax.with_sharding_constraint(table, spec) for table in tables)
        return function(tables, *rows)

    if shards == 1:
        return split
    axes = RULES["batch"]
    width = RULES["embed"]
    specs = {
        "rows": PartitionSpec(axes),
        "sum": _SUM,
        "table": PartitionSpec(None, width),
    }

    def add_up(result: Array, kind: str) -> Array:
        return result if kind == "rows" else _add_up(specs[kind], result, axes)

    def local(tables: tuple[Array, ...], *rows: Any) -> tuple[Array, ...]:
        return tuple(map(add_up, split(tables, *rows), kinds))

    def call(tables: tuple[Array, ...], *rows: Any) -> tuple[Array, ...]:
        found = tuple(specs[kind] for kind in kinds)
        return _per_device(local, PartitionSpec(), rows, found)(tables, *rows)

    return call


def shares_rows_alone(rows: int, *, whole: bool = False) -> int:
    """Returns how many devices share a batch and nothing else, 1 if they share more or unevenly.

    Args:
        rows: of the batch.
        whole: those that split parameters (`fsdp`) may collect them: they count too.
    """
    if not has_mesh():
        return 1
    mesh = jax.sharding.get_abstract_mesh()
    shared = axis_shards("batch", mesh) if whole else mesh.shape["data"]
    return mesh.size if mesh.size == shared and not rows % mesh.size else 1


def sum_over_devices(
    function: Callable[[Any, Any], Any], whole: Any, rows: Any, *, kept: Any = _SUM
) -> Any:
    """Lets each of the devices of `shares_rows_alone` compute by itself, and adds up what it finds.

    Left to itself the compiler adds up over devices in every round of the loops inside.

    Args:
        function: takes the others; returns a tree of sums. In it nothing is split, and
            `mnmt_jax.distributed.sharding.first_row` says which rows are a device's.
        whole: what every device has, or collects now if it is split.
        rows: tree of arrays [_, rows, ...].
        kept: how the sums are split, so that a device keeps its part: for each sum, or for all
            below a node of the tree. All of them are whole without.
    """

    def add_up(spec: PartitionSpec, found: Any) -> Any:
        return jax.tree.map(lambda each: _add_up(spec, each, MESH_AXES), found)

    def local(whole: Any, rows: Any) -> Any:
        return jax.tree.map(
            add_up, kept, function(whole, rows), is_leaf=lambda x: isinstance(x, PartitionSpec)
        )

    return jax.shard_map(
        local,
        mesh=jax.sharding.get_abstract_mesh(),
        in_specs=(PartitionSpec(), PartitionSpec(None, RULES["batch"])),
        out_specs=kept,
        axis_names=set(MESH_AXES),
        check_vma=False,
    )(whole, rows)


def _add_up(spec: PartitionSpec, found: Array, axes: Sequence[str]) -> Array:
    """Adds up what devices found, of which each keeps its part.

    Args:
        spec: which part that is.
        found: the device's, whole.
        axes: of the mesh, over which to add up.
    """
    scattered: set[str] = set()
    for place, entry in enumerate(spec):
        own = () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
        if own := tuple(axis for axis in own if axis in axes):
            found = jax.lax.psum_scatter(found, own, scatter_dimension=place, tiled=True)
            scattered.update(own)
    return jax.lax.psum(found, tuple(axis for axis in axes if axis not in scattered))


def top_of_rows(values: Array, count: int) -> tuple[Array, ...]:
    """Returns what `jax.lax.top_k` does, each device of its own rows.

    Left to itself the compiler collects all rows on every device: in a search the logits of the
    whole batch in every step.

    Args:
        values: [rows, ...].
        count: how many to return.
    """

    def local(_: Any, rows: Array) -> tuple[Array, ...]:
        # As a matrix, of which alone XLA's fast implementation on CPU is.
        found = jax.lax.top_k(rows.reshape(-1, rows.shape[-1]), count)
        return tuple(each.reshape(*rows.shape[:-1], count) for each in found)

    if row_shards(values) == 1:
        return local((), values)
    return _per_device(local, PartitionSpec(), (values,), PartitionSpec(RULES["batch"]))((), values)


def map_rows(function: Callable[..., Array], slots: Any, rows: tuple[Array, ...]) -> Array:
    """Applies a function to the rows of each device, each of which takes one of some slots.

    Parameters of slots that are split over `fsdp` stay where they are: the rows of its devices are
    collected, each device computes those that take its slots, and what it found travels back.

    Args:
        function: takes `slots` and `rows`, and returns one array [rows, ...], 0 where a row takes
            none of the slots.
        slots: tree of parameters [slots, ...].
        rows: arrays [rows, ...], of which the last, of integers, says the slot of each place;
            negative is none.
    """
    if row_shards(rows[0]) == 1:
        return function(slots, *rows)
    (split,) = RULES["slot"]
    count = jax.tree.leaves(slots)[0].shape[0]
    parts = jax.sharding.get_abstract_mesh().shape[split]
    is_split = parts > 1 and count % parts == 0

    def collected(own: Any, *rows: Array) -> Array:
        *others, taken = (jax.lax.all_gather(each, split, tiled=True) for each in rows)
        taken = taken - jax.lax.axis_index(split) * (count // parts)
        taken = jnp.where(taken < count // parts, taken, -1)
        found = function(own, *others, taken)
        return jax.lax.psum_scatter(found, split, tiled=True)

    spec = PartitionSpec(split if is_split else None)
    compute = collected if is_split else function
    return _per_device(compute, spec, rows, PartitionSpec(RULES["batch"]))(slots, *rows)


def _per_device(
    function: Callable, parameters: PartitionSpec, rows: Sequence[Any], found: Any
) -> Callable:
    """Returns a function of parameters and rows that each device runs on its own rows.

    Args:
        function: of one device's parameters and rows.
        parameters: how these are split among devices that hold rows.
        rows: arrays [rows, ...], or tuples of such.
        found: how its result is split.
    """
    axes = RULES["batch"]
    return jax.shard_map(
        function,
        mesh=jax.sharding.get_abstract_mesh(),
        in_specs=(parameters, *[PartitionSpec(axes)] * len(rows)),
        out_specs=found,
        axis_names=set(axes),
        check_vma=False,
    )


def splits_rows_and_heads(states: Array) -> bool:
    """Returns whether `by_rows_and_heads` takes arrays [rows, length, heads, head_dim] like this.

    That is so without a mesh that `compile_on` set, and where it divides rows and heads.
    """
    rows, heads = states.shape[0], states.shape[2]
    return not rows % _parts("batch") and not heads % _parts("heads")


def _parts(axis: str) -> int:
    return axis_shards(axis, jax.sharding.get_abstract_mesh()) if has_mesh() else 1


def by_rows_and_heads(function: Callable[..., Array], like: Array) -> Callable[..., Array]:
    """Runs a function on the rows and heads of each device, which must be told where they stand.

    Args:
        function: takes an array that every device has whole, the places of the first row and the
            first head, int32 [2], a tree of arrays [rows, length, heads, head_dim] and one of
            arrays [rows, length]; returns an array as the former.
        like: as the former, which the mesh splits evenly.

    Returns:
        A function without the places.
    """
    if not has_mesh():
        row = first_row(like.shape[0])
        first = jnp.stack([jnp.int32(0) if row is None else row, jnp.int32(0)])
        return lambda whole, *rest: function(whole, first, *rest)
    mesh = jax.sharding.get_abstract_mesh()
    rows, heads = RULES["batch"], RULES["heads"]
    own_heads = like.shape[2] // _parts("heads")
    sizes = jnp.array([like.shape[0] // _parts("batch"), own_heads], jnp.int32)

    def local(whole: Array, *rest: Any) -> Array:
        own = jnp.stack([jax.lax.axis_index(rows), jax.lax.axis_index(heads)])
        return function(whole, own * sizes, *rest)

    states = PartitionSpec(rows, None, heads)
    return jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(PartitionSpec(), states, PartitionSpec(rows)),
        out_specs=states,
        axis_names=set(MESH_AXES),
        check_vma=False,
    )
