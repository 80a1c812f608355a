"""Train.epochs: passes over the data as the length of a training."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import jax.numpy as jnp
import pytest

from mnmt_jax.commands import describe as describe_command
from mnmt_jax.config.loading import load_config
from mnmt_jax.cost.training_estimate import estimate_updates
from mnmt_jax.data import input_pipeline
from mnmt_jax.data.cache import TokenCache
from mnmt_jax.data.input_pipeline import Pipeline
from mnmt_jax.data.mixing_schedule import MixingSchedule
from mnmt_jax.design.layouts import get_layout
from mnmt_jax.errors import UserError
from mnmt_jax.papers.tables import find_table
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.training.build import build
from mnmt_jax.training.epochs import convert_epochs, count_updates
from mnmt_jax.training.train import train
from tests.made_run import make_cache, make_config, records

PAIRS = 4 * 40
MODEL = "gin_configs/models/prefix_tiny.gin"


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return make_cache(tmp_path_factory.mktemp("epochs"))


def configure(cache, epochs, accumulate=1, **data):
    return make_config(
        cache, train={"epochs": epochs}, optimizer={"accumulate": accumulate}, data=data
    )


def pairs_shown(config, updates) -> int:
    """Count the pairs of the first updates of a training, batch by batch."""
    layout = get_layout(config.model.layout, config.model.stage_layers)
    pipeline = Pipeline(
        TokenCache.open(config.data.cache), layout, config.data, seed=config.train.seed
    )
    batches = pipeline.train()
    count = updates * config.optimizer.accumulate
    return sum(int((next(batches)["task"] >= 0).sum()) for _ in range(count))


def test_an_epoch_of_ted19_is_the_published_one():
    """7,442,425 draws at T=5: fairseq's virtual size of both directions of Table 5's languages."""
    sizes = [int(row.published["all.sentences"]) for row in find_table("two_stage/table5").rows]
    sizes = tuple(size for size in sizes for _ in range(2))
    assert (len(sizes), sum(sizes)) == (36, 6_551_456)
    schedule = MixingSchedule(tuple(map(str, range(36))), sizes, 5.0, 1, 1000)
    assert schedule.epoch_examples == 7_442_425
    assert dataclasses.replace(schedule, temperature=1.0).epoch_examples == 6_551_456
    uneven = MixingSchedule(("a", "b"), (1_000_000, 1000), 1000.0, 1, 1000)
    assert uneven.epoch_examples == 1_501_500  # the limit


@pytest.mark.parametrize("sizes", [(10, 18), (665, 237), (1020, 874), (453, 126, 789)])
def test_an_epoch_in_proportion_to_size_has_all_examples(sizes):
    """However the quotients are rounded."""
    names = tuple(map(str, range(len(sizes))))
    assert MixingSchedule(names, sizes, 1.0, 1, 1000).epoch_examples == sum(sizes)


@pytest.mark.parametrize("temperature", [1.0, 5.0])
@pytest.mark.parametrize(("epochs", "accumulate"), [(1, 1), (3, 1), (2.5, 2)])
def test_an_epoch_draws_as_many_pairs_as_there_are(cache, epochs, accumulate, temperature):
    """Compare with the batches themselves; the last update may go beyond, one less is short."""
    config = configure(cache, epochs, accumulate, temperature=temperature, source_length=64)
    steps = count_updates(config, TokenCache.open(cache), epochs)
    per_update = pairs_shown(config, steps) / steps
    assert abs(pairs_shown(config, steps) - epochs * PAIRS) <= 1.1 * per_update
    assert steps == convert_epochs(config, TokenCache.open(cache)).train.steps


def test_a_long_epoch_is_scaled_from_its_first_chunks(cache, monkeypatch):
    config = configure(cache, 1, chunk_examples=16)
    whole = count_updates(config, TokenCache.open(cache), 40)
    planned = []
    plan = Pipeline.plan
    monkeypatch.setattr(
        Pipeline, "plan", lambda self, chunk: planned.append(chunk) or plan(self, chunk)
    )
    monkeypatch.setattr(input_pipeline, "_MOST_PLANNED_CHUNKS", 30)
    scaled = count_updates(config, TokenCache.open(cache), 40)
    assert planned == list(range(30))
    assert scaled == pytest.approx(whole, rel=0.05) and scaled > 300


def test_a_run_in_epochs_ends_and_continues(cache, tmp_path, capfd, one_device):
    """The run's configuration has the updates; more epochs continue it."""
    run = tmp_path / "run"
    config = configure(cache, 1)
    steps = count_updates(config, TokenCache.open(cache), 1)
    warmup = dataclasses.replace(config.optimizer, learning_rate=1e-3, warmup_steps=2 * steps)
    config = dataclasses.replace(config, optimizer=warmup)
    assert train(config, run) is None
    assert records(run)[-1]["step"] == steps
    said = capfd.readouterr().err
    assert f"Train.epochs=1 of 160 pairs: {steps:,} updates" in said
    rate = f"{1e-3 * (steps - 1) / (2 * steps):.2g}"
    assert f"ends within its warm-up: the learning rate rises to {rate} of 0.001; lower" in said
    saved = RunDirectory.open(run).config()
    assert (saved.train.steps, saved.train.epochs) == (steps, 0)
    longer = dataclasses.replace(configure(cache, 1.5), optimizer=warmup)
    assert train(longer, run) is None
    assert records(run)[-1]["step"] == count_updates(longer, TokenCache.open(cache), 1.5) > steps


def test_the_schedule_ends_with_the_epochs(cache, one_device):
    config = configure(cache, 2)
    cosine = dataclasses.replace(config.optimizer, schedule="cosine", warmup_steps=1)
    setup = build(dataclasses.replace(config, optimizer=cosine))
    steps = jnp.int32(setup.config.train.steps)
    assert float(setup.learner.schedule(steps)) == 0 < float(setup.learner.schedule(steps - 1))


