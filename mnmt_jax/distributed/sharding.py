"""Mesh and sharding rules: the logical axes of arrays and the mesh axes that split them.

The mesh has three axes. `data` splits the rows of a batch, `fsdp` splits rows and parameters,
`tensor` splits heads, feed-forward width and vocabulary. `constrain_row_sharding` keeps activations
split by rows after every projection; everything else (collectives, moments) follows.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import jax
import numpy as np
from jax.custom_derivatives import linear_call
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import Array

from mnmt_jax.distributed.chips import chip_of
from mnmt_jax.distributed.device_order import arrange, slices_of
from mnmt_jax.errors import UserError

MESH_AXES = ("data", "fsdp", "tensor")
AnyMesh = jax.sharding.Mesh | jax.sharding.AbstractMesh
ParamAxes = Mapping[str, tuple[str, ...]]
"""Suffix of a parameter's path -> its logical axes."""

_NO_AXES: ParamAxes = MappingProxyType({})


class MeshSizes(Protocol):
    """Sizes of the mesh axes `fsdp` and `tensor`; -1 for `fsdp` uses the devices of a slice."""

    @property
    def fsdp(self) -> int:
        """Batch shards with sharded parameters."""

    @property
    def tensor(self) -> int:
        """Shards of heads, feed-forward width and vocabulary."""


# Logical axis -> mesh axes that split it.
RULES: Mapping[str, tuple[str, ...]] = {
    "batch": ("data", "fsdp"),
    "length": (),  # attention would collect it in every layer
    "embed": ("fsdp",),
    "channel": (),  # of vectors, which are too small to be worth splitting
    "mlp": ("tensor",),
    "heads": ("tensor",),
    "kv": (),
    "rank": (),
    "vocab": ("tensor",),
    # Of per-language parameters; `shard_map_slots` sends positions to their devices.
    "slot": ("fsdp",),
}
_OF_PARAMETERS = tuple(axis for axis in RULES if axis != "batch")


def _projection_axes(
    name: str, inputs: tuple[str, ...], outputs: tuple[str, ...]
) -> dict[str, tuple[str, ...]]:
    """Return the logical axes of a projection's parameters, by the suffix of their paths."""
    return {
        f"{name}/kernel": (*inputs, *outputs),
        f"{name}/bias": ("channel",) if outputs == ("embed",) else outputs,
        f"{name}/lora_a": (*inputs, "rank"),
        f"{name}/lora_b": ("rank", *outputs),
    }


# Suffix of a parameter's path -> its logical axes. Sublayers may define further entries, which are
# passed as `extra_axes`. The optimizer's moments have the same paths.
PARAMETER_AXES: ParamAxes = {
    "embedding": ("vocab", "embed"),
    "embedding_positions": ("length", "embed"),
    **_projection_axes("query", ("embed",), ("heads", "kv")),
    **_projection_axes("key", ("embed",), ("heads", "kv")),
    **_projection_axes("value", ("embed",), ("heads", "kv")),
    **_projection_axes("out", ("heads", "kv"), ("embed",)),
    **_projection_axes("wi", ("embed",), ("mlp",)),
    **_projection_axes("wo", ("mlp",), ("embed",)),
    "norm/scale": ("channel",),
    "norm/bias": ("channel",),
    "ns_coeffs": ("channel",),  # of Muon's state
}

# Axes that may stay unsplit: published vocabularies have odd sizes, and the number of slots is the
# number of languages. Such a parameter is split along another axis. `shard_map_rows` splits
# vocabularies where it matters for speed.
_MAY_STAY_WHOLE = ("vocab", "slot")


