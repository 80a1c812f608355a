"""TensorBoard: event files with a scalar per metric."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mnmt_jax.training.trackers.interface import Status, Tracker


class TensorBoard(Tracker):
    """Writer of TensorBoard scalars, tagged by the names of the metrics."""

    def __init__(self, directory: Path, *, after_step: int) -> None:
        """Initialise the tracker.

        Args:
            directory: folder of event files.
            after_step: viewers discard events of older files after this step.
        """
        self._directory, self._after_step = directory, after_step

    def start(self, config: Mapping[str, Any]) -> str:
        """Open a new event file."""
        self._writer = _summary_writer()(str(self._directory), purge_step=self._after_step + 1)
        return ""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add the scalars of one step."""
        for tag, value in metrics.items():
            self._writer.add_scalar(tag, value, step)
        self._writer.flush()

    def end(self, status: Status) -> None:
        """Close the event file."""
        self._writer.close()


def _summary_writer() -> Any:
    """Import tensorboardX without PyTorch, whose import takes seconds and is not needed here."""
    hides_torch = "torch" not in sys.modules
    if hides_torch:
        sys.modules["torch"] = None  # type: ignore[assignment]  # so that its import fails
    try:
        from tensorboardX import SummaryWriter
    finally:
        if hides_torch:
            del sys.modules["torch"]
    return SummaryWriter
