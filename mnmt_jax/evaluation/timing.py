"""Timings of a model on a test set: random sentences, and the file `timing.json`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.benchmark import Benchmark, TestSet
from mnmt_jax.files.atomic_write import check_replaced, check_writable, write_text
from mnmt_jax.files.json_objects import is_object_with, read_object
from mnmt_jax.files.typed_fields import TypedFields, prefix_errors
from mnmt_jax.vocabulary.language_codes import Direction

TIMING_FILE = "timing.json"
_FORMAT = 1
_REMEDY = "run 'mnmt benchmark' again"


class DrawnSentence(NamedTuple):
    """A test sentence and its direction."""

    text: str
    source: str
    target: str


@dataclasses.dataclass(frozen=True)
class Timing:
    """Time that a model takes for some sentences.

    Attributes:
        sentences: number of sentences of a pass.
        tokens: generated tokens of a pass.
        repeats: number of timed passes.
        mean_seconds: mean seconds of a pass.
        deviation_seconds: standard deviation of the seconds; None for a single pass.
        device: kind of device.
    """

    sentences: int
    tokens: int
    repeats: int
    mean_seconds: float
    deviation_seconds: float | None
    device: str

    @property
    def seconds_per_token(self) -> float:
        """Mean seconds of a generated token."""
        return self.mean_seconds / self.tokens

    def describe(self) -> str:
        """Return the timing in one line."""
        deviation = self.deviation_seconds
        spread = "" if deviation is None else f", standard deviation {deviation:.3g} s"
        return (
            f"{self.sentences:,} sentences, {self.tokens:,} tokens: {self.mean_seconds:.4g} s "
            f"(mean of {self.repeats}{spread}), {self.seconds_per_token:.4g} s a token, on "
            f"{self.device}"
        )


def draw_sentences(benchmark: Benchmark, count: int, seed: int) -> list[DrawnSentence]:
    """Draw test sentences at random: a direction, then one of its sentences.

    Args:
        benchmark: the test set.
        count: number of sentences.
        seed: seed of the draws.
    """
    rng = np.random.default_rng(seed)
    texts: dict[Direction, TestSet] = {}
    sentences = []
    for number in rng.integers(len(benchmark.directions), size=count):
        direction = benchmark.directions[number]
        if direction not in texts:
            texts[direction] = benchmark.texts(direction)
        lines = texts[direction].sources
        sentences.append(DrawnSentence(lines[int(rng.integers(len(lines)))], *direction))
    return sentences


def check_timing_folder(folder: Path) -> None:
    """Check that a timing may be written to a folder.

    Raises:
        UserError: if it is not writable, or has another file of this name.
    """
    check_writable(folder)
    check_replaced(folder / TIMING_FILE, _is_timing)


def write_timing(timing: Timing, folder: Path, facts: Mapping[str, Any]) -> None:
    """Write `timing.json`.

    Args:
        timing: the timing.
        folder: folder to write to.
        facts: further facts: model, task, search, seconds of each pass.
    """
    document = {
        "format": _FORMAT,
        **facts,
        **dataclasses.asdict(timing),
        "seconds_per_token": timing.seconds_per_token,
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / TIMING_FILE, json.dumps(document, indent=1) + "\n")


def read_timing(folder: Path) -> Timing:
    """Read the `timing.json` of a folder.

    Raises:
        UserError: if it is missing or damaged.
    """
    path = folder / TIMING_FILE
    if not path.is_file():
        raise UserError(f"{path}: no such file; run 'mnmt benchmark'")
    fields = TypedFields(str(path), read_object(path, remedy=_REMEDY))
    with prefix_errors(path):
        deviation = fields.values.get("deviation_seconds")
        return Timing(
            sentences=fields.integer("sentences"),
            tokens=fields.integer("tokens", low=1),
            repeats=fields.integer("repeats"),
            mean_seconds=fields.number("mean_seconds"),
            deviation_seconds=None if deviation is None else fields.number("deviation_seconds"),
            device=fields.text("device"),
        )


def _is_timing(text: str) -> bool:
    return is_object_with(text, "format", "mean_seconds", "tokens")
