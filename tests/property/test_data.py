"""Properties of order, packing, layout of rows and batches."""

from __future__ import annotations

import collections
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mnmt_jax.config.sections import Data
from mnmt_jax.data.batch_iterator import BatchIterator
from mnmt_jax.data.cache import TokenCache
from mnmt_jax.data.cache_writer import TaskSource, write_cache
from mnmt_jax.data.chunk_plan import ProcessRows
from mnmt_jax.data.input_pipeline import Pipeline
from mnmt_jax.data.instruction import INSTRUCTIONS
from mnmt_jax.data.mixing_schedule import MixingSchedule, sampling_rates
from mnmt_jax.design.layouts import LAYOUTS, SOURCE, TARGET
from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.seeded_permutation import hash64, permuted_positions
from tests.made_run import random_pairs
from tests.unit import made_text
from tests.unpacked import unpack

SIZES = {("en", "de"): 90, ("de", "en"): 90, ("en", "fr"): 31, ("fr", "en"): 7}
SETTINGS = settings(deadline=None, derandomize=True)
FACTORS = st.floats(0.3, 4.0)


def batches(cache, layout, data, **options):
    """Return the endless training batches."""
    return Pipeline(cache, layout, data, **options).train()


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> TokenCache:
    tasks = [
        TaskSource(
            f"made_{source}_{target}",
            source,
            target,
            {
                "train": lambda n=size, s=seed: random_pairs(n, s),
                "validation": lambda s=seed: random_pairs(12, 100 + s),
            },
        )
        for seed, ((source, target), size) in enumerate(SIZES.items())
    ]
    directory = tmp_path_factory.mktemp("data") / "cache"
    return write_cache(directory, tasks, vocabulary=made_text.vocabulary(), shard_examples=40)


def settings_of_run(**changes) -> Data:
    defaults = dict(
        instruction="register",
        rows=8,
        source_length=24,
        target_length=20,
        max_segments=4,
        temperature=2.0,
        chunk_examples=64,
    )
    return Data(**(defaults | changes))


def pairs_of(pipeline: Pipeline, batch) -> collections.Counter:
    """The pairs in a batch, each with its task, as a multiset."""
    return collections.Counter(
        (example.task, tuple(example.source.tolist()), tuple(example.target.tolist()))
        for row in unpack(pipeline.converter, batch)
        for example in row
    )


def assert_batches_equal(first, second):
    assert set(first) == set(second)
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


# Order


@given(size=st.integers(1, 300), key=st.integers(0, 2**64 - 1))
@settings(SETTINGS)
def test_permute_is_a_bijection(size, key):
    result = permuted_positions(np.arange(size), size, key)
    assert sorted(result.tolist()) == list(range(size))
    one_by_one = [int(permuted_positions(np.array([i]), size, key)[0]) for i in range(min(size, 5))]
    assert one_by_one == result[:5].tolist()


def test_permute_looks_random_and_depends_on_the_key():
    size = 10_007
    first, second = (
        permuted_positions(np.arange(size), size, 1),
        permuted_positions(np.arange(size), size, 2),
    )
    assert (first == second).mean() < 0.01 and (first == np.arange(size)).mean() < 0.01
    assert abs(np.corrcoef(first, np.arange(size))[0, 1]) < 0.05
    # All 6 orders of three things occur.
    assert len({tuple(permuted_positions(np.arange(3), 3, key)) for key in range(200)}) == 6


def test_orders_are_the_same_everywhere():
    # Values of the definition, written down: a change of numpy or of ours must not pass unseen.
    assert permuted_positions(np.arange(8), 8, 5).tolist() == [7, 6, 2, 3, 1, 4, 5, 0]
    assert int(hash64(1, 2, 3)[0]) == 15020427595393229491


# Mixing


