"""Columns of published tables that compare rows, or come from a run's training."""

from __future__ import annotations

import dataclasses
import re
from decimal import Decimal

import pytest

from mnmt_jax.commands import reproduce
from mnmt_jax.commands.reproduction_plan import describe_plan
from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.neural_metrics import identify_model, name_model
from mnmt_jax.evaluation.result import write_result
from mnmt_jax.evaluation.seed_statistics import summarize_scores
from mnmt_jax.evaluation.spbleu import FloresTokenizer
from mnmt_jax.papers import cells, engine, shared_scores
from mnmt_jax.papers.cell_texts import difference_text, ours_text, published_text
from mnmt_jax.papers.compared_rows import compared_key
from mnmt_jax.papers.experiments import experiments
from mnmt_jax.papers.reproduction import collect
from mnmt_jax.papers.scales import FULL
from mnmt_jax.papers.score_models import SCORE_MODELS, missing_models
from mnmt_jax.papers.table_plan import plan_table
from mnmt_jax.papers.tables import Column, find_table, load_papers
from mnmt_jax.papers.trials import trials
from mnmt_jax.papers.workflow import Workflow
from tests.made_foreign import spm_model
from tests.unit.made_results import made_result

pytestmark = pytest.mark.usefixtures("relaxed_dtypes")  # for parameter counts
RESULT = made_result("made", ("en", "de", "fr"), seed=1)


def _collected(tmp_path, name, columns, changes):
    """Collect evaluations of a table's first rows, one for each dictionary of changed fields."""
    table = dataclasses.replace(find_table(name), columns=columns)
    selected = trials(load_papers()[table.paper], table, table.rows[: len(changes)], 1)
    for trial, fields in zip(selected, changes, strict=True):
        scale = fields.pop("scale", 1.0)
        items = [
            dataclasses.replace(i, bleu=scale * i.bleu, paper={"bleu": scale * i.bleu})
            for i in RESULT.directions
        ]
        result = dataclasses.replace(RESULT, directions=tuple(items), **fields)
        (tmp_path / trial.evaluation).mkdir(parents=True)
        write_result(result, tmp_path / trial.evaluation / "scores.json")
    return collect(table, selected, tmp_path).cells


def test_gains_are_over_the_named_row(tmp_path):
    columns = (Column("x_to_en.bleu", ""), Column("x_to_en.bleu_gain", ""))
    made = _collected(tmp_path, "graformer/figure5", columns, [{}, {"scale": 0.5}])
    base, gain = (
        made[row, key].ours
        for row, key in (
            ("Transformer, 100% of the pairs", "x_to_en.bleu"),
            ("Graformer, 100% of the pairs", "x_to_en.bleu_gain"),
        )
    )
    assert gain.mean == pytest.approx(-base.mean / 2)
    assert ("Transformer, 100% of the pairs", "x_to_en.bleu_gain") not in made


def test_gains_need_the_named_row(tmp_path):
    table = find_table("graformer/figure5")
    paper = load_papers()["graformer"]
    selected = trials(paper, table, table.rows[1:2], 1)
    (tmp_path / selected[0].evaluation).mkdir(parents=True)
    write_result(RESULT, tmp_path / selected[0].evaluation / "scores.json")
    made = collect(table, selected, tmp_path).cells
    cell = made["Graformer, 100% of the pairs", "x_to_en.bleu_gain"]
    assert cell.ours is None and str(cell.published) == "5.8"


def test_training_times_are_relative_and_of_an_update(tmp_path):
    runs = [{"seconds": 100.0, "step": 1000}, {"seconds": 300.0, "step": 2000}]
    name, columns = "position_disentangling/table8", (Column("all.relative_time", ""),)
    made = _collected(tmp_path, name, columns, runs)
    assert made["MNMT-small", "all.relative_time"].ours.mean == 1
    assert made["MNMT-TPDM-small", "all.relative_time"].ours.mean == pytest.approx(1.5)


def test_perplexity_is_the_mean_of_the_directions():
    """Not exp(nll), that of their logarithms."""
    measures = {"to_english": {"nll": 2.0, "perplexity": 11.402}, "from_english": {"nll": 3.0}}
    result = dataclasses.replace(RESULT, validation=measures)
    columns = ("x_to_en.perplexity", "x_to_en.nll", "en_to_x.perplexity", "supervised.perplexity")
    scores = [cells.group_score(result, Column(name, "")) for name in columns]
    assert scores == [11.402, 2.0, None, None]


