"""The training loop: feed batches, update, and call the hooks that are due."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from signal import Signals
from types import TracebackType
from typing import IO, Any

import jax
import numpy as np
from jaxtyping import Array

from mnmt_jax.data.batch_iterator import BatchIterator
from mnmt_jax.data.converter import HostBatch
from mnmt_jax.distributed.processes import is_first
from mnmt_jax.distributed.sharding import place_batch
from mnmt_jax.distributed.stopping import InterruptedWaitError
from mnmt_jax.distributed.stragglers import HostTimes
from mnmt_jax.errors import UserError, join_names
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.training.build import TrainingSetup, model_arrays
from mnmt_jax.training.checkpoints import Checkpoints
from mnmt_jax.training.reporter import Record, Reporter
from mnmt_jax.training.state import NEVER, LogWindow, TrainState
from mnmt_jax.training.trackers.interface import Status
from mnmt_jax.training.validation import ValidationHistory
from mnmt_jax.training.validation_translation import Scorer

_STEPS_AHEAD = 2  # updates dispatched before the loop waits: hides the host's work


@contextlib.contextmanager
def _never_interrupted(*, interruptible: bool = True) -> Iterator[None]:
    """Do as `StopRequests.waiting` without signals."""
    yield


@dataclasses.dataclass(eq=False, repr=False)
class Session:
    """The part of one process in a run, from the start or the last checkpoint to the end or a stop.

    `mnmt_jax.training.open_run.open_session` creates it. Leaving its context closes all its files.

    Attributes:
        setup: configuration, model, data and programs.
        run: directory of the run.
        lock: lock on the run; None in all processes but the first.
        checkpoints: checkpoints of the run.
        batches: training batches, at the position of the state.
        reporter: receives records and lines.
        history: validation losses so far.
        state: state after the last update.
        step: number of updates done, known without a transfer from the device.
        saved_step: step of the newest checkpoint, or `NEVER`.
        scorer: scores the translations of validation; None if there are none.
        latest: metrics of the last update, on the device.
        host_times: time in which this host prepares batches.
        waiting: as `StopRequests.waiting`; returns the context of a wait for data.
        progress: as `Agreement.progress`, for what takes long between two updates.
    """

    setup: TrainingSetup
    run: RunDirectory
    lock: IO[str] | None
    checkpoints: Checkpoints
    batches: BatchIterator
    reporter: Reporter
    history: ValidationHistory
    state: TrainState
    step: int
    saved_step: int
    scorer: Scorer | None = None
    latest: Mapping[str, Array] = dataclasses.field(default_factory=dict)
    host_times: HostTimes = dataclasses.field(default_factory=HostTimes)
    waiting: Callable[..., contextlib.AbstractContextManager[None]] = _never_interrupted
    progress: Callable[[], None] = lambda: None
    _dispatched: collections.deque[Any] = dataclasses.field(default_factory=collections.deque)
    _unchecked: dict[int, list[np.ndarray]] = dataclasses.field(default_factory=dict)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with contextlib.ExitStack() as stack:  # in reverse order
            if self.lock:
                stack.callback(self.lock.close)
            stack.callback(self.run.close)
            stack.callback(self.publish, raise_errors=error is None, with_trackers=True)
            stack.push(  # called with the error of the checkpoints' close, if any
                lambda _kind, closing, _traceback: self.reporter.close(
                    self._status(error or closing)
                )
            )
            stack.callback(self.checkpoints.close, raise_errors=error is None)
            stack.callback(self.batches.close)

    def averaged_params(self) -> Any:
        """Return the average of the parameters that validation uses; None if there is none."""
        average = self.setup.programs.averaged_params
        return average(self.state) if average else None

    @property
    def is_complete(self) -> bool:
        """Whether the run has all its updates, or has stopped early by `Train.patience`."""
        return self.step >= self.setup.config.train.steps or bool(self.history.stalled(self.step))

    def _status(self, error: BaseException | None) -> Status:
        if error:
            return "failed"
        return "finished" if self.is_complete else "stopped"

    def loop(
        self, hooks: Sequence[Periodic], stop_signal: Callable[[], Signals | None]
    ) -> Signals | None:
        """Update until the run is complete, stalls, or is stopped; call hooks after each update.

        Args:
            hooks: called in this order.
            stop_signal: returns the signal that stops all processes, or None; called before the
                first update and after each update and its hooks.

        Returns:
            The signal that stopped the loop, or None.
        """
        signal = stop_signal()
        while not self.is_complete and not signal:
            try:
                self.advance()
            except InterruptedWaitError:
                signal = stop_signal()
                break
            record: Record = {}
            for hook in hooks:
                if hook.is_due(self.step, is_last=self.is_complete):
                    hook.function(self, record)
            signal = stop_signal()
        for hook in hooks:
            if hook.at_end:
                hook.function(self, {})
        return signal

    @property
    def stalled(self) -> str:
        """Reason why training stops early, by `Train.patience`; empty while it goes on."""
        reason, best = self.history.stalled(self.step), self.history.best
        is_saved = bool(reason and best and int(best[0]) in self.checkpoints.steps())
        return f"{reason}, the best (--step=best)" if is_saved else reason

    def advance(self) -> None:
        """Dispatch one update; return before the device has finished it."""
        with self.host_times.preparing():
            micro_batches = self._next_batches()
            batch = {
                name: np.stack([micro_batch[name] for micro_batch in micro_batches])
                for name in model_arrays(micro_batches[0])
            }
            placed = place_batch(batch, self.setup.mesh, leading=1)
        self.state, self.latest = self.setup.programs.train_step(self.state, placed)
        self.step += 1
        self._unchecked[self.step] = [np.unique(batch["task"]) for batch in micro_batches]
        self._dispatched.append(self.latest)
        if len(self._dispatched) > _STEPS_AHEAD:
            jax.block_until_ready(self._dispatched.popleft())
        self.reporter.advance(self.latest)

    def _next_batches(self) -> list[HostBatch]:
        """Return the micro-batches of an update.

        Raises:
            InterruptedWaitError: if a signal ended the wait; the position is that of before.
        """
        position = self.batches.position
        try:
            with self.waiting():
                return [next(self.batches) for _ in range(self.setup.config.optimizer.accumulate)]
        except InterruptedWaitError:
            self.batches.position = position
            raise

    def publish(self, *, raise_errors: bool, with_trackers: bool = False) -> None:
        """Copy small files to the bucket, if the run is in one.

        Args:
            raise_errors: whether to raise if the bucket refuses; False prints the reason instead.
            with_trackers: as for `RunDirectory.publish`.

        Raises:
            UserError: if the bucket refuses.
        """
        try:
            if is_first():
                self.run.publish(with_trackers=with_trackers)
        except UserError as error:
            if raise_errors:
                raise
            self.reporter.say(str(error))

    def checked_window(self) -> LogWindow:
        """Wait for the device and return the sums since the last logged update.

        Raises:
            UserError: if the loss or the gradient of an update was not finite.
        """
        window = jax.device_get(self.state.window)
        bad_step = int(window.first_bad)
        if bad_step == NEVER:
            self._unchecked.clear()
            return window
        self.checkpoints.wait()
        saved = self.checkpoints.steps()
        task_numbers = np.unique(np.concatenate(self._unchecked[bad_step]))
        names = [self.setup.pipeline.task_names[task] for task in task_numbers if task >= 0]
        raise UserError(
            f"step {bad_step}: the loss or its gradient is not finite; tasks of the batch: "
            f"{join_names(names)}; last good checkpoint: "
            f"{self.run.checkpoints / str(saved[-1]) if saved else 'none'}; lower "
            "Optimizer.learning_rate or set Optimizer.clip_norm in a new --workdir"
        )


@dataclasses.dataclass(frozen=True)
class Periodic:
    """A hook of the loop that is called at every multiple of a step.

    Attributes:
        every_steps: period in updates.
        function: takes the session and the record of the step, to which it may add. The record is
            empty before the first hook.
        at_end: whether to call it once more when the loop ends.
    """

    every_steps: int
    function: Callable[[Session, Record], None]
    at_end: bool = False

    def is_due(self, step: int, *, is_last: bool) -> bool:
        """Return whether the hook is due after a step; each is due after the run's last step."""
        return is_last or step % self.every_steps == 0
