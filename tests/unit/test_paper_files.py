"""Files that a plan asks for: every corpus that a step reads, and imported models."""

from __future__ import annotations

import pytest

from mnmt_jax.commands import reproduce
from mnmt_jax.papers.scales import FULL
from mnmt_jax.papers.tables import find_table, load_papers
from mnmt_jax.papers.trials import trials
from mnmt_jax.papers.workflow import Workflow

pytestmark = pytest.mark.usefixtures("relaxed_dtypes")  # for parameter counts


@pytest.mark.parametrize(
    "table, row, folders",
    [
        ("registers/table3", "MITRE-913M", ["data/flores", "data/nllb"]),
        ("graformer/table1", "Graformer", ["data/newscrawl", "data/ted19"]),
        ("language_layers/table7", "FCLL", ["data/iwslt17"]),
    ],
)
def test_every_corpus_is_asked_for(monkeypatch, capsys, table, row, folders):
    """The corpus of the evaluation and of the vocabulary too."""
    number = [item.name for item in find_table(table).rows].index(row) + 1
    monkeypatch.setattr("sys.argv", ["mnmt reproduce", table, f"--rows={number}", "--dry_run"])
    reproduce.main()
    lines = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith("data: data/")
    ]
    places = [line.removeprefix("data: ").partition(" (not there):")[0] for line in lines]
    assert sorted(place for place in places if "spm" not in place) == folders


def test_released_models_are_in_the_folder_of_the_corpora(tmp_path, monkeypatch, capsys):
    table = find_table("registers/table4")
    number = next(n for n, row in enumerate(table.rows, 1) if "pretrained" in row.facts)
    command = ["mnmt reproduce", "registers/table4", f"--rows={number}", f"--data={tmp_path}"]
    monkeypatch.setattr("sys.argv", [*command, "--dry_run"])
    reproduce.main()
    printed = capsys.readouterr().out
    model = tmp_path / "nllb-200-distilled-600M"
    assert f"data: {model}: the released model" in printed
    assert f"--input {model} --output imports/" in printed
    plan = Workflow(load_papers()["registers"], FULL)  # without a folder as in the paper's file
    plan.add(trials(load_papers()["registers"], table, [table.rows[number - 1]], 1)[0])
    assert "data/nllb-200-distilled-600M" in plan.steps[0].command
