"""Published tables: their files, plans, costs, cells and pages."""

from __future__ import annotations

import dataclasses
import math
import shlex
from decimal import Decimal
from pathlib import Path

import jax
import pytest

from mnmt_jax.commands.reproduction_plan import describe_plan
from mnmt_jax.config.loading import load_config
from mnmt_jax.cost.describe import describe
from mnmt_jax.cost.training_estimate import (
    MACHINES,
    device_hours,
    estimate_training,
    this_machine,
)
from mnmt_jax.data.mixtures import get_mixture
from mnmt_jax.distributed.sharding import make_mesh
from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.published_averages import ec40_table
from mnmt_jax.evaluation.result import write_result
from mnmt_jax.model.flops import Sentence
from mnmt_jax.papers import cells, pages, workflow
from mnmt_jax.papers.analyses import analyses
from mnmt_jax.papers.experiments import experiments, gin_files, training_config
from mnmt_jax.papers.listing import list_papers, show_table
from mnmt_jax.papers.reproduction import Reproduction, collect
from mnmt_jax.papers.scales import FULL, TINY
from mnmt_jax.papers.score_models import missing_models
from mnmt_jax.papers.selection import select_rows
from mnmt_jax.papers.tables import Column, find_table, load_papers, load_table
from mnmt_jax.papers.trials import trials
from mnmt_jax.papers.workflow import Workflow
from mnmt_jax.training.learner import Learner
from mnmt_jax.vocabulary.languages import EC40_TIERS
from scripts.make_tpu_table import SLICES
from tests.unit.made_results import made_result

pytestmark = pytest.mark.usefixtures("relaxed_dtypes")  # for parameter counts
PAPERS = load_papers()
TABLES = [table for paper in PAPERS.values() for table in paper.tables.values()]
RUNNABLE = [
    table
    for table in TABLES
    if table.analyses or any(experiments(PAPERS[table.paper], table, row) for row in table.rows)
]


def _name(table) -> str:
    return f"{table.paper}/{table.name}"


def test_all_tables_and_data_figures_of_five_papers_are_files():
    assert list(PAPERS) == [
        "benchmarks",
        "graformer",
        "language_layers",
        "position_disentangling",
        "registers",
        "two_stage",
    ]
    numbered = {
        paper.name: [n for n in paper.tables if n.startswith("table")]
        for paper in PAPERS.values()
        if paper.name != "benchmarks"
    }
    assert {name: len(tables) for name, tables in numbered.items()} == {
        "graformer": 13,
        "language_layers": 12,
        "position_disentangling": 8,
        "registers": 14,
        "two_stage": 6,
    }
    for name, tables in numbered.items():
        assert tables == [f"table{n}" for n in range(1, len(tables) + 1)], name


def test_every_table_has_numbers_or_says_why_not():
    for table in TABLES:
        assert bool(table.cells) or table.no_numbers, _name(table)
        assert all(row.published or table.no_numbers or row.facts for row in table.rows), _name(
            table
        )


def test_numbers_are_kept_as_printed():
    row = find_table("registers/table4").rows[0]
    assert next(iter(row.published.values())) == Decimal("24.00")
    assert str(next(iter(row.published.values()))) == "24.00"


@pytest.mark.parametrize("table", RUNNABLE, ids=_name)
def test_plan_of_every_table(table, relaxed_dtypes):
    paper = PAPERS[table.paper]
    rows = select_rows(paper, table, None)
    selected = trials(paper, table, rows)
    plan = Workflow(paper, FULL)
    analysed = analyses(paper, table)
    targets = [plan.add(trial) for trial in selected]
    for analysis in analysed:
        targets += plan.add_analysis(analysis)
    known = set()
    for step in plan.steps:
        assert known.issuperset(step.inputs), step.name
        known.add(step.name)
        assert step.command[0] == "mnmt"
    assert known.issuperset(targets)
    text = describe_plan(table, selected, analysed, plan)
    lines = [tuple(shlex.split(line)) for line in text.splitlines() if line.startswith("mnmt ")]
    assert lines == [step.command for step in plan.steps]
    assert "'\"'\"'" not in text
    assert not plan.trainings or ", this machine (cpu, measured) " in text
    _check_cost(next(iter(plan.trainings.values()), None))


