"""Conditions of reproduced rows: what was trained, and in what that differs from the plan."""

from __future__ import annotations

import dataclasses
import json

import pytest

from mnmt_jax.config.loading import load_config
from mnmt_jax.cost.training_estimate import count_parameters
from mnmt_jax.design.method import as_facts
from mnmt_jax.evaluation.result import write_result
from mnmt_jax.papers import conditions, pages
from mnmt_jax.papers.conditions import HEADER, conditions_of
from mnmt_jax.papers.experiments import experiments, gin_files, settings_file, training_config
from mnmt_jax.papers.intervals import Evaluation
from mnmt_jax.papers.reproduction import collect
from mnmt_jax.papers.selection import select_rows
from mnmt_jax.papers.tables import find_table, load_papers
from mnmt_jax.papers.trials import stated_seeds, trials
from tests.unit.made_results import made_result

pytestmark = pytest.mark.usefixtures("relaxed_dtypes")  # for parameter counts
PAPER, TABLE = load_papers()["language_layers"], find_table("language_layers/table7")
(EXPERIMENT,) = experiments(PAPER, TABLE, TABLE.rows[1]).values()  # FCLL
CONFIG = training_config(EXPERIMENT)
RESULT = dataclasses.replace(
    made_result("made", ("en", "it", "nl", "ro"), seed=1),
    step=95_000,
    parameters=73_016_335,
    curves={"train": ((100, 5.0), (100_000, 2.0))},
    config=json.loads(json.dumps(as_facts(CONFIG), default=str)),
    decoding={"method": "beam", "beam_size": CONFIG.decode.beam_size},
)


@pytest.fixture
def counted(monkeypatch):
    """Return a function that makes conditions of a result whose cache has given sizes."""

    def make(
        result=RESULT, sentences=872_000, pieces=CONFIG.model.vocab_size, folder=None, seeds=1
    ):
        monkeypatch.setattr(conditions, "_data_counts", lambda *_: (sentences, pieces))
        return conditions_of(
            "FCLL", [Evaluation(result, folder)], EXPERIMENT, folder, count_parameters, seeds
        )

    return make


def _with(section: str, **values):
    config = {**RESULT.config, section: {**RESULT.config[section], **values}}
    return dataclasses.replace(RESULT, config=config)


def test_fewer_seeds_than_the_table_names_are_a_difference(counted):
    assert counted(seeds=5).difference == "FCLL on cldr_en_x: seeds 1 instead of 5."
    expected = len(stated_seeds(dataclasses.replace(TABLE, seeds=()), EXPERIMENT))
    made = conditions_of("FCLL", [Evaluation(RESULT, None)] * 2, EXPERIMENT, None, None, expected)
    assert made.expected_seeds == len(EXPERIMENT.data.seeds) != 2
    assert "seeds 2 instead of" in made.difference


def test_a_run_as_planned_does_not_differ(counted):
    made = counted()
    assert made.difference == ""
    assert dict(zip(HEADER, made.cells, strict=True)) == {
        "row": "FCLL",
        "task": "cldr_en_x",
        "seeds": "1",
        "evaluated update": "95,000",
        "trained updates": "100,000",
        "training sentences": "872,000",  # rounded to 145,000 a direction by the paper
        "vocabulary": "40,005",
        "parameters": "73,016,335",
        "precision": "bfloat16, parameters float32",
        "test sentences": "2,400",
        "decoding": "beam 4",
    }


@pytest.mark.parametrize(
    "changes, difference",
    [
        ({"sentences": 800_000}, "training sentences 800,000 instead of 870,000"),
        ({"pieces": 32_000}, "vocabulary 32,000 instead of 40,005"),
        (
            {"result": dataclasses.replace(RESULT, curves={"train": ((60_000, 2.0),)})},
            "trained updates 60,000 instead of 100,000",
        ),
        (
            {"result": dataclasses.replace(RESULT, parameters=73_000_000)},
            "parameters 73,000,000 instead of 73,016,335",
        ),
        ({"result": _with("model", dropout=0.1)}, "model.dropout 0.1 instead of 0.3"),
        ({"result": _with("model", dtype="float32")}, "model.dtype float32 instead of bfloat16"),
        (
            {"result": dataclasses.replace(RESULT, decoding={"beam_size": 5})},
            "decode.beam_size 5 instead of 4",
        ),
        (
            {"result": _with("model", methods=[])},
            "model.methods () instead of (language_layers)",
        ),
        ({"result": _with("train", seed=7, log_every=3)}, ""),
        ({"result": _with("data", tasks=["iwslt17"])}, ""),  # the files name no tasks
    ],
)
def test_what_differs_is_named(counted, changes, difference):
    made = counted(**changes).difference
    if difference:
        assert made.startswith("FCLL on cldr_en_x: ") and difference in made, made
    else:
        assert made == ""


