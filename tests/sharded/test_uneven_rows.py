"""Numbers of devices that do not divide `Data.rows`: the same batches and the same updates."""

from __future__ import annotations

import functools
from pathlib import Path

import jax
import numpy as np
import pytest

from mnmt_jax.config.sections import Config
from mnmt_jax.distributed.sharding import make_mesh
from mnmt_jax.errors import UserError
from mnmt_jax.training.build import build
from mnmt_jax.training.train import train
from tests.made_run import make_cache, make_config, records, saved

STEPS = 3
RTOL = 1e-5  # sums over devices are taken in another order
PARAMETER_ATOL = 1e-5
CHANGES = {
    "train": {"steps": STEPS, "log_every": 1, "eval_every": 3, "save_every": 3},
    "optimizer": {"accumulate": 2, "eps": 1e-3},
    "model": {"dropout": 0.2, "attention_dropout": 0.2},
}


@pytest.fixture
def cache(tmp_path) -> Path:
    return make_cache(tmp_path / "cache")


def train_on(devices: int, config: Config, run: Path, patch: pytest.MonkeyPatch) -> None:
    some = functools.partial(make_mesh, devices=jax.devices()[:devices])
    patch.setattr("mnmt_jax.training.build.make_mesh", some)
    assert train(config, run) is None


@pytest.mark.parametrize(("devices", "mesh"), [(3, {}), (6, {"fsdp": 2, "tensor": 1})])
def test_empty_rows_change_neither_batches_nor_updates(
    devices, mesh, cache, tmp_path, monkeypatch, capsys
):
    """Eight rows on three devices, and on six of which two share parameters; with dropout."""
    config = make_config(cache, **CHANGES)
    train_on(1, config, tmp_path / "one", monkeypatch)
    assert "stay empty" not in capsys.readouterr().err
    uneven = make_config(cache, **CHANGES, mesh=mesh)
    train_on(devices, uneven, tmp_path / "uneven", monkeypatch)
    padded = -(-8 // devices) * devices
    expected = f"{padded - 8} of {padded} rows of each batch stay empty, because Data.rows=8 is not"
    assert expected in capsys.readouterr().err
    actual, reference = records(tmp_path / "uneven"), records(tmp_path / "one")
    assert len(actual) == STEPS
    for one, other in zip(actual, reference, strict=True):
        assert one["padding_share"] == other["padding_share"]
        assert one["loss"] == pytest.approx(other["loss"], rel=RTOL)
        assert one["gradient_norm"] == pytest.approx(other["gradient_norm"], rel=RTOL)
    losses = (line[-1]["validation"]["supervised"]["loss"] for line in (actual, reference))
    assert next(losses) == pytest.approx(next(losses), rel=RTOL)
    left, right = saved(tmp_path / "uneven", STEPS), saved(tmp_path / "one", STEPS)
    params = [name for name in left if name.startswith("params")]
    assert len(params) > 10
    for name in params:
        np.testing.assert_allclose(left[name], right[name], atol=PARAMETER_ATOL, err_msg=name)


def test_groups_of_rows_are_not_moved_by_empty_rows(cache, monkeypatch):
    from mnmt_jax.methods.mrasp2 import MRASP2

    some = functools.partial(make_mesh, devices=jax.devices()[:3])
    monkeypatch.setattr("mnmt_jax.training.build.make_mesh", some)
    model = {"layout": "encoder_decoder", "stage_layers": (1, 1)}
    for groups, message in ((1, ""), (2, "Data.rows=8 must be a multiple of the 3 parts")):
        methods = {"methods": (MRASP2(layer=1, groups=groups),)}
        config = make_config(cache, model=model, train=methods)
        if not message:
            assert build(config).pipeline.empty_rows_summary()
        else:
            with pytest.raises(UserError, match=f"{message}.*because MRASP2.groups=2 divides"):
                build(config)