def test_plan_names_the_rows_of_a_training(relaxed_dtypes):
    table = find_table("language_layers/table7")
    paper = PAPERS[table.paper]
    selected = trials(paper, table, select_rows(paper, table, None))
    plan = Workflow(paper, FULL)
    for trial in selected:
        plan.add(trial)
    lines = describe_plan(table, selected, (), plan).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| rows"))
    numbers = [line.split("|")[1].strip() for line in lines[start + 2 :] if line.startswith("|")]
    by_row = dict.fromkeys((trial.row, trial.experiment.run_name) for trial in selected)
    names = [row.name for row in table.rows]
    expected = {name: [] for _, name in by_row}
    for row, name in by_row:
        expected[name].append(str(names.index(row) + 1))
    assert numbers == [",".join(rows) for rows in expected.values()]
    assert sum(len(rows) for rows in expected.values()) >= len(table.rows) > 1


def test_hours_are_flops_over_the_assumed_share_of_a_measured_peak():
    ((name, peak),) = this_machine().items()
    hours = device_hours(1e15)
    assert hours[name] == pytest.approx(1e15 / (0.4 * peak) / 3600)
    assert hours["8 x H100"] == pytest.approx(1e15 / (0.4 * 8 * 989e12) / 3600)
    assert 1e8 < peak < 1e14


def test_hours_of_slices_are_of_their_chips():
    """The name of a v5p slice has its cores, and two of them are a chip."""
    for name in MACHINES.keys() & SLICES.keys():
        kind, chips = MACHINES[name]
        version, topology = SLICES[name].split(":")
        assert kind == f"TPU {version}"
        assert chips == math.prod(map(int, topology.split("x"))), name
    assert MACHINES["v5p-128"] == ("TPU v5p", 64)


def _check_cost(experiment) -> None:
    """Compare the estimate with `mnmt describe` and the learner on the same gin files."""
    if experiment is None:
        return
    draws = experiment.data.epoch_draws or experiment.data.sentences
    cost = estimate_training(training_config(experiment), draws)
    config = load_config(gin_files(experiment), experiment.training_bindings)
    epochs = Decimal(config.train.epochs)
    updates = epochs * draws * 32 / cost.tokens if epochs else config.train.steps
    assert cost.updates == max(1, math.ceil(updates))
    assert cost.tokens == config.data.rows * config.optimizer.accumulate * config.data.target_length
    if all(not hasattr(method, "languages") for method in config.model.methods):
        lengths = {"source_length": 32, "target_length": 32, "beam": 1}
        figures = describe(config.model, config.model.vocab_size, **lengths)
        assert cost.parameters == figures["parameters"]["total"]
    learner, views = _learner(experiment)
    per_pair = cost.flops / cost.updates / cost.tokens * 32
    assert per_pair == pytest.approx(learner.train_flops(Sentence(32, 32), views))


def _learner(experiment):
    """Return the learner of a training, and 32 source tokens for each view that it reads."""
    config = training_config(experiment)
    mesh = make_mesh(config.mesh, jax.devices()[:1])
    learner = Learner.from_config(config, config.model.vocab_size, mesh)
    return learner, {view: 32.0 for view in learner.views if not view.is_batch}


@pytest.mark.parametrize(("name", "row"), [("two_stage/figure6", 1), ("benchmarks/zero_shot", 15)])
def test_the_cost_of_a_training_has_that_of_its_objectives(name, row, relaxed_dtypes):
    table = find_table(name)
    (experiment, *_) = experiments(PAPERS[table.paper], table, table.rows[row]).values()
    learner, _ = _learner(experiment)
    config, draws = training_config(experiment), experiment.data.sentences
    cost = estimate_training(config, draws)
    train = dataclasses.replace(config.train, methods=())
    plain = estimate_training(dataclasses.replace(config, train=train), draws)
    assert not learner.is_plain and cost.flops > 1.01 * plain.flops


