"""The table of benchmarks/optimizers.py from records of runs."""

from __future__ import annotations

import importlib.util

from tests.run_commands import ROOT


def records(losses, rate):
    """Return lines of a metrics file: a validation every ten updates, and a rate."""
    return [
        {"step": 10 * n, "steps_per_second": rate, "validation": {"supervised": {"loss": loss}}}
        for n, loss in enumerate(losses, start=1)
    ]


def test_the_loss_to_reach_is_the_highest_final_one_of_the_first_variant():
    path = ROOT / "benchmarks" / "optimizers.py"
    spec = importlib.util.spec_from_file_location("optimizers", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    table = module.table(
        {
            "adam": [records([5.0, 3.0, 2.0], 4.0), records([5.0, 2.5, 1.0], 2.0)],
            "muon": [records([2.0, 1.0, 3.0], 4.0), records([4.0, 3.0, 2.5], 4.0)],
        }
    )
    header, _, adam, muon = table.splitlines()
    assert "updates to 2.000" in header
    assert "1.5000 (1.0000 to 2.0000)" in adam and "30 (30 to 30)" in adam and "0.3750" in adam
    assert "10 (10 to 10); 1 of 2 never" in muon and "0.2500" in muon