def test_relative_times_without_a_log_are_unknown():
    result = dataclasses.replace(RESULT, seconds=None)
    column = Column("all.relative_time", "")
    assert cells.summarize_column(column, [result], [RESULT]) is None


@pytest.mark.parametrize("paper", load_papers().values(), ids=lambda paper: paper.name)
def test_rows_that_others_compare_with_exist(paper):
    for table in paper.tables.values():
        names = [row.name for row in table.rows]
        compared = [
            row.facts["compared_with"] for row in table.rows if "compared_with" in row.facts
        ]
        assert set(compared) <= set(names)
        if any(column.metric in ("bleu_gain", "relative_time") for column in table.columns):
            assert compared, table.name


def test_changes_compare_with_the_same_model_searched_as_it_was_trained():
    table = find_table("language_layers/table8")
    fcll, fcll_omitted, sd, sd_omitted = table.rows
    planned = {
        (row.name, ""): experiments(load_papers()[table.paper], table, row)[""]
        for row in (sd_omitted, fcll_omitted, sd, fcll)
    }
    change = next(column for column in table.columns if column.metric == "bleu_change")
    for row, expected in ((fcll_omitted, fcll), (sd_omitted, sd)):
        assert compared_key(change, row, planned) == (expected.name, "")
    assert compared_key(Column("all.bleu", ""), sd_omitted, planned) is None
    del planned[sd.name, ""]
    assert compared_key(change, sd_omitted, planned) is None


def test_models_of_scores_are_a_step_after_the_evaluation():
    table = find_table("two_stage/table1")
    (trial,) = trials(load_papers()["two_stage"], table, table.rows[:1], 1)[:1]
    flags = {"comet": ("--comet", "/models/comet.ckpt"), "bert_score": ("--bert_score", "/models")}
    plan = Workflow(load_papers()["two_stage"], FULL, metrics=flags)
    step = plan.add(trial)
    assert re.fullmatch(
        r"metrics/comet\+bert_score-[0-9a-f]{8}/encoder_decoder_ted19-ted19/seed0", step
    )
    *_, evaluate, metrics = plan.steps
    assert metrics.inputs == (evaluate.name,)
    assert metrics.command == (
        *evaluate.command,
        *("--comet", "/models/comet.ckpt", "--bert_score", "/models"),
    )


def test_timed_rows_have_no_step_of_scores():
    table, paper = find_table("registers/table7"), load_papers()["registers"]
    plan = Workflow(paper, FULL, metrics={"comet": ("--comet", "model.ckpt")})
    (trial,) = trials(paper, table, table.rows[:1], 1)
    assert plan.add(trial).startswith("benchmark/") and plan.steps[-1].kind == "benchmark"


@pytest.mark.parametrize("table", ["two_stage/table1", "language_layers/table7"])
def test_all_models_of_scores_are_used(tmp_path, monkeypatch, capsys, table):
    """Also those without a column: tables share evaluations, whose scores must not be lost."""
    model = tmp_path / "model"
    model.touch()
    command = ["mnmt reproduce", table, "--rows=1", "--dry_run", f"--comet={model}"]
    monkeypatch.setattr("sys.argv", [*command, f"--flores200_model={model}"])
    reproduce.main()
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith(f"--comet {model} --flores200_model {model}")


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """Plan a row of a table; its evaluation, shared with another table, has COMET by `a.ckpt`."""
    paths = {name: tmp_path / name for name in ("a.ckpt", "b.ckpt", "flores.model", "bert")}
    for name in ("a.ckpt", "b.ckpt"):
        paths[name].write_text(name)
    paths["flores.model"].write_bytes(spm_model())
    (paths["bert"] / "dbmdz" / "bert-base-turkish-cased").mkdir(parents=True)
    monkeypatch.setattr(shared_scores, "cached_model_path", lambda: tmp_path / "none")

    def plan(name, **flags):
        metrics = {
            metric: (f"--{SCORE_MODELS[metric].flag}", str(paths[file]))
            for metric, file in flags.items()
        }
        options = {"rows": "4", "seeds": None, "data": tmp_path, "hypotheses": []}
        return plan_table(find_table(name), FULL, metrics=metrics, **options)

    before, after = (
        plan(name, comet="a.ckpt") for name in ("registers/table13", "registers/table3")
    )
    folders = [tmp_path / item.trials[0].evaluation for item in (before, after)]
    assert folders[0] == folders[1] and before.targets == after.targets
    folders[0].mkdir(parents=True)
    items = [dataclasses.replace(item, spbleu=None, comet=80.0) for item in RESULT.directions]
    signatures = {"comet": f"comet:2.2.7|{identify_model(paths['a.ckpt'])}"}
    result = dataclasses.replace(RESULT, directions=tuple(items), signatures=signatures)
    write_result(result, folders[0] / "scores.json")
    return plan, folders[0], result, paths