def test_plan_of_a_table_in_full(relaxed_dtypes):
    """The commands of docs/recipes.md, for one model and two seeds."""
    table = find_table("language_layers/table7")
    paper = PAPERS["language_layers"]
    plan = Workflow(paper, FULL)
    for trial in trials(paper, table, select_rows(paper, table, "2"), 2):
        plan.add(trial)
    run, evaluation = "runs/fcll_iwslt17-iwslt17/seed", "evaluations/fcll_iwslt17-iwslt17/seed"
    files = "--gin_file gin_configs/models/fcll_iwslt17.gin --gin_file gin_configs/runs/iwslt17.gin"
    assert [" ".join(step.command) for step in plan.steps] == [
        "mnmt vocabulary --mixture iwslt17 --vocab_size 40001 --model_type bpe --monolingual "
        "--sentences 10000000 --normalization nmt_nfkc --text_normalization none "
        "--no-byte_fallback --output vocabularies/iwslt17",
        "mnmt cache --mixture iwslt17 --vocabulary vocabularies/iwslt17 --output caches/iwslt17",
        *(
            command
            for seed in (1, 2)
            for command in (
                f"mnmt train {files} --gin.Data.cache='caches/iwslt17' --gin.Train.seed={seed} "
                f"--workdir {run}{seed}",
                f"mnmt evaluate --run {run}{seed} --task iwslt17 --step best "
                f"--lid langdetect --output {evaluation}{seed}",
            )
        ),
    ]
    (experiment,) = experiments(paper, table, table.rows[1]).values()
    cost = estimate_training(training_config(experiment))
    assert (cost.parameters, cost.updates, cost.tokens) == (73_016_335, 100_000, 16_000)
    assert len(get_mixture(experiment.data.mixture).directions) == 6


def test_rows_that_train_alike_share_a_run_and_differ_in_evaluations():
    paper, table = PAPERS["language_layers"], find_table("language_layers/table8")
    fcll, omitted = (trial.experiment for trial in trials(paper, table, table.rows[:2], 1))
    trained = find_table("language_layers/table7").rows[4]  # trained without tags
    (without,) = experiments(paper, find_table("language_layers/table7"), trained).values()
    assert fcll.run_name == omitted.run_name != without.run_name
    names = [item.evaluation_name for item in (fcll, omitted, without)]
    assert len(set(names)) == 3


def test_tiny_plans_make_their_data_first():
    paper, table = PAPERS["language_layers"], find_table("language_layers/table2")
    plan = Workflow(paper, TINY)
    for trial in trials(paper, table, table.rows[:1], 1):
        plan.add(trial)
    kinds = [step.kind for step in plan.steps]
    assert kinds[:5] == ["data", "vocabulary", "cache", "train", "evaluate"]
    assert kinds.count("data") == 5


