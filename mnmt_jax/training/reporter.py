"""Reports of a training run: metrics file, experiment trackers and progress bar."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from mnmt_jax.config.sections import Config
from mnmt_jax.distributed.chips import chip_of
from mnmt_jax.errors import UserError, join_names, name_os_errors
from mnmt_jax.files.atomic_write import new_path, write_text
from mnmt_jax.files.json_objects import read_records
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.training.trackers.group import TrackerGroup
from mnmt_jax.training.trackers.interface import Status
from mnmt_jax.training.validation import PERPLEXITY, SUPERVISED, TRANSLATION, ZERO_SHOT

Record = dict[str, Any]

_SCORES = {"bleu": "BLEU", "chrf": "chrF++", "off_target": "off-target"}  # of translations


class MetricsFile:
    """RUN/metrics.jsonl: one JSON object per logged step, each complete on disk before the next."""

    def __init__(self, path: Path, *, after_step: int) -> None:
        """Open the file and drop lines that a crashed run wrote after its last checkpoint.

        Args:
            path: path of the file.
            after_step: last step whose lines stay; 0 moves all to metrics_earlier.jsonl, because
                the checkpoints of an earlier start may have been lost.
        """
        self._path = path
        try:
            if not after_step:
                _keep_lines(path)
            write_text(path, "".join(line for line, _ in _read_until(path, after_step)))
        except OSError as error:
            raise UserError(f"{path}: cannot be written ({error.strerror})") from error

    def write(self, record: Record) -> None:
        """Append one object; non-finite numbers become null, which JSON allows.

        Raises:
            OSError: if it cannot be written; nothing of the object is in the file then.
        """
        line = f"{json.dumps(_finite(record))}\n".encode()
        with name_os_errors(str(self._path)):
            size = self._path.stat().st_size if self._path.exists() else 0
            try:
                with self._path.open("ab", buffering=0) as file:
                    while line:  # a full disk may take a part
                        line = line[file.write(line) :]
            except OSError:
                with contextlib.suppress(OSError):
                    os.truncate(self._path, size)
                raise


class Reporter:
    """Output of a run: metrics file, trackers, lines and a bar on stderr, speed.

    Attributes:
        seconds: time spent in updates, validation and saving, including earlier starts.
    """

    def __init__(
        self,
        run: RunDirectory,
        first_step: int,
        total_steps: int,
        seconds: float = 0.0,
        *,
        config: Config | None = None,
        terms: Sequence[str] = (),
        silent: bool = False,
    ) -> None:
        """Open the files.

        Args:
            run: run directory.
            first_step: updates done before; later lines of earlier starts are dropped.
            total_steps: updates of the full run.
            seconds: time spent in earlier starts.
            config: configuration of the run, which names the trackers; None opens none.
            terms: names of further objectives, shown after the loss.
            silent: whether to write nothing, because another process does.
        """
        self._silent = silent
        self._shown = ("loss", "nll", *terms)
        self._bar = _make_bar(first_step, total_steps, silent)
        self._warned: set[str] = set()
        self._metrics = None if silent else MetricsFile(run.metrics_file, after_step=first_step)
        self._trackers = self._open_trackers(run, config, first_step) if config else None
        self._total_steps = total_steps
        self._before, self._start = seconds, time.monotonic()
        self._mark: float | None = None  # start of the interval whose speed is measured
        self._steps = 0  # updates since then
        self._seconds_per_step: float | None = None

    def _open_trackers(
        self, run: RunDirectory, config: Config, first_step: int
    ) -> TrackerGroup | None:
        if self._metrics is None:
            return None
        history = _read_until(run.metrics_file, first_step) if config.train.trackers else []
        return TrackerGroup(
            run,
            config,
            [record for _, record in history],
            after_step=first_step,
            warn_once=self.warn_once,
            say=self.say,
        )

    @property
    def seconds(self) -> float:
        """Seconds of training, without the time when the run was stopped."""
        return self._before + time.monotonic() - self._start

    def advance(self, result: Any) -> None:
        """Count an update.

        Args:
            result: result of the update. The first call waits for it, so that compilation does not
                count towards the speed.
        """
        if self._mark is None:
            jax.block_until_ready(result)
            self._mark = time.monotonic()
        else:
            self._steps += 1
        self._bar.update()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time spent in the context from the speed."""
        start = time.monotonic()
        yield
        if self._mark is not None:
            self._mark += time.monotonic() - start

    def speed(
        self, tokens: Mapping[str, float], flops: float, devices: Sequence[jax.Device]
    ) -> Record:
        """Return the speed since the last call; call it when the device has finished.

        Args:
            tokens: tokens per update, by role.
            flops: FLOPs per update, counted by `mnmt_jax.model.flops`.
            devices: devices of the mesh.

        Returns:
            `seconds` of the run, `steps_per_second`, `tokens_per_second` per role, and `mfu`, the
            fraction of the devices' bfloat16 peak; None where unknown.
        """
        now = time.monotonic()
        rate = None
        if self._mark is not None and self._steps:
            rate = self._steps / max(now - self._mark, 1e-9)
            self._seconds_per_step = 1 / rate
        self._mark, self._steps = now, 0
        chip = chip_of(devices[0].device_kind)
        peak = chip.peak_flops if chip else None
        mfu = rate * flops / (peak * len(devices)) if rate and peak else None
        return {
            "seconds": self.seconds,
            "steps_per_second": rate,
            "tokens_per_second": {r: n * rate if rate else None for r, n in tokens.items()},
            "mfu": mfu,
        }

    def write(self, record: Record) -> None:
        """Write a record with its `step` to all files and trackers, and show its main numbers."""
        self._write_files(record)
        parts = [f"{name} {record[name]:.4f}" for name in self._shown if name in record]
        speed = (record.get("tokens_per_second") or {}).get("target")
        parts += [f"{speed:,.0f} target tokens/s"] if speed else []
        for group in (SUPERVISED, ZERO_SHOT):
            means = record.get("validation", {}).get(group)
            parts += [f"{group.replace('_', '-')} loss {means['loss']:.4f}"] if means else []
            means = record.get("validation", {}).get(TRANSLATION, {}).get(group, {})
            parts += [
                f"{title} {means[key]:.1f}"
                for key, title in _SCORES.items()
                if means.get(key) is not None
            ]
        if by_language := record.get("validation", {}).get(PERPLEXITY):
            shown = join_names([f"{code} {value:.2f}" for code, value in by_language.items()])
            parts.append(f"{PERPLEXITY} {shown}")
        if not self._bar.disable and "validation" not in record:
            self._bar.set_postfix_str(", ".join(parts))
            return
        if self._bar.disable and self._seconds_per_step:
            remaining = (self._total_steps - record["step"]) * self._seconds_per_step
            parts.append(f"{_duration(remaining)} left")
        self.say(f"step {record['step']}/{self._total_steps}: {', '.join(parts)}")

    def _write_files(self, record: Record) -> None:
        if self._metrics is None:
            return
        try:
            self._metrics.write(record)
        except OSError as error:
            self.say(
                f"{error.filename}: the metrics of step {record['step']} are left out "
                f"({error.strerror})"
            )
            return
        if self._trackers:
            self._trackers.write(record)

    def say(self, line: str) -> None:
        """Print a line for the user without breaking the bar; nothing if storage refuses it."""
        if self._silent:
            return
        try:
            self._bar.write(line, file=sys.stderr)
            sys.stderr.flush()
        except BrokenPipeError:
            raise
        except OSError:
            pass  # such as a full disk with the file of standard error

    def warn_once(self, lines: Mapping[str, str]) -> None:
        """Print warnings by name, except those whose name was printed before."""
        for name, line in lines.items():
            if name not in self._warned:
                self._warned.add(name)
                self.say(f"warning: {line}")

    def close(self, status: Status = "finished") -> None:
        """Close the files and the bar.

        Args:
            status: how training ended, for the trackers.
        """
        self._bar.close()
        if self._trackers:
            self._trackers.close(status)


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


def _read_until(path: Path, last_step: int) -> list[tuple[str, Record]]:
    """Return the lines and records up to a step; none for step 0."""
    if last_step <= 0 or not path.is_file():
        return []
    return [
        (line.rstrip("\r\n") + "\n", record)
        for line, record in read_records(path)
        if record["step"] <= last_step
    ]


def _keep_lines(path: Path) -> None:
    """Append the lines of an earlier start of the run to a file beside them."""
    if path.is_file() and (lines := path.read_bytes()):
        earlier = path.with_name(f"{path.stem}_earlier{path.suffix}")
        before = earlier.read_bytes() if earlier.is_file() else b""
        with new_path(earlier) as partial:
            partial.write_bytes(before + lines)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    return value


def _duration(seconds: float) -> str:
    minutes, remainder = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{remainder:02d}" if hours else f"{minutes}:{remainder:02d}"
