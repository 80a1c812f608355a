"""Updates and the training loop: sums, accumulation, stopping, errors and files."""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from mnmt_jax.config.loading import load_config
from mnmt_jax.data.cache_writer import TaskSource, write_cache
from mnmt_jax.data.converter import BatchExtras
from mnmt_jax.data.input_pipeline import Pipeline
from mnmt_jax.design.views import View
from mnmt_jax.distributed.sharding import make_mesh
from mnmt_jax.errors import UserError
from mnmt_jax.methods.instructcl import InstruCL
from mnmt_jax.methods.language_layers import LanguageLayers
from mnmt_jax.runs.average import average_checkpoints, newest_steps
from mnmt_jax.runs.parameters import best_steps, load_params
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.training import hooks
from mnmt_jax.training.build import build
from mnmt_jax.training.learner import Learner, batch_loss
from mnmt_jax.training.losses import token_loss
from mnmt_jax.training.open_run import open_session
from mnmt_jax.training.session import Session
from mnmt_jax.training.source_runs import SourceRunSpec
from mnmt_jax.training.state import create_state, make_init
from mnmt_jax.training.train import train
from mnmt_jax.training.train_step import train_step
from tests import made_run
from tests.made_run import (
    SUPERVISED,
    assert_same_training,
    make_cache,
    make_config,
    records,
    steps_of,
)
from tests.sample_batches import VOCAB, random_pairs, unpacked
from tests.unit import made_text

pytestmark = pytest.mark.usefixtures("one_device", "kept_programs")

GRADIENT_ATOL = 1e-6
STEP = jax.jit(train_step, static_argnums=0)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return make_cache(tmp_path_factory.mktemp("train") / "cache")


@pytest.fixture(scope="module")
def undisturbed_run(cache, tmp_path_factory):
    """Return an undisturbed run of eight updates."""
    run = tmp_path_factory.mktemp("straight") / "run"
    assert train(make_config(cache), run) is None
    return run


@pytest.fixture(scope="module")
def learning(tmp_path_factory):
    """Return a learner without dropout and with plain SGD, its state, and six sentence pairs."""
    config = make_config(tmp_path_factory.getbasetemp())
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, dropout=0.0))
    mesh = make_mesh(config.mesh, jax.devices()[:1])
    learner = Learner.from_config(config, VOCAB, mesh)
    learner = dataclasses.replace(learner, optimizer=optax.sgd(1.0))
    batch = unpacked(learner.model.layout, random_pairs(6))
    segments = batch["target_segment_ids"]
    labels = np.where(segments > 0, np.roll(batch["target_tokens"], -1, axis=1), 0)
    batch["target_labels"] = labels.astype(np.int32)
    assert 0 < (segments == 0).sum() < segments.size
    init = make_init(learner, batch, seed=0)
    return learner, create_state(init, mesh), batch


def stack(*batches):
    return {name: np.stack([batch[name] for batch in batches]) for name in batches[0]}


def test_batch_loss_equals_the_plain_loss_of_the_logits(learning):
    learner, state, batch = learning
    smoothed, sums = jax.jit(lambda p, b: batch_loss(learner, p, b))(state.params, batch)
    logits = jax.jit(learner.model.apply)({"params": state.params}, batch)
    plain = token_loss(
        logits,
        jnp.asarray(batch["target_labels"]),
        jnp.asarray(batch["target_segment_ids"] > 0),
        0.1,
    )
    np.testing.assert_allclose([sums[name] for name in plain._fields], plain, rtol=1e-5)
    assert sums.keys() == set(plain._fields) and float(smoothed) == float(sums["smoothed"])


def test_the_gradient_is_a_mean_over_all_tokens(learning):
    """Unequal micro-batches give the update of their union, not the mean of their means."""
    learner, state, batch = learning
    rows = np.arange(6)
    first, second = (
        batch | {"target_segment_ids": np.where(keep[:, None], batch["target_segment_ids"], 0)}
        for keep in (rows < 1, rows >= 1)
    )
    whole, metrics = STEP(learner, state, stack(batch))
    parts, metrics_of_parts = STEP(learner, state, stack(first, second))
    change = jax.tree.map(lambda a, b: a - b, whole.params, state.params)
    assert float(optax.global_norm(change)) > 0.1
    expected = jax.jit(jax.grad(lambda p, b: batch_loss(learner, p, b)[0]))(state.params, batch)
    tokens = float((batch["target_segment_ids"] > 0).sum())
    for actual in (whole, parts):
        jax.tree.map(
            lambda p, q, g: np.testing.assert_allclose(q - p, -g / tokens, atol=GRADIENT_ATOL),
            state.params,
            actual.params,
            expected,
        )
    assert float(metrics["loss"]) == pytest.approx(float(metrics_of_parts["loss"]), rel=1e-5)
    assert int(parts.step) == int(parts.window.updates) == 1


