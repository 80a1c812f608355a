"""Translation time: repeated passes over sentences, after a pass that compiles."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence

from mnmt_jax.decoding.encoded_lines import Line
from mnmt_jax.decoding.translation_job import TranslationJob
from mnmt_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class TranslationTime:
    """Seconds of some passes over the same sentences.

    Attributes:
        tokens: generated tokens of the best hypotheses of a pass, eos included.
        first_seconds: seconds of the first pass, compilation included; it is not among `seconds`.
        seconds: seconds of each later pass.
    """

    tokens: int
    first_seconds: float
    seconds: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean seconds of a pass."""
        return statistics.fmean(self.seconds)

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation of the seconds; None for a single pass."""
        return statistics.stdev(self.seconds) if len(self.seconds) > 1 else None

    @property
    def seconds_per_token(self) -> float:
        """Mean seconds of a generated token."""
        return self.mean / self.tokens


def time_translation(
    job: TranslationJob,
    lines: Sequence[Line],
    *,
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> TranslationTime:
    """Translate lines in batches of `Decode.batch`, one after the other, several times.

    From text to text: encoding of the source and decoding of the hypotheses are included.

    Args:
        job: model and search.
        lines: the lines, from `TranslationJob.number_lines`.
        repeats: number of timed passes, after one that is not counted.
        clock: returns seconds.

    Raises:
        UserError: if the model generates no token.
    """
    start = clock()
    tokens = _translate(job, lines)
    marks = [clock()]
    for _ in range(repeats):
        _translate(job, lines)
        marks.append(clock())
    if not tokens:
        raise UserError("every translation is empty, so there is no time per token")
    seconds = tuple(after - before for before, after in zip(marks, marks[1:], strict=False))
    return TranslationTime(tokens, marks[0] - start, seconds)


def _translate(job: TranslationJob, lines: Sequence[Line]) -> int:
    """Translate all lines; return the number of generated tokens."""
    size = job.decode.batch
    return sum(
        len(translation.hypotheses[0].tokens)
        for start in range(0, len(lines), size)
        for _, translation in job.as_completed(lines[start : start + size])
        if translation.hypotheses
    )
