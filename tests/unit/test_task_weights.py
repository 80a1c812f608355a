"""Data.weights: weights of tasks by patterns, which may change during a training."""

from __future__ import annotations

import collections
import dataclasses
import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mnmt_jax.config.loading import load_config
from mnmt_jax.config.sections import Data
from mnmt_jax.data.cache import CachedTask, TokenCache
from mnmt_jax.data.chunk_plan import ProcessRows
from mnmt_jax.data.input_pipeline import Pipeline
from mnmt_jax.data.mixing_schedule import MixingSchedule, Stage, sampling_rates
from mnmt_jax.data.task_weights import weigh_tasks
from mnmt_jax.design.layouts import LAYOUTS
from mnmt_jax.errors import UserError
from mnmt_jax.training.build import build
from mnmt_jax.training.epochs import count_updates, describe_new_weights
from mnmt_jax.training.train import train
from mnmt_jax.vocabulary.seeded_permutation import hash64, text_hash64
from tests.made_run import make_cache, make_config, records
from tests.unpacked import unpack

TASKS = {
    name: CachedTask(name, *direction.split("-"), {})
    for name, direction in [
        ("web_en_de", "en-de"),
        ("web_de_en", "de-en"),
        ("clean_en_de", "en-de"),
        ("clean_de_en", "de-en"),
    ]
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return make_cache(tmp_path_factory.mktemp("weights"))


# Patterns


def test_weights_of_several_patterns_multiply():
    names, stages = weigh_tasks([("*-en", 0.1, 0), ("clean_*", 3.0, 0)], TASKS, 10)
    assert names == tuple(TASKS)
    assert stages == (Stage(0, (1.0, 0.1, 3.0, pytest.approx(0.3))),)
    assert weigh_tasks([], TASKS, 10) == (tuple(TASKS), ())


def test_directions_have_codes_of_any_form():
    directions = ("pt_BR-de", "de-pt_BR", "zh-en", "en-fr", "ru-en", "hi-en")
    tasks = {name: CachedTask(name, *name.split("-"), {}) for name in directions}
    for pattern, count in {
        "pt-BR-de": 1,
        "deu_Latn-pt-br": 1,
        "zh_Hans-en": 1,
        "zho-*": 1,
        "EN-fr": 1,
        "*-ENG": 3,
        "*-pt-BR": 1,
        "pt_??-deu": 1,
    }.items():
        (stage,) = weigh_tasks([(pattern, 2.0, 0)], tasks, 10)[1]
        assert stage.weights.count(2.0) == count, pattern
    _, stages = weigh_tasks([("zho-en", 2.0, 0), ("zh-en", 3.0, 10)], tasks, 10)
    assert [stage.weights[2] for stage in stages] == [2.0, 3.0]  # one pattern in two forms
    with pytest.raises(UserError, match="'pt-PT-de' is .*, in the directions pt_BR-de, de-pt_BR, "):
        weigh_tasks([("pt-PT-de", 1.0, 0)], tasks, 10)
    other = tasks | {"pt_PT-de": CachedTask("pt_PT-de", "pt_PT", "de", {})}
    with pytest.raises(UserError, match="Data.weights: 'pt-de': language 'pt' is ambiguous: name "):
        weigh_tasks([("pt-de", 1.0, 0)], other, 10)


def test_a_later_weight_replaces_that_of_the_same_pattern():
    rules = [("clean_*", 1.0, 95), ("web_*", 0.0, 95), ("clean_*", 0.0, 0), ("*-en", 0.5, 200)]
    names, stages = weigh_tasks(rules, TASKS, 10)
    assert names == tuple(TASKS)
    assert stages == (
        Stage(0, (1.0, 1.0, 0.0, 0.0)),
        Stage(10, (0.0, 0.0, 1.0, 1.0)),
        Stage(20, (0.0, 0.0, 1.0, 0.5)),
    )


def test_tasks_of_weight_0_throughout_are_left_out():
    names, stages = weigh_tasks([("*-en", 0.0, 0), ("clean_en_de", 2.0, 50)], TASKS, 10)
    assert names == ("web_en_de", "clean_en_de")
    assert stages == (Stage(0, (1.0, 1.0)), Stage(5, (1.0, 2.0)))


def test_weights_are_read_from_gin():
    model = "gin_configs/models/prefix_tiny.gin"
    value = "(('*-en', 0.05), ('web_*', 0, 20000000))"
    config = load_config([model], [f"Data.weights={value}", "Data.noise=(('tags', 1),)"])
    assert config.data.weights == (("*-en", 0.05, 0), ("web_*", 0.0, 20_000_000))
    assert config.data.noise == (("tags", 1.0),)


def test_weights_that_fit_no_task_are_refused():
    with pytest.raises(
        UserError, match=r"'web-\*' is the name or direction of no training task; they"
    ):
        weigh_tasks([("web-*", 1.0, 0)], TASKS, 10)
    with pytest.raises(UserError, match="from pair 1,000 on, all tasks have weight 0"):
        weigh_tasks([("*", 0.0, 1000)], TASKS, 10)
    with pytest.raises(UserError, match=r"must be a tuple of \(task or direction, weight, \[first"):
        Data(weights=("*-en", 0.5))
    with pytest.raises(UserError, match="must be at least 0"):
        Data(weights=(("*-en", -1),))
    assert Data(weights=[["*-en", 1]]).weights == (("*-en", 1.0, 0),)


# Schedule


def draws_one_by_one(schedule: MixingSchedule, count: int) -> list[int]:
    """Count the draws of each task by walking through time in small steps of rates."""
    fine = 200
    passed = np.zeros(len(schedule.names))
    for step in range(count * fine):
        chunk = step // fine // schedule.chunk_examples
        stage = max(i for i, s in enumerate(schedule.stages) if s.first_chunk <= chunk)
        rates = sampling_rates(schedule.sizes, schedule.temperature, schedule.stages[stage].weights)
        passed += np.array(rates) / fine
    first_rates = sampling_rates(schedule.sizes, schedule.temperature, schedule.stages[0].weights)
    units = sum(max(1, round(rate * 2**32)) if rate else 0 for rate in first_rates)
    offsets = [
        int(hash64(schedule.seed, text_hash64(name), -1)[0]) % units / units
        for name in schedule.names
    ]
    return [max(0, int(np.ceil(p - o))) for p, o in zip(passed, offsets, strict=True)]


def test_draws_equal_a_walk_through_time():
    stages = (Stage(0, (1.0, 0.0, 0.3)), Stage(3, (0.0, 2.0, 0.3)), Stage(5, (1.0, 1.0, 1.0)))
    schedule = MixingSchedule(("a", "b", "c"), (50, 30, 90), 2.0, 4, 20, stages)
    chunks = [schedule.chunk(number)[0] for number in range(8)]
    counts = np.cumsum([np.bincount(tasks, minlength=3) for tasks in chunks], axis=0)
    for number in range(8):
        difference = counts[number] - draws_one_by_one(schedule, 20 * (number + 1))
        assert np.abs(difference).max() <= (0 if number < 3 else 1)  # sums of floats
    assert not counts[2][1] and counts[2][0] == counts[4][0]


@given(
    weights=st.lists(
        st.lists(st.floats(0, 3), min_size=3, max_size=3).filter(any), min_size=1, max_size=4
    ),
    length=st.integers(1, 4),
)
@settings(deadline=None, derandomize=True, max_examples=40)
def test_every_example_once_per_epoch_across_stages(weights, length):
    stages = tuple(Stage(length * number, tuple(row)) for number, row in enumerate(weights))
    sizes = (13, 40, 7)
    schedule = MixingSchedule(("a", "b", "c"), sizes, 2.0, 3, 25, stages)
    chunks = [schedule.chunk(number) for number in range(14)]
    assert all(abs(len(task) - 25) <= 3 for task, _, _ in chunks)
    for number, size in enumerate(sizes):
        shown = np.concatenate([index[task == number] for task, index, _ in chunks])
        for start in range(0, len(shown), size):
            epoch = shown[start : start + size]
            assert len(set(epoch.tolist())) == len(epoch)


def test_a_weight_multiplies_the_rate():
    rates = sampling_rates((100, 400), 2.0, (0.5, 1.0))
    assert rates == pytest.approx([0.2, 0.8])  # 0.5 * 1 and 1 * 2 of sqrt(1) and sqrt(4)


def test_an_epoch_with_weights_counts_a_pair_by_its_weight():
    schedule = MixingSchedule(("a", "b"), (1000, 3000), 1.0, 1, 100, (Stage(0, (1.0, 0.5)),))
    assert schedule.epoch_examples == 2500
    assert dataclasses.replace(schedule, stages=()).epoch_examples == 4000


def test_small_tasks_count_as_the_least_number():
    """MITRE's 100 shards have at least 50,000 lines a direction: n is at least 5 million."""
    sizes = (100_000_000, 300_000, 5_000_000)
    floor = MixingSchedule(("a", "b", "c"), sizes, 1.0, 1, 100, min_examples=5_000_000)
    assert floor.rates(0) == pytest.approx([100 / 110, 5 / 110, 5 / 110])
    assert floor.epoch_examples == pytest.approx(110_000_000, abs=1)
    assert dataclasses.replace(floor, min_examples=0).rates(0)[1] == pytest.approx(0.3 / 105.3)
    tasks = np.concatenate([floor.chunk(number)[0] for number in range(22)])
    assert np.bincount(tasks).tolist() == pytest.approx([2000, 100, 100], abs=1)


def test_weights_of_1_change_no_draw():
    plain = MixingSchedule(("a", "b"), (30, 50), 5.0, 1, 20)
    weighted = dataclasses.replace(plain, stages=(Stage(0, (1.0, 1.0)),))
    for number in (0, 1, 50):
        for first, second in zip(plain.chunk(number), weighted.chunk(number), strict=True):
            np.testing.assert_array_equal(first, second)


# Pipeline and training

CHANGING = (("*-de", 0.0), ("*-de", 1.0, 64), ("de-*", 0.0, 64))


def data_of(cache, **changes) -> Data:
    defaults = dict(
        cache=str(cache),
        instruction="1",
        rows=4,
        source_length=48,
        target_length=48,
        max_segments=4,
        chunk_examples=32,
        temperature=1.0,
    )
    return Data(**(defaults | changes))


def test_hosts_and_restarts_draw_the_same(cache):
    tokens = TokenCache.open(cache)
    data = data_of(cache, weights=CHANGING, noise=(("typos", 0.3), ("upper", 0.3)))
    whole = Pipeline(tokens, LAYOUTS["prefix"], data).train()
    hosts = [
        Pipeline(tokens, LAYOUTS["prefix"], data, process_rows=ProcessRows((i,), 2)).train()
        for i in range(2)
    ]
    for _ in range(12):
        state = whole.get_state()
        batch, parts = next(whole), [next(host) for host in hosts]
        again = Pipeline(tokens, LAYOUTS["prefix"], data).train()
        again.set_state(state)
        repeated = next(again)
        for name, array in batch.items():
            np.testing.assert_array_equal(array, repeated[name])
            np.testing.assert_array_equal(array, np.concatenate([part[name] for part in parts]))


def test_directions_change_at_their_pair(cache):
    tokens = TokenCache.open(cache)
    pipeline = Pipeline(tokens, LAYOUTS["prefix"], data_of(cache, weights=CHANGING))
    seen = []
    for chunk in range(4):
        tasks = collections.Counter(
            pipeline.task_names[example.task]
            for batch in pipeline.iterate_chunk(chunk)
            for row in unpack(pipeline.converter, batch)
            for example in row
        )
        seen.append({(tokens.tasks[n].source_lang, tokens.tasks[n].target_lang) for n in tasks})
    assert seen[0] == seen[1] and all(target != "de" for _, target in seen[0])
    assert seen[2] == seen[3] and all(source != "de" for source, _ in seen[2])
    assert any(target == "de" for _, target in seen[2])
    assert pipeline.new_weights == (64,)
    for steps, end in ((10_000, r"\)$"), (1, ", after the last one\\)$")):
        config = make_config(cache, train={"steps": steps}, optimizer={"accumulate": 2})
        text = describe_new_weights(pipeline, config)
        assert re.match(r"Data\.weights changes at pair 64 \(about update \d+" + end, text), text


def test_a_run_trains_the_tasks_with_a_weight_and_continues(cache, tmp_path, one_device):
    """The left out direction is zero-shot; a run with other weights is refused."""
    config = make_config(cache, train={"steps": 2}, data={"weights": (("*-en", 0),)})
    assert train(config, tmp_path / "run") is None
    tasks = json.loads((tmp_path / "run" / "tasks.json").read_text())
    assert tasks and all(task["target_lang"] != "en" for task in tasks.values())
    longer = dataclasses.replace(config, train=dataclasses.replace(config.train, steps=3))
    assert train(longer, tmp_path / "run") is None
    assert records(tmp_path / "run")[-1]["step"] == 3
    other = dataclasses.replace(longer, data=dataclasses.replace(config.data, weights=()))
    with pytest.raises(UserError, match=r"Data\.weights|data\.weights"):
        train(other, tmp_path / "run")


def test_passes_over_the_data_need_constant_weights(cache):
    config = make_config(cache, train={"epochs": 1}, data={"weights": (("*-en", 0.5),)})
    assert build(config).config.train.steps == count_updates(config, TokenCache.open(cache), 1)
    changing = make_config(cache, train={"epochs": 1}, data={"weights": (("*-en", 0.5, 100),)})
    with pytest.raises(UserError, match="have no length while Data.weights changes; set Train.st"):
        build(changing)