def test_padding_rows_do_not_change_the_update(learning):
    learner, state, batch = learning
    padded = {name: np.pad(array, ((0, 2), (0, 0))) for name, array in batch.items()}
    expected, _ = STEP(learner, state, stack(batch))
    actual, _ = STEP(learner, state, stack(padded))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), actual.params, expected.params
    )
    for name, total in expected.window.losses.items():
        np.testing.assert_allclose(actual.window.losses[name], total, rtol=1e-6)


def test_a_run_writes_all_files(undisturbed_run, cache):
    tasks = tuple(f"made_{source}_{target}" for source, target in SUPERVISED)
    expected = make_config(cache, data={"tasks": tasks})
    assert load_config([str(undisturbed_run / "config.gin")]) == expected
    assert {p.name for p in (undisturbed_run / "vocabulary").iterdir()} >= {
        "spm.model",
        "languages.txt",
    }
    assert steps_of(undisturbed_run) == [4, 8]
    assert list((undisturbed_run / "tensorboard").iterdir())
    lines = records(undisturbed_run)
    assert [line["step"] for line in lines] == [2, 4, 6, 8]
    for line in lines:
        assert line["loss"] > 0 and line["gradient_norm"] > 0
        assert set(line["padding_share"]) == {"source", "target"}
        assert all(0 < share < 1 for share in line["padding_share"].values())
    # Peak 1e-2 after 4 updates; the second update uses count 1, the eighth count 7.
    assert lines[0]["learning_rate"] == pytest.approx(1e-2 / 4)
    assert lines[-1]["learning_rate"] == pytest.approx(1e-2 * (4 / 7) ** 0.5)
    assert lines[-1]["loss"] < lines[0]["loss"]
    timed = json.loads((undisturbed_run / "metrics.jsonl").read_text().splitlines()[-1])
    assert timed["tokens_per_second"]["target"] > 0 and timed["mfu"] is None


def test_validation_measures_supervised_and_zero_shot_tasks(undisturbed_run):
    validation = [line["validation"] for line in records(undisturbed_run) if "validation" in line]
    assert len(validation) == 2
    for result in validation:
        assert len(result["tasks"]) == 6
        zero_shot = [result["tasks"][f"made_{pair}"]["loss"] for pair in ("de_fr", "fr_de")]
        assert result["zero_shot"]["loss"] == pytest.approx(np.mean(zero_shot))
        supervised = [
            result["tasks"][f"made_{pair}"]["nll"] for pair in ("en_de", "de_en", "en_fr", "fr_en")
        ]
        assert result["supervised"]["nll"] == pytest.approx(np.mean(supervised))
        english = {"from_english": ("en_de", "en_fr"), "to_english": ("de_en", "fr_en")}
        for group, pairs in english.items():
            measured = [result["tasks"][f"made_{pair}"]["perplexity"] for pair in pairs]
            assert result[group]["perplexity"] == pytest.approx(np.mean(measured))


def stop_after(monkeypatch, step, action):
    """Call `action` at the end of the update with this number."""
    advance = Session.advance

    def advance_and_act(self):
        advance(self)
        if self.step == step:
            action()

    monkeypatch.setattr(Session, "advance", advance_and_act)


def test_a_restart_without_a_checkpoint_is_reported(cache, tmp_path, monkeypatch, capfd):
    def fail():
        raise MemoryError

    stop_after(monkeypatch, 1, fail)
    message = "no checkpoint yet: starts at step 0"
    for is_restart in (False, True):
        with pytest.raises(MemoryError):
            train(make_config(cache), tmp_path / "run")
        assert not steps_of(tmp_path / "run")
        assert (message in capfd.readouterr().err) == is_restart


