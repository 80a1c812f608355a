"""A run on one slice continues on two, with the batches and the updates of one device."""

from __future__ import annotations

import functools
from pathlib import Path

import jax
import numpy as np
import pytest

from mnmt_jax.config.sections import Config
from mnmt_jax.distributed import device_order, sharding
from mnmt_jax.distributed.sharding import make_mesh
from mnmt_jax.errors import UserError
from mnmt_jax.training.build import build
from mnmt_jax.training.train import train
from tests.made_run import make_cache, make_config, records, saved

SLICE = 4  # devices
RTOL = 1e-5  # sums over devices are taken in another order
PARAMETER_ATOL = 1e-5


def use_slices(count: int, patch: pytest.MonkeyPatch) -> None:
    """Let the first virtual devices be slices, as those of TPUs are."""
    devices = jax.devices()[: count * SLICE]

    def slices_of(devices):
        return [devices[start : start + SLICE] for start in range(0, len(devices), SLICE)]

    patch.setattr(device_order, "slices_of", slices_of)
    patch.setattr(sharding, "slices_of", slices_of)
    patch.setattr(
        "mnmt_jax.training.build.make_mesh", functools.partial(make_mesh, devices=devices)
    )


def made_config(cache: Path, steps: int, **mesh: int) -> Config:
    return make_config(
        cache,
        train={"steps": steps, "log_every": 1, "eval_every": 2, "save_every": 2},
        optimizer={"accumulate": 2, "eps": 1e-3, "schedule": "constant"},
        model={"dropout": 0.2},
        mesh=mesh,
    )


def test_one_slice_then_two_train_as_one_device(tmp_path, monkeypatch):
    """Parameters are split within a slice: `Mesh.fsdp=-1` does not change from one to two."""
    cache, run = make_cache(tmp_path / "cache"), tmp_path / "run"
    for count, steps in ((1, 2), (2, 4)):
        use_slices(count, monkeypatch)
        config = made_config(cache, steps, fsdp=-1)
        assert build(config).mesh.devices.shape == (count, SLICE, 1)
        assert train(config, run) is None
    with pytest.raises(UserError, match="would connect the 2 TPU slices of 4 devices"):
        build(made_config(cache, 4, fsdp=8))
    one = functools.partial(make_mesh, devices=jax.devices()[:1])
    monkeypatch.setattr("mnmt_jax.training.build.make_mesh", one)
    assert train(made_config(cache, 4), tmp_path / "one") is None
    actual, expected = records(run), records(tmp_path / "one")
    assert [line["step"] for line in actual] == [1, 2, 3, 4]
    for line, other in zip(actual, expected, strict=True):
        assert line["loss"] == pytest.approx(other["loss"], rel=RTOL)
        assert line["padding_share"] == other["padding_share"]
    left, right = saved(run, 4), saved(tmp_path / "one", 4)
    np.testing.assert_array_equal(left["data"], right["data"])
    params = [name for name in left if name.startswith("params")]
    assert len(params) > 10
    for name in params:
        np.testing.assert_allclose(left[name], right[name], atol=PARAMETER_ATOL, err_msg=name)