def test_scores_of_shared_evaluations_keep_their_flags(shared, tmp_path, monkeypatch):
    plan, folder, result, paths = shared
    alone = plan("registers/table3", spbleu="flores.model")
    message = "seed42: has COMET, which would be lost with new scores; add --comet FILE$"
    with pytest.raises(UserError, match=message):
        shared_scores.check_scores(alone, tmp_path)
    command = ["mnmt reproduce", "registers/table3", "--rows=4", f"--output={tmp_path}"]
    flag = f"--flores200_model={paths['flores.model']}"
    monkeypatch.setattr("sys.argv", [*command, flag])
    monkeypatch.setattr(engine, "run_steps", lambda *_, **__: pytest.fail("was started"))
    with pytest.raises(UserError, match=message):
        reproduce.main()
    both = plan("registers/table3", comet="a.ckpt", spbleu="flores.model")
    assert both.workflow.steps[-1].command[-4::2] == ("--comet", "--flores200_model")
    shared_scores.check_scores(both, tmp_path)
    shared_scores.check_scores(plan("registers/table3"), tmp_path)  # adds no scores
    fingerprint = FloresTokenizer(paths["flores.model"]).fingerprint
    signatures = {**result.signatures, "spbleu": f"nrefs:1|model:{fingerprint}"}
    items = [dataclasses.replace(item, spbleu=20.0) for item in result.directions]
    complete = dataclasses.replace(result, directions=tuple(items), signatures=signatures)
    write_result(complete, folder / "scores.json")
    comet = plan("registers/table3", comet="a.ckpt")
    shared_scores.check_scores(both, tmp_path)
    with pytest.raises(UserError, match=r"has spBLEU, .*; add --flores200_model FILE$"):
        shared_scores.check_scores(comet, tmp_path)
    done = tmp_path / "done" / comet.targets[0]
    done.parent.mkdir(parents=True)
    done.touch()  # was run before the other score was added
    shared_scores.check_scores(comet, tmp_path)
    done.unlink()
    monkeypatch.setattr(shared_scores, "cached_model_path", lambda: paths["flores.model"])
    items = [dataclasses.replace(item, off_target_nearest=None) for item in complete.directions]
    write_result(dataclasses.replace(complete, directions=tuple(items)), folder / "scores.json")
    shared_scores.check_scores(comet, tmp_path)  # computes spBLEU without the flag


def test_scores_that_no_flag_computes_need_another_folder(shared, tmp_path):
    plan, folder, result, _ = shared
    items = [dataclasses.replace(item, kiwi=70.0) for item in result.directions]
    write_result(dataclasses.replace(result, directions=tuple(items)), folder / "scores.json")
    with pytest.raises(UserError, match=r"has COMET, CometKiwi, .*; choose another --output$"):
        shared_scores.check_scores(plan("registers/table3", spbleu="flores.model"), tmp_path)


