"""Analyses of published tables: their steps, the numbers read from them, and their links."""

import json

import pytest

from mnmt_jax.commands.analyse_states import MULTI_RUN_KINDS
from mnmt_jax.commands.reproduction_plan import describe_plan
from mnmt_jax.errors import UserError
from mnmt_jax.papers.analyses import analyses
from mnmt_jax.papers.analysis_cells import with_analyses
from mnmt_jax.papers.pages import html_report, markdown_page
from mnmt_jax.papers.reproduction import collect
from mnmt_jax.papers.scales import FULL, TINY
from mnmt_jax.papers.tables import find_table, load_papers
from mnmt_jax.papers.trials import trials
from mnmt_jax.papers.workflow import Workflow


def planned(name, scale=FULL):
    table = find_table(name)
    paper = load_papers()[table.paper]
    plan, analysed = Workflow(paper, scale), analyses(paper, table)
    targets = [target for analysis in analysed for target in plan.add_analysis(analysis)]
    steps = {step.name: step for step in plan.steps}
    return table, plan, analysed, [steps[target] for target in targets]


def values_of(command, flag):
    return [value for name, value in zip(command, command[1:], strict=False) if name == flag]


def test_a_kind_of_one_run_is_a_step_per_model():
    _, plan, _, steps = planned("language_layers/figure3")
    runs = [values_of(step.command, "--run") for step in steps]
    with_tags, without_tags, omitted = (run[0] for run in runs)
    assert with_tags == omitted != without_tags
    assert "--gin.Data.instruction='none'" in steps[2].command
    assert "--gin.Data.instruction='none'" not in steps[0].command
    outputs = [values_of(step.command, "--output")[0] for step in steps]
    assert len(set(outputs)) == 3 and len(plan.trainings) == 2
    assert all(step.inputs[0].startswith("train/fcll_iwslt17") for step in steps)


def test_miniatures_have_a_notice_on_every_page():
    _, plan, _, steps = planned("language_layers/figure3", TINY)
    table, paper = find_table("language_layers/table7"), load_papers()["language_layers"]
    plan.add(trials(paper, table, table.rows[:1], 1)[0])
    steps += [step for step in plan.steps if step.kind == "evaluate"]
    assert {step.kind for step in steps} == {"analyse", "evaluate"}
    assert all(values_of(step.command, "--note") == [TINY.notice] for step in steps)
    assert not any("--note" in step.command for step in planned("language_layers/figure3")[3])


def test_scales_are_those_of_a_run_without_a_task():
    _, _, _, (step,) = planned("language_layers/figure6")
    assert step.command[:3] == ("mnmt", "analyse", "scales") and "--task" not in step.command


def test_a_kind_of_several_runs_is_one_step(relaxed_dtypes):
    table, plan, analysed, (step,) = planned("position_disentangling/table4")
    assert len(values_of(step.command, "--run")) == 2 and len(step.inputs) == 2
    assert values_of(step.command, "--task") == ["multiun"]
    text = describe_plan(table, (), analysed, plan)
    assert text.count("| probe |") == 2 and "source run" not in text


def test_analyses_compare_where_the_command_takes_several_runs():
    compared = {
        (analysis.kind, analysis.compare)
        for paper in load_papers().values()
        for table in paper.tables.values()
        for analysis in analyses(paper, table)
    }
    assert {kind for kind, compare in compared if compare} == {"probe", "svcca"}
    assert all(compare == (kind in MULTI_RUN_KINDS) for kind, compare in compared)


def test_tiny_analyses_read_few_sentences():
    _, _, _, (step,) = planned("position_disentangling/table4", TINY)
    assert values_of(step.command, "--limit") == ["2"]
    assert values_of(step.command, "--updates") == ["5"]


def write_result(folder, facts):
    folder.mkdir(parents=True)
    (folder / "analysis.json").write_text(json.dumps(facts), encoding="utf-8")


