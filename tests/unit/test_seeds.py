"""benchmarks/seeds.py: the tables of docs/results_registers.md, from runs of several seeds."""

from __future__ import annotations

import json

from mnmt_jax.evaluation.result import write_result
from tests.run_commands import call
from tests.unit.made_results import made_result


def test_scores_and_losses_over_seeds(tmp_path, capsys):
    """Validation losses of 0.6 and 0.3 with the first seed, 0.05 more with the second."""
    for model in ("prefix", "register"):
        for seed in (1, 2):
            run = tmp_path / f"{model}_{seed}"
            (run / "report").mkdir(parents=True)
            result = made_result(f"{model}{seed}", ("en", "de", "fr"), seed=seed)
            write_result(result, run / "report" / "scores.json")
            records = [
                {
                    "step": step,
                    "validation": {"supervised": {"nll": nll}, "zero_shot": {"nll": 1.0}},
                }
                for step, nll in ((500, 0.55 + seed / 20), (1000, 0.25 + seed / 20))
            ]
            lines = "".join(json.dumps(record) + "\n" for record in [{"step": 1}, *records])
            (run / "metrics.jsonl").write_text(lines, encoding="utf-8")
    call("benchmarks/seeds.py", sorted(map(str, tmp_path.iterdir())))
    scores, by_step, at_equal_loss = capsys.readouterr().out.strip().split("\n\n")
    assert scores.count("prefix") == scores.count("register") == 4
    assert "| 500 " in by_step and "0.625 (0.600 to 0.650)" in by_step
    assert "0.325 (0.300 to 0.350)" in by_step
    assert "1,000 (1,000 to 1,000)" in at_equal_loss and "not reached" in at_equal_loss
