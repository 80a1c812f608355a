"""Averages of a run's checkpoints, element by element."""

from __future__ import annotations

import numpy as np
import pytest

from mnmt_jax.commands import average
from mnmt_jax.errors import UserError
from mnmt_jax.files.lazy_array import LazyArray
from mnmt_jax.runs.average import average_checkpoints
from mnmt_jax.runs.parameters import load_params, write_params

STEPS = 5


def write_step(run, step, params):
    """Write a checkpoint of parameters alone."""
    new = run.with_name("new")
    write_params(new, {name: LazyArray.of(np.asarray(array)) for name, array in params.items()})
    (run / "checkpoints").mkdir(parents=True, exist_ok=True)
    (new / "checkpoints" / "0").rename(run / "checkpoints" / str(step))


def test_equal_elements_stay_bit_for_bit(tmp_path):
    """Those of frozen arrays, and of frozen rows in an array with others; also negative zeros."""
    rng = np.random.default_rng(0)
    frozen = rng.normal(size=(40, 8)).astype(np.float32)
    frozen[0] = -0.0
    assert (sum([frozen] * (STEPS - 1), frozen) / np.float32(STEPS) != frozen).any()
    trained = rng.normal(size=(STEPS, 3, 8)).astype(np.float32)
    for step, rows in enumerate(trained):
        params = {
            "frozen": frozen,
            "rows": np.concatenate([frozen, rows]),
            "scale": np.float32(step),
        }
        write_step(tmp_path / "run", step, params)
    average_checkpoints(tmp_path / "run", range(STEPS))
    mean, step = load_params(tmp_path / "run", "average")
    assert step == STEPS - 1 and mean["scale"] == 2.0
    for array in (mean["frozen"], mean["rows"][:40]):
        assert array.tobytes() == frozen.tobytes()
    np.testing.assert_allclose(mean["rows"][40:], trained.mean(0), rtol=1e-5, atol=1e-6)


def test_steps_are_separated_by_commas_or_spaces(tmp_path, monkeypatch):
    averaged = []
    monkeypatch.setattr(
        "mnmt_jax.runs.average.average_checkpoints", lambda _, steps: averaged.append(steps)
    )
    for steps in (
        ["--steps=200,1000"],
        ["--steps", "200", "1000"],
        ["--steps=200", "--steps=1000"],
    ):
        monkeypatch.setattr("sys.argv", ["mnmt average", f"--run={tmp_path}", *steps])
        average.main()
    assert averaged == [[200, 1000]] * 3
    for steps in ("200,best", ","):
        with pytest.raises(UserError, match=f"--steps: '{steps}' must be steps, e.g. 100,200"):
            average.make_parser().parse_args(["--run=run", f"--steps={steps}"])


def test_the_command_says_what_it_averaged_and_how_to_use_it(tmp_path, monkeypatch, capsys):
    for step in (200, 1000, 400):
        write_step(tmp_path / "run", step, {"scale": np.float32(step)})
    for flags, steps, count in (
        (["--last=2"], "400 1000", "2 steps"),
        (["--last=1"], "1000", "1 step"),
        (["--steps", "400,1000,400", "1000"], "400 1000", "2 steps"),
    ):
        monkeypatch.setattr("sys.argv", ["mnmt average", f"--run={tmp_path / 'run'}", *flags])
        average.main()
        said = capsys.readouterr()
        assert said.err == f"averaged {count}; use it with --step=average\n"
        assert said.out == f"{steps}\n"  # for other programs