def test_a_run_with_an_average_alone_does_not_start_again(cache, undisturbed_run, tmp_path, capfd):
    run, config = tmp_path / "run", make_config(cache)
    none = dataclasses.replace(config, train=dataclasses.replace(config.train, steps=0))
    train(none, run, [SourceRunSpec(undisturbed_run)])
    assert none.optimizer.warmup_steps and "warm-up" not in capfd.readouterr().err
    average_checkpoints(run, [0])
    assert train(none, run) is None and (run / "average").is_dir()  # continues
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(UserError, match="has an average but no checkpoints, .*another --workdir"):
        train(none, run)
    assert (run / "origin.json").is_file() and load_params(run, "average")[1] == 0
    shutil.rmtree(run / "average")
    assert train(none, run) is None and not (run / "origin.json").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_continues(number, cache, undisturbed_run, tmp_path, monkeypatch, capfd):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        stop_after(patch, 3, lambda: signal.raise_signal(number))
        assert train(make_config(cache), run) == number.name
    assert f"{number.name}: {run} is at step 3 of 8; run the same command again to continue" in (
        capfd.readouterr().err
    )
    assert steps_of(run) == [3]
    assert train(make_config(cache), run) is None
    assert "continues at step 3" in capfd.readouterr().err
    assert_same_training(run, undisturbed_run, 8)


def test_a_second_training_of_a_run_is_refused(cache, tmp_path, monkeypatch):
    config, run = make_config(cache), tmp_path / "run"

    def another():
        with pytest.raises(UserError, match=f"--workdir={run}: another process is training there"):
            train(config, run)

    stop_after(monkeypatch, 5, another)
    assert train(config, run) is None
    assert train(config, run) is None  # the first one has let go


INSTRUCTION_CONTRAST = {
    "model": {"dropout": 0.1},
    "optimizer": {"accumulate": 2},
    "train": {
        "steps": 6,
        "log_every": 1,
        "eval_every": 3,
        "save_every": 3,
        "methods": (InstruCL(1),),
    },
}


def test_a_contrastive_run_logs_its_term_and_continues_bit_for_bit(
    cache, tmp_path, monkeypatch, capfd
):
    config = make_config(cache, **INSTRUCTION_CONTRAST)
    uninterrupted, broken = tmp_path / "whole", tmp_path / "broken"
    assert train(config, uninterrupted) is None
    lines = records(uninterrupted)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    for line in lines:
        assert 0.1 < line["contrastive"] < 5
        assert 0 < line["padding_share"]["identity_source"] < 1
    # Validation, which chooses the best checkpoint, is of the cross entropy alone.
    measured = [line["validation"] for line in lines if "validation" in line]
    assert len(measured) == 2
    assert all(set(result["supervised"]) == {"loss", "nll", "perplexity"} for result in measured)
    assert f"contrastive {lines[0]['contrastive']:.4f}" in capfd.readouterr().err
    with monkeypatch.context() as patch:
        stop_after(patch, 2, lambda: signal.raise_signal(signal.SIGTERM))
        assert train(config, broken) == "SIGTERM"
    assert steps_of(broken) == [2]
    assert train(config, broken) is None
    assert_same_training(broken, uninterrupted, 6)


def test_the_logged_contrastive_term_equals_that_of_the_batches(cache, tmp_path):
    """Anchors are compared within micro-batches; the sum is divided by all target tokens."""
    changes = INSTRUCTION_CONTRAST | {"model": {"dropout": 0.0}}
    config = make_config(cache, **changes)
    setup = build(config)
    assert not (tmp_path / "run").exists()
    with open_session(setup, RunDirectory(tmp_path / "run")) as session:
        learner = setup.learner
        params = jax.tree.map(jnp.array, session.state.params)  # training gives the buffers away
        pipeline = Pipeline(
            setup.cache,
            learner.model.layout,
            config.data,
            extras=BatchExtras(views=(View("identity"),)),
        )
        batches = pipeline.train()
        loss = jax.jit(lambda params, batch: batch_loss(learner, params, batch)[1])
        parts = [loss(params, next(batches)) for _ in range(2)]
        session.advance()
        record = hooks.log_metrics(session)
    tokens, plain, term = (
        sum(float(part[name]) for part in parts) for name in ("tokens", "smoothed", "contrastive")
    )
    assert record["contrastive"] == pytest.approx(term / tokens, rel=1e-4)
    assert record["loss"] == pytest.approx(plain / tokens, rel=1e-4)
    assert term / tokens > 0.1