def test_seeds_with_other_checkpoints_are_listed(counted):
    counted()
    runs = [
        Evaluation(dataclasses.replace(RESULT, step=step), None)
        for step in (95_000, 90_000, 95_000)
    ]
    made = conditions_of("FCLL", runs, EXPERIMENT, None, count_parameters, 3)
    assert made.cells[2:4] == ["3", "95,000, 90,000"]


def test_pages_show_conditions_and_differences(tmp_path):
    selected = trials(PAPER, TABLE, select_rows(PAPER, TABLE, "2"), 1)
    result = _with("optimizer", learning_rate=0.1)
    (tmp_path / selected[0].evaluation).mkdir(parents=True)
    write_result(result, tmp_path / selected[0].evaluation / "scores.json")
    made = collect(TABLE, selected, tmp_path, count_parameters=count_parameters)
    text = "optimizer.learning_rate 0.1 instead of 0.0005"
    assert f"- FCLL on cldr_en_x: {text}." in pages.markdown_page(PAPER, made).splitlines()
    assert text in pages.html_report(PAPER, made)
    (cells_row,) = [item.cells for item in made.conditions]
    assert cells_row[5:7] == ["–", "–"]  # the cache is not there


def test_the_cache_determines_the_updates_of_epochs(tmp_path):
    paper, table = load_papers()["two_stage"], find_table("two_stage/table1")
    row = next(row for row in table.rows if row.facts.get("model", "").startswith("two_stage"))
    made = experiments(paper, table, row).values()
    experiment = next(item for item in made if item.data.corpus == "ted19")
    config = training_config(experiment)
    assert config.train.epochs == 30
    train = dataclasses.replace(config.train, steps=211_000, epochs=0.0)
    facts = json.loads(json.dumps(as_facts(dataclasses.replace(config, train=train)), default=str))
    curves = {"train": ((211_000, 2.0),)}
    result = dataclasses.replace(RESULT, config=facts, parameters=None, curves=curves)
    made = conditions_of(
        row.name,
        [Evaluation(result, tmp_path)],
        experiment,
        tmp_path,
        count_parameters,
        len(stated_seeds(table, experiment)),
    )
    assert "epochs" not in made.difference and "updates" not in made.difference
    assert "211,000" in made.cells


def test_rounds_of_back_translation_have_their_settings(tmp_path, monkeypatch):
    """They are the settings of the first run, and those that the workflow adds."""
    table = find_table("language_layers/table3")
    (experiment,) = experiments(PAPER, table, table.rows[9]).values()
    assert experiment.back_translation_rounds == 4
    before = dataclasses.replace(experiment, back_translation_rounds=0)
    files = [*gin_files(before), settings_file("back_translation")]
    config = load_config(files, before.training_bindings)
    assert config.optimizer.learning_rate != training_config(before).optimizer.learning_rate
    facts = json.loads(json.dumps(as_facts(config), default=str))
    beam = {"beam_size": config.decode.beam_size}
    facts["model"] = json.loads(json.dumps(as_facts(training_config(before).model), default=str))
    changes = {"config": facts, "parameters": None, "decoding": beam}
    result = dataclasses.replace(RESULT, curves={"train": ((3_000, 2.0),)}, **changes)
    sizes = 900, config.model.vocab_size
    monkeypatch.setattr(conditions, "_data_counts", lambda *_: sizes)
    data = dataclasses.replace(experiment.data, sentences=500)  # without the pseudo pairs
    experiment = dataclasses.replace(experiment, data=data)
    made = conditions_of("SD", [Evaluation(result, None)], experiment, tmp_path, None, 1)
    assert made.difference == ""


def test_pieces_of_a_new_language_are_not_compared(tmp_path):
    """Their number is known after training, and with it that of the parameters."""
    table = find_table("language_layers/table4")
    experiment = next(iter(experiments(PAPER, table, table.rows[2]).values()))
    assert experiment.data.new_language
    runs = [Evaluation(RESULT, None)]
    made = conditions_of("SD", runs, experiment, tmp_path, count_parameters, 1)
    expected = {name: number for name, (_, number) in made.counts.items()}
    assert (expected["vocabulary"], expected["parameters"]) == (None, None)
    assert expected["trained updates"] == experiment.data.steps


def test_imported_models_have_no_planned_training(tmp_path):
    paper, table = load_papers()["registers"], find_table("registers/table3")
    row = next(row for row in table.rows if "pretrained" in row.facts)
    experiment = next(iter(experiments(paper, table, row).values()))
    expected = len(stated_seeds(table, experiment))
    assert expected == len(trials(paper, table, [row], 3)) == 1  # copies are no seeds
    made = conditions_of(
        row.name, [Evaluation(RESULT, tmp_path)], experiment, tmp_path, count_parameters, expected
    )
    assert made.difference == ""