def test_another_model_of_a_score_is_another_step_and_refused(shared, tmp_path):
    plan, folder, result, paths = shared
    first, other = (plan("registers/table13", comet=file) for file in ("a.ckpt", "b.ckpt"))
    assert first.targets != other.targets
    shared_scores.check_scores(first, tmp_path)
    with pytest.raises(UserError, match=r"--comet=\S+b\.ckpt: .* has COMET by another model"):
        shared_scores.check_scores(other, tmp_path)
    name = "dbmdz/bert-base-turkish-cased"
    signature = f"bert_score:1|{name_model(paths['bert'] / name, name)}|layer:10|no-idf"
    signatures = {**result.signatures, "bert_score": {"to tr": signature}}
    items = [dataclasses.replace(item, bert_score=90.0) for item in result.directions]
    scored = dataclasses.replace(result, directions=tuple(items), signatures=signatures)
    write_result(scored, folder / "scores.json")
    both = plan("registers/table13", comet="a.ckpt", bert_score="bert")
    shared_scores.check_scores(both, tmp_path)
    (paths["bert"] / name / "weights").touch()
    with pytest.raises(UserError, match=r"--bert_score=\S+bert: .* has BERTScore by another"):
        shared_scores.check_scores(both, tmp_path)


def test_plans_count_finished_steps(tmp_path, monkeypatch, capsys):
    command = ["mnmt reproduce", "two_stage/table1", "--rows=1", "--dry_run"]
    monkeypatch.setattr("sys.argv", [*command, f"--output={tmp_path}"])
    reproduce.main()
    assert "are done" not in capsys.readouterr().out
    for name in ("vocabulary/ted19", "train/of_another_table/seed0"):
        (tmp_path / "done" / name).parent.mkdir(parents=True)
        (tmp_path / "done" / name).touch()
    reproduce.main()
    assert f"1 of 5 steps are done in {tmp_path}." in capsys.readouterr().out


def test_missing_models_are_named(tmp_path, monkeypatch):
    command = ["mnmt reproduce", "two_stage/table1", "--dry_run", f"--comet={tmp_path / 'none'}"]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(UserError, match=r"--comet=.*none: no such file or folder"):
        reproduce.main()


def test_pages_and_plans_name_the_models_of_empty_cells(tmp_path):
    table, paper = find_table("registers/table5"), load_papers()["registers"]
    (comet,), (spbleu,) = (missing_models(table, {filled}) for filled in ("spbleu", "comet"))
    (trial,) = trials(paper, table, table.rows[:1], 1)
    items = [dataclasses.replace(item, spbleu=30.0, comet=None) for item in RESULT.directions]
    (tmp_path / trial.evaluation).mkdir(parents=True)
    result = dataclasses.replace(RESULT, directions=tuple(items))
    write_result(result, tmp_path / trial.evaluation / "scores.json")
    notes = collect(table, [trial], tmp_path).notes
    assert comet in notes and spbleu not in notes
    plan = Workflow(paper, FULL, metrics={"comet": ("--comet", "model.ckpt")})
    plan.add(trial)
    printed = describe_plan(table, [trial], (), plan).splitlines()
    assert spbleu in printed and comet not in printed


def test_changes_need_the_same_seeds():
    column = Column("de-fr.bleu_change", "")
    assert cells.summarize_column(column, [RESULT, RESULT], [RESULT, RESULT]).mean == 0
    assert cells.summarize_column(column, [RESULT, RESULT], [RESULT]) is None
    assert cells.summarize_column(column, [RESULT], []) is None
    empty = dataclasses.replace(RESULT, directions=())
    better, best = (
        dataclasses.replace(
            RESULT,
            directions=tuple(
                dataclasses.replace(item, bleu=item.bleu + gain) for item in RESULT.directions
            ),
        )
        for gain in (9, 28)
    )
    summary = cells.summarize_column(column, [better, empty, best], [RESULT, RESULT, empty])
    assert summary.mean == pytest.approx(9)  # of the only seed that has both


@pytest.mark.parametrize(
    "published, ours, texts",
    [
        ("21.5", 20.0, ("21.5", "20.00", "-1.50")),
        ("32.95", 32.949, ("32.95", "32.95", "+0.00")),
        ("0.123", 0.5, ("0.123", "0.500", "+0.377")),  # as many decimals as the printed number
        (1_200, 1_300.0, ("1,200", "1,300", "+100")),
        (1_200, 1_300.5, ("1,200", "1,300.50", "+100.50")),
        (None, 12.345, ("–", "12.35", "–")),
    ],
)
def test_numbers_have_the_decimals_of_the_printed_ones(published, ours, texts):
    number = Decimal(published) if isinstance(published, str) else published
    cell = cells.Cell(number, summarize_scores([ours]))
    assert tuple(text(cell) for text in (published_text, ours_text, difference_text)) == texts
