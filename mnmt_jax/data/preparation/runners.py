"""Runners of the units of a pass: processes of this machine, or Apache Beam."""

from __future__ import annotations

import concurrent.futures
import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from mnmt_jax.errors import UserError, install_remedy
from mnmt_jax.files.atomic_write import write_text

Unit = tuple[Any, ...]
"""Arguments of a pass's function after the job."""


class Work(Protocol):
    """What all units share; picklable."""

    @property
    def work(self) -> Path:
        """Folder of the results."""


class Runner(Protocol):
    """Runs the units of a pass; returns when all are done."""

    def __call__(self, function: Callable[..., None], job: Work, units: Sequence[Unit]) -> None:
        """Call `function(job, *unit)` for each unit, in any order.

        Raises:
            UserError: if a unit does.
        """


class LocalRunner:
    """Processes of this machine.

    Args:
        processes: number of processes; one runs the units in the process of the caller.
    """

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._pool: concurrent.futures.ProcessPoolExecutor | None = None

    def __enter__(self) -> LocalRunner:
        """Start the processes, which import again: forks of one with threads may hang."""
        if self._processes > 1:
            context = multiprocessing.get_context("spawn")
            self._pool = concurrent.futures.ProcessPoolExecutor(
                self._processes, context, initializer=_start_worker
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """End the processes; units that have not started are dropped, and all after an error."""
        if self._pool is None:
            return
        if kind is not None:
            for process in list((self._pool._processes or {}).values()):
                process.terminate()
        self._pool.shutdown(cancel_futures=True)

    def __call__(self, function: Callable[..., None], job: Work, units: Sequence[Unit]) -> None:
        """Run the units; see `Runner`."""
        if self._pool is None:
            for unit in units:
                function(job, *unit)
            return
        futures = [self._pool.submit(function, job, *unit) for unit in units]
        try:
            for future in concurrent.futures.as_completed(futures):
                future.result()
        except concurrent.futures.process.BrokenProcessPool as error:
            raise UserError(
                "a process of the preparation ended (out of memory?); the same command continues, "
                "with fewer --processes if memory was short"
            ) from error
        finally:
            for future in futures:
                future.cancel()


def _start_worker() -> None:
    """Leave Ctrl-C, which a terminal sends to all processes, to the parent, and end with it.

    A worker of a killed parent would run the queued units, then wait for ever.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()  # its end closes a pipe, also after a kill
    os._exit(1)


class BeamRunner:
    """Apache Beam: each pass is a pipeline whose elements are units.

    Text and results are files of the work folder, which all workers must see. Relative paths are
    relative to the folder of the command, where a worker sees it.

    Args:
        arguments: flags of Beam; without `--runner`, Beam's runner in this process.

    Raises:
        UserError: if Beam is not installed.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        try:
            from apache_beam.options.pipeline_options import PipelineOptions
        except ImportError:
            raise UserError(f"Apache Beam is not installed; {install_remedy('beam')}") from None
        self._has_runner = any(word.partition("=")[0] == "--runner" for word in arguments)
        self._options = PipelineOptions(list(arguments), save_main_session=False)

    def __call__(self, function: Callable[..., None], job: Work, units: Sequence[Unit]) -> None:
        """Run the units; see `Runner`."""
        import apache_beam as beam
        from apache_beam.runners.portability.fn_api_runner import FnApiRunner

        refusal = job.work / "refusal.txt"
        refusal.unlink(missing_ok=True)
        # Beam's default runner may download a program.
        runner = None if self._has_runner else FnApiRunner()
        try:
            with beam.Pipeline(runner=runner, options=self._options) as pipeline:
                elements = pipeline | beam.Create(list(units)) | beam.Reshuffle()
                run = functools.partial(_run_unit, function, job, refusal, Path.cwd())
                elements | beam.Map(run)
        except Exception as error:  # Beam's errors wrap those of a unit in text
            if refusal.is_file():
                raise UserError(refusal.read_text(encoding="utf-8")) from error
            raise


def _run_unit(
    function: Callable[..., None], job: Work, refusal: Path, folder: Path, unit: Unit
) -> None:
    """Run a unit in the folder of the command.

    A refusal is written to a file, since Beam would turn it into other text.
    """
    if folder.is_dir():
        os.chdir(folder)
    try:
        function(job, *unit)
    except UserError as error:
        write_text(refusal, str(error))
        raise
