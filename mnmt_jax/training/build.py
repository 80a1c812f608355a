"""The parts of a training run that follow from its configuration alone."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from mnmt_jax.config.sections import Config, Model
from mnmt_jax.data.cache import TokenCache
from mnmt_jax.data.chunk_plan import ProcessRows
from mnmt_jax.data.converter import BatchExtras, Converter, segments_from_rows
from mnmt_jax.data.input_pipeline import TRAIN, Pipeline
from mnmt_jax.design.layouts import SOURCE, TARGET, check_tasks, get_layout
from mnmt_jax.distributed.processes import check_same_on_all
from mnmt_jax.distributed.sharding import (
    batch_shards,
    jit_with_mesh,
    local_batch_shards,
    make_mesh,
    replicated,
)
from mnmt_jax.errors import UserError
from mnmt_jax.model.learned_positions import check_lengths
from mnmt_jax.training.averages import optimizer_average
from mnmt_jax.training.epochs import convert_epochs, describe_epochs
from mnmt_jax.training.learner import Learner, batch_loss
from mnmt_jax.training.losses import Sums
from mnmt_jax.training.memory_check import check_state_memory
from mnmt_jax.training.optimizer import has_average
from mnmt_jax.training.state import (
    Init,
    LogWindow,
    TrainState,
    abstract_state,
    make_init,
    roles_of,
    shardings_of,
)
from mnmt_jax.training.train_step import train_step
from mnmt_jax.training.validation import ValidationTasks, validation_tasks
from mnmt_jax.vocabulary.language_codes import find_code


@dataclasses.dataclass(frozen=True, eq=False)
class JittedFunctions:
    """The jitted functions of a run; JAX compiles each at its first call.

    Attributes:
        train_step: one update; takes the state, which it donates, and a batch.
        loss: loss sums of the cross entropy; takes parameters and a validation batch.
        empty_window: metric sums without updates.
        averaged_params: the average of the parameters that validation and translation use; takes
            the state. None if they use the parameters of the state.
    """

    train_step: Callable[[TrainState, Any], tuple[TrainState, dict[str, Array]]]
    loss: Callable[[Any, Any], Sums]
    empty_window: Callable[[], LogWindow]
    averaged_params: Callable[[TrainState], Any] | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class TrainingSetup:
    """The parts of a training run that its configuration determines.

    Attributes:
        config: configuration of the run, with its tasks, languages and updates filled in.
        cache: tokenised corpora and their vocabulary.
        mesh: mesh of all devices, including those of other processes.
        learner: model, objectives and optimizers.
        pipeline: batches of training and validation.
        init: pure function that creates the state before the first update.
        abstract: shapes, types and shardings of the state.
        programs: jitted functions.
        tasks: tasks that are validated.
        positions: positions of an update's batch, padding included, by role.
        length: description of the training length in epochs; empty if it is set in updates.
    """

    config: Config
    cache: TokenCache
    mesh: jax.sharding.Mesh
    learner: Learner
    pipeline: Pipeline
    init: Init
    abstract: TrainState
    programs: JittedFunctions
    tasks: ValidationTasks
    positions: Mapping[str, int]
    length: str


def build(config: Config) -> TrainingSetup:
    """Build the model, the input pipeline and the programs of a run. Write nothing.

    All processes must call it together: they compare their configurations and their data.

    Args:
        config: configuration of the run.

    Returns:
        Everything that does not depend on the run directory.

    Raises:
        UserError: if the configuration does not fit the data or the devices, or if the processes
            differ.
    """
    check_same_on_all("the configuration", repr(config))
    cache = TokenCache.open(config.data.cache)
    epochs = config.train.epochs
    config = convert_epochs(_with_defaults(config, cache), cache)
    mesh = make_mesh(config.mesh)
    learner = Learner.from_config(config, cache.vocabulary.size, mesh)
    pipeline = _make_pipeline(config, cache, learner, mesh)
    _check_view_lengths(pipeline.converter, config.model)
    if config.train.steps:
        pipeline.check_fits()
    check_same_on_all("the data", f"{pipeline.fingerprint()} {pipeline.dropped_summary()}")
    one_row_batch = model_arrays(pipeline.converter.batch(segments_from_rows([[]]), 1))
    rows_per_update = config.data.rows * config.optimizer.accumulate
    init = make_init(learner, one_row_batch, config.train.seed)
    abstract = abstract_state(init, mesh)
    check_state_memory(abstract.params, mesh)
    return TrainingSetup(
        config=config,
        cache=cache,
        mesh=mesh,
        learner=learner,
        pipeline=pipeline,
        init=init,
        abstract=abstract,
        programs=jit_programs(learner, mesh, abstract),
        tasks=validation_tasks(pipeline),
        positions={
            role: one_row_batch[f"{role}_segment_ids"].size * rows_per_update
            for role in roles_of(one_row_batch)
        },
        length=describe_epochs(epochs, pipeline.epoch_examples, config.train.steps),
    )


def jit_programs(
    learner: Learner, mesh: jax.sharding.Mesh, abstract: TrainState
) -> JittedFunctions:
    """Return the jitted functions of a run.

    Args:
        learner: constants of the run.
        mesh: mesh of all devices.
        abstract: shapes, types and shardings of the state.
    """
    all_replicated, plain = replicated(mesh), learner.plain()
    roles = tuple(abstract.window.present)
    return JittedFunctions(
        train_step=jit_with_mesh(
            mesh,
            functools.partial(train_step, learner),
            donate_argnums=0,
            out_shardings=(shardings_of(abstract), all_replicated),
        ),
        loss=jit_with_mesh(
            mesh,
            lambda params, batch: batch_loss(plain, params, batch)[1],
            out_shardings=all_replicated,
        ),
        empty_window=jax.jit(
            lambda: LogWindow.empty(roles, learner.sums), out_shardings=all_replicated
        ),
        averaged_params=_averaged_params(learner, mesh, abstract),
    )


def _averaged_params(
    learner: Learner, mesh: jax.sharding.Mesh, abstract: TrainState
) -> Callable[[TrainState], Any] | None:
    """Return `JittedFunctions.averaged_params`; a moving average in the state is not copied."""
    if abstract.average:
        return operator.attrgetter("average")
    if not has_average(abstract.opt_state):
        return None
    average = functools.partial(optimizer_average, learner)
    return jit_with_mesh(mesh, average, out_shardings=shardings_of(abstract).params)


def model_arrays(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays that the model or the loss may read."""
    return {name: array for name, array in batch.items() if name != "task"}