def make_mesh(sizes: MeshSizes, devices: Sequence[jax.Device] | None = None) -> jax.sharding.Mesh:
    """Arrange devices as (data, fsdp, tensor).

    Args:
        sizes: of `fsdp` and `tensor`; `data` follows from the number of devices.
        devices: None uses all.

    Raises:
        UserError: if the sizes do not divide the devices, or do not fit their topology.
    """
    devices = list(jax.devices() if devices is None else devices)
    fsdp, tensor = sizes.fsdp, sizes.tensor
    if fsdp == -1 and tensor > 0:
        fsdp = max(len(slices_of(devices)[0]) // tensor, 1)
    if fsdp < 1 or tensor < 1 or len(devices) % (fsdp * tensor):
        raise UserError(
            f"Mesh.fsdp={sizes.fsdp} x Mesh.tensor={tensor} must divide the {len(devices)} "
            "devices present; set --gin.Mesh.fsdp and --gin.Mesh.tensor for them"
        )
    shape = (len(devices) // (fsdp * tensor), fsdp, tensor)
    auto = (AxisType.Auto,) * len(shape)
    return jax.sharding.Mesh(arrange(shape, devices), MESH_AXES, axis_types=auto)


def partition_spec(axes: Sequence[str]) -> PartitionSpec:
    """Translate logical axes to mesh axes.

    Args:
        axes: logical axis of each array axis.

    Raises:
        ValueError: if an axis is not in `RULES`.
    """
    unknown = [axis for axis in axes if axis not in RULES]
    if unknown:
        raise ValueError(f"unknown logical axis '{unknown[0]}'; known are {', '.join(RULES)}")
    return PartitionSpec(*(RULES[axis] or None for axis in axes))


def param_axes_of(path: str, extra_axes: ParamAxes = _NO_AXES) -> tuple[str, ...]:
    """Return the logical axes of a parameter.

    Args:
        path: names joined by `/`, e.g. `layer_0/attention/query/kernel`; any prefix is ignored.
        extra_axes: entries besides `PARAMETER_AXES` (`mnmt_jax.design.plan.Plan.param_axes`).

    Raises:
        UserError: if no entry matches the end of the path, or its entry names an unknown axis.
    """
    for table in (PARAMETER_AXES, extra_axes):
        for suffix, axes in table.items():
            if path.endswith(suffix):
                if unknown := [axis for axis in axes if axis not in _OF_PARAMETERS]:
                    raise UserError(
                        f"parameter '{path}': `axes` of its Kind names the axis '{unknown[0]}'; "
                        f"there are {', '.join(_OF_PARAMETERS)}"
                    )
                return axes
    raise UserError(
        f"parameter '{path}' has unknown axes; give its Kind `axes` for it, for each dimension one "
        f"of {', '.join(_OF_PARAMETERS)}"
    )


def check_param_axes(params: Any, extra_axes: ParamAxes = _NO_AXES) -> None:
    """Check that every parameter has logical axes, one for each dimension.

    Args:
        params: parameter tree of arrays or shapes.
        extra_axes: as for `param_axes_of`.

    Raises:
        UserError: if one has not.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        _axes_of_leaf(jax.tree_util.keystr(path, simple=True, separator="/"), leaf, extra_axes)


def _axes_of_leaf(name: str, leaf: Any, extra_axes: ParamAxes) -> tuple[str, ...]:
    axes = param_axes_of(name, extra_axes)
    if len(axes) != len(leaf.shape):
        raise UserError(
            f"parameter '{name}' has shape {leaf.shape}, but {len(axes)} axes {axes}; name one for "
            "each dimension in `axes` of its Kind"
        )
    return axes


def has_library_name(path: str) -> bool:
    """Return whether a parameter's path ends with an entry of `PARAMETER_AXES`."""
    return path.endswith(tuple(PARAMETER_AXES))


def tree_sharding(mesh: AnyMesh, tree: Any, extra_axes: ParamAxes = _NO_AXES) -> Any:
    """Return the sharding of every leaf of parameters, moments or a whole train state.

    Args:
        mesh: from `make_mesh`.
        tree: arrays or their shapes; scalars are replicated, and the path of any other leaf ends
            with the path of a parameter.
        extra_axes: as for `param_axes_of`.

    Raises:
        UserError: for an unknown parameter or axis, or one that its mesh axis does not divide.
    """

    def sharding_of(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        if not leaf.shape:
            return NamedSharding(mesh, PartitionSpec())
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        axes = _axes_of_leaf(name, leaf, extra_axes)
        return NamedSharding(mesh, _fitting_spec(mesh, name, axes, leaf.shape))

    return jax.tree_util.tree_map_with_path(sharding_of, tree)


def tree_specs(tree: Any, extra_axes: ParamAxes = _NO_AXES) -> Any:
    """Return the partition spec of every leaf on the mesh that `jit_with_mesh` set.

    Args:
        tree: as for `tree_sharding`.
        extra_axes: as for `param_axes_of`.
    """
    shardings = tree_sharding(jax.sharding.get_abstract_mesh(), tree, extra_axes)
    return jax.tree.map(lambda sharding: sharding.spec, shardings)


def gather_params(params: Any, extra_axes: ParamAxes = _NO_AXES) -> Any:
    """Gather parameters that are split by their width, for several products with each.

    By default the compiler gathers a parameter again for each product. A gradient is split like its
    parameter again, so that every device receives the sum of its part alone. Without a mesh set by
    `jit_with_mesh` the parameters are returned unchanged.

    Args:
        params: nested mappings with the paths of parameters. Other axes stay split, and leaves that
            are not arrays stay unchanged.
        extra_axes: as for `param_axes_of`.
    """
    if not has_mesh():
        return params
    mesh = jax.sharding.get_abstract_mesh()

    def gather(path: tuple[Any, ...], leaf: Any) -> Any:
        if not isinstance(leaf, Array) or not leaf.shape:
            return leaf
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        axes = param_axes_of(name, extra_axes)
        spec = _fitting_spec(mesh, name, axes, leaf.shape)
        gathered_spec = (
            None if axis == "embed" else mesh_axes
            for axis, mesh_axes in zip(axes, spec, strict=True)
        )
        return _constrain(leaf, PartitionSpec(*gathered_spec), spec)

    return jax.tree_util.tree_map_with_path(
        gather, params, is_leaf=lambda x: not isinstance(x, Mapping)
    )


def _constrain(array: Array, spec: PartitionSpec, gradient_spec: PartitionSpec) -> Array:
    """Constrain an array, and its gradient, for which JAX's own constraint would use `spec`."""

    def constrain(_: Any, array: Array) -> Array:
        return jax.lax.with_sharding_constraint(array, spec)

    def constrain_gradient(_: Any, gradient: Array) -> Array:
        return jax.lax.with_sharding_constraint(gradient, gradient_spec)

    return linear_call(constrain, constrain_gradient, (), array)


def _fitting_spec(
    mesh: AnyMesh, name: str, axes: tuple[str, ...], shape: tuple[int, ...]
) -> PartitionSpec:
    entries = list(partition_spec(axes))
    used_mesh_axes: set[str] = set()  # a mesh axis splits only the first axis that it divides
    for dimension, (axis, size) in enumerate(zip(axes, shape, strict=True)):
        shards = axis_shards(axis, mesh)
        if size % shards == 0 and used_mesh_axes.isdisjoint(RULES[axis]):
            used_mesh_axes.update(RULES[axis])
            continue
        if size % shards and axis not in _MAY_STAY_WHOLE:
            raise UserError(
                f"parameter '{name}': axis '{axis}' of size {size} cannot be split in {shards}; "
                f"change Mesh.{RULES[axis][0]} to a divisor"
            )
        entries[dimension] = None
    return PartitionSpec(*entries)


def replicated(mesh: jax.sharding.Mesh) -> NamedSharding:
    """Return the sharding of arrays that every device holds in full."""
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: jax.sharding.Mesh, leading: int = 0) -> NamedSharding:
    """Return the sharding of a batch's arrays: rows over `data` and `fsdp`.

    Args:
        mesh: from `make_mesh`.
        leading: number of unsplit axes before the rows, e.g. 1 for stacked micro-batches.
    """
    return NamedSharding(mesh, PartitionSpec(*[None] * leading, RULES["batch"]))


def decoding_state_spec(dimensions: int) -> PartitionSpec:
    """Return the partition spec of an array of the search state: split by rows, and by heads.

    Args:
        dimensions: of the array. Arrays with four dimensions are keys or values; those without any
            belong to all rows.
    """
    heads = (RULES["heads"],) if dimensions == 4 else ()
    return PartitionSpec(RULES["batch"], *heads) if dimensions else PartitionSpec()


def batch_shards(mesh: jax.sharding.Mesh) -> int:
    """Return the number of shards that the rows of a batch are split into."""
    return axis_shards("batch", mesh)


def axis_shards(axis: str, mesh: AnyMesh) -> int:
    """Return the number of shards that `RULES` split an array axis into."""
    return math.prod(mesh.shape[mesh_axis] for mesh_axis in RULES[axis])


def check_rows(rows: int, shards: int) -> None:
    """Check that a batch can be split evenly.

    Raises:
        UserError: otherwise.
    """
    if rows % shards:
        raise UserError(
            f"Data.rows={rows} must be a multiple of the {shards} parts (data x fsdp) that the "
            "mesh splits a batch into"
        )


def local_batch_shards(mesh: jax.sharding.Mesh) -> tuple[int, ...]:
    """Return which of the `batch_shards` are on this process's devices, ascending."""
    index_by_device = batch_sharding(mesh).addressable_devices_indices_map((batch_shards(mesh),))
    return tuple(sorted({index[0].start or 0 for index in index_by_device.values() if index}))


def constrain_row_sharding(
    states: Array, bias: str = "", extra_axes: ParamAxes = _NO_AXES
) -> Array:
    """Constrain activations to be split by rows over `data` and `fsdp`.

    By default the compiler may follow a parameter, which `fsdp` splits too, and give every device
    the whole batch and a shard of the parameter.

    Args:
        states: [rows, ...]; returned unchanged unless `jit_with_mesh` set a mesh.
        bias: path of the parameter last added to them. Their last axes are split like it, and the
            axes between rows and those are unsplit. Without it, all axes but the rows are unsplit.
        extra_axes: as for `param_axes_of`.
    """
    if not has_mesh():
        return states
    bias_spec = partition_spec(param_axes_of(bias, extra_axes)) if bias else ()
    unsplit = (None,) * (states.ndim - 1 - len(bias_spec))
    return jax.lax.with_sharding_constraint(
        states, PartitionSpec(RULES["batch"], *unsplit, *bias_spec)
    )


def gather_table_width(table: Array) -> Array:
    """Gather the width of an embedding table, so that looking up a row gives a complete vector.

    Args:
        table: [vocab, embed]; its first axis stays split as it is. Returned unchanged unless
            `jit_with_mesh` set a mesh.
    """
    if not has_mesh():
        return table
    spec = PartitionSpec(PartitionSpec.UNCONSTRAINED, None)
    return jax.lax.with_sharding_constraint(table, spec)


def platform() -> str:
    """Return the platform that a program is traced for: `cpu`, `gpu` or `tpu`.

    Without a mesh it is the default backend.
    """
    device = _device()
    return device.platform if device else jax.default_backend()


def device_memory() -> float:
    """Return the memory in bytes of a device that a program is traced for.

    It is infinite for a CPU, and 0 for an unknown TPU or GPU.
    """
    device = _device()
    chip = chip_of(device.device_kind) if device else None
    return chip.memory if chip else math.inf if platform() == "cpu" else 0


def _device() -> Any:
    return getattr(jax.sharding.get_abstract_mesh(), "abstract_device", None)


def has_mesh() -> bool:
    """Return whether `jit_with_mesh` set a mesh of this module, over which arrays are split.

    False where each device computes separately
    (`mnmt_jax.distributed.per_device.sum_over_devices`).
    """
    return (
        set(MESH_AXES) <= set(jax.sharding.get_abstract_mesh().axis_names) and not _is_per_device()
    )


def first_row(rows: int) -> Array | None:
    """Return the index of a device's first row in the whole batch where it computes separately.

    Args:
        rows: number of rows per device.

    Returns:
        None elsewhere.
    """
    return jax.lax.axis_index(RULES["batch"]) * rows if _is_per_device() else None


def _is_per_device() -> bool:
    return set(MESH_AXES) <= set(jax.sharding.get_abstract_mesh().manual_axes)


def jit_with_mesh(mesh: jax.sharding.Mesh, function: Callable, **options: Any) -> Callable:
    """Return `jax.jit(function)` that is called and traced with the mesh set.

    Each call ends with `wait_on_cpu`.

    Args:
        mesh: from `make_mesh`; used by `constrain_row_sharding`.
        function: pure.
        options: of `jax.jit`.
    """
    compiled = jax.jit(function, **options)

    @functools.wraps(compiled)
    def call(*arguments: Any) -> Any:
        with jax.set_mesh(mesh):
            return wait_on_cpu(compiled(*arguments))

    return call


def wait_on_cpu(result: Any) -> Any:
    """Block until arrays on several CPU devices are ready; do not wait for other devices.

    Two concurrent programs can block each other's collectives by taking their threads; XLA's CPU
    client then aborts the process.

    Args:
        result: arrays of one program; returned unchanged.
    """
    arrays = (leaf for leaf in jax.tree.leaves(result) if isinstance(leaf, jax.Array))
    devices: list[Any] = list(next(arrays).sharding.device_set)
    waits = len(devices) > 1 and devices[0].platform == "cpu"
    return jax.block_until_ready(result) if waits else result


def place_batch(
    batch: Mapping[str, np.ndarray], mesh: jax.sharding.Mesh, leading: int = 0
) -> dict[str, jax.Array]:
    """Put a batch on the devices of the mesh.

    Args:
        batch: arrays with rows at axis `leading`; with several processes, the rows of this
            process's `local_batch_shards`.
        mesh: from `make_mesh`.
        leading: as in `batch_sharding`.

    Raises:
        UserError: if the rows cannot be split evenly.
    """
    local_shards, shards = local_batch_shards(mesh), batch_shards(mesh)
    local_rows = next(iter(batch.values())).shape[leading]
    check_rows(local_rows * shards // len(local_shards), shards)
    sharding = batch_sharding(mesh, leading)
    if jax.process_count() == 1:
        return jax.device_put(dict(batch), sharding)
    shard_rows = local_rows // len(local_shards)

    def place(array: np.ndarray) -> jax.Array:
        def device_rows(index: Any) -> np.ndarray:
            start = local_shards.index((index[leading].start or 0) // shard_rows) * shard_rows
            return array[(*index[:leading], slice(start, start + shard_rows))]

        shape = (*array.shape[:leading], shard_rows * shards, *array.shape[leading + 1 :])
        return jax.make_array_from_callback(shape, sharding, device_rows)

    return {name: place(array) for name, array in batch.items()}
