"""What a training run tells about itself: a line per logged step, TensorBoard, a progress bar."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import jax

from mnmt_jax.distributed.chips import chip_of
from mnmt_jax.errors import UserError, join_names
from mnmt_jax.files.atomic_write import write_text
from mnmt_jax.files.json_objects import read_records
from mnmt_jax.files.storage_errors import write_refusal
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.training.validation import PERPLEXITY, SUPERVISED, ZERO_SHOT

Record = dict[str, Any]

_ROOM = 1 << 20  # bytes that must be free for a line of metrics


class MetricsFile:
    """RUN/metrics.jsonl: one JSON object per logged step, each complete on disk before the next."""

    def __init__(self, path: Path, *, after_step: int) -> None:
        """Opens the file and drops what a run that died wrote after its last checkpoint.

        Args:
            path: of the file.
            after_step: last step that is kept; 0 starts the file again.
        """
        self._file = _truncated(path, after_step)

    def write(self, record: Record) -> None:
        """Appends one object. Non-finite numbers become null: they are not JSON."""
        self._file.write(json.dumps(_finite(record)) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class TensorBoard:
    """The numbers of each record as TensorBoard scalars, tagged by their path."""

    def __init__(self, directory: Path, *, after_step: int) -> None:
        """Opens a new event file.

        Args:
            directory: of the events.
            after_step: viewers discard what older files hold after it.
        """
        self._writer = _summary_writer()(str(directory), purge_step=after_step + 1)

    def write(self, record: Record) -> None:
        """Adds the scalars of one record."""
        for tag, value in _flatten(record):
            if tag != "step":
                self._writer.add_scalar(tag, value, record["step"])
        self._writer.flush()

    def close(self) -> None:
        """Closes the event file."""
        self._writer.close()


def _summary_writer() -> Any:
    """Imports tensorboardX without PyTorch, which takes it seconds and no scalar needs."""
    spared = "torch" not in sys.modules
    if spared:
        sys.modules["torch"] = None  # type: ignore[assignment]  # so that its import fails
    try:
        from tensorboardX import SummaryWriter
    finally:
        if spared:
            del sys.modules["torch"]
    return SummaryWriter


class Reporter:
    """Everything a run says: records to file and TensorBoard, lines and a bar to stderr, speed.

    Attributes:
        seconds: time spent in updates, validation and saving, of earlier starts too.
    """

    def __init__(
        self,
        run: RunDirectory,
        first_step: int,
        total_steps: int,
        seconds: float = 0.0,
        *,
        terms: Sequence[str] = (),
        silent: bool = False,
    ) -> None:
        """Opens the files.

        Args:
            run: directory.
            first_step: updates done before; later lines of earlier starts are dropped.
            total_steps: updates of the whole run.
            seconds: spent in earlier starts.
            terms: names of further objectives, shown beside the loss.
            silent: whether to say nothing at all, since another process does.
        """
        self._silent, self._folder = silent, run.path
        self._shown = ("loss", "nll", *terms)
        self._files: tuple[MetricsFile | TensorBoard, ...] = ()
        if not silent:
            metrics = MetricsFile(run.metrics_file, after_step=first_step)
            self._files = (metrics, TensorBoard(run.tensorboard, after_step=first_step))
        self._bar = _make_bar(first_step, total_steps, silent)
        self._warned: set[str] = set()
        self._total_steps = total_steps
        self._before, self._start = seconds, time.monotonic()
        self._mark: float | None = None  # start of the interval whose speed is measured
        self._steps = 0  # updates since then
        self._seconds_per_step: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds since the run began, without the time it was not running."""
        return self._before + time.monotonic() - self._start

    def advance(self, result: Any) -> None:
        """Counts an update.

        Args:
            result: of the update; waited for once, so that compilation is not part of the speed.
        """
        if self._mark is None:
            jax.block_until_ready(result)
            self._mark = time.monotonic()
        else:
            self._steps += 1
        self._bar.update()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leaves what happens inside out of the speed."""
        start = time.monotonic()
        yield
        if self._mark is not None:
            self._mark += time.monotonic() - start

    def speed(
        self, tokens: Mapping[str, float], flops: float, devices: Sequence[jax.Device]
    ) -> Record:
        """Returns the speed since the last call; call it when the device has finished.

        Args:
            tokens: positions with a token per update and role.
            flops: needed per update, counted by `mnmt_jax.model.flops`.
            devices: of the mesh.

        Returns:
            `seconds` of the run, `steps_per_second`, `tokens_per_second` per role, and `mfu`, the
            share of the devices' bfloat16 peak; None where unknown.
        """
        now = time.monotonic()
        rate = None
        if self._mark is not None and self._steps:
            rate = self._steps / max(now - self._mark, 1e-9)
            self._seconds_per_step = 1 / rate
        self._mark, self._steps = now, 0
        chip = chip_of(devices[0].device_kind)
        peak = chip.peak_flops if chip else None
        used = rate * flops / (peak * len(devices)) if rate and peak else None
        return {
            "seconds": self.seconds,
            "steps_per_second": rate,
            "tokens_per_second": {r: n * rate if rate else None for r, n in tokens.items()},
            "mfu": used,
        }

    def write(self, record: Record) -> None:
        """Writes a record with its `step` everywhere and shows its main numbers."""
        # TensorBoard's writer would wait for ever after an error of its own.
        if why := write_refusal(self._folder, _ROOM) if self._files else "":
            self.say(f"{self._folder}: the metrics of step {record['step']} are left out ({why})")
        else:
            for file in self._files:
                file.write(record)
        parts = [f"{name} {record[name]:.4f}" for name in self._shown if name in record]
        speed = (record.get("tokens_per_second") or {}).get("target")
        parts += [f"{speed:,.0f} target tokens/s"] if speed else []
        for group in (SUPERVISED, ZERO_SHOT):
            means = record.get("validation", {}).get(group)
            parts += [f"{group.replace('_', '-')} loss {means['loss']:.4f}"] if means else []
        if by_language := record.get("validation", {}).get(PERPLEXITY):
            shown = join_names([f"{code} {value:.2f}" for code, value in by_language.items()])
            parts.append(f"{PERPLEXITY} {shown}")
        if not self._bar.disable and "validation" not in record:
            self._bar.set_postfix_str(", ".join(parts))
            return
        if self._bar.disable and self._seconds_per_step:
            left = (self._total_steps - record["step"]) * self._seconds_per_step
            parts.append(f"{_duration(left)} left")
        self.say(f"step {record['step']}/{self._total_steps}: {', '.join(parts)}")

    def say(self, line: str) -> None:
        """Prints a line for the person watching, without tearing the bar."""
        if not self._silent:
            self._bar.write(line, file=sys.stderr)
            sys.stderr.flush()

    def warn_once(self, lines: Mapping[str, str]) -> None:
        """Print warnings by name, except those whose name was printed before."""
        for name in lines.keys() - self._warned:
            self._warned.add(name)
            self.say(f"warning: {lines[name]}")

    def close(self) -> None:
        """Closes the files and ends the bar."""
        self._bar.close()
        for file in self._files:
            with contextlib.suppress(OSError):  # storage is full: `write` has said so
                file.close()


def _make_bar(first_step: int, total_steps: int, silent: bool) -> Any:
    from tqdm import tqdm

    return tqdm(
        total=total_steps,
        initial=min(first_step, total_steps),
        unit="step",
        file=sys.stderr,
        dynamic_ncols=True,
        disable=silent or not sys.stderr.isatty(),
    )


def _truncated(path: Path, after_step: int) -> TextIO:
    kept = []
    if path.is_file() and after_step > 0:
        for line, record in read_records(path):
            if record["step"] <= after_step:
                kept.append(line.rstrip("\r\n") + "\n")
    try:
        write_text(path, "".join(kept))
        return path.open("a", encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from error


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    return value


def _flatten(record: Mapping[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    scalars = []
    for name, value in record.items():
        if isinstance(value, Mapping):
            scalars += _flatten(value, f"{prefix}{name}/")
        elif isinstance(value, int | float):
            scalars.append((prefix + name, value))
    return scalars


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
