"""Training of a run: build it, open its directory, loop, and report how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from signal import SIGTERM

import jax

from mnmt_jax.config.sections import Config
from mnmt_jax.distributed.outage_watch import end_in_outage
from mnmt_jax.distributed.preemption import watch_for_preemption
from mnmt_jax.distributed.processes import Agreement, is_first
from mnmt_jax.distributed.stopping import InterruptedWaitError, StopRequests
from mnmt_jax.errors import say
from mnmt_jax.model.attention import fused
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.training.build import build
from mnmt_jax.training.hooks import training_hooks
from mnmt_jax.training.open_run import open_session
from mnmt_jax.training.session import Session
from mnmt_jax.training.source_runs import SourceRunSpec
from mnmt_jax.training.trackers.group import check_trackers
from mnmt_jax.training.validation_translation import (
    Scorer,
    check_scorer,
    check_validation_search,
)


def train(
    config: Config,
    workdir: str | Path,
    source_specs: Sequence[SourceRunSpec] = (),
    *,
    scorer: Scorer | None = None,
) -> str | None:
    """Train, or continue the training in a run directory, to `Train.steps` or `Train.epochs`.

    Args:
        config: configuration of the run.
        workdir: the run directory.
        source_specs: source runs of a new run's parameters; without any the parameters are drawn at
            random. Ignored when a run continues.
        scorer: scores the translations that validation makes with `Train.translate_pairs`, for
            example `mnmt_jax.evaluation.validation_scores.score`.

    Returns:
        None when the run is complete; otherwise the name of the signal that stopped it.

    Raises:
        UserError: if the configuration does not fit the data, the devices or the run, if the folder
            has foreign files under the names of a run's files, if LoRA has no source run, if a
            source run does not fit, if a tracker's package is missing, or if a loss is not finite.
    """
    run = RunDirectory.open(workdir)
    run.check_folder()
    check_trackers(config.train.trackers, is_writer=is_first())
    check_scorer(config, scorer)
    with (
        StopRequests(can_interrupt=jax.process_count() == 1) as stop,
        watch_for_preemption(stop.announce),
        end_in_outage(stop, run.location, config.data.cache),
    ):
        return _train(config, run, source_specs, stop, scorer)


def _train(
    config: Config,
    run: RunDirectory,
    source_specs: Sequence[SourceRunSpec],
    stop: StopRequests,
    scorer: Scorer | None,
) -> str | None:
    try:
        with stop.waiting():
            setup = build(config)
        check_validation_search(setup)
    except InterruptedWaitError:
        signal = stop.received or SIGTERM
        say(f"{signal.name}: {run.location} was not opened; run the same command again")
        return signal.name
    with (
        open_session(setup, run, source_specs) as session,
        Agreement(session.setup.mesh, lambda: stop.received or 0) as agreement,
    ):
        session.waiting, session.scorer = stop.waiting, scorer
        session.progress = agreement.progress
        _announce(session)
        steps = session.setup.config.train.steps
        stop_signal = session.loop(training_hooks(config.train), agreement.signal)
        is_beyond = session.step > steps  # Train.steps was higher before
        progress = f"step {session.step}{', beyond' if is_beyond else ' of'} {steps}"
        progress += session.stalled
    stopped = stop_signal.name if stop_signal else None
    hint = "" if session.is_complete else "; run the same command again to continue"
    session.reporter.say(f"{stopped or 'complete'}: {run.location} is at {progress}{hint}")
    return stopped if hint else None


def _announce(session: Session) -> None:
    """Say what the first update waits for, and which attention is computed if not the chosen."""
    settings, model = session.setup.config.train, session.setup.config.model
    if session.is_complete:
        return
    next_logged = (session.step // settings.log_every + 1) * settings.log_every
    first_logged = min(next_logged, settings.steps)
    session.reporter.say(f"compiling; the first metrics are logged at step {first_logged}")
    reason = fused.kernel_unsupported_reason(model.dtype)
    if model.attention == "fused" and reason:
        session.reporter.say(f"Model.attention='fused' computes as 'split': {reason}")
