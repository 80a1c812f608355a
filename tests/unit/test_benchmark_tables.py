"""The tables of this project's benchmarks: recorded numbers, corpora that share settings, cells."""

from __future__ import annotations

import dataclasses
import re

import pytest

from mnmt_jax.commands.reproduction_plan import describe_plan
from mnmt_jax.cost.training_estimate import estimate_training
from mnmt_jax.errors import UserError
from mnmt_jax.papers import cells
from mnmt_jax.papers.experiments import corpus_settings, experiments, training_config
from mnmt_jax.papers.listing import list_papers
from mnmt_jax.papers.scales import FULL, TINY
from mnmt_jax.papers.tables import Column, find_paper, find_table
from mnmt_jax.papers.trials import trials
from mnmt_jax.papers.workflow import Workflow
from tests.run_commands import ROOT
from tests.unit.made_results import made_result

PAPER = find_paper("benchmarks")
PAGES = {
    "zero_shot": ("results_systems.md", "Systems on phrases, three seeds"),
    "zero_shot_prose": ("results_systems.md", "Systems on a manual's prose, one seed"),
    "graft": ("results_graft.md", "Grafting two language models, three seeds"),
    "graft_prose": ("results_graft.md", "Grafting on a manual's prose, one seed"),
}
GROUPS = {"supervised": "supervised", "zero-shot": "zero_shot"}
CRITICS = {"zero_shot": 198_272, "zero_shot_prose": 198_272}  # in the recorded parameters of TPDM


def _recorded(page: str, section: str) -> dict[tuple[str, str], list[str]]:
    """Return the cells of a page's table of systems, by system and group; means only."""
    text = (ROOT / "docs" / page).read_text("utf-8").split(f"## {section}\n")[1].split("\n## ")[0]
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    return {
        (line[0].removesuffix(" †"), GROUPS[line[2]]): [
            line[1],
            *(cell.split(" ")[0] for cell in line[3:]),
        ]
        for line in lines
        if len(line) > 5 and line[2] in GROUPS
    }


@pytest.mark.parametrize("name", PAGES)
def test_the_recorded_numbers_are_those_of_the_page(name):
    table, recorded = PAPER.tables[name], _recorded(*PAGES[name])
    assert {system for system, _ in recorded} == {row.name for row in table.rows}
    for row in table.rows:
        for group in GROUPS.values():
            keys = [column.key for column in table.columns if column.group in (group, "all")]
            assert [f"{row.published[key]:,}" for key in keys] == recorded[row.name, group]


@pytest.mark.parametrize("name", PAGES)
def test_the_recorded_parameters_are_those_of_the_models(name, relaxed_dtypes):
    table, counted = PAPER.tables[name], 0
    for row in table.rows:
        for experiment in experiments(PAPER, table, row).values():
            parameters = estimate_training(training_config(experiment)).parameters
            parameters += CRITICS[name] if row.name.endswith("tpdm") else 0
            assert parameters == row.published["all.parameters"], row.name
            counted += 1
    assert counted >= 6


def test_the_tables_are_listed():
    lines = [line.split("|") for line in list_papers([PAPER]).splitlines() if "| bench" in line]
    listed = {line[1].strip(): (int(line[4]), int(line[5])) for line in lines}
    rows = {name: len(table.rows) for name, table in PAPER.tables.items()}
    assert listed == {f"benchmarks/{name}": (count, count) for name, count in rows.items()}


def test_pivot_and_contrast_decode_the_runs_of_the_encoder_decoder():
    table = find_table("benchmarks/zero_shot")
    rows = {row.name: experiments(PAPER, table, row) for row in table.rows}
    base, pivot, contrast = (rows[name][""] for name in ("encoder_decoder", "pivot", "contrast"))
    assert base.run_name == pivot.run_name == contrast.run_name
    assert len({item.evaluation_name for item in (base, pivot, contrast)}) == 3


