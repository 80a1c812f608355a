"""The two sharding tables: complete and strict, with helpful errors."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from mnmt_jax.config.sections import Mesh
from mnmt_jax.design.layouts import LAYOUTS
from mnmt_jax.design.plan import Kind, Plan, Sublayer
from mnmt_jax.distributed.sharding import (
    MESH_AXES,
    PARAMETER_AXES,
    RULES,
    batch_sharding,
    gather_params,
    jit_with_mesh,
    make_mesh,
    param_axes_of,
    partition_spec,
    place_batch,
    tree_sharding,
)


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        (Mesh(), (8, 1, 1)),
        (Mesh(fsdp=2, tensor=2), (2, 2, 2)),
        (Mesh(fsdp=-1, tensor=2), (1, 4, 2)),
    ],
)
def test_mesh_sizes(config, sizes):
    mesh = make_mesh(config)
    assert mesh.axis_names == MESH_AXES
    assert tuple(mesh.shape.values()) == sizes


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (Mesh(fsdp=3), "Mesh.fsdp=3 x Mesh.tensor=1 must divide the 8 devices present"),
        (Mesh(fsdp=4, tensor=4), "must divide the 8 devices"),
        (Mesh(fsdp=-1, tensor=3), "Mesh.fsdp=-1 x Mesh.tensor=3 must divide"),
    ],
)
def test_mesh_refuses_invalid_sizes(config, message):
    with pytest.raises(ValueError, match=message):
        make_mesh(config)


def test_mesh_refuses_shapes_unsupported_by_the_topology(monkeypatch):
    def refuse(*_, **__):
        raise NotImplementedError("Failed to find assignment")

    monkeypatch.setattr(jax, "make_mesh", refuse)
    with pytest.raises(ValueError, match="Mesh.fsdp=8 x Mesh.tensor=1 does not follow the axes"):
        make_mesh(Mesh(fsdp=8))


def test_sharding_rules_use_known_mesh_axes_and_parameters_known_rules():
    assert RULES and PARAMETER_AXES
    assert {axis for axes in RULES.values() for axis in axes} == set(MESH_AXES)
    assert RULES["length"] == ()  # attention would collect it in every layer
    assert {axis for axes in PARAMETER_AXES.values() for axis in axes} <= set(RULES)


def test_the_axes_of_parameters():
    assert PARAMETER_AXES == {
        "embedding": ("vocab", "embed"),
        "embedding_positions": ("length", "embed"),
        "query/kernel": ("embed", "heads", "kv"),
        "query/bias": ("heads", "kv"),
        "query/lora_a": ("embed", "rank"),
        "query/lora_b": ("rank", "heads", "kv"),
        "key/kernel": ("embed", "heads", "kv"),
        "key/bias": ("heads", "kv"),
        "key/lora_a": ("embed", "rank"),
        "key/lora_b": ("rank", "heads", "kv"),
        "value/kernel": ("embed", "heads", "kv"),
        "value/bias": ("heads", "kv"),
        "value/lora_a": ("embed", "rank"),
        "value/lora_b": ("rank", "heads", "kv"),
        "out/kernel": ("heads", "kv", "embed"),
        "out/bias": ("channel",),
        "out/lora_a": ("heads", "kv", "rank"),
        "out/lora_b": ("rank", "embed"),
        "wi/kernel": ("embed", "mlp"),
        "wi/bias": ("mlp",),
        "wi/lora_a": ("embed", "rank"),
        "wi/lora_b": ("rank", "mlp"),
        "wo/kernel": ("mlp", "embed"),
        "wo/bias": ("channel",),
        "wo/lora_a": ("mlp", "rank"),
        "wo/lora_b": ("rank", "embed"),
        "norm/scale": ("channel",),
        "norm/bias": ("channel",),
        "ns_coeffs": ("channel",),
    }


def test_partition_spec():
    assert partition_spec(("embed", "heads", "kv")) == PartitionSpec("fsdp", "tensor", None)
    assert partition_spec(("batch", "length")) == PartitionSpec(("data", "fsdp"), None)


def test_unknown_axis_and_parameter_raise():
    with pytest.raises(ValueError, match="unknown logical axis 'width'"):
        partition_spec(("width",))
    with pytest.raises(ValueError, match="parameter 'layer_0/gate/kernel' has unknown axes"):
        param_axes_of("layer_0/gate/kernel")


def test_parameters_are_gathered_over_their_width_only():
    mesh = make_mesh(Mesh(fsdp=4, tensor=2))
    kernel, other = jnp.ones((8, 2, 4)), jnp.ones(())
    params = {"query": {"kernel": kernel}, "other": (other,)}
    actual = jit_with_mesh(mesh, gather_params)(params)
    expected = NamedSharding(mesh, PartitionSpec(None, "tensor"))
    assert actual["query"]["kernel"].sharding.is_equivalent_to(expected, 3)
    assert gather_params(params) is params


def test_tree_sharding_covers_parameters_moments_and_scalars():
    mesh = make_mesh(Mesh(fsdp=2, tensor=2))
    params = {
        "embedding": jnp.zeros((10, 4)),
        "layer_0": {"attention": {"out": {"kernel": jnp.zeros((2, 3, 4)), "bias": jnp.zeros(4)}}},
        "stage_0_norm": {"scale": jnp.zeros(4)},
    }
    shardings = tree_sharding(mesh, {"params": params, "moments": (params,), "step": jnp.zeros(())})
    for part in (shardings["params"], shardings["moments"][0]):
        specs = jax.tree.map(lambda s: s.spec, part)
        assert specs["embedding"] == PartitionSpec("tensor", "fsdp")
        out = specs["layer_0"]["attention"]["out"]
        assert out["kernel"] == PartitionSpec("tensor", None, "fsdp")
        assert out["bias"] == specs["stage_0_norm"]["scale"] == PartitionSpec(None)
    assert shardings["step"].spec == PartitionSpec()
    jax.device_put(params, shardings["params"])


def test_an_odd_vocabulary_is_replicated_and_other_axes_must_divide():
    mesh = make_mesh(Mesh(fsdp=2, tensor=2))
    spec = tree_sharding(mesh, {"embedding": jnp.zeros((11, 4))})["embedding"].spec
    assert spec == PartitionSpec(None, "fsdp")
    with pytest.raises(
        ValueError, match="axis 'heads' of size 3 cannot be split in 2.*Mesh.tensor"
    ):
        tree_sharding(mesh, {"query": {"bias": jnp.zeros((3, 4))}})
    with pytest.raises(ValueError, match="has shape"):
        tree_sharding(mesh, {"query": {"bias": jnp.zeros((2, 2, 4))}})


def test_batch_rows_are_sharded_over_data_and_fsdp():
    mesh = make_mesh(Mesh(fsdp=2, tensor=2))
    batch = {"source_tokens": np.arange(24, dtype=np.int32).reshape(8, 3)}
    placed = place_batch(batch, mesh)["source_tokens"]
    np.testing.assert_array_equal(placed, batch["source_tokens"])
    assert {shard.data.shape for shard in placed.addressable_shards} == {(2, 3)}
    assert batch_sharding(mesh, 1).spec == PartitionSpec(None, ("data", "fsdp"))
    with pytest.raises(ValueError, match="Data.rows=6 must be a multiple of the 4 parts"):
        place_batch({"source_tokens": np.zeros((6, 3), np.int32)}, mesh)


def test_a_kind_names_the_axes_of_its_parameters():
    mesh = make_mesh(Mesh(fsdp=2, tensor=2))
    tree = {"layer_0": {"gated": {"gate": {"kernel": jnp.zeros((4, 6))}}}}
    with pytest.raises(ValueError, match="layer_0/gated/gate/kernel.*Kind `axes`"):
        tree_sharding(mesh, tree)

    class Gated(Kind):
        axes: ClassVar = {"gate/kernel": ("embed", "mlp")}

    (spec,) = jax.tree.leaves(tree_sharding(mesh, tree, plan_of(Gated()).param_axes()))
    assert spec.spec == PartitionSpec("fsdp", "tensor")

    class Other(Gated):
        axes: ClassVar = {"gate/kernel": ("embed", "embed")}

    with pytest.raises(ValueError, match=r"'gate/kernel' is \('embed', 'mlp'\) elsewhere"):
        plan_of(Gated(), Other()).param_axes()


def plan_of(*kinds: Kind) -> Plan:
    sublayers = (Sublayer(f"gated_{number}", kind) for number, kind in enumerate(kinds))
    return Plan(LAYOUTS["register"], (), auxiliary=tuple(sublayers))