@pytest.mark.parametrize(
    "edit, message",
    [
        (lambda s: s.replace('kind = "ablation"', 'kind = "odd"'), "kind 'odd'"),
        (lambda s: s.replace("zero_shot.bleu", "zero_shot.bleau"), "did you mean 'bleu'"),
        (lambda s: s.replace("[32.57, 20.74, 1.67]", "[32.57, 20.74]"), "2 cells for 3 columns"),
        (lambda s: s.replace("[32.57, 20.74, 1.67]", '[32.57, 20.74, "x"]'), "is not a number"),
        (lambda s: s.replace('name = "FCLL"', 'name = "SD"'), "two rows are called 'SD'"),
        (lambda s: s.replace("title = ", "titel = ", 1), "'title' is missing"),
        (lambda s: s + "[", "is not TOML"),
        (lambda s: s.replace("seeds = [1]", "seeds = 1"), "seeds: 1 is not a list of numbers"),
        (lambda s: s.replace("seeds = [1]", "seeds = [true]"), r"seeds: \[True\] is not a list"),
        (lambda s: s.replace("seeds = [1]", "seeds = [-1]"), r"seeds: \[-1\] is not a list"),
        (lambda s: s.replace("seeds = [1]", "seeds = [1, 1]"), "lists a seed twice"),
    ],
)
def test_mistakes_in_a_file_are_named(tmp_path, edit, message):
    source = Path(workflow.__file__).parent / "language_layers" / "table7.toml"
    file = tmp_path / "table7.toml"
    file.write_text(edit(source.read_text("utf-8")), "utf-8")
    with pytest.raises(UserError, match=message) as raised:
        load_table(file)
    assert str(file) in str(raised.value)


@pytest.mark.parametrize(
    "name, message",
    [
        ("register/table1", "did you mean 'registers'"),
        ("registers/tabel1", "did you mean 'table1'"),
        ("registers", "registers: name a table, e.g. registers/table1"),
    ],
)
def test_unknown_tables_are_named(name, message):
    with pytest.raises(UserError, match=message):
        find_table(name)


def test_the_rows_of_a_table_are_numbered():
    table = find_table("language_layers/table7")
    lines = [line for line in show_table(table).splitlines() if line.startswith("| ")][2:]
    numbered = [[cell.strip() for cell in line.split("|")[1:3]] for line in lines]
    assert numbered == [[str(n), row.name] for n, row in enumerate(table.rows, start=1)]


def test_rows_are_numbers_and_ranges():
    paper, table = PAPERS["language_layers"], find_table("language_layers/table7")
    names = [row.name for row in table.rows]
    assert [row.name for row in select_rows(paper, table, "2-4,6,3")] == [*names[1:4], names[5]]
    with pytest.raises(UserError, match="--rows: '4-2' ends before it starts"):
        select_rows(paper, table, "4-2")
    with pytest.raises(UserError, match="'2-9' is not|'9' is not a number from 1 to 6"):
        select_rows(paper, table, "2-9")
    with pytest.raises(UserError, match="registers/figure6 has no rows; leave it out"):
        select_rows(PAPERS["registers"], find_table("registers/figure6"), "1")


def test_scores_without_a_model_are_named(tmp_path):
    table = find_table("registers/table5")
    assert missing_models(table, ()) == [
        "COMET: cells stay empty without --comet FILE",
        "spBLEU: cells stay empty without --flores200_model FILE",
    ]
    assert missing_models(table, ("comet", "spbleu")) == []
    assert missing_models(find_table("language_layers/table7"), ()) == []
    assert collect(table, (), tmp_path).notes == ()  # nothing was evaluated


def test_rows_that_cannot_run_are_refused_with_their_reason():
    paper, table = PAPERS["language_layers"], find_table("language_layers/table2")
    assert [row.name for row in select_rows(paper, table, None)] == [
        "Baseline",
        "Residual",
        "SD",
        "FCLL",
    ]
    with pytest.raises(UserError, match="adapters per language"):
        select_rows(paper, table, "1,2")
    with pytest.raises(UserError, match="'7' is not a number from 1 to 6"):
        select_rows(paper, table, "7")
    with pytest.raises(UserError, match="no row of this table can be run"):
        select_rows(PAPERS["registers"], find_table("registers/table8"), None)


RESULT = made_result("made", ("en", "de", "fr", "cs"), seed=3)
BLEU = RESULT.values("bleu")