def test_an_invalid_contrastive_layer_is_refused(cache, tmp_path):
    config = make_config(cache, train={"methods": (InstruCL(2),)})
    with pytest.raises(UserError, match="InstruCL.layer=2: layout 'prefix'.*1 to 1"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run" / "config.gin").exists()


def test_too_long_pairs_are_reported_once(cache, tmp_path, capfd, caplog):
    config = make_config(cache, data={"source_length": 6}, train={"steps": 1})
    train(config, tmp_path / "run")
    output = capfd.readouterr().err + caplog.text
    assert output.count("of 160 training pairs are longer than a row") == 1
    train(config, tmp_path / "run")  # nothing new, so nothing to say
    assert "training pairs" not in capfd.readouterr().err + caplog.text


def test_data_of_only_too_long_pairs_is_refused_before_compiling(cache, tmp_path, monkeypatch):
    monkeypatch.setattr("mnmt_jax.training.build.jit_programs", None)  # not reached
    config = make_config(cache, data={"target_length": 1})
    message = r"all \d+ training pairs are longer than a row \(Data.source_length=.*; raise Data.s"
    with pytest.raises(UserError, match=message):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_waiting_and_missing_attention_kernels_are_reported(cache, tmp_path, capfd):
    config = make_config(cache, train={"steps": 3, "log_every": 2})
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, attention="fused"))
    assert train(config, tmp_path / "run") is None
    output = capfd.readouterr().err
    assert "compiling; the first metrics are logged at step 2" in output
    assert "Model.attention='fused' computes as 'split': there is no kernel for a CPU" in output


def test_training_without_target_language_information_warns(cache, tmp_path, capfd):
    config = make_config(cache, data={"instruction": "none"}, train={"steps": 0})
    assert train(config, tmp_path / "untold") is None
    output = capfd.readouterr().err
    assert "Data.instruction='none': the model cannot know which of de, en, fr" in output
    model = dataclasses.replace(config.model, methods=(LanguageLayers(mlp=8, without=("en",)),))
    assert train(dataclasses.replace(config, model=model), tmp_path / "told") is None
    data = {"instruction": "none", "tasks": ("made_de_en", "made_fr_en")}
    into_english = make_config(cache, data=data, train={"steps": 0})
    assert train(into_english, tmp_path / "one") is None
    assert "the model cannot know" not in capfd.readouterr().err


def test_a_complete_run_is_unchanged(cache, undisturbed_run, capfd):
    before = (undisturbed_run / "metrics.jsonl").read_bytes()
    assert train(make_config(cache), undisturbed_run) is None
    assert "complete" in capfd.readouterr().err
    assert (undisturbed_run / "metrics.jsonl").read_bytes() == before
    assert steps_of(undisturbed_run) == [4, 8]


def test_another_configuration_is_refused_by_field(cache, undisturbed_run):
    config = make_config(cache, optimizer={"learning_rate": 0.5}, data={"temperature": 1.0})
    with pytest.raises(UserError) as error:
        train(config, undisturbed_run)
    assert "Data.temperature was 5.0, now 1.0" in str(error.value)
    assert "Optimizer.learning_rate was 0.01, now 0.5" in str(error.value)
    assert "--workdir" in str(error.value)
    tasks = tuple(f"made_{source}_{target}" for source, target in SUPERVISED)
    expected = make_config(cache, data={"tasks": tasks})
    assert load_config([str(undisturbed_run / "config.gin")]) == expected


