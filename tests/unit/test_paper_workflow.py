"""Commands that the rows of published tables become."""

from __future__ import annotations

import dataclasses
import math

import pytest

from mnmt_jax.commands.reproduction_plan import describe_plan, training_cost
from mnmt_jax.errors import UserError
from mnmt_jax.papers.experiments import experiments, make_experiment
from mnmt_jax.papers.scales import FULL
from mnmt_jax.papers.selection import select_rows
from mnmt_jax.papers.tables import find_table, load_papers
from mnmt_jax.papers.trials import trials
from mnmt_jax.papers.workflow import Workflow

PAPERS = load_papers()


def _commands(name: str, row: str) -> list[str]:
    """Return the commands of one seed of a row, at full scale."""
    return [" ".join(step.command) for step in _plan(name, row).steps]


def _plan(name: str, row: str) -> Workflow:
    """Return the plan of one seed of a row, at full scale."""
    table = find_table(name)
    paper = PAPERS[table.paper]
    plan = Workflow(paper, FULL)
    for trial in trials(paper, table, select_rows(paper, table, row), 1):
        plan.add(trial)
    return plan


def test_bindings_of_a_row_are_those_of_its_training():
    (train,) = [c for c in _commands("language_layers/table7", "5") if " train " in c]
    assert "--gin.Train.seed=1 --gin.Data.instruction='none' --workdir" in train


def test_a_new_language_grows_the_run_before_it():
    *_, before, grow, cache, train, evaluate = _commands("language_layers/table4", "3")
    source, name = "runs/sd_iwslt17-iwslt17/seed1", "from_sd_iwslt17/seed1"
    grown = f"grown/sd_iwslt17-iwslt17_de-new_language-{name}"
    assert before.endswith(f"--workdir {source}")
    assert grow.startswith(f"mnmt add-language --run {source} --step best --mixture iwslt17_de")
    assert grow.endswith(
        f"--language de --vocab_size 10000 --model_type bpe "
        f"--normalization nmt_nfkc --output {grown}"
    )
    assert f"--vocabulary {grown}/vocabulary --also caches/iwslt17 --output" in cache
    assert train.startswith(
        f"mnmt train --gin_file {grown}/config.gin "
        "--gin_file gin_configs/runs/settings/new_language.gin"
    )
    assert f"--gin.Train.steps=20000 --initialize_from {grown} --workdir" in train
    assert "--task iwslt17_de --step best" in evaluate


def test_back_translation_starts_from_the_run_without_it():
    *_, before, rounds, evaluate = _commands("language_layers/table3", "10")
    source = "runs/sd_opus100_base-opus100_all/seed1"
    assert before.endswith(f"--workdir {source}")
    assert rounds == (
        f"mnmt back-translate --run {source} --step best --cache caches/opus100_all "
        "--languages ar,de,fr,nl,ru,zh --rounds 4 "
        "--gin_file gin_configs/runs/settings/back_translation.gin "
        "--workdir runs/sd_opus100_base-opus100_all-back_translation_4/seed1"
    )
    assert "sd_opus100_base-opus100_all-back_translation_4/seed1/round_4/run --task" in evaluate


def test_a_round_of_back_translation_costs_an_epoch(relaxed_dtypes):
    table, paper = find_table("language_layers/table3"), PAPERS["language_layers"]
    (experiment,) = experiments(paper, table, table.rows[9]).values()
    before = training_cost(dataclasses.replace(experiment, back_translation_rounds=0))
    one, four = (
        training_cost(dataclasses.replace(experiment, back_translation_rounds=rounds))
        for rounds in (1, 4)
    )
    draws = experiment.data.epoch_draws
    assert before.updates == 500_000 and one.updates == math.ceil(draws * 32 / one.tokens)
    assert (four.updates, four.disk) == (4 * one.updates, 4 * one.disk)
    assert four.flops == pytest.approx(before.flops * four.updates / before.updates)
    text = describe_plan(table, (), (), _plan("language_layers/table3", "10"))
    assert "updates of epochs (Train.epochs) are estimates" in text


def test_a_distilled_row_is_trained_on_the_translations_of_its_teacher():
    *_, teacher, distill, train, evaluate = _commands("benchmarks/zero_shot", "21")
    source = "runs/encoder_decoder_tiny-cldr_quickstart/seed1"
    change = "distilled_from_encoder_decoder_tiny-beam_size-5"
    name = f"encoder_decoder_tiny-cldr_quickstart-{change}/seed1"
    assert teacher.endswith(f"--workdir {source}") and "caches/cldr_quickstart'" in teacher
    assert distill == (
        f"mnmt distill --teacher {source} --cache caches/cldr_quickstart --beam_size 5 "
        f"--output caches/{name}"
    )
    assert f"--gin.Data.cache='caches/{name}'" in train and "--initialize_from" not in train
    assert train.endswith(f"--workdir runs/{name}") and f"--run runs/{name} --task" in evaluate


