"""The training loop: feed batches, update, log, validate and save."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from mnmt_jax.config.sections import Config
from mnmt_jax.data.cache import TokenCache
from mnmt_jax.data.converter import BatchExtras, segments_from_rows
from mnmt_jax.data.input_pipeline import TRAIN, Pipeline, ProcessRows
from mnmt_jax.design.layouts import SOURCE, TARGET, check_tasks, get_layout
from mnmt_jax.distributed.processes import Agreement, check_alike, is_first, wait_for_all
from mnmt_jax.distributed.sharding import (
    batch_shards,
    compile_on,
    local_batch_shards,
    make_mesh,
    place_batch,
    replicated,
)
from mnmt_jax.distributed.stopping import StopRequests
from mnmt_jax.errors import UserError, join_names
from mnmt_jax.model.attention import fused
from mnmt_jax.model.flops import Sentence
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.training.checkpoints import Checkpoints
from mnmt_jax.training.initialization import InitialParams, read_initial_params
from mnmt_jax.training.language_check import describe_missing_target_language
from mnmt_jax.training.learner import Learner, batch_loss
from mnmt_jax.training.losses import LossSums, Sums, per_token
from mnmt_jax.training.memory_check import check_state_memory
from mnmt_jax.training.reporter import Record, Reporter
from mnmt_jax.training.source_runs import SourceRunSpec
from mnmt_jax.training.state import (
    NEVER,
    Init,
    TrainState,
    Window,
    abstract_state,
    create_state,
    make_init,
    roles_of,
    shardings_of,
)
from mnmt_jax.training.train_step import train_step
from mnmt_jax.training.validation import checkpoint_loss, task_languages, validate, validation_tasks
from mnmt_jax.vocabulary.language_codes import find_code

_STEPS_AHEAD = 2  # updates dispatched before the loop waits: hides the host's work


def train(config: Config, workdir: str | Path, origins: Sequence[SourceRunSpec] = ()) -> str | None:
    """Train, or continue the training in a run directory, to `Train.steps` updates.

    Args:
        config: configuration of the run.
        workdir: the run directory.
        origins: source runs of a new run's parameters; without any the parameters are drawn at
            random. Ignored when a run continues.

    Returns:
        None when the run is complete; otherwise the name of the signal that stopped it.

    Raises:
        UserError: if the configuration does not fit the data, the devices or the run, if the folder
            has foreign files under the names of a run's files, if LoRA has no source run, if a
            source run does not fit, or if a loss is not finite.
    """
    settings = config.train
    run = RunDirectory.open(workdir)
    run.check_folder()
    with (
        StopRequests() as stop,
        Session(config, run, origins) as session,
        Agreement(session.mesh, lambda: stop.received or 0) as agreement,
    ):
        stop_signal = agreement.signal()
        if session.step < settings.steps:
            next_logged = (session.step // settings.log_every + 1) * settings.log_every
            first_logged = min(next_logged, settings.steps)
            session.reporter.say(f"compiling; the first figures come with step {first_logged}")
            reason = fused.without_kernel(config.model.dtype)
            if config.model.attention == "fused" and reason:
                session.reporter.say(f"Model.attention='fused' computes as 'split': {reason}")
        while session.step < settings.steps and not session.stalled and not stop_signal:
            session.advance()
            record: Record = {}
            if session.due(settings.log_every):
                record |= session.log()
            if session.due(settings.eval_every):
                record |= session.validate()
            if record:
                session.reporter.write({"step": session.step, **record})
            if session.due(settings.save_every):
                session.save()
            stop_signal = agreement.signal()
        session.save()
        is_beyond = session.step > settings.steps  # Train.steps was higher before
        progress = f"step {session.step}{', beyond' if is_beyond else ' of'} {settings.steps}"
        progress += session.stalled
    stopped = stop_signal.name if stop_signal else None
    is_done = session.step >= settings.steps or session.stalled
    hint = "" if is_done else "; the same command continues"
    session.reporter.say(f"{stopped or 'complete'}: {run.place} is at {progress}{hint}")
    return stopped if hint else None


class Session:
    """The part of one process in a run, from the start or the last checkpoint to the end or a stop.

    Attributes:
        config: configuration of the run.
        run: directory of the run.
        mesh: mesh of all devices, including those of other processes.
        reporter: receives records and lines.
        state: state after the last update.
        step: number of updates done, known without a transfer from the device.
    """

    def __init__(
        self, config: Config, run: RunDirectory, origins: Sequence[SourceRunSpec] = ()
    ) -> None:
        """Build everything, restore the last checkpoint if there is one, and open the files."""
        check_alike("the configuration", repr(config))
        cache = TokenCache.open(config.data.cache)
        config = _with_defaults(config, cache)
        self.config, self.run = config, run
        self.mesh = make_mesh(config.mesh)
        check_state_memory(config, cache.vocabulary.size, self.mesh)
        self._learner = Learner.from_config(config, cache.vocabulary.size, self.mesh)
        self._pipeline = _make_pipeline(config, cache, self._learner, self.mesh)
        if config.train.steps:
            self._pipeline.check_fits()
        check_alike(
            "the data", f"{self._pipeline.fingerprint()} {self._pipeline.dropped_summary()}"
        )
        check_alike("--initialize_from", repr(origins))
        self._tasks = validation_tasks(self._pipeline)
        shapes = _for_device(self._pipeline.converter.batch(segments_from_rows([[]]), 1))
        self._positions = {
            role: shapes[f"{role}_segment_ids"].size
            * config.data.rows
            * config.optimizer.accumulate
            for role in roles_of(shapes)
        }
        init = make_init(self._learner, shapes, config.train.seed)
        abstract = abstract_state(init, self.mesh)
        self._compile(shardings_of(abstract))
        self._batches = self._pipeline.train()
        self._latest: dict[str, Array] = {}
        self._dispatched: collections.deque[Any] = collections.deque()
        self._unchecked: dict[int, list[np.ndarray]] = {}
        self._validated: tuple[int, float | None] = (-1, None)
        self._best: Sequence[float] | None = None  # step and loss of the best validation
        self._held = run.hold() if is_first() else None
        self._checkpoints = Checkpoints(
            run.checkpoints,
            keep_last=config.train.keep_last,
            keep_best=config.train.keep_best,
            keep_every=config.train.keep_every,
        )
        try:
            self._begin(cache, init, abstract, origins)
        except BaseException:
            self._checkpoints.close(complain=False)
            self._release()
            raise

    def _begin(
        self, cache: TokenCache, init: Init, abstract: TrainState, origins: Sequence[SourceRunSpec]
    ) -> None:
        continues = bool(self._checkpoints.steps())
        self.run.check(self.config, cache.vocabulary, has_checkpoint=continues)
        initial_params = None if continues else self._read_initial_params(cache, abstract, origins)
        wait_for_all("checked")  # before anything is written
        if is_first():
            self.run.prepare(self.config, cache.vocabulary, has_checkpoint=continues)
            tasks = {name: cache.tasks[name] for name in self.config.data.tasks}
            self.run.write_tasks(
                {n: (task.source_lang, task.target_lang) for n, task in tasks.items()}
            )
            self.run.publish()
        wait_for_all("prepared")
        if not self.run.exists():
            raise UserError(
                f"{self.run.place} is not the folder that process 0 writes to; choose a --workdir "
                "on storage that all processes share"
            )
        restored = self._checkpoints.restore(abstract)
        extra = restored.extra if restored else {}
        self.state = restored.state if restored else create_state(init, self.mesh)
        if restored:
            self._batches.set_state(extra["data"], str(self.run.place / "config.gin"))
        source_lines = self._apply_initial_params(initial_params) if initial_params else ()
        self.step = int(self.state.step)
        self._saved = self.step if restored else NEVER
        seconds, self._best = extra.get("seconds", 0.0), extra.get("best")
        self.reporter = Reporter(
            self.run,
            self.step,
            self.config.train.steps,
            seconds,
            terms=self._learner.sums[len(LossSums._fields) :],
            silent=not is_first(),
        )
        no_validation = "" if any(self._tasks) else "no task has a validation split: none is done"
        no_target_language = describe_missing_target_language(
            self.config.data, self._learner.model.plan, cache
        )
        new_run_lines = (
            self._pipeline.dropped_summary(),
            *source_lines,
            self._trainable_summary(),
            no_validation,
            no_target_language,
        )
        lines = (f"continues at step {self.step}",) if restored else new_run_lines
        for line in filter(None, lines):
            self.reporter.say(line)

    def _read_initial_params(
        self, cache: TokenCache, abstract: TrainState, origins: Sequence[SourceRunSpec]
    ) -> InitialParams | None:
        """Read the new run's initial parameters from source runs; return None to draw them all."""
        if self.config.model.lora_rank and not origins:
            raise UserError(
                f"Model.lora_rank={self.config.model.lora_rank} without --initialize_from: LoRA "
                "changes a trained model; name its run, or set Model.lora_rank=0"
            )
        frozen = [
            type(method).__name__ for method in self.config.model.methods if method.frozen_rows()
        ]
        if frozen and not origins:
            raise UserError(
                f"{frozen[0]} freezes what a trained model has, and without --initialize_from that "
                "is freshly drawn; name the model's run, or freeze nothing"
            )
        return read_initial_params(origins, abstract.params, self.config, cache.vocabulary)

    def _apply_initial_params(self, initial_params: InitialParams) -> tuple[str, ...]:
        """Replace drawn parameters by those of source runs; return lines that describe this."""
        self.state = dataclasses.replace(
            self.state, params=initial_params.replace(self.state.params)
        )
        if is_first():
            self.run.write_origin(
                initial_params.origin,
                "; ".join(initial_params.report),
                initial_params.param_mappings,
            )
        return initial_params.report

    def _trainable_summary(self) -> str:
        """Describe how many parameters train; empty if all of them do."""
        params = self.state.params
        total = sum(leaf.size for leaf in jax.tree.leaves(params))
        count = sum(update.trainable.count(params) for update in self._learner.player_updates)
        return f"trains {count:,} of {total:,} parameters" if count < total else ""

    def _compile(self, shardings: TrainState) -> None:
        all_replicated, learner, roles = (
            replicated(self.mesh),
            self._learner,
            tuple(self._positions),
        )
        self._train_step = compile_on(
            self.mesh,
            functools.partial(train_step, learner),
            donate_argnums=0,
            out_shardings=(shardings, all_replicated),
        )
        plain = learner.plain()
        self._loss = compile_on(
            self.mesh,
            lambda params, batch: batch_loss(plain, params, batch)[1],
            out_shardings=all_replicated,
        )
        self._empty_window = jax.jit(
            lambda: Window.empty(roles, learner.sums), out_shardings=all_replicated
        )

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with contextlib.ExitStack() as stack:  # in reverse order
            stack.callback(self._release)
            stack.callback(self.run.close)
            stack.callback(self._publish, complain=error is None)
            stack.callback(self.reporter.close)
            stack.callback(self._checkpoints.close, complain=error is None)

    def _release(self) -> None:
        if self._held:
            self._held.close()

    def due(self, every: int) -> bool:
        """Return whether an action done every `every` steps is due, or the run is complete."""
        return self.step % every == 0 or self.step == self.config.train.steps

    @property
    def stalled(self) -> str:
        """Reason why training stops early, by `Train.patience`; empty while it goes on."""
        patience = self.config.train.patience
        if not patience or self._best is None or self.step - self._best[0] < patience:
            return ""
        return f": no better validation in {patience} updates after step {self._best[0]:.0f}"

    def advance(self) -> None:
        """Dispatch one update; return before the device has finished it."""
        micro_batches = [next(self._batches) for _ in range(self.config.optimizer.accumulate)]
        batch = {
            name: np.stack([micro_batch[name] for micro_batch in micro_batches])
            for name in _for_device(micro_batches[0])
        }
        placed = place_batch(batch, self.mesh, leading=1)
        self.state, self._latest = self._train_step(self.state, placed)
        self.step += 1
        self._unchecked[self.step] = [micro_batch["task"] for micro_batch in micro_batches]
        self._dispatched.append(self._latest)
        if len(self._dispatched) > _STEPS_AHEAD:
            jax.block_until_ready(self._dispatched.popleft())
        self.reporter.advance(self._latest)

    def log(self) -> Record:
        """Return the metrics of the updates since the last logged one, and reset the sums."""
        latest, window = jax.device_get(self._latest), self._checked_window()
        means = {name: float(value) for name, value in per_token(window.losses).items()}
        self.reporter.warn_once(self._learner.warnings(self.step, means))
        self.state = dataclasses.replace(self.state, window=self._empty_window())
        tokens = {role: float(n) / int(window.updates) for role, n in window.present.items()}
        flops = self._flops(tokens, float(window.examples) / int(window.updates))
        return {
            **means,
            "learning_rate": float(latest["learning_rate"]),
            "gradient_norm": float(latest["gradient_norm"]),
            "padding_share": {r: 1 - n / self._positions[r] for r, n in tokens.items()},
            **self.reporter.speed(tokens, flops, self.mesh.devices.flatten().tolist()),
        }

    def _flops(self, tokens: Mapping[str, float], examples: float) -> float:
        """Count the FLOPs of an update: those of its mean sentence pair, times the pairs."""
        count = max(examples, 1.0)
        mean_pair = Sentence(*(tokens.get(role, 0.0) / count for role in (SOURCE, TARGET)))
        views = self._learner.views
        view_lengths = {view: tokens[view.prefix + SOURCE] / count for view in views}
        return count * self._learner.train_flops(mean_pair, view_lengths)

    def validate(self) -> Record:
        """Return the validation losses; empty if the cache has no validation split."""
        names = self._tasks.supervised + self._tasks.zero_shot
        if not names:
            return {}
        self._checked_window()

        def loss(batch: Mapping[str, np.ndarray]) -> Sums:
            return self._loss(self.state.params, place_batch(_for_device(batch), self.mesh))

        with self.reporter.paused():
            languages = task_languages(self._pipeline)
            result = validate(self._pipeline.validation(names), loss, self._tasks, languages)
        selection_loss = checkpoint_loss(result, self.config.train.best_by)
        self._validated = (self.step, selection_loss)
        if selection_loss is not None and (self._best is None or selection_loss < self._best[1]):
            self._best = (self.step, selection_loss)
        return {"validation": result}

    def save(self) -> None:
        """Start writing a checkpoint of this step, unless there is one already."""
        if self._saved == self.step:
            return
        self._checked_window()
        step, loss = self._validated
        with self.reporter.paused():
            self._publish(
                complain=False
            )  # first: a resumed run can drop metrics lines, not add them
            extra = {"data": self._batches.get_state(), "seconds": self.reporter.seconds}
            extra |= {"best": self._best}
            self._checkpoints.save(self.state, extra, loss if step == self.step else None)
        self._saved = self.step

    def _publish(self, *, complain: bool) -> None:
        """Copy small files to the bucket, if the run is in one."""
        try:
            if is_first():
                self.run.publish()
        except UserError as error:
            if complain:
                raise
            self.reporter.say(str(error))

    def is_saving(self) -> bool:
        """Return whether a checkpoint is still being written."""
        return self._checkpoints.is_saving()

    def _checked_window(self) -> Window:
        """Wait for the device and return the sums; raise if an update was not finite."""
        window = jax.device_get(self.state.window)
        bad_step = int(window.first_bad)
        if bad_step == NEVER:
            self._unchecked.clear()
            return window
        self._checkpoints.wait()
        saved = self._checkpoints.steps()
        task_numbers = np.unique(
            np.concatenate([task.reshape(-1) for task in self._unchecked[bad_step]])
        )
        names = [self._pipeline.task_names[task] for task in task_numbers if task >= 0]
        raise UserError(
            f"step {bad_step}: the loss or its gradient is not finite; tasks of the batch: "
            f"{join_names(names)}; last good checkpoint: "
            f"{self.run.checkpoints / str(saved[-1]) if saved else 'none'}; lower "
            "Optimizer.learning_rate or set Optimizer.clip_norm in a new --workdir"
        )


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
    return Pipeline(
        cache,
        learner.model.layout,
        config.data,
        extras=BatchExtras.of(config),
        seed=config.train.seed,
        share=ProcessRows(local_batch_shards(mesh), batch_shards(mesh)),
    )


def _for_device(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays that the model or the loss may read."""
    return {name: array for name, array in batch.items() if name != "task"}