def _with_defaults(config: Config, cache: TokenCache) -> Config:
    """Fill in training tasks and languages, so that the run directory is self-contained."""
    tasks = tuple(config.data.tasks) or cache.tasks_with(TRAIN)
    known = {name: cache.tasks[name] for name in tasks if name in cache.tasks}
    check_tasks(
        get_layout(config.model.layout, config.model.stage_layers),
        {name: (task.source_lang, task.target_lang) for name, task in known.items()},
        config.data.cache,
    )
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, tasks=tasks))
    return config.bind_languages(cache.vocabulary.languages, find_code)


def _make_pipeline(
    config: Config, cache: TokenCache, learner: Learner, mesh: jax.sharding.Mesh
) -> Pipeline:
    process_rows = ProcessRows(local_batch_shards(mesh), batch_shards(mesh))
    _check_row_groups(config, process_rows)
    return Pipeline(
        cache,
        learner.model.layout,
        config.data,
        extras=BatchExtras.of(config),
        seed=config.train.seed,
        process_rows=process_rows,
    )


def _check_view_lengths(converter: Converter, model: Model) -> None:
    """Check that targets that objectives read as sources have positions.

    Raises:
        UserError: if they are longer than the table of learned positions.
    """
    for view in converter.views:
        if view.side == TARGET:
            source_length = converter.view_lengths(view, converter.lengths).source
            settings = "Data.target_length or Data.max_segments"
            check_lengths(model, {SOURCE: source_length}, settings)


def _check_row_groups(config: Config, process_rows: ProcessRows) -> None:
    """Check that empty rows do not move the borders of a method's groups of rows.

    Raises:
        UserError: if they do.
    """
    grouped = [method for method in config.methods if method.row_groups() > 1]
    if grouped and process_rows.empty_rows(config.data.rows):
        raise UserError(
            f"Data.rows={config.data.rows} must be a multiple of the {process_rows.num_shards} "
            f"parts (data x fsdp) that the mesh splits a batch into, because "
            f"{type(grouped[0]).__name__}.groups={grouped[0].row_groups()} divides the rows"
        )
