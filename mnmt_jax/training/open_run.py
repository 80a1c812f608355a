"""Opening of a run directory: check it, write a new run's files, restore the last checkpoint."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import IO

import jax
import jax.numpy as jnp

from mnmt_jax.config.sections import TASK_GROUPS, TRANSLATION_MEASURES
from mnmt_jax.design.fields import check_once
from mnmt_jax.distributed.processes import (
    broadcast_from_first,
    check_same_on_all,
    is_first,
    wait_for_all,
)
from mnmt_jax.errors import UserError, join_names
from mnmt_jax.runs.parameters import available_steps
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.training.build import TrainingSetup
from mnmt_jax.training.checkpoints import Checkpoints
from mnmt_jax.training.epochs import describe_new_weights
from mnmt_jax.training.initialization import InitialParams, read_initial_params
from mnmt_jax.training.language_check import describe_missing_target_language
from mnmt_jax.training.losses import LossSums
from mnmt_jax.training.reporter import Reporter
from mnmt_jax.training.session import Session
from mnmt_jax.training.source_runs import SourceRunSpec
from mnmt_jax.training.state import NEVER, TrainState, create_state
from mnmt_jax.training.validation import ValidationHistory, task_languages


def open_session(
    setup: TrainingSetup, run: RunDirectory, sources: Sequence[SourceRunSpec] = ()
) -> Session:
    """Open a run directory, and restore its last checkpoint or start a new run.

    All processes must call it together. The run's files are not changed before all have checked
    it; damaged checkpoints are moved, and damaged metrics of checkpoints removed.

    Args:
        setup: configuration, model, data and programs.
        run: the run directory; the first process locks it until the session is closed.
        sources: source runs of a new run's parameters; without any the parameters are drawn at
            random. Ignored when a run continues.

    Raises:
        UserError: if the run is of another configuration, if another process trains in it, if its
            checkpoints cannot be read, if a source run is missing or does not fit, or if
            `Train.patience` waits for validations that are not made.
    """
    check_same_on_all("--initialize_from", repr(sources))
    settings = setup.config.train
    if settings.patience and (reason := _unranked(setup)):
        raise UserError(
            f"Train.patience={settings.patience}: {reason}, so training would never stop early; "
            "change that, or set Train.patience=0"
        )
    if not available_steps(run.checkpoints):  # Data.weights gives a task more draws
        check_once("Data.tasks", setup.config.data.tasks)
    with contextlib.ExitStack() as on_error:  # in reverse order
        lock = run.hold() if is_first() else None
        if lock:
            on_error.callback(lock.close)
        checkpoints = Checkpoints(
            run.checkpoints,
            keep_last=settings.keep_last,
            keep_best=settings.keep_best,
            keep_every=settings.keep_every,
            required=("data",),
        )
        on_error.callback(checkpoints.close, raise_errors=False)
        session = _begin(setup, run, sources, lock, checkpoints)
        on_error.pop_all()
    return session


def _check_shared(run: RunDirectory, present: bool) -> None:
    """Check that all processes see the folder of a run that process 0 sees.

    Args:
        run: the run.
        present: whether this process sees a file in it, which process 0 sees or does not see.

    Raises:
        UserError: in processes that disagree with process 0.
    """
    if broadcast_from_first([present]) != [present]:
        raise UserError(
            f"{run.location} is not the folder that process 0 writes to; choose a --workdir "
            "on storage that all processes share"
        )


def _begin(
    setup: TrainingSetup,
    run: RunDirectory,
    sources: Sequence[SourceRunSpec],
    lock: IO[str] | None,
    checkpoints: Checkpoints,
) -> Session:
    """Restore or create the state of a locked run, and open its metrics files."""
    continues = bool(checkpoints.steps())
    _check_shared(run, continues)
    was_prepared = run.exists()
    run.check(setup.config, setup.cache.vocabulary, has_checkpoint=continues)
    initial_params = None if continues else _read_initial_params(setup, sources)
    batches = setup.pipeline.train()
    restored = checkpoints.restore(setup.abstract)
    extra = restored.extra if restored else {}
    if restored:
        batches.set_state(extra["data"], str(run.location / "config.gin"))
    wait_for_all("checked")  # before the run's files are written
    if is_first():
        _write_run_files(setup, run, continues)
    wait_for_all("prepared")
    _check_shared(run, run.exists())
    state = restored.state if restored else create_state(setup.init, setup.mesh)
    if initial_params:
        params = initial_params.replace(state.params)
        del state  # before there are two in memory
        state = create_state(setup.init, setup.mesh, params)
        if is_first():
            _write_origin(run, initial_params)
    step = int(state.step)
    reporter = Reporter(
        run,
        step,
        setup.config.train.steps,
        extra.get("seconds", 0.0),
        config=setup.config,
        terms=setup.learner.sums[len(LossSums._fields) :],
        silent=not is_first(),
    )
    source_lines = initial_params.report if initial_params else ()
    new_run_lines = _describe_new_run(setup, state, source_lines)
    if was_prepared and not restored:
        new_run_lines = ["no checkpoint yet: starts at step 0", *new_run_lines]
    lines = [f"continues at step {step}"] if restored else new_run_lines
    validation = setup.pipeline.validation_fingerprint()
    best = extra.get("best") if extra.get("validation", validation) == validation else None
    if best != extra.get("best"):
        lines.append(
            f"the validation text of Data.cache='{setup.config.data.cache}' differs from that of "
            "earlier starts: measures before and after do not compare, also for --step=best"
        )
    empty_rows = setup.pipeline.empty_rows_summary()
    for line in [*lines, empty_rows] if empty_rows else lines:
        reporter.say(line)
    return Session(
        setup=setup,
        run=run,
        lock=lock,
        checkpoints=checkpoints,
        batches=batches,
        reporter=reporter,
        history=ValidationHistory(setup.config.train.patience, best),
        state=state,
        step=step,
        saved_step=step if restored else NEVER,
    )


def _read_initial_params(
    setup: TrainingSetup, sources: Sequence[SourceRunSpec]
) -> InitialParams | None:
    """Read the new run's initial parameters from source runs; return None to draw them all."""
    model = setup.config.model
    if model.lora_rank and not sources:
        raise UserError(
            f"Model.lora_rank={model.lora_rank} without --initialize_from: LoRA changes a trained "
            "model; name its run, or set Model.lora_rank=0"
        )
    return read_initial_params(sources, setup.abstract.params, setup.config, setup.cache.vocabulary)


