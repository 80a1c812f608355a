"""Interface of experiment trackers, and the record that lets a tracked run continue."""

from __future__ import annotations

import abc
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from mnmt_jax.files.atomic_write import write_text
from mnmt_jax.files.json_objects import parse_json

Status = Literal["finished", "stopped", "failed"]
"""How a training process ended: the run is complete, a signal stopped it, or an error."""


class Tracker(abc.ABC):
    """A writer of one run's metrics to an experiment tracker.

    `start` is called first, then `write` with increasing steps, then `end`, all in one thread.
    `start` is called again if it raised. An error is reported to the user and does not stop
    training.
    """

    @abc.abstractmethod
    def start(self, config: Mapping[str, Any]) -> str:
        """Open the tracked run.

        Args:
            config: values of the configuration by gin key, such as `Model.embed`.

        Returns:
            Where the run can be viewed; empty if there is nothing to tell the user.
        """

    @abc.abstractmethod
    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of one step, by tags such as `validation/supervised/loss`."""

    @abc.abstractmethod
    def end(self, status: Status) -> None:
        """Close the tracked run; a stopped one can be started again."""


@dataclasses.dataclass
class TrackedRun:
    """The tracker's side of a run, recorded in RUN/trackers/NAME.json.

    Attributes:
        file: path of the record.
        id: identifier of the tracked run; empty if there is none yet.
        last_step: last step whose metrics the tracker has.
    """

    file: Path
    id: str = ""
    last_step: int = 0

    @classmethod
    def open(cls, file: Path, *, is_resumed: bool) -> TrackedRun:
        """Read the record.

        Args:
            file: path of the record, which need not exist.
            is_resumed: whether training continues from a checkpoint; a run that starts again at
                step 0 is a new tracked run, because its configuration may have changed.
        """
        if is_resumed and file.is_file():
            try:
                facts = parse_json(file.read_bytes())
                return cls(file, str(facts["id"]), int(facts["last_step"]))
            except (ValueError, KeyError, TypeError):
                pass  # damaged: a new tracked run
        return cls(file)

    def save(self) -> None:
        """Write the record."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.file, json.dumps({"id": self.id, "last_step": self.last_step}) + "\n")