def test_shares_of_token_classes_are_those_of_the_last_location(tmp_path):
    table, _, analysed, _ = planned("position_disentangling/table4")
    early = {"classes": {"number": {"all": 1.0, "gained": 2.0}}}
    late = {
        "classes": {
            "number": {"all": 3.5, "gained": 4.5},
            "Han": {"all": 20.0, "gained": 10.0},
        }
    }
    write_result(tmp_path / analysed[0].folder(tuple(analysed[0].runs)), {"gains": [early, late]})
    reproduction = with_analyses(collect(table, (), tmp_path), analysed, tmp_path)
    all_types, gained = (row.name for row in table.rows)
    ours = {key: cell.ours.mean for key, cell in reproduction.cells.items()}
    assert ours[all_types, "number.share"] == 3.5 and ours[gained, "number.share"] == 4.5
    assert ours[all_types, "zh.share"] == 20.0 and ours[gained, "ar.share"] == 0.0
    assert reproduction.cells[gained, "number.share"].difference == pytest.approx(4.5 - 3.34)


def layer(query, first, distance):
    source = {"first": first, "second": 0.1, "distance": distance, "entropy": 2.0}
    choices = {"source": source} if query == "register" else {"register": source}
    return {"query": query, "choices": choices}


def test_attention_of_registers_is_summed_over_layers_and_distances_are_averaged(tmp_path):
    table, _, analysed, steps = planned("registers/table6")
    assert len(steps) == len(table.rows) == 4
    (analysis,) = analysed
    for number, names in enumerate(analysis.groups):
        directions = [
            {"layers": [layer("register", 0.5, 2.0), layer("register", 0.25, None)]},
            {"layers": [layer("register", 0.5 + number, 4.0), layer("target", 9.0, 9.0)]},
        ]
        write_result(tmp_path / analysis.folder(names), {"directions": directions})
    reproduction = with_analyses(collect(table, (), tmp_path), analysed, tmp_path)
    ours = {key: cell.ours.mean for key, cell in reproduction.cells.items()}
    for number, row in enumerate(table.rows):
        assert ours[row.name, "all.top1_attention"] == (0.75 + 0.5 + number) / 2
        assert ours[row.name, "all.top2_distance"] == 3.0
        assert ours[row.name, "all.entropy"] == 2.0


def test_pages_link_to_the_analyses(tmp_path):
    table, _, analysed, _ = planned("registers/figure6")
    paper = load_papers()["registers"]
    reproduction = with_analyses(collect(table, (), tmp_path), analysed, tmp_path)
    page = "../../analyses/registers/figure6/similarity/analysis.html"
    assert f"]({page})" in markdown_page(paper, reproduction)
    assert f'href="{page}"' in html_report(paper, reproduction)
    assert "published" not in markdown_page(paper, reproduction)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ('name = "x"\nruns = [{name = "A", model = "m"}]', "'command' is missing"),
        (
            'name = "x"\ncommand = "probe"\nlimit = 3\nruns = [{name = "A", model = "m"}]',
            "unknown field 'limit'",
        ),
        ('name = "x"\ncommand = "probe"\nruns = [{name = "A", modell = "m"}]', "field 'modell'"),
        (
            'name = "x"\ncommand = "probe"\nruns = [{name = "A", model = "m"}]\n'
            'rows = {"no such row" = "all"}',
            "the table has no row 'no such row'",
        ),
    ],
)
def test_wrong_entries_are_named(tmp_path, entry, message):
    folder = tmp_path / "made"
    folder.mkdir()
    head = 'title = "T"\nidea = "I"\n[corpora.ted19]\n'
    (folder / "paper.toml").write_text(head, encoding="utf-8")
    table = (
        'number = "Table 1"\ntitle = "T"\nsection = "1"\nkind = "analysis"\ncorpus = "ted19"\n'
        f'no_numbers = "none"\n[[analyses]]\n{entry}\n'
    )
    (folder / "table1.toml").write_text(table, encoding="utf-8")
    paper = load_papers(tmp_path)["made"]
    with pytest.raises(UserError, match=message):
        analyses(paper, paper.tables["table1"])
