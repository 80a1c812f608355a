"""Environment of neural metrics: a Python environment of its own, and its process.

unbabel-comet 2 requires numpy < 2, mnmt-jax numpy 2, so both cannot be in one environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from mnmt_jax.errors import UserError
from mnmt_jax.evaluation import metric_worker
from mnmt_jax.files.json_objects import parse_json
from mnmt_jax.files.storage_errors import one_line
from mnmt_jax.runtime.user_cache import user_cache_folder

VARIABLE = "MNMT_JAX_METRICS"
REQUIREMENTS = (
    "unbabel-comet>=2.2.6,<3",
    "bert-score>=0.3.13,<0.4",
    "transformers>=4.30,<5",
    "sentencepiece",
    "numpy<2",
    "setuptools<81",  # has pkg_resources, which torchmetrics 0.10 imports
)
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
_SETUP = "mnmt metrics setup"

Row = dict[str, str]
"""A sentence: `src`, `mt` (the hypothesis) and `ref`."""


def default_environment() -> Path:
    """Return the folder that `$MNMT_JAX_METRICS` names, or one in the user's cache."""
    folder = os.environ.get(VARIABLE)
    return Path(folder) if folder else user_cache_folder() / "metrics"


def use_environment(folder: Path) -> None:
    """Make a folder the default environment of this process."""
    os.environ[VARIABLE] = str(folder)


def create_environment(
    folder: Path, *, python: str = sys.executable, requirements: Sequence[str] = ()
) -> None:
    """Make the environment of the metrics, or update it.

    Args:
        folder: folder of the environment.
        python: Python to make it with.
        requirements: further requirements of pip, e.g. a build of PyTorch.

    Raises:
        UserError: if the folder holds something else, or a step fails.
    """
    if folder.exists() and any(folder.iterdir()) and not (folder / "pyvenv.cfg").is_file():
        raise UserError(f"{folder}: is not a Python environment; choose another folder")
    _run([python, "-m", "venv", str(folder)])
    pip = [str(_python(folder)), "-m", "pip", "--disable-pip-version-check", "install"]
    _run([*pip, *requirements, *REQUIREMENTS])


def _run(command: Sequence[str]) -> None:
    """Run a command whose output the user sees.

    Raises:
        UserError: if it fails.
    """
    try:
        status = subprocess.run(command, stdout=sys.stderr, check=False).returncode
    except OSError as error:
        raise UserError(f"{command[0]}: cannot be run ({one_line(error)})") from error
    if status:
        raise UserError(f"'{' '.join(command[:4])} ...' failed with status {status}; see above")


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"


class MetricWorker:
    """Process that computes neural metrics, started when first used.

    Args:
        folder: the environment; None for the default one.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or default_environment()
        self._process: subprocess.Popen[str] | None = None
        self._log: IO[str] | None = None

    def check_environment(self) -> None:
        """Raise a UserError if there is no environment in the folder."""
        if not _python(self._folder).exists():
            raise UserError(
                f"neural metrics need an environment of their own, and there is none in "
                f"{self._folder}; '{_SETUP}' makes it, ${VARIABLE} names another"
            )

    def version(self, metric: str) -> str:
        """Return the version of a metric's package.

        Args:
            metric: `comet`, `bert_score` or `metricx`.

        Raises:
            UserError: if the package cannot be imported, or there is no environment.
        """
        return str(self._ask({"check": metric}, metric)["version"])

    def score(self, metric: str, model: str, rows: Sequence[Row], **options: Any) -> list[float]:
        """Return the score of each row, as the metric has it.

        Args:
            metric: `comet`, `bert_score` or `metricx`.
            model: path of the model.
            rows: the sentences.
            **options: settings of the metric, e.g. `layer`.

        Raises:
            UserError: if the model cannot be loaded, or the metric fails.
        """
        request = {"metric": metric, "model": model, "rows": list(rows), **options}
        scores = self._ask(request, model)["scores"]
        if len(scores) != len(rows):
            raise UserError(f"{model}: {len(scores)} scores of {len(rows)} sentences")
        return list(map(float, scores))

    def _ask(self, request: dict[str, Any], subject: str) -> dict[str, Any]:
        """Send a request and return its answer.

        Args:
            request: the request.
            subject: metric or model, for errors.
        """
        process = self._started()
        assert process.stdin and process.stdout
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise UserError(
                f"{subject}: the process of the metrics ended ({self._last_words()}); "
                f"'{_SETUP}' repairs its environment"
            )
        answer = parse_json(line, finite=False)
        if "error" in answer:
            error = one_line(Exception(answer["error"]))
            raise UserError(f"{subject}: failed in {self._folder} ({error})")
        return dict(answer)

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            self.check_environment()
            self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
            self._process = subprocess.Popen(
                [_python(self._folder), metric_worker.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env={**os.environ, **_OFFLINE},
                encoding="utf-8",
            )
            weakref.finalize(self, _end, self._process)
        return self._process

    def _last_words(self) -> str:
        """Return the last line that the process wrote to standard error."""
        if self._log is None:
            return "no message"
        self._log.seek(0)
        lines = [line.strip() for line in self._log if line.strip()]
        return lines[-1] if lines else "no message"


def _end(process: subprocess.Popen[str]) -> None:
    """End a worker by the end of its input."""
    assert process.stdin and process.stdout
    with process.stdout:
        process.stdin.close()
        process.wait()