def _write_run_files(setup: TrainingSetup, run: RunDirectory, continues: bool) -> None:
    """Write the configuration, the vocabulary and the tasks of a run."""
    if not continues:
        run.remove_origin()
    run.prepare(setup.config, setup.cache.vocabulary, has_checkpoint=continues)
    tasks = {name: setup.cache.tasks[name] for name in setup.pipeline.task_names}
    run.write_tasks(
        {name: (task.source_lang, task.target_lang) for name, task in tasks.items()},
        {name: task.context for name, task in tasks.items() if task.context},
    )
    run.publish()


def _write_origin(run: RunDirectory, initial_params: InitialParams) -> None:
    """Record the source runs of a new run."""
    report = "; ".join(initial_params.report)
    run.write_origin(initial_params.origin, report, initial_params.param_mappings)


def _describe_new_run(
    setup: TrainingSetup, state: TrainState, source_lines: Sequence[str]
) -> list[str]:
    """Return lines for the user about a new run.

    Args:
        setup: configuration, model and data.
        state: state before the first update.
        source_lines: lines about parameters that were copied from source runs.
    """
    no_validation = (
        ""
        if any(setup.tasks)
        else "no task has a validation split: training runs without validation"
    )
    unranked = _unranked(setup) if any(setup.tasks) and setup.config.train.keep_best else ""
    no_target_language = describe_missing_target_language(
        dataclasses.replace(setup.config.data, tasks=setup.pipeline.task_names),
        setup.learner.model.plan,
        setup.cache,
    )
    lines = (
        setup.length,
        describe_new_weights(setup.pipeline, setup.config),
        setup.pipeline.dropped_summary(),
        *source_lines,
        _trainable_summary(setup, state),
        _unfinished_warmup(setup),
        no_validation,
        f"{unranked}: no checkpoint is kept as the best" if unranked else "",
        no_target_language,
    )
    return [line for line in lines if line]


def _unfinished_warmup(setup: TrainingSetup) -> str:
    """Return a line if the run ends before the learning rate has reached its peak."""
    steps, settings = setup.config.train.steps, setup.config.optimizer
    if not 0 < steps < settings.warmup_steps:  # 0: a copy of another run
        return ""
    last, peak = setup.learner.schedule(jnp.asarray(steps - 1)), settings.learning_rate
    return (
        f"ends within its warm-up: the learning rate rises to {float(last):.2g} of {peak:.2g}; "
        f"lower Optimizer.warmup_steps={settings.warmup_steps} for a run of {steps} updates"
    )


def _unranked(setup: TrainingSetup) -> str:
    """Return why no checkpoint has a measure of `Train.best_by`; empty if they have one."""
    if not any(setup.tasks):
        return "no task has a validation split"
    best_by, pipeline = setup.config.train.best_by, setup.pipeline
    group, slash, measure = best_by.partition("/")
    translates = measure in TRANSLATION_MEASURES
    if not (setup.config.data.validation_examples or translates):
        return "Data.validation_examples=0 validates nothing"
    unmeasured = task_languages(pipeline) if translates else pipeline.tasks_without_validation()
    by_group = {name: getattr(setup.tasks, name) for name in TASK_GROUPS}
    measured = [name for name, tasks in by_group.items() if {*tasks} - {*unmeasured}]
    if group in measured:
        return ""
    too_long = by_group[group] and not translates
    reason = f": their pairs are {pipeline.too_long_reason}" if too_long else ""
    others = [f"'{name}{slash}{measure}'" for name in measured]
    remedy = f"; {join_names(others)} would" if others else ""
    return f"Train.best_by='{best_by}' measures none of the validation tasks{reason}{remedy}"


def _trainable_summary(setup: TrainingSetup, state: TrainState) -> str:
    """Describe how many parameters train; empty if all of them do."""
    total = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    updates = setup.learner.player_updates
    count = sum(update.trainable.count(state.params) for update in updates)
    return f"trains {count:,} of {total:,} parameters" if count < total else ""