def test_steps_and_epochs_in_one_place_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    both = "Train.epochs=3 and Train.steps=5 are both set; remove one of them"
    for flags in (["Train.epochs=3", "Train.steps=5"], ["Train.steps=5", "Train.epochs=3"]):
        with pytest.raises(UserError, match=f"^{both}"):
            load_config([MODEL], flags)
    Path("a.gin").write_text("Train.steps = 5\nTrain.epochs = 3\n")
    with pytest.raises(UserError, match=f"^a.gin:2: {both}"):
        load_config(["a.gin"])
    assert load_config([MODEL], ["Train.steps=5", "Train.epochs=0"]).train.steps == 5


@pytest.mark.parametrize(
    ("first", "second", "epochs"),
    [("epochs = 3", "steps = 5", 0), ("steps = 5", "epochs = 3", 3), ("epochs = 3", "seed = 2", 3)],
)
def test_the_later_length_replaces_the_earlier(tmp_path, monkeypatch, first, second, epochs):
    monkeypatch.chdir(tmp_path)
    Path("a.gin").write_text(f"Train.{first}\n")
    Path("b.gin").write_text(f"include 'a.gin'\nTrain.{second}\n")
    flag = f"Train.{second.replace(' ', '')}"
    for config in (load_config(["b.gin"]), load_config(["a.gin"], [flag])):
        assert config.train.epochs == epochs
        assert epochs or config.train.steps == 5


@pytest.mark.parametrize(("epochs", "length"), [(0, (0, 5)), (3, (3, 0))])
def test_epochs_of_a_macro_count_once_it_is_read(tmp_path, monkeypatch, epochs, length):
    """Also if a later file or flag gives the macro another value."""
    monkeypatch.chdir(tmp_path)
    Path("a.gin").write_text("Train.steps = 5\n")
    Path("b.gin").write_text(f"E = {3 - epochs}\nTrain.epochs = %E\n")
    Path("both.gin").write_text("E = 0\nTrain.epochs = %E\nTrain.steps = 5\n")
    default = load_config([]).train.steps
    train = load_config(["a.gin", "b.gin"], [f"E={epochs}"]).train
    assert (train.epochs, train.steps) == (length[0], length[1] or default)
    if epochs:
        with pytest.raises(UserError, match="^both.gin:2: Train.epochs=%E and Train.steps=5 are"):
            load_config(["both.gin"], ["E=3"])
        assert load_config(["both.gin"], ["E=3", "Train.steps=7"]).train.epochs == 0
    else:
        assert load_config(["both.gin"]).train.steps == 5


def test_describe_counts_the_updates(cache, capsys, monkeypatch):
    flags = ["describe", f"--gin_file={MODEL}", "--gin.Data.rows=8", "--gin.Train.epochs=3"]
    monkeypatch.setattr("sys.argv", [*flags, "--vocab_size=100"])
    describe_command.main()
    described = json.loads(capsys.readouterr().out)["training"]
    state_bytes = described.pop("state_bytes")
    assert state_bytes["parameters"] > 0 and described == {"epochs": 3, "updates": None}
    monkeypatch.setattr("sys.argv", [*flags, f"--gin.Data.cache='{cache}'"])
    describe_command.main()
    config = load_config([MODEL], ["Data.rows=8", f"Data.cache='{cache}'"])
    steps = count_updates(config, TokenCache.open(cache), 3)
    described = json.loads(capsys.readouterr().out)["training"]
    assert described.pop("state_bytes") and described == {"epochs": 3, "updates": steps}


@pytest.mark.parametrize("flag", ["", "--vocab_size={}", "--gin.Model.vocab_size={}"])
def test_described_methods_have_the_languages_of_the_cache(flag, cache, capsys, monkeypatch):
    """Also if the size of the vocabulary is known; another size is refused."""
    flags = ["describe", "--gin_file=gin_configs/models/encoder_decoder_tiny.gin"]
    flags += ["--gin.Model.methods=('language_layers',)", f"--gin.Data.cache='{cache}'"]
    size = TokenCache.open(cache).vocabulary.size
    monkeypatch.setattr("sys.argv", [*flags, *([flag.format(size)] if flag else [])])
    describe_command.main()
    assert json.loads(capsys.readouterr().out)["vocabulary"] == size
    if flag:
        monkeypatch.setattr("sys.argv", [*flags, flag.format(7)])
        message = f"vocab_size=7:? (but )?the vocabulary (of .* )?has {size} entries"
        with pytest.raises(UserError, match=message):
            describe_command.main()


def test_a_configuration_is_described_without_its_cache(capsys, monkeypatch):
    flags = ["describe", f"--gin_file={MODEL}", "--vocab_size=100"]
    monkeypatch.setattr("sys.argv", [*flags, "--gin.Data.cache='gone'"])
    with pytest.raises(
        UserError, match=r"^gone/cache.json: no such file.*--gin.Data.cache=\"''\" "
    ):
        describe_command.main()
    monkeypatch.setattr("sys.argv", [*flags, "--gin.Data.cache=''"])
    describe_command.main()
    assert json.loads(capsys.readouterr().out)["vocabulary"] == 100


def test_estimates_of_epochs_need_the_pairs():
    config = load_config(["gin_configs/runs/ted19.gin"])
    assert estimate_updates(config, 7_442_425) == 223_273  # 30 * 7,442,425 * 32 / 32,000
    assert estimate_updates(load_config([], ["Train.steps=7"]), 0) == 7
    with pytest.raises(UserError, match="Train.epochs=30: the size of an epoch is unknown"):
        estimate_updates(config, 0)