@pytest.mark.parametrize(
    "group, directions",
    [
        ("all", list(BLEU)),
        ("supervised", [pair for pair in BLEU if "en" in pair]),
        ("zero_shot", [pair for pair in BLEU if "en" not in pair]),
        ("en_to_x", [("en", "de"), ("en", "fr"), ("en", "cs")]),
        ("x_to_en", [("de", "en"), ("fr", "en"), ("cs", "en")]),
        ("de-fr", [("de", "fr")]),
        ("non_english_to_de", [("fr", "de"), ("cs", "de")]),
        ("slavic_to_x", [("cs", "en"), ("cs", "de"), ("cs", "fr")]),
        ("x_to_romance", [("en", "fr"), ("de", "fr"), ("cs", "fr")]),
    ],
)
def test_groups_of_directions(group, directions):
    score = cells.group_score(RESULT, Column(f"{group}.bleu", ""))
    assert score == pytest.approx(sum(BLEU[pair] for pair in directions) / len(directions))


def test_tiers_are_means_of_tier_by_tier_means():
    """Against the averages of the authors' script."""
    languages = ("en", *(code for tier in EC40_TIERS.values() for code in tier[:2]))
    result = made_result("made", languages, seed=5)
    table = ec40_table(result.values("bleu"))
    for group, name in (("high", "High"), ("medium", "Med"), ("low", "Low"), ("extra_low", "XLow")):
        for key, title in ((f"{group}_to_x", f"{name} →"), (f"x_to_{group}", f"→ {name}")):
            score = cells.group_score(result, Column(f"{key}.bleu", ""))
            assert score == pytest.approx(table[title].mean), title


def test_groups_without_directions_have_no_score():
    assert cells.group_score(RESULT, Column("ja-ko.bleu", "")) is None
    assert cells.group_score(RESULT, Column("all.entropy", "")) is None


def _scaled(factor: float):
    """Return the made result with every BLEU multiplied."""
    directions = tuple(
        dataclasses.replace(item, bleu=item.bleu * factor) for item in RESULT.directions
    )
    return dataclasses.replace(RESULT, directions=directions)


def _collected(tmp_path, name: str, rows: str, factors: dict[int, list[float]]):
    """Write evaluations with scaled scores, by number of a row and seed, and collect them."""
    table = find_table(name)
    paper = PAPERS[table.paper]
    selected = trials(paper, table, select_rows(paper, table, rows), 2)
    numbers = [number for number in factors for _ in factors[number]]
    scales = [factor for number in factors for factor in factors[number]]
    assert len(selected) == len(numbers)
    for trial, factor in zip(selected, scales, strict=True):
        (tmp_path / trial.evaluation).mkdir(parents=True)
        write_result(_scaled(factor), tmp_path / trial.evaluation / "scores.json")
    return paper, table, collect(table, selected, tmp_path)


def test_cells_have_mean_range_and_difference(tmp_path):
    _, table, made = _collected(tmp_path, "language_layers/table7", "2", {2: [0.5, 1.0]})
    cell = made.cells["FCLL", "zero_shot.bleu"]
    one = cells.group_score(RESULT, Column("zero_shot.bleu", ""))
    assert cell.published == Decimal("21.00")
    assert (cell.ours.low, cell.ours.high) == pytest.approx((one / 2, one))
    assert cell.difference == pytest.approx(0.75 * one - 21)
    assert made.cells["SD", "zero_shot.bleu"].ours is None
    assert ("Residual without tags", "zero_shot.off_target") not in made.cells
    assert len(table.rows) == 6


def test_zero_shot_directions_are_those_before_back_translation(tmp_path):
    table, paper = find_table("language_layers/table3"), PAPERS["language_layers"]
    row = next(row for row in table.rows if row.name == "SD, fine-tuned by back-translation")
    (trial,) = trials(paper, table, (row,), 1)
    trained = [dataclasses.replace(item, supervised=True) for item in RESULT.directions]
    (tmp_path / trial.evaluation).mkdir(parents=True)
    result = dataclasses.replace(RESULT, directions=tuple(trained))
    write_result(result, tmp_path / trial.evaluation / "scores.json")
    cell = collect(table, (trial,), tmp_path).cells[row.name, "opus100_all.zero_shot.bleu"]
    without_english = [BLEU[pair] for pair in BLEU if "en" not in pair]
    assert cell.ours.mean == pytest.approx(sum(without_english) / 6) and len(without_english) == 6