def test_a_teacher_translates_with_the_checkpoint_of_its_corpus():
    """IWSLT-17's runs are evaluated at their best update."""
    table, paper = find_table("language_layers/table7"), PAPERS["language_layers"]
    row = dataclasses.replace(
        table.rows[1], facts={**table.rows[1].facts, "teacher": "en-de=sd_iwslt17 on iwslt17"}
    )
    plan = Workflow(paper, FULL)
    (experiment,) = [make_experiment(paper, table, row, "iwslt17")]
    plan._train(experiment, 3)
    (distill,) = [step for step in plan.steps if step.kind == "distill"]
    assert "--teacher en-de=runs/sd_iwslt17-iwslt17/seed3" in " ".join(distill.command)
    assert distill.command[distill.command.index("--step") + 1] == "best"
    assert distill.inputs == ("train/sd_iwslt17-iwslt17/seed3", "cache/iwslt17")


def test_flags_of_distillation_need_a_teacher():
    table, paper = find_table("benchmarks/zero_shot"), PAPERS["benchmarks"]
    row = dataclasses.replace(table.rows[0], facts={**table.rows[0].facts, "distill": ["--keep"]})
    with pytest.raises(UserError, match="row 'encoder_decoder': 'distill' needs a 'teacher'"):
        make_experiment(paper, table, row, "cldr_quickstart")


@pytest.mark.parametrize(
    ("table", "corpus", "facts", "named"),
    [
        (
            "table3",
            "opus100_all",
            {"back_translation_rounds": 4, "teacher": "sd_iwslt17 on iwslt17"},
            "'teacher' and 'back_translation_rounds' do not combine",
        ),
        (
            "table4",
            "iwslt17_de",
            {"teacher": "sd_iwslt17 on iwslt17"},
            "'teacher' and the new language of 'iwslt17_de' do not combine",
        ),
        (
            "table4",
            "iwslt17_de",
            {"back_translation_rounds": 2},
            "'back_translation_rounds' and the new language of 'iwslt17_de' do not combine",
        ),
        (
            "table4",
            "iwslt17",
            {"trained_on": "iwslt17_de", "teacher": "sd_iwslt17 on iwslt17"},
            "'teacher' and the new language of 'iwslt17_de' do not combine",
        ),
    ],
)
def test_trainings_that_do_not_combine_are_refused(table, corpus, facts, named):
    chosen, paper = find_table(f"language_layers/{table}"), PAPERS["language_layers"]
    row = dataclasses.replace(chosen.rows[0], facts={**chosen.rows[0].facts, **facts})
    with pytest.raises(UserError, match=rf"row '{row.name}': {named}; make a row for each"):
        make_experiment(paper, chosen, row, corpus)


@pytest.mark.parametrize(
    ("name", "number", "facts"),
    [
        ("language_layers/table7", 0, {"step": "average"}),
        ("language_layers/table7", 0, {"step": ""}),
        ("two_stage/table1", 0, {"run": "opus100_deep"}),
        ("graformer/table1", -1, {"from": ["mlm=masked_lm_graformer on newscrawl_masked_lm"]}),
    ],
)
def test_a_row_with_another_field_has_steps_of_its_own(name, number, facts):
    table, paper = find_table(name), PAPERS[name.partition("/")[0]]
    row = table.rows[number]
    changed = dataclasses.replace(row, name="changed", facts={**row.facts, **facts})
    (first, *_), (second, *_) = (
        [*experiments(paper, table, one).values()] for one in (row, changed)
    )
    assert first.evaluation_name != second.evaluation_name
    plan = Workflow(paper, FULL)
    assert plan._evaluate(first, 1) != plan._evaluate(second, 1)


def test_two_commands_of_one_step_are_refused():
    table, paper = find_table("language_layers/table7"), PAPERS["language_layers"]
    (experiment,) = experiments(paper, table, table.rows[0]).values()
    data = dataclasses.replace(experiment.data, steps=7)
    plan = Workflow(paper, FULL)
    plan._train(experiment, 1)
    named = "two rows have the step train/residual_iwslt17-iwslt17/seed1, one with .*Train.steps=7`"
    with pytest.raises(UserError, match=named):
        plan._train(dataclasses.replace(experiment, data=data), 1)
