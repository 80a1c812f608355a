"""Plans at the scale `tiny`, miniatures of released models, and the rows of the slow tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from mnmt_jax.data.corpus import NoFilesError
from mnmt_jax.data.miniature_text import LINES, phrases
from mnmt_jax.data.mixtures import MIXTURES
from mnmt_jax.data.parallel_corpora import PatternFiles
from mnmt_jax.data.published_corpora import PUBLISHED
from mnmt_jax.errors import UserError
from mnmt_jax.interop.fairseq import open_fairseq
from mnmt_jax.interop.huggingface import open_huggingface
from mnmt_jax.interop.miniature_checkpoint import RELEASED, write_miniature_checkpoint
from mnmt_jax.interop.tags import M2M100_LANGUAGES, NLLB_LANGUAGES
from mnmt_jax.papers.counts import counted_splits
from mnmt_jax.papers.experiments import corpus_settings, experiments
from mnmt_jax.papers.scales import FULL, TINY
from mnmt_jax.papers.selection import select_rows
from mnmt_jax.papers.table_plan import plan_table
from mnmt_jax.papers.tables import find_table, load_papers
from mnmt_jax.papers.trials import trials
from mnmt_jax.papers.workflow import Workflow
from mnmt_jax.vocabulary.languages import MITRE_LANGUAGES
from tests.tables.row_runs import ROWLESS, ROWS

PAPERS = load_papers()


def _steps(name: str, row: str, scale, data=None):
    table = find_table(name)
    paper = PAPERS[table.paper]
    plan = Workflow(paper, scale, data)
    for trial in trials(paper, table, select_rows(paper, table, row), 1):
        plan.add(trial)
    return plan.steps


def test_the_slow_tests_run_a_row_of_every_table_that_can_run():
    runnable = {
        f"{paper.name}/{table.name}": {
            row.name for row in table.rows if experiments(paper, table, row)
        }
        for paper in PAPERS.values()
        for table in paper.tables.values()
    }
    assert {name for name, rows in runnable.items() if rows} == set(ROWS)
    assert {name: row for name, row in ROWS.items() if row not in runnable[name]} == {}
    rowless = {name for name, rows in runnable.items() if not rows and _has_results(name)}
    assert rowless == set(ROWLESS)


def _has_results(name: str) -> bool:
    """Return whether a table has analyses or counts."""
    table = find_table(name)
    return bool(table.analyses or counted_splits(PAPERS[table.paper], table))


@pytest.mark.parametrize(("name", "seeds"), [("table5", 2), ("table7", 1)])
def test_tiny_plans_have_the_seeds_that_columns_need(name, seeds):
    plan = plan_table(
        find_table(f"language_layers/{name}"),
        TINY,
        rows="1",
        seeds=None,
        data=Path("data"),
        hypotheses=(),
        metrics={},
    )
    assert len({trial.seed for trial in plan.trials}) == seeds


def _best_by_validation(paper) -> set[str]:
    """Return the corpora whose models are chosen by validation loss."""
    settings = [corpus_settings(paper, name) for name in paper.corpora]
    return {
        MIXTURES[item.mixture].corpus
        for item in settings
        if item.step == "best" or "--best" in item.average
    }


def test_a_folder_is_of_one_scale(tmp_path):
    output, data = tmp_path / "out", tmp_path / "data"
    FULL.check_folder(output, data)
    TINY.record(output, data)
    TINY.check_folder(output, tmp_path / "other")
    with pytest.raises(UserError, match="out: has results of --scale=tiny; choose another folder"):
        FULL.check_folder(output, data)


def test_a_folder_is_of_one_data_folder(tmp_path, monkeypatch):
    output, data = tmp_path / "out", tmp_path / "data"
    FULL.record(output, data)
    monkeypatch.chdir(tmp_path)
    FULL.check_folder(output, Path("data"))
    with pytest.raises(UserError) as error:
        FULL.check_folder(output, Path("other"))
    assert str(error.value) == (
        f"--output={output}: has results of --data={data}; choose another folder for "
        f"--data=other, or remove {output}/data_folder if the files are the same"
    )
    (output / "data_folder").unlink()
    FULL.check_folder(output, Path("other"))


@pytest.mark.parametrize(("rows", "warned"), [("2", True), ("1,2", False), (None, False)])
def test_rows_without_the_row_they_are_compared_with_are_warned_of(rows, warned, tmp_path, capsys):
    table = find_table("language_layers/table8")
    plan_table(table, TINY, rows=rows, seeds=1, data=tmp_path, hypotheses=(), metrics={})
    text = "is compared with row 1 ('FCLL'); add 1 to --rows, or its changes stay empty"
    assert (text in capsys.readouterr().err) == warned


def test_corpora_whose_models_are_chosen_by_validation_have_its_text(tmp_path):
    names = set().union(*map(_best_by_validation, PAPERS.values()))
    assert {"iwslt17", "ted30", "wmt14"} <= names and "newscrawl" not in names
    checked = 0
    for name in sorted(names.intersection(PUBLISHED)):
        with pytest.raises(NoFilesError) as error:
            PUBLISHED[name].factory(tmp_path, name)
        if isinstance(corpus := error.value.corpus, PatternFiles):
            assert "validation" in corpus.expected_splits, name
            checked += 1
        else:
            assert name.startswith("ted"), name  # one table for each split
    assert checked > 8


def test_every_import_has_a_miniature():
    names = {name for paper in PAPERS.values() for name in paper.imports}
    assert len(names) > 3 and names == set(RELEASED)
    with pytest.raises(UserError, match="no miniature of 'm3m', only of m2m100_418m"):
        write_miniature_checkpoint("m3m", None)


def _open(name: str, folder):
    """Write a miniature as a killed and repeated step does, and open it."""
    path = folder / "model.pt" if RELEASED[name].form == "fairseq" else folder
    for _ in range(2):
        write_miniature_checkpoint(name, path, embed=8, heads=4, mlp=12)
    return open_huggingface(path) if path == folder else open_fairseq(path, folder)


@pytest.mark.parametrize(
    "name, languages",
    [
        ("m2m100_418m", M2M100_LANGUAGES),
        ("m2m_615m", M2M100_LANGUAGES),
        ("nllb_600m", NLLB_LANGUAGES),
    ],
)
def test_a_miniature_has_the_layers_and_languages_of_the_released_model(tmp_path, name, languages):
    foreign = _open(name, tmp_path / "made")
    assert foreign.instruction == "5"
    model = foreign.model
    assert (model.layout, model.stage_layers) == ("encoder_decoder", (12, 12))
    assert (model.embed, model.heads, model.mlp) == (8, 4, 12)
    vocabulary, _ = foreign.tokens.vocabulary()
    assert vocabulary.languages == languages
    for code in MITRE_LANGUAGES:
        assert vocabulary.tag_id(code)
        lines = [vocabulary.encode(line) for line in phrases(code, "train", LINES)]
        assert not any(2 in line for line in lines), code  # unknown


def test_rows_of_released_models_make_checkpoint_and_data_first():
    *_, evaluate = steps = _steps("registers/table3", "1", TINY)
    assert [step.kind for step in steps] == ["checkpoint", "import", "data", "evaluate"]
    assert steps[0].command[3:5] == ("m2m100_418m", "data/m2m100_418M")
    assert steps[0].command[5:] == ("--embed=16", "--heads=2", "--mlp=32")
    assert "data/m2m100_418M" in steps[1].command and steps[1].inputs == (steps[0].name,)
    assert evaluate.inputs == (steps[1].name, steps[2].name)


def test_released_models_are_in_the_data_folder(tmp_path):
    steps = _steps("registers/table3", "2", FULL, tmp_path)
    assert [step.kind for step in steps] == ["import", "evaluate"]
    folder = tmp_path / "flores101_mm100_615M"
    assert {str(folder), str(folder / "model.pt")} < set(steps[0].command)
    assert "data/flores101_mm100_615M" in _steps("registers/table3", "2", FULL)[0].command


@pytest.mark.parametrize(
    "table, row, rows",
    [
        ("registers/table1", "2", 16),  # MRASP2.groups=16
        ("two_stage/table1", "25", 10),  # InstruCL.groups=10
        ("two_stage/table1", "6", 8),  # InstruCL.groups=8
        ("two_stage/table1", "1", 8),
    ],
)
def test_rows_of_a_batch_are_a_multiple_of_the_groups(table, row, rows):
    (train,) = [step for step in _steps(table, row, TINY) if step.kind == "train"]
    assert f"--gin.Data.rows={rows}" in train.command
