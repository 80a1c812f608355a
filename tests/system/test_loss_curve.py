"""Golden loss curve: twenty updates of a tiny run give the stored losses.

A change of numerics on purpose writes the file anew, and its difference shows the curve it moved:

    python -m tests.system.test_loss_curve
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from mnmt_jax.training.train import train
from tests.made_run import make_cache, make_config, records

CURVE = Path(__file__).parents[1] / "golden" / "loss_curve.json"
STEPS = 20
LOSS_RTOL = 1e-4  # float32 sums in another order, twenty updates long


def loss_curve(folder: Path) -> list[float]:
    """Return the losses of a training with dropout, packing, accumulation and clipping."""
    config = make_config(
        make_cache(folder / "cache"),
        model={"layout": "register", "stage_layers": (2,)},
        optimizer={"accumulate": 2, "clip_norm": 1.0, "weight_decay": 0.01},
        train={"steps": STEPS, "log_every": 1, "eval_every": STEPS, "save_every": STEPS},
    )
    train(config, folder / "run")
    return [record["loss"] for record in records(folder / "run")]


def test_loss_curve(tmp_path):
    expected = json.loads(CURVE.read_text(encoding="utf-8"))
    actual = loss_curve(tmp_path)
    assert len(actual) == STEPS and actual[-1] < 0.95 * actual[0]
    assert actual == pytest.approx(expected, rel=LOSS_RTOL)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        curve = [round(loss, 6) for loss in loss_curve(Path(folder))]
    CURVE.write_text(json.dumps(curve, indent=0) + "\n", encoding="utf-8")
