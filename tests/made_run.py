"""Cache, configuration and helpers for tests that train for a few steps."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from mnmt_jax.config.sections import Config, Data, Decode, Mesh, Model, Optimizer, Train
from mnmt_jax.data.cache import TokenCache
from mnmt_jax.data.cache_writer import TaskSource, write_cache
from mnmt_jax.distributed.sharding import jit_with_mesh, make_mesh, place_batch
from mnmt_jax.training.build import TrainingSetup, build
from mnmt_jax.training.checkpoints import Checkpoints
from mnmt_jax.training.gradients import sum_gradients
from mnmt_jax.training.learner import Learner
from mnmt_jax.training.train import train
from tests.unit import made_text

SUPERVISED = (("en", "de"), ("de", "en"), ("en", "fr"), ("fr", "en"))
ZERO_SHOT = (("de", "fr"), ("fr", "de"))
# A model and an optimizer that learn the phrases of a test from scratch in a few hundred updates.
LEARNS = Model(embed=64, mlp=128, heads=4, dropout=0.0, positions=("sinusoidal", 100.0))
LEARNS_FAST = Optimizer(learning_rate=8e-3, schedule="cosine", warmup_steps=40, label_smoothing=0.0)
# For commands started again and again: programs that are quicker to compile than to keep, kept too.
KEEP_ALL_PROGRAMS = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
TIMES = ("seconds", "steps_per_second", "tokens_per_second", "mfu", "batch_seconds")


def compiler_variables() -> dict[str, str]:
    """Return variables with which a command compiles as the tests do and shares their cache."""
    names = ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES")
    return {name: os.environ[name] for name in names} | KEEP_ALL_PROGRAMS


@contextlib.contextmanager
def one_device() -> Iterator[None]:
    """Train on one virtual device; eight copies of a small state cost more than its updates."""
    alone = functools.partial(make_mesh, devices=jax.devices()[:1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mnmt_jax.training.build.make_mesh", alone)
        yield


@contextlib.contextmanager
def kept_programs() -> Iterator[None]:
    """Trace and compile the programs of a configuration once, however often it is trained.

    Not for tests that change what is traced. Data, sessions and files are made anew.
    """
    kept: dict[Any, TrainingSetup] = {}

    def build_with_kept(config: Config) -> TrainingSetup:
        made = build(config)
        whole, settings = made.config, made.config.train
        data = dataclasses.replace(whole.data, workers=0)
        traced = (data, whole.model, whole.optimizer, settings.steps, settings.seed)
        key = (*traced, settings.methods, made.cache.vocabulary.size, made.mesh)
        before = kept.setdefault(key, made)
        return dataclasses.replace(
            made,
            learner=before.learner,
            init=before.init,
            abstract=before.abstract,
            programs=before.programs,
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mnmt_jax.training.train.build", build_with_kept)
        yield


def random_pairs(count: int, seed: int):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        source, target = rng.integers(1, 9, 2)
        yield rng.integers(3, 57, source).tolist(), rng.integers(3, 57, target).tolist()


def make_cache(directory: Path) -> Path:
    def task(seed: int, source: str, target: str, supervised: bool) -> TaskSource:
        splits = {"validation": lambda: random_pairs(6, 100 + seed)}
        if supervised:
            splits["train"] = lambda: random_pairs(40, seed)
        return TaskSource(f"made_{source}_{target}", source, target, splits)

    tasks = [task(number, *pair, True) for number, pair in enumerate(SUPERVISED)]
    tasks += [task(50 + number, *pair, False) for number, pair in enumerate(ZERO_SHOT)]
    write_cache(directory, tasks, vocabulary=made_text.vocabulary())
    return directory


def make_config(cache: Path, **changes) -> Config:
    """Return a configuration; `changes` maps a section's name to its changed fields."""
    sections = {
        "data": Data(
            cache=str(cache),
            rows=8,
            source_length=16,
            target_length=16,
            max_segments=3,
            chunk_examples=64,
            validation_examples=4,
        ),
        "model": Model(layout="prefix", stage_layers=(1,), embed=16, mlp=24, heads=2),
        "optimizer": Optimizer(learning_rate=1e-2, warmup_steps=4),
        "train": Train(steps=8, log_every=2, eval_every=4, save_every=4, keep_last=2),
        "decode": Decode(),
        "mesh": Mesh(),
    }
    return Config(
        **{
            name: dataclasses.replace(section, **changes.get(name, {}))
            for name, section in sections.items()
        }
    )


