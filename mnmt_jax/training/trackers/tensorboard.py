"""TensorBoard: event files with a scalar per metric."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mnmt_jax.training.trackers.interface import Status, Tracker

_FORMAT = "brain.Event:2"


class TensorBoard(Tracker):
    """Writer of TensorBoard scalars, tagged by the names of the metrics.

    Events are written in the calling thread. The thread of tensorboardX's `SummaryWriter` ends at
    the first write error, and its queue then blocks the caller.

    Attributes:
        last_step: last step whose metrics the folder has.
    """

    def __init__(self, directory: Path, *, after_step: int) -> None:
        """Initialise the tracker.

        Args:
            directory: folder of event files.
            after_step: viewers discard events of older files after this step. They discard all of
                them if the folder has none here, because it was removed or is in a bucket.
        """
        self._directory = directory
        self.last_step = after_step if self._files() else 0
        self._writer: Any = None

    def start(self, config: Mapping[str, Any]) -> str:
        """Open a new event file."""
        record_writer = _import_record_writer()
        self._directory.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        self._writer = record_writer(str(self._directory / f"{name}.{len(self._files())}"))
        from tensorboardX.proto.event_pb2 import SessionLog

        with self._closed_on_error():
            self._add(file_version=_FORMAT)
            self._add(session_log=SessionLog(status=SessionLog.START), step=self.last_step + 1)
        return ""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add the scalars of one step; after an error, in a new file."""
        if self._writer is None:
            self.start({})
        from tensorboardX.summary import scalar

        with self._closed_on_error():
            for tag, value in metrics.items():
                self._add(summary=scalar(tag, value), step=step)
            self._writer.flush()
        self.last_step = step

    def end(self, status: Status) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()

    def _files(self) -> list[Path]:
        return list(self._directory.glob("*.tfevents.*"))

    def _add(self, **fields: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        self._writer.write(Event(wall_time=time.time(), **fields).SerializeToString())

    @contextlib.contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        """Close the file after an error: readers stop at an incomplete event."""
        try:
            yield
        except Exception:
            with contextlib.suppress(OSError):
                self._writer.close()
            self._writer = None
            raise


def _import_record_writer() -> Any:
    """Import tensorboardX without PyTorch, whose import takes seconds and is not needed here."""
    hides_torch = "torch" not in sys.modules
    if hides_torch:
        sys.modules["torch"] = None  # type: ignore[assignment]  # so that its import fails
    try:
        from tensorboardX import RecordWriter
    finally:
        if hides_torch:
            del sys.modules["torch"]
    return RecordWriter
