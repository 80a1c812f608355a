"""Weights & Biases: configuration, metrics and status of a run, online or offline."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mnmt_jax.errors import UserError
from mnmt_jax.files.storage_errors import one_line
from mnmt_jax.training.trackers.interface import Status, TrackedRun, Tracker

_PROJECT = "mnmt-jax"
_WITHOUT_LOGIN = ("offline", "disabled", "dryrun")
# W&B shows a run with exit code 255, that of an interrupted program, as killed.
_EXIT_CODES = {"finished": 0, "stopped": 255, "failed": 1}


class WandbTracker(Tracker):
    """Writer of a W&B run.

    The package's environment variables apply, such as WANDB_MODE and WANDB_PROJECT. Offline runs
    are files in the run directory, unless WANDB_DIR names another folder.
    """

    def __init__(self, folder: Path, run_name: str, tracked: TrackedRun) -> None:
        """Initialise the tracker.

        Args:
            folder: parent of W&B's folder `wandb`.
            run_name: name of the run in W&B.
            tracked: record of the tracked run.
        """
        self._folder, self._run_name, self._tracked = folder, run_name, tracked

    def start(self, config: Mapping[str, Any]) -> str:
        """Create a W&B run with the configuration, or continue the run's own."""
        import wandb

        folder = Path(os.environ.get("WANDB_DIR") or self._folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._tracked.id = self._tracked.id or uuid.uuid4().hex
        self._tracked.save()
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or _PROJECT,
            name=os.environ.get("WANDB_NAME") or self._run_name,
            id=self._tracked.id,
            resume="allow",
            dir=str(folder),
            config=dict(config),
            allow_val_change=True,  # a resumed run may train for longer
            reinit="create_new",  # this process may train several runs
            settings=wandb.Settings(console="off", silent=True, symlink=False),
        )
        return str(folder / "wandb") if self._run.offline else self._run.url or ""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of one step."""
        self._run.log(dict(metrics), step=step)

    def end(self, status: Status) -> None:
        """Finish the W&B run, which waits for its upload."""
        self._run.finish(exit_code=_EXIT_CODES[status])


def check_login() -> None:
    """Log in to W&B, unless it is offline. W&B asks for a key if there is none and it can ask.

    Raises:
        UserError: if no key is configured and there is no terminal.
    """
    import wandb

    if os.environ.get("WANDB_MODE") in _WITHOUT_LOGIN:
        return
    try:
        wandb.login(verify=False)
    except Exception as error:  # its types differ between versions
        raise UserError(
            f"Train.trackers: wandb cannot log in ({one_line(error)}); run 'wandb login', set "
            "WANDB_API_KEY, or set WANDB_MODE=offline"
        ) from error
