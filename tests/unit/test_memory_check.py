"""Models larger than device memory are refused before allocation."""

import dataclasses

import jax
import pytest

from mnmt_jax.distributed.sharding import make_mesh
from mnmt_jax.errors import UserError
from mnmt_jax.training.memory_check import check_state_memory
from tests.made_run import make_config


def test_a_model_larger_than_device_memory_is_refused(tmp_path):
    config = make_config(tmp_path)
    mesh = make_mesh(config.mesh, devices=jax.devices()[:1])
    check_state_memory(config, 60, mesh)
    wide = dataclasses.replace(config.model, embed=1 << 17, mlp=1 << 17)
    with pytest.raises(UserError, match=r"parameters, which need at least .* lower Model\.embed"):
        check_state_memory(dataclasses.replace(config, model=wide), 60, mesh)
