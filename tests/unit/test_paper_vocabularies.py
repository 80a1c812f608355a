"""Vocabularies and seeds of published tables: shared, split, released; as the papers state."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from mnmt_jax.commands.reproduction_plan import describe_plan
from mnmt_jax.cost.training_estimate import estimate_training
from mnmt_jax.evaluation.result import write_result
from mnmt_jax.papers import pages
from mnmt_jax.papers.analyses import analyses
from mnmt_jax.papers.experiments import experiments, training_config
from mnmt_jax.papers.reproduction import collect
from mnmt_jax.papers.scales import FULL, TINY
from mnmt_jax.papers.selection import select_rows
from mnmt_jax.papers.tables import find_table, load_papers
from mnmt_jax.papers.trials import trials
from mnmt_jax.papers.workflow import Workflow
from tests.unit.made_results import made_result

PAPERS = load_papers()
RESULT = made_result("made", ("en", "de", "fr", "cs"), seed=3)


def _plan(name: str, row: str, data: Path | None = None) -> Workflow:
    """Return the plan of some rows at full scale."""
    table = find_table(name)
    paper = PAPERS[table.paper]
    plan = Workflow(paper, FULL, data)
    for trial in trials(paper, table, select_rows(paper, table, row), None, data):
        plan.add(trial)
    return plan


def test_copies_of_pieces_have_a_vocabulary_and_a_cache_of_their_own(relaxed_dtypes):
    plan = _plan("registers/table1", "4")
    vocabulary, split, cache, train, _, evaluate = (" ".join(s.command) for s in plan.steps)
    assert vocabulary.endswith("--no-byte_fallback --output vocabularies/ec40")
    assert split == (
        "mnmt vocabulary --lavs code --lavs_copies 12500 --vocabulary vocabularies/ec40 "
        "--mixture ec40 --output vocabularies/ec40_lavs"
    )
    assert cache.endswith("--vocabulary vocabularies/ec40_lavs --output caches/ec40-ec40_lavs")
    assert "Data.cache='caches/ec40-ec40_lavs'" in train and "Model.vocab_size=0" in train
    assert "--task ec40 " in evaluate
    assert plan.steps[1].inputs == ("vocabulary/ec40",)
    (experiment,) = plan.trainings.values()
    cost = estimate_training(training_config(experiment))
    assert cost.parameters == 241_940_480 + 12_500 * 1024  # 12.8M, as in Appendix C


def test_released_vocabularies_are_used_if_they_are_there(tmp_path, relaxed_dtypes):
    name = "registers/table1"
    new = _plan(name, "1,4", tmp_path)
    (tmp_path / "ec40").mkdir()
    (tmp_path / "ec40" / "spm_64k.model").write_bytes(b"")
    released = _plan(name, "1,4", tmp_path)
    adopt, cache, train, *_ = (" ".join(step.command) for step in released.steps)
    assert adopt.startswith(
        f"mnmt vocabulary --sentencepiece {tmp_path}/ec40/spm_64k.model --languages en,"
    )
    assert adopt.count(",") == 40
    assert cache.endswith("vocabularies/ec40-released --output caches/ec40-released")
    assert "--workdir runs/encoder_decoder_ec40_12-ec40-released_vocabulary/seed1234" in train
    assert any(
        "--vocabulary vocabularies/ec40-released --mixture" in " ".join(s.command)
        for s in released.steps
    )  # LAVS splits it
    folders = [set(step.command) for step in (*new.steps, *released.steps)]
    assert sum("vocabularies/ec40_lavs" in words for words in folders) == 2
    texts = [describe_plan(find_table(name), (), (), plan) for plan in (new, released)]
    assert "spm_64k.model (github.com" in texts[0] and "so a new one is trained" in texts[0]
    assert "dicts" not in texts[1] and "spm_dict): used" in texts[1]
    other = _plan("registers/table4", "10", tmp_path)
    assert "vocabularies/nllb_bridge" in other.steps[0].command


def test_runs_that_import_a_vocabulary_do_not_name_a_released_one(tmp_path, relaxed_dtypes):
    (tmp_path / "nllb").mkdir()
    (tmp_path / "nllb" / "mitre_spm.model").write_bytes(b"")
    plan = _plan("registers/table4", "2", tmp_path)
    assert not any("released" in " ".join(step.command) for step in plan.steps)
    assert "spm.model" not in describe_plan(find_table("registers/table4"), (), (), plan)


def test_kept_checkpoints_count_on_disk(relaxed_dtypes):
    table, paper = find_table("position_disentangling/figure1"), PAPERS["position_disentangling"]
    (experiment,) = experiments(paper, table, table.rows[0]).values()
    plain = dataclasses.replace(experiment, bindings=())
    kept, newest = (estimate_training(training_config(item)) for item in (experiment, plain))
    checkpoint = 12 * kept.parameters + 4  # with two moments, and the number of updates
    assert kept.disk - newest.disk == 10 * checkpoint  # every 50,000 of 500,000 updates


def test_points_over_updates_are_evaluations_of_one_run():
    name = "position_disentangling/figure1"
    paper, table = PAPERS["position_disentangling"], find_table(name)
    tests = [step.command for step in _plan(name, "1,2").steps if step.kind == "evaluate"]
    assert [words[words.index("--step") + 1] for words in tests] == ["50000", "100000"]
    assert len({words[words.index("--run") + 1] for words in tests}) == 1
    assert len({words[-1] for words in tests}) == 2
    (probe,) = analyses(paper, table)
    for scale, steps in (
        (FULL, [",".join(str(n) for n in range(50_000, 500_001, 50_000))]),
        (TINY, []),
    ):
        plan = Workflow(paper, scale)
        (last,) = plan.add_analysis(probe)
        words = next(step.command for step in plan.steps if step.name == last)
        assert [words[i + 1] for i, word in enumerate(words) if word == "--step"] == steps
    tiny = Workflow(paper, TINY)
    tiny.add(trials(paper, table, table.rows[:1])[0])
    assert "--step" not in tiny.steps[-1].command  # a miniature's training has other updates


def test_pages_link_to_reports_of_evaluations(tmp_path):
    """A table of translation examples has no columns, and its rows are models."""
    paper, table = PAPERS["language_layers"], find_table("language_layers/table10")
    selected = trials(paper, table, select_rows(paper, table, None))
    assert [trial.title for trial in selected] == ["SD, seed 1", "SD, branches off, seed 1"]
    for trial in selected:
        (tmp_path / trial.evaluation).mkdir(parents=True)
        write_result(RESULT, tmp_path / trial.evaluation / "scores.json")
    made = collect(table, selected, tmp_path)
    links = [f"../../{trial.evaluation}/report.html" for trial in selected]
    for page in (pages.markdown_page(paper, made), pages.html_report(paper, made)):
        assert all(link in page for link in links) and "SD, branches off, seed 1" in page
    several = find_table("language_layers/table2")
    titles = [trial.title for trial in trials(paper, several, several.rows[:1], 1)]
    assert "Baseline, ted20, seed 1" in titles


def test_curves_of_a_training_are_drawn_once(tmp_path, monkeypatch):
    """The second row of this table decodes the run of the first one otherwise."""
    paper, table = PAPERS["language_layers"], find_table("language_layers/table8")
    selected = trials(paper, table, table.rows[:3], 1)
    losses = [2.0, 2.0, 1.0]
    for trial, loss in zip(selected, losses, strict=True):
        result = dataclasses.replace(RESULT, curves={"train": ((1, 3.0), (2, loss))})
        (tmp_path / trial.evaluation).mkdir(parents=True)
        write_result(result, tmp_path / trial.evaluation / "scores.json")
    drawn = []
    monkeypatch.setattr(pages, "training_curves", lambda runs: drawn.extend(runs) or [])
    pages.html_report(paper, collect(table, selected, tmp_path))
    assert [run.name for run in drawn] == [table.rows[0].name, table.rows[2].name]


def test_plans_and_pages_say_what_the_authors_did_to_the_text(tmp_path, relaxed_dtypes):
    table, paper = find_table("language_layers/table7"), PAPERS["language_layers"]
    text = describe_plan(table, (), (), _plan("language_layers/table7", "2"))
    assert "data: iwslt17: not done here: Moses' tokenisation" in text
    (trial,) = trials(paper, table, table.rows[:1])
    (tmp_path / trial.evaluation).mkdir(parents=True)
    write_result(RESULT, tmp_path / trial.evaluation / "scores.json")
    made = collect(table, [trial], tmp_path)
    assert "iwslt17: not done here: Moses" in pages.markdown_page(paper, made)


def test_text_is_cleaned_where_the_files_of_its_recipe_are(tmp_path, relaxed_dtypes):
    name, texts = "registers/table4", {}
    for key in ("cache", "prepare"):
        plan = _plan(name, "10", tmp_path)
        step = next(step for step in plan.steps if step.command[1] == key)
        trains = (" ".join(s.command) for s in plan.steps if s.command[1] == "train")
        train = next(command for command in trains if "caches/nllb_bridge" in command)
        texts[key] = " ".join(step.command), train, describe_plan(find_table(name), (), (), plan)
        (tmp_path / "histograms").mkdir(exist_ok=True)
    command, train, text = texts["prepare"]
    assert command == (
        "mnmt prepare --recipe nllb_mitre --mixture nllb_bridge --vocabulary "
        "vocabularies/nllb_bridge --output caches/nllb_bridge-nllb_mitre"
    )
    assert "'caches/nllb_bridge-nllb_mitre'" in train and "-prepared/seed42" in train
    assert "nllb_bridge: cleaned by the recipe nllb_mitre" in text and "not done here" not in text
    command, train, text = texts["cache"]
    assert command.endswith("--output caches/nllb_bridge") and "prepared" not in train
    assert "recipe nllb_mitre, which needs DATA/histograms: not used" in text
    assert "nllb_bridge: not done here: the cleaning and removal of repeated pairs" in text


@pytest.mark.parametrize("name, count", [("two_stage/table1", 1), ("language_layers/table7", 0)])
def test_plans_say_which_updates_are_estimates(name, count, relaxed_dtypes):
    """Trainings of two_stage/table1 last a number of epochs, the others a number of updates."""
    text = describe_plan(find_table(name), (), (), _plan(name, "1"))
    assert text.count("\nupdates of epochs (Train.epochs) are estimates") == count


def test_imported_models_have_no_notes_on_the_training_text(tmp_path):
    table, paper = find_table("registers/table3"), PAPERS["registers"]
    notes = {}
    for field in ("pretrained", "model"):
        row = next(row for row in table.rows if field in row.facts)
        (trial,) = trials(paper, table, [row], 1)
        (tmp_path / trial.evaluation).mkdir(parents=True)
        write_result(RESULT, tmp_path / trial.evaluation / "scores.json")
        notes[field] = collect(table, [trial], tmp_path).notes
    assert any("nllb_bridge: not done here" in note for note in notes["model"])
    assert any("vocabulary of the authors" in note for note in notes["model"])
    kinds = ("not done here", "vocabulary of the authors")
    assert not any(kind in note for note in notes["pretrained"] for kind in kinds)


def test_seeds_are_those_that_the_papers_state():
    seeds = {
        "registers/table1": [1234],
        "registers/table4": [42],
        "two_stage/table1": [0],
        "language_layers/table2": [1, 2, 3, 4, 5],
        "language_layers/table7": [1],
        "graformer/table2": [1],
        "position_disentangling/table1": [1, 2, 3],
    }
    for name, expected in seeds.items():
        table = find_table(name)
        paper = PAPERS[table.paper]
        rows = select_rows(paper, table, None)[-1:]
        made = trials(paper, table, rows)
        assert [trial.seed for trial in made if trial.prefix == made[0].prefix] == expected, name
        more = [trial.seed for trial in trials(paper, table, rows, 7)][:7]
        assert more == [*expected, *range(expected[-1] + 1, expected[-1] + 8)][:7]
        assert trials(paper, table, rows, 1)[-1].seed == expected[0]


def test_source_runs_have_seeds_that_their_corpus_states():
    tables = [table for paper in PAPERS.values() for table in paper.tables.values()]
    for table in tables:
        paper = PAPERS[table.paper]
        if not any(experiments(paper, table, row) for row in table.rows):
            continue
        plan = Workflow(paper, FULL)
        for trial in trials(paper, table, select_rows(paper, table, None)):
            plan.add(trial)
        for (_, seed), experiment in plan.trainings.items():
            assert seed in experiment.data.seeds, table.name


def test_pages_say_whose_vocabulary_was_used(tmp_path):
    table = find_table("registers/table1")
    paper = PAPERS["registers"]
    (trial,) = trials(paper, table, table.rows[:1])
    (tmp_path / trial.evaluation).mkdir(parents=True)
    write_result(RESULT, tmp_path / trial.evaluation / "scores.json")
    made = collect(table, [trial], tmp_path)
    for page in (pages.markdown_page(paper, made), pages.html_report(paper, made)):
        assert "DATA/ec40/spm_64k.model" in page and "so a new one is trained" in page