@given(
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=6),
    temperature=st.floats(0.5, 20),
    chunk=st.integers(1, 90),
    seed=st.integers(0, 5),
)
@settings(SETTINGS, max_examples=60)
def test_every_example_once_per_epoch(sizes, temperature, chunk, seed):
    names = tuple(f"task{i}" for i in range(len(sizes)))
    schedule = MixingSchedule(names, tuple(sizes), temperature, seed, chunk)
    chunks = [schedule.chunk(number) for number in range(12)]
    for number, size in enumerate(sizes):
        shown = np.concatenate([index[task == number] for task, index, _ in chunks])
        epochs = np.concatenate([epoch[task == number] for task, _, epoch in chunks])
        for start in range(0, len(shown), size):
            epoch = shown[start : start + size]
            assert len(set(epoch.tolist())) == len(epoch)
            assert epoch.min() >= 0 and epoch.max() < size
            assert set(epochs[start : start + size].tolist()) == {start // size}
    total = sum(len(task) for task, _, _ in chunks)
    assert abs(total - 12 * chunk) <= len(sizes)


def test_one_task_is_read_without_waste():
    schedule = MixingSchedule(("only",), (100,), 5.0, 0, 30)
    chunks = [schedule.chunk(number)[1] for number in range(10)]
    assert [len(chunk) for chunk in chunks] == [30] * 10
    for epoch in np.concatenate(chunks).reshape(3, 100):
        assert sorted(epoch.tolist()) == list(range(100))
    assert chunks[0].tolist() != np.concatenate(chunks)[100:130].tolist()


def test_shares_follow_the_temperature():
    sizes = (5_000_000, 1_000_000, 100_000, 50_000)
    np.testing.assert_allclose(
        sampling_rates(sizes, 5.0),
        np.power(np.array(sizes) / sum(sizes), 0.2)
        / sum(np.power(np.array(sizes) / sum(sizes), 0.2)),
    )
    assert sampling_rates((30, 10), 1.0) == pytest.approx([0.75, 0.25])
    schedule = MixingSchedule(("a", "b", "c", "d"), sizes, 5.0, 1, 10_000)
    counts = np.bincount(schedule.chunk(7)[0], minlength=4)
    np.testing.assert_allclose(counts / 10_000, sampling_rates(sizes, 5.0), atol=2e-4)
    with pytest.raises(ValueError, match="temperature=0"):
        sampling_rates(sizes, 0)


def test_published_ratios_of_ec40():
    published = {1_000_000: 0.01416, 100_000: 0.00894, 50_000: 0.00778, 18_448: 0.00637}
    rates = sampling_rates((5_000_000, *published), 5.0)
    for rate, value in zip(rates[1:], published.values(), strict=True):
        assert rate / rates[0] == pytest.approx(value / 0.01954, abs=5e-4)


# Batches


def test_batches_hold_what_the_cache_holds(cache):
    pipeline = Pipeline(cache, LAYOUTS["register"], settings_of_run(temperature=1.0))
    iterator, seen = pipeline.train(), collections.Counter()
    # Temperature 1: all tasks end an epoch at about the same time; look at the first of each.
    while iterator.get_state()["chunk"] < 6:
        seen += pairs_of(pipeline, next(iterator))
    for number, ((source, target), size) in enumerate(SIZES.items()):
        written = collections.Counter(
            (number, tuple(s), tuple(t)) for s, t in random_pairs(size, number)
        )
        shown = collections.Counter({k: v for k, v in seen.items() if k[0] == number})
        assert set(shown) == set(written), (source, target)
        assert set(shown.values()) <= {1, 2, 3}


def test_languages_and_tags_belong_to_the_task(cache):
    pipeline = Pipeline(cache, LAYOUTS["prefix"], settings_of_run(instruction="5"))
    batch = next(pipeline.train())
    vocabulary, filled = cache.vocabulary, 0
    for row in range(len(batch["task"])):
        for segment, task in enumerate(batch["task"][row]):
            if task < 0:
                continue
            filled += 1
            cached = cache.tasks[pipeline.task_names[task]]
            source = batch["source_tokens"][row][batch["source_segment_ids"][row] == segment + 1]
            target = batch["target_tokens"][row][batch["target_segment_ids"][row] == segment + 1]
            assert source[0] == vocabulary.tag_id(cached.source_lang)
            assert target[1] == vocabulary.tag_id(cached.target_lang)
            assert vocabulary.languages[batch["source_lang"][row, segment]] == cached.source_lang
            assert vocabulary.languages[batch["target_lang"][row, segment]] == cached.target_lang
    assert filled > 8


@pytest.mark.parametrize("process_count", [2, 3, 4, 7])
def test_hosts_share_one_global_order(cache, process_count):
    """Three and seven do not divide the rows: the last ones are empty."""
    whole = batches(cache, LAYOUTS["register"], settings_of_run())
    hosts = [
        batches(
            cache,
            LAYOUTS["register"],
            settings_of_run(),
            process_rows=ProcessRows((index,), process_count),
        )
        for index in range(process_count)
    ]
    for _ in range(12):
        parts = [next(host) for host in hosts]
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        expected = next(whole)
        rows = len(expected["task"])
        assert len(joined["task"]) == -(-rows // process_count) * process_count
        assert_batches_equal(expected, {name: array[:rows] for name, array in joined.items()})
        assert (joined["task"][rows:] == -1).all()
        assert not any(joined[f"{role}_segment_ids"][rows:].any() for role in (SOURCE, TARGET))
    assert all(host.get_state() == whole.get_state() for host in hosts)
    assert whole.get_state()["chunk"] >= 1


def test_64_hosts_read_only_the_records_of_their_rows(cache, monkeypatch):
    """Each pair of a chunk is read by one host, and the hosts' rows are the global batches."""
    hosts, chunk = 64, 3
    data = settings_of_run(rows=hosts, chunk_examples=900)
    whole = Pipeline(cache, LAYOUTS["register"], data)
    plan, expected = whole.plan(chunk), list(whole.iterate_chunk(chunk))
    records, read = collections.Counter(), TokenCache.read

    def read_and_count(cache, task, split, indices):
        records.update((task, index) for index in indices.tolist())
        return read(cache, task, split, indices)

    monkeypatch.setattr(TokenCache, "read", read_and_count)
    parts, total = [], 0
    for host in range(hosts):
        records.clear()
        process_rows = ProcessRows((host,), hosts)
        pipeline = Pipeline(cache, LAYOUTS["register"], data, process_rows=process_rows)
        parts.append(list(pipeline.iterate_chunk(chunk)))
        in_row = plan.row == host
        names = [whole.task_names[task] for task in plan.task[in_row]]
        assert records == collections.Counter(zip(names, plan.index[in_row].tolist(), strict=True))
        assert records.total() < len(plan.row) / 16
        total += records.total()
    assert total == len(plan.row) > 800 and len(expected) > 1
    for number, batch in enumerate(expected):
        rows = [part[number] for part in parts]
        joined = {name: np.concatenate([row[name] for row in rows]) for name in batch}
        assert_batches_equal(batch, joined)


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_do_not_change_the_order(cache, threads):
    pipeline = Pipeline(cache, LAYOUTS["register"], settings_of_run())
    plain = BatchIterator(pipeline, threads=0)
    threaded = BatchIterator(pipeline, threads=threads)
    for _ in range(15):
        assert_batches_equal(next(plain), next(threaded))
        assert plain.get_state() == threaded.get_state()


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 7, 11])
def test_restoring_a_position_continues(cache, steps):
    iterator = batches(cache, LAYOUTS["two_stage_trigger"], settings_of_run(instruction="1"))
    for _ in range(steps):
        next(iterator)
    state = iterator.get_state()
    assert state and all(isinstance(value, int) for value in state.values())
    again = batches(cache, LAYOUTS["two_stage_trigger"], settings_of_run(instruction="1"))
    next(again)
    again.set_state(state)
    for _ in range(6):
        assert_batches_equal(next(iterator), next(again))
        assert iterator.get_state() == again.get_state()