def cache_json(cache: Path) -> dict:
    """Return the contents of a complete cache's `cache.json`."""
    TokenCache.open(cache)
    document: dict = json.loads((cache / "cache.json").read_text(encoding="utf-8"))
    return document


def records(run: Path) -> list[dict]:
    """Return the lines of a run's metrics file without the time-dependent fields."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [
        {name: value for name, value in json.loads(line).items() if name not in TIMES}
        for line in lines
    ]


def saved(run: Path, step: int) -> dict[str, np.ndarray]:
    """Return the contents of a checkpoint by path: parameters, moments, sums, data position."""
    import orbax.checkpoint as ocp

    folder = run.absolute() / "checkpoints" / str(step)
    arrays = {}
    for item in ("params", "training"):
        with ocp.PyTreeCheckpointer() as reader:
            shapes = reader.metadata(folder / item).item_metadata.tree
            as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), shapes)
            tree = reader.restore(folder / item, restore_args=as_numpy)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            arrays[item + jax.tree_util.keystr(path)] = np.asarray(leaf)
    extra = ocp.Checkpointer(ocp.JsonCheckpointHandler()).restore(folder / "extra")
    arrays["data"] = np.array(sorted(extra["extra"]["data"].items()), dtype=object)
    return arrays


def assert_same_training(actual: Path, expected: Path, step: int) -> None:
    """Assert that two runs are bit-identical: the checkpoint of a step and the metrics up to it."""
    left, right = saved(actual, step), saved(expected, step)
    assert left.keys() == right.keys() and len(left) > 40
    for name in left:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)
    assert records(actual) == records(expected)
    steps = [record["step"] for record in records(actual)]
    assert steps == sorted(set(steps)) and steps


def train_and_continue(config: Config, folder: Path) -> list[dict[str, Any]]:
    """Train, and again from a copy without the last checkpoint; assert that both are bit-identical.

    Returns the metrics of the run.
    """
    whole, broken, last = folder / "whole", folder / "broken", config.train.steps
    assert train(config, whole) is None
    shutil.copytree(whole, broken)
    shutil.rmtree(broken / "checkpoints" / str(last))
    assert train(config, broken) is None
    assert_same_training(broken, whole, last)
    return records(whole)


def assert_same_gradients_on_a_mesh(
    learner: Learner, params: Any, stacked: dict[str, np.ndarray], term: str
) -> None:
    """Assert that sums and gradients do not depend on the mesh, and that a term is positive."""
    update, rng, actual = learner.player_updates[-1], jax.random.key(7), []
    for mesh, count in ((Mesh(), 1), (Mesh(fsdp=2, tensor=2), 8)):
        devices = make_mesh(mesh, jax.devices()[:count])

        def gradients(params: Any, batch: Any) -> Any:
            return sum_gradients(learner, update, update.trainable.split(params), batch, rng)

        placed = place_batch(stacked, devices, leading=1)
        actual.append(jax.device_get(jit_with_mesh(devices, gradients)(params, placed)))
    assert actual[0][1][term] > 0
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4, rtol=1e-4), *actual)


def steps_of(run: Path) -> list[int]:
    checkpoints = Checkpoints(run / "checkpoints")
    steps = checkpoints.steps()
    checkpoints.close()
    return steps