def test_a_graft_starts_from_language_models_of_all_text(relaxed_dtypes):
    table = find_table("benchmarks/graft")
    plan = Workflow(PAPER, FULL)
    selected = trials(PAPER, table, table.rows[:1], 1)
    for trial in selected:
        plan.add(trial)
    text = describe_plan(table, selected, (), plan)
    assert "cldr_quickstart: embedded, no file" in text
    caches = [" ".join(step.command) for step in plan.steps if step.kind == "cache"]
    assert [re.findall(r"--(?:monolingual|share \S+)", cache) for cache in caches] == [
        ["--monolingual"],
        ["--share 0.01"],
    ]
    *_, train = [step.command for step in plan.steps if step.kind == "train"]
    for name, model in (("mlm", "masked_lm_tiny"), ("lm", "causal_lm_tiny")):
        assert f"{name}=runs/{model}-cldr_quickstart_text/seed1" in train
    assert "--gin.Train.steps=1000" in train and "--gin.Data.instruction='3'" in train


def test_split_pieces_are_those_of_the_threshold(relaxed_dtypes):
    """Of 223 copies, as the recorded number of parameters says."""
    table = find_table("benchmarks/zero_shot")
    (row,) = (row for row in table.rows if row.name == "lavs")
    plan = Workflow(PAPER, FULL)
    for trial in trials(PAPER, table, [row], 1):
        plan.add(trial)
    split = " ".join(plan.steps[1].command)
    assert "--lavs code --lavs_copies 223 --vocabulary vocabularies/cldr_quickstart " in split
    (train,) = [step.command for step in plan.steps if step.kind == "train"]
    sizes = [word for word in train if "vocab_size" in word]
    assert sizes[-1] == "--gin.Model.vocab_size=0"


def test_embedded_phrases_need_no_miniature():
    table = find_table("benchmarks/zero_shot")
    plan = Workflow(PAPER, TINY)
    for trial in trials(PAPER, table, table.rows[:1], 1):
        plan.add(trial)
    assert [step.kind for step in plan.steps] == ["vocabulary", "cache", "train", "evaluate"]
    assert "--vocab_size 526" in " ".join(plan.steps[0].command)


def _paper(**corpora):
    return dataclasses.replace(PAPER, corpora=corpora)


def test_a_corpus_takes_over_the_fields_of_another():
    base = {"run": "ted20", "cache": "--share 0.5", "bindings": ["Data.rows=4"]}
    paper = _paper(ted19=base, b={"like": "ted19", "cache": ""}, c={"like": "b", "bindings": []})
    b, c = corpus_settings(paper, "b"), corpus_settings(paper, "c")
    assert (b.corpus, b.mixture, b.model, b.run) == ("b", "ted19", "ted19", "ted20")
    assert (b.cache, b.bindings) == ((), ("Data.rows=4",))
    assert (c.corpus, c.mixture, c.cache, c.bindings) == ("c", "ted19", (), ())


@pytest.mark.parametrize(
    "corpora, message",
    [
        ({"a": {"like": "b"}}, "corpora.b: is missing"),
        ({"a": {"like": "b"}, "b": {"like": "a"}}, "corpora.a: is like itself"),
        ({"a": {"binding": []}}, "corpora.a: unknown field 'binding'"),
    ],
)
def test_mistakes_in_corpora_are_named(corpora, message):
    with pytest.raises(UserError, match=message):
        corpus_settings(_paper(**corpora), "a")


def test_scores_of_the_benchmarks_have_columns():
    result = made_result("made", ("en", "de", "fr"), seed=1)
    result = dataclasses.replace(result, validation={"zero_shot": {"nll": 1.5}})
    exact = result.averages["exact_match"].zero_shot.mean
    assert cells.group_score(result, Column("zero_shot.exact", "")) == pytest.approx(exact)
    assert cells.group_score(result, Column("zero_shot.nll", "")) == 1.5
    assert cells.group_score(result, Column("supervised.nll", "")) is None
    nearest = [
        dataclasses.replace(item, off_target_nearest=float(number))
        for number, item in enumerate(result.directions)
    ]
    result = dataclasses.replace(result, directions=tuple(nearest))
    score = cells.group_score(result, Column("all.off_target_nearest", ""))
    assert score == pytest.approx((len(nearest) - 1) / 2)