def test_a_position_of_other_settings_is_refused(cache):
    state = batches(cache, LAYOUTS["prefix"], settings_of_run()).get_state()
    other = batches(cache, LAYOUTS["prefix"], settings_of_run(), seed=4)
    with pytest.raises(UserError, match="saved under other Data settings.* of runs/a/config.gin"):
        other.set_state(state, "runs/a/config.gin")


def test_a_position_in_other_texts_is_refused(cache, tmp_path):
    """Another cache of the same tasks, sizes and lengths holds other tokens in one place."""

    def write(name: str, changed: bool) -> TokenCache:
        def pairs():
            for number, (source, target) in enumerate(random_pairs(40, 0)):
                other = changed and number == 17
                yield source, [*target[:-1], 60 - target[-1] + 2] if other else target

        task = TaskSource("made_en_de", "en", "de", {"train": pairs})
        return write_cache(
            tmp_path / name, [task], vocabulary=cache.vocabulary, shard_examples=9 + len(name)
        )

    first, same, other = write("first", False), write("the_same", False), write("other", True)
    state = batches(first, LAYOUTS["prefix"], settings_of_run()).get_state()
    batches(same, LAYOUTS["prefix"], settings_of_run()).set_state(state)
    assert (first.lengths("made_en_de", "train") == other.lengths("made_en_de", "train")).all()
    with pytest.raises(UserError, match="other Data settings, tasks, texts or vocabulary"):
        batches(other, LAYOUTS["prefix"], settings_of_run()).set_state(state)


def test_seeds_and_epochs_differ_but_repeat(cache):
    first = next(batches(cache, LAYOUTS["prefix"], settings_of_run()))
    assert_batches_equal(first, next(batches(cache, LAYOUTS["prefix"], settings_of_run())))
    other = next(batches(cache, LAYOUTS["prefix"], settings_of_run(), seed=9))
    assert (other["source_tokens"] != first["source_tokens"]).any()


