"""Hooks of the training loop: logging, validation, the metrics record and checkpoints."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax
import numpy as np

from mnmt_jax.config.sections import Train
from mnmt_jax.design.layouts import SOURCE, TARGET
from mnmt_jax.distributed.sharding import place_batch
from mnmt_jax.distributed.stragglers import straggler_warnings
from mnmt_jax.model.flops import Sentence
from mnmt_jax.training.build import model_arrays
from mnmt_jax.training.learner import Learner
from mnmt_jax.training.losses import Sums, per_token
from mnmt_jax.training.reporter import Record
from mnmt_jax.training.session import Periodic, Session
from mnmt_jax.training.validation import (
    TRANSLATION,
    check_validation,
    checkpoint_loss,
    task_languages,
    validate,
)
from mnmt_jax.training.validation_translation import validate_translations


def training_hooks(settings: Train) -> tuple[Periodic, ...]:
    """Return the hooks of a training run, in the order in which they are called.

    Validation is the first, because it may end the run, after whose last step all are due. The
    record is written before the checkpoint, which publishes it: a resumed run can drop metrics
    lines, not add them.

    Args:
        settings: periods in updates.
    """
    return (
        Periodic(every_steps=settings.eval_every, function=_add_validation),
        Periodic(every_steps=settings.log_every, function=_add_metrics),
        Periodic(every_steps=1, function=write_record),
        Periodic(every_steps=settings.save_every, function=_save, at_end=True),
    )


def _add_metrics(session: Session, record: Record) -> None:
    record |= log_metrics(session)


def _add_validation(session: Session, record: Record) -> None:
    record |= validate_params(session)


def _save(session: Session, record: Record) -> None:
    save_checkpoint(session)


def log_metrics(session: Session) -> Record:
    """Return the metrics of the updates since the last logged one, and reset the sums."""
    setup, reporter = session.setup, session.reporter
    latest, window = jax.device_get(session.latest), session.checked_window()
    means = {name: float(value) for name, value in per_token(window.losses).items()}
    reporter.warn_once(setup.learner.warnings(session.step, means))
    session.state = dataclasses.replace(session.state, window=setup.programs.empty_window())
    tokens = {role: float(n) / int(window.updates) for role, n in window.present.items()}
    flops = _update_flops(setup.learner, tokens, float(window.examples) / int(window.updates))
    speed = reporter.speed(tokens, flops, setup.mesh.devices.flatten().tolist())
    return {
        **means,
        "learning_rate": float(latest["learning_rate"]),
        "gradient_norm": float(latest["gradient_norm"]),
        "padding_share": {role: 1 - n / setup.positions[role] for role, n in tokens.items()},
        **speed,
        **_host_metrics(session, speed["steps_per_second"]),
    }


def _host_metrics(session: Session, steps_per_second: float | None) -> Record:
    """Return the seconds in which each process prepares batches; warn of stragglers.

    With one process the record is empty.
    """
    if jax.process_count() == 1:
        return {}
    times = session.host_times
    seconds = times.gather()
    if steps_per_second:
        session.reporter.warn_once(straggler_warnings(seconds, times.names, 1 / steps_per_second))
    summary = {"median": float(np.median(seconds)), "slowest": max(seconds)}
    return {"batch_seconds": {**summary, "by_process": seconds}}


def _update_flops(learner: Learner, tokens: Mapping[str, float], examples: float) -> float:
    """Count the FLOPs of an update: those of its mean sentence pair, times the pairs."""
    count = max(examples, 1.0)
    mean_pair = Sentence(*(tokens.get(role, 0.0) / count for role in (SOURCE, TARGET)))
    view_lengths = {view: tokens[view.prefix + SOURCE] / count for view in learner.views}
    return count * learner.train_flops(mean_pair, view_lengths)


def validate_params(session: Session) -> Record:
    """Return the validation losses and scores; empty if the cache has no validation split."""
    setup = session.setup
    names = setup.tasks.all
    if not names:
        return {}
    session.checked_window()
    average = session.averaged_params()
    params = session.state.params if average is None else average

    def loss(batch: Mapping[str, np.ndarray]) -> Sums:
        session.progress()
        placed = place_batch(model_arrays(batch), setup.mesh)
        return setup.programs.loss(params, placed)

    with session.reporter.paused(), session.waiting(interruptible=False):
        languages = task_languages(setup.pipeline)
        result = validate(setup.pipeline.validation(names), loss, setup.tasks, languages)
        if session.scorer and setup.config.train.translate_pairs:
            result[TRANSLATION] = validate_translations(
                setup, params, session.scorer, session.progress
            )
        session.progress()
    check_validation(result, session.step)
    session.history.add(session.step, checkpoint_loss(result, setup.config.train.best_by))
    return {"validation": result}


def write_record(session: Session, record: Record) -> None:
    """Write the record of the step, unless it is empty."""
    if record:
        session.reporter.write({"step": session.step, **record})


def save_checkpoint(session: Session) -> None:
    """Start writing a checkpoint of this step, unless there is one already."""
    if session.saved_step == session.step:
        return
    train = session.setup.config.train
    session.checked_window()
    with session.reporter.paused():
        # First: a resumed run can drop metrics lines, not add them.
        session.publish(raise_errors=False)
        extra = {
            "data": session.batches.get_state(),
            "seconds": session.reporter.seconds,
            "best": session.history.best,
            "validation": session.setup.pipeline.validation_fingerprint(),
        }
        session.checkpoints.save(
            session.state,
            extra,
            session.history.loss_at(session.step),
            averaged_params=session.averaged_params(),
            is_interim=not session.is_complete and session.step % train.save_every != 0,
        )
    session.saved_step = session.step