def test_changes_are_against_the_same_runs_with_unchanged_decoding(tmp_path):
    factors = {1: [0.5, 1.0], 2: [0.25, 0.5]}
    _, _, made = _collected(tmp_path, "language_layers/table8", "1,2", factors)
    assert made.cells["FCLL, tags omitted", "it-ro.bleu_change"].ours is None  # not in the result
    table = find_table("language_layers/table8")
    changed = dataclasses.replace(
        table, columns=(Column("de-fr.bleu", ""), Column("de-fr.bleu_change", ""))
    )
    paper = PAPERS["language_layers"]
    made = collect(changed, trials(paper, table, table.rows[:2], 2), tmp_path)
    score = BLEU["de", "fr"]
    change = made.cells["FCLL, tags omitted", "de-fr.bleu_change"].ours
    assert change.mean == pytest.approx(-0.375 * score)
    assert made.cells["FCLL", "de-fr.bleu"].ours.mean == pytest.approx(0.75 * score)


def test_parameters_are_those_of_the_evaluated_model():
    column = Column("all.parameters", "")
    assert cells.summarize_column(column, [RESULT], ()).mean == RESULT.parameters == 1_053_184
    cell = cells.Cell(1_000_000, cells.summarize_column(column, [RESULT], ()))
    table = dataclasses.replace(find_table("registers/table1"), columns=(column,))
    row = table.rows[0].name
    made = Reproduction(table, {(row, "all.parameters"): cell}, {})
    page = pages.markdown_page(PAPERS["registers"], made)
    assert "1,000,000" in page and "1,053,184" in page and "+53,184" in page


def test_variance_is_over_seeds():
    column = Column("zero_shot.variance", "")
    runs = [_scaled(0.5), _scaled(1.0)]
    score = cells.group_score(RESULT, column)
    assert cells.summarize_column(column, runs, ()).mean == pytest.approx((score / 2) ** 2 / 2)
    assert cells.summarize_column(column, runs[:1], ()) is None


def test_pages_show_published_ours_and_difference(tmp_path):
    paper, table, made = _collected(tmp_path, "language_layers/table7", "2", {2: [0.5, 1.0]})
    page = pages.write_pages(paper, made, TINY, tmp_path / "tables")
    ours = made.cells["FCLL", "supervised.bleu"].ours
    markdown = page.with_suffix(".md").read_text("utf-8")
    row = next(line for line in markdown.splitlines() if line.startswith("| FCLL  "))
    assert [cell.strip() for cell in row.split("|")[1:-1]] == [
        "FCLL",
        "supervised BLEU",
        "32.95",
        f"{ours.mean:.2f}",
        f"{ours.mean - 32.95:+.2f}",
        f"{ours.low:.2f} to {ours.high:.2f}",
        "range of 2 seeds",
    ]
    assert TINY.notice in markdown and TINY.notice in page.read_text("utf-8")
    latex = page.with_suffix(".tex").read_text("utf-8")
    assert r"FCLL & 32.95 & 21.00 & 1.52 \\" in latex and r"off-target, \%" in latex
    assert f"{ours.mean - 32.95:+.2f}" in page.read_text("utf-8")
    full = pages.markdown_page(paper, made)
    assert TINY.notice not in full and "| iwslt17 |" not in full


def test_lists_count_what_can_be_run():
    text = list_papers([PAPERS["language_layers"]])
    row = next(line for line in text.splitlines() if "language_layers/table2 " in line)
    assert [cell.strip() for cell in row.split("|")[4:-1]] == ["6", "4", "0", "36"]
    shown = show_table(find_table("language_layers/table2"))
    assert "not run here: Philip et al. (2020)" in shown and "32.93" in shown
    assert "orders of growth only" in show_table(find_table("language_layers/table1"))