def test_too_long_pairs_are_dropped_and_counted(cache):
    data = settings_of_run(source_length=6, target_length=7, temperature=1.0)
    pipeline = Pipeline(cache, LAYOUTS["prefix"], data)
    expected = {
        f"made_{source}_{target}": sum(
            len(s) + 2 > 6 or len(t) + 1 > 7 for s, t in random_pairs(size, number)
        )
        for number, ((source, target), size) in enumerate(SIZES.items())
    }
    assert pipeline.too_long() == expected and sum(expected.values()) > 0
    assert pipeline.dropped_summary().startswith(
        f"{sum(expected.values())} of 218 training pairs are longer than a row (Data.source"
    )
    assert Pipeline(cache, LAYOUTS["prefix"], settings_of_run()).dropped_summary() == ""
    plans = [pipeline.plan(chunk) for chunk in range(20)]
    dropped = sum(plan.dropped for plan in plans)
    kept = sum(np.bincount(plan.task, minlength=4) for plan in plans)
    assert (dropped > 0).all() and dropped.sum() + kept.sum() == pytest.approx(20 * 64, abs=4)
    with pytest.raises(UserError, match="no pair that fits"):
        next(batches(cache, LAYOUTS["prefix"], settings_of_run(target_length=1)))


def test_packed_rows_have_fewer_empty_positions(cache):
    packed = next(batches(cache, LAYOUTS["register"], settings_of_run(max_segments=4)))
    alone = next(batches(cache, LAYOUTS["register"], settings_of_run(max_segments=1)))
    padding = [np.mean(batch["target_segment_ids"] == 0) for batch in (packed, alone)]
    assert padding[0] < padding[1]
    assert (alone["source_segment_ids"].max(), alone["task"].shape) == (1, (8, 1))


def test_no_batch_is_nearly_empty(cache):
    pipeline = Pipeline(cache, LAYOUTS["prefix"], settings_of_run())
    for chunk in range(8):
        plan = pipeline.plan(chunk)
        used = [len(set(plan.row[plan.batch == number])) for number in range(plan.batches)]
        assert max(used) - min(used) <= 1 and max(used) <= 8 and min(used) > 0
        assert [
            sorted(set(plan.row[plan.batch == n])) == list(range(used[n])) for n in range(len(used))
        ]


def test_validation_shows_each_pair_once_task_by_task(cache):
    pipeline = Pipeline(cache, LAYOUTS["register"], settings_of_run(tasks=("made_en_de",)))
    tasks = ("made_fr_en", "made_en_de")
    seen, order = {name: collections.Counter() for name in tasks}, []
    for name, batch in pipeline.validation(tasks):
        order.append(name)
        seen[name] += pairs_of(pipeline, batch)
    assert order == sorted(order, key=tasks.index) and len(order) >= 2
    for place, (name, seed) in enumerate((("made_fr_en", 3), ("made_en_de", 0))):
        written = ((place, tuple(s), tuple(t)) for s, t in random_pairs(12, 100 + seed))
        assert seen[name] == collections.Counter(written)
    few = Pipeline(cache, LAYOUTS["register"], settings_of_run(validation_examples=5))
    count = sum((batch["task"] >= 0).sum() for _, batch in few.validation())
    assert count == 5 * 4


def test_settings_are_checked(cache):
    message = (
        r"^Data.tasks: \S+: no task 'made_xx_de'; it has made_en_de, .*made_\w+; "
        r'--gin.Data.tasks="\(\)" trains on all training tasks$'
    )
    with pytest.raises(UserError, match=message):
        batches(cache, LAYOUTS["prefix"], settings_of_run(tasks=("made_xx_de",)))


def test_the_checksum_of_training_data_is_that_of_earlier_checkpoints():
    """A run of an earlier version continues: the value was computed by its code."""
    pipeline = Pipeline.__new__(Pipeline)
    split = types.SimpleNamespace(content="c")
    pipeline.cache = types.SimpleNamespace(
        vocabulary=types.SimpleNamespace(fingerprint="v"), split=lambda *_: split
    )
    pipeline._data, pipeline.task_names = (
        types.SimpleNamespace(rows=8, noise=(), min_pairs=0),
        ("a", "b"),
    )
    pipeline._schedule = MixingSchedule(("a", "b"), (3, 4), 5.0, 1, 100)
    pipeline.converter = types.SimpleNamespace(
        instruction=INSTRUCTIONS["2"], lengths=(8, 8), mask_shares=None
    )
    assert pipeline.fingerprint() == 3033518084
