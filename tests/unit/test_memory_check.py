"""Models larger than device memory are refused before allocation."""

import dataclasses

import jax
import pytest

from mnmt_jax.distributed.sharding import make_mesh
from mnmt_jax.errors import UserError
from mnmt_jax.model.shapes import parameter_shapes
from mnmt_jax.training.build import build
from mnmt_jax.training.memory_check import check_state_memory
from tests.made_run import make_cache, make_config


def test_a_model_larger_than_device_memory_is_refused(tmp_path, one_device):
    config = make_config(make_cache(tmp_path / "cache"))
    mesh = make_mesh(config.mesh, devices=jax.devices()[:1])
    check_state_memory(parameter_shapes(config.model, 60), mesh)
    wide = dataclasses.replace(config.model, embed=1 << 17, mlp=1 << 17)
    with pytest.raises(UserError, match=r"parameters, which need at least .* lower Model\.embed"):
        build(dataclasses.replace(config, model=wide))