def test_another_vocabulary_is_refused(cache, undisturbed_run, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(undisturbed_run, run)
    languages = (run / "vocabulary" / "languages.txt").read_text().split()
    from mnmt_jax.vocabulary.vocabulary import Vocabulary

    other = Vocabulary.from_sentencepiece(run / "vocabulary" / "spm.model", languages[::-1])
    shutil.rmtree(run / "vocabulary")
    other.save(run / "vocabulary")
    with pytest.raises(UserError, match="differs from the vocabulary"):
        train(make_config(cache), run)


def test_a_changed_cache_is_refused(undisturbed_run, tmp_path):
    lines = {"train": lambda: made_run.random_pairs(40, 9)}
    tasks = [TaskSource(f"made_{s}_{t}", s, t, lines) for s, t in SUPERVISED]
    write_cache(tmp_path / "other", tasks, vocabulary=made_text.vocabulary())
    config = make_config(tmp_path / "other", train={"steps": 9})
    files = undisturbed_run / "config.gin", undisturbed_run / "tasks.json"
    before = [(path.read_bytes(), path.stat().st_mtime_ns) for path in files]
    with pytest.raises(UserError, match=rf"the settings of {files[0]}, or start a new"):
        train(config, undisturbed_run)
    assert [(path.read_bytes(), path.stat().st_mtime_ns) for path in files] == before


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (
            "causal_lm",
            "task 'made_en_de' has sentence pairs, but Model.layout='causal_lm' is trained on mono",
        ),
        ("masked_lm", "'masked_lm' is trained on .* with 'mnmt cache --text' or --monolingual, or"),
        (
            "prefix",
            "'made_en' and all others are monolingual, .*'prefix' is trained on pairs; make a c",
        ),
    ],
)
def test_a_cache_of_the_wrong_kind_of_text_is_refused(layout, message, cache, tmp_path):
    lines = {"train": lambda: made_run.random_pairs(9, 9)}
    text = [TaskSource("made_en", "en", "en", lines)]
    if layout == "prefix":
        write_cache(tmp_path / "text", text, vocabulary=made_text.vocabulary())
        cache = tmp_path / "text"
    with pytest.raises(UserError, match=f"^Data.cache='{cache}': .*{message}"):
        train(make_config(cache, model={"layout": layout}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_extended_training_equals_longer_training(cache, undisturbed_run, tmp_path):
    run = tmp_path / "run"
    assert train(make_config(cache, train={"steps": 4}), run) is None
    assert train(make_config(cache), run) is None
    assert_same_training(run, undisturbed_run, 8)


def test_a_cosine_schedule_cannot_be_extended(cache, tmp_path):
    optimizer = {"schedule": "cosine", "warmup_steps": 1}
    before = make_config(cache, optimizer=optimizer, train={"steps": 4})
    after = make_config(cache, optimizer=optimizer)
    from mnmt_jax.runs.run_directory import changed_fields

    assert changed_fields(before, after)[0][:33] == "Train.steps was 4, now 8 (every l"


@pytest.mark.parametrize("save_every", [2, 8])
def test_a_non_finite_loss_stops_the_run(save_every, cache, tmp_path, monkeypatch):
    """The parameters break after update 4, so update 5 is the first bad one."""
    advance = Session.advance

    def advance_and_break(self):
        advance(self)
        if self.step == 4:
            broken = jax.tree.map(lambda p: p * jnp.nan, self.state.params)
            self.state = dataclasses.replace(self.state, params=broken)

    monkeypatch.setattr(Session, "advance", advance_and_break)
    config = make_config(cache, train={"save_every": save_every, "eval_every": 8, "log_every": 8})
    config = dataclasses.replace(
        config, data=dataclasses.replace(config.data, tasks=("made_en_de",))
    )
    if save_every == 2:  # saved before it broke, after update 2
        save = hooks.save_checkpoint
        save_except_4 = lambda session: save(session) if session.step != 4 else None  # noqa: E731
        monkeypatch.setattr(hooks, "save_checkpoint", save_except_4)
    with pytest.raises(
        UserError, match="step 5: .*not finite; tasks of the batch: made_en_de"
    ) as error:
        train(config, tmp_path / "run")
    good = str(tmp_path / "run" / "checkpoints" / "2") if save_every == 2 else "none"
    assert f"last good checkpoint: {good};" in str(error.value)
    assert steps_of(tmp_path / "run") == ([2] if save_every == 2 else [])


def test_parameters_of_a_step_or_the_best_are_restored(undisturbed_run):
    newest, step = load_params(undisturbed_run)
    assert step == 8 and newest["embedding"].dtype == jnp.float32
    older, step = load_params(undisturbed_run, 4)
    assert step == 4 and not np.array_equal(older["embedding"], newest["embedding"])
    validations = records(undisturbed_run)[1::2]
    losses = {one["step"]: one["validation"]["supervised"]["loss"] for one in validations}
    best, step = load_params(undisturbed_run, "best")
    assert step == min(losses, key=losses.get)
    for wrong, names in ((5, ""), ("bset", ", 'best' and 'average'")):
        with pytest.raises(UserError, match=f"no checkpoint {wrong}; there are .4, 8.{names}$"):
            load_params(undisturbed_run, wrong)


def test_average(undisturbed_run):
    with pytest.raises(UserError, match="mnmt average"):
        load_params(undisturbed_run, "average")
    assert newest_steps(undisturbed_run, 5) == [4, 8] and len(best_steps(undisturbed_run, 1)) == 1
    average_checkpoints(undisturbed_run, [8, 4])
    mean, step = load_params(undisturbed_run, "average")
    assert step == 8
    (first, _), (second, _) = load_params(undisturbed_run, 4), load_params(undisturbed_run, 8)
    jax.tree.map(lambda m, a, b: np.testing.assert_array_equal(m, (a + b) / 2), mean, first, second)
    with pytest.raises(UserError, match="no checkpoint 7"):
        average_checkpoints(undisturbed_run, [7, 8])
