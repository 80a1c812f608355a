"""Engines of the server on one CPU: lines per second of JAX and CTranslate2 (docs/serving.md).

Example:
    python benchmarks/serving_engines.py RUN --input test.en --source en --target de

An engine has as many lines at a time as the server gives it under load. The engines take turns, so
that other work on the machine slows all of them; the first pass, which compiles, is not counted.
Processor seconds hardly depend on other work.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Sequence

from mnmt_jax.commands.common_flags import CommandParser, add_beam_size, positive_int
from mnmt_jax.commands.text_files import read_lines
from mnmt_jax.decoding.encoded_lines import Line
from mnmt_jax.decoding.text.sentence_job import SentenceJob
from mnmt_jax.decoding.translation import Translation
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.interop.ctranslate2_job import CTranslate2Job
from mnmt_jax.runtime.run_command import run_command
from mnmt_jax.serving.line_engines import JobEngine, LineEngine
from mnmt_jax.serving.settings import Settings


def main() -> None:
    """Print a line for each engine."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--input", required=True, metavar="FILE")
    parser.add_argument("--source", required=True, metavar="CODE")
    parser.add_argument("--target", required=True, metavar="CODE")
    parser.add_argument("--passes", type=positive_int, default=5, metavar="N")
    add_beam_size(parser)
    flags = parser.parse_args()
    translator = Translator.load(flags.run)
    job = SentenceJob.create(translator, beam_size=flags.beam_size)
    texts = [line for line in read_lines(flags.input) if line.strip()]
    lines = [Line(0, text, flags.source, flags.target) for text in texts]
    makers: dict[str, Callable[[], LineEngine]] = {"jax": functools.partial(JobEngine, job)}
    for kind in ("float32", "int8"):
        makers[f"ctranslate2 {kind}"] = functools.partial(JobEngine, CTranslate2Job.of(job, kind))
    _print_rates(makers, lines, flags.passes)


def _print_rates(
    makers: dict[str, Callable[[], LineEngine]], lines: Sequence[Line], passes: int
) -> None:
    texts = {name: _pass(make(), lines)[0] for name, make in makers.items()}
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in makers}
    for _ in range(passes):
        for name, make in makers.items():
            seconds[name].append(_pass(make(), lines)[1])
    reference = [statistics.median(values) for values in zip(*seconds["jax"], strict=True)]
    for name, pairs in seconds.items():
        elapsed, processor = (statistics.median(values) for values in zip(*pairs, strict=True))
        equal = sum(a == b for a, b in zip(texts[name], texts["jax"], strict=True))
        print(
            f"{name}: {len(lines) / elapsed:.0f} lines/s (passes of {min(pairs)[0]:.2f} to "
            f"{max(pairs)[0]:.2f} s), {reference[0] / elapsed:.2f} of jax; {processor:.2f} s of "
            f"processors, {reference[1] / processor:.2f} of jax; "
            f"{100 * equal / len(lines):.1f}% equal translations"
        )


def _pass(engine: LineEngine, lines: Sequence[Line]) -> tuple[list[str], tuple[float, float]]:
    """Return the translations of all lines, the seconds, and those of processors."""
    window, results = Settings().window, dict[int, Translation | Exception]()
    waiting = list(enumerate(lines))[::-1]
    start, processor = time.perf_counter(), time.process_time()
    while waiting or len(engine):
        engine.add([waiting.pop() for _ in range(min(window - len(engine), len(waiting)))])
        results |= dict(engine.run())
    seconds = time.perf_counter() - start, time.process_time() - processor
    return [_text(results[number]) for number in range(len(lines))], seconds


def _text(result: Translation | Exception) -> str:
    if isinstance(result, Exception):
        raise result
    return result.text


if __name__ == "__main__":
    run_command(main)
