"""Processor time of the server's steps, on the host and in compiled programs.

Example:
    taskset -c 0 python benchmarks/serving_steps.py RUN --input test.en --source en --target de

A step is one round of a batcher's thread: waiting lines are encoded and admitted, a program runs,
and finished lines are converted to text and handed to their requests. The processor time of the
thread is the host's; that of all other threads of the process is the programs'. HTTP is excluded.
`--waiting` lines wait at a time; by default all lines, which fill the slots.

`--width` and `--layers` replace the model of the run by one with random parameters, e.g. those of
MITRE-466M: `--width 1024 --layers 24 --vocab 160025`.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import cProfile
import dataclasses
import itertools
import pstats
import threading
import time
from collections.abc import Iterator, Sequence

import jax
import numpy as np
from engines import alone

from mnmt_jax.commands.common_flags import CommandParser, positive_int
from mnmt_jax.commands.text_files import read_lines
from mnmt_jax.data.converter import Example, segments_from_rows
from mnmt_jax.decoding.encoded_lines import Line
from mnmt_jax.decoding.text.sentence_job import SentenceJob
from mnmt_jax.decoding.text.translated_text import LineOfText
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.model.network import build_model
from mnmt_jax.runtime.run_command import run_command
from mnmt_jax.serving.line_engines import JobEngine, Result
from mnmt_jax.serving.live_batcher import LiveBatcher
from mnmt_jax.serving.settings import Settings
from mnmt_jax.serving.warm_up import freeze_garbage_collection


def main() -> None:
    """Print a line for each number of slots and beam size."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--input", required=True, metavar="FILE")
    parser.add_argument("--source", required=True, metavar="CODE")
    parser.add_argument("--target", required=True, metavar="CODE")
    parser.add_argument("--lines", type=positive_int, default=2000, metavar="N")
    parser.add_argument("--slots", type=positive_int, nargs="+", default=[32, 64], metavar="N")
    parser.add_argument("--beams", type=positive_int, nargs="+", default=[1, 5], metavar="N")
    parser.add_argument("--waiting", type=positive_int, metavar="N")
    parser.add_argument("--rounds", type=positive_int, default=5, metavar="N")
    parser.add_argument("--width", type=positive_int, metavar="N")
    parser.add_argument("--layers", type=positive_int, default=24, metavar="N")
    parser.add_argument("--vocab", type=positive_int, default=160025, metavar="N")
    parser.add_argument("--profile", action="store_true", help="print the functions of the host")
    flags = parser.parse_args()
    translator = Translator.load(flags.run)
    if flags.width:
        translator = _random_translator(translator, flags)
    texts = [line for line in read_lines(flags.input) if line.strip()][: flags.lines]
    lines = [LineOfText(text, flags.source, flags.target) for text in texts]
    for slots, beam in itertools.product(flags.slots, flags.beams):
        job = SentenceJob.create(translator, beam_size=beam, batch=slots)
        _measure(job, lines, flags)


def _measure(job: SentenceJob, lines: Sequence[LineOfText], flags: argparse.Namespace) -> None:
    """Print the mean over steps of the least processor time of each step in all rounds."""
    rounds = []
    for number in range(1 + flags.rounds):  # the first one compiles
        freeze_garbage_collection()
        engine = _TimedEngine(job, profile=flags.profile and number == flags.rounds)
        with alone():
            rounds.append(_round(engine, lines, flags.waiting or len(lines)))
    steps = np.min(rounds[1:], axis=0)
    host, programs = 1000 * steps.mean(axis=0)
    share, decode = host / (host + programs), job.decode
    print(
        f"{decode.batch} slots, beam {decode.beam_size}: {len(lines) / len(steps):.1f} lines and "
        f"{host + programs:.2f} ms a step; host {host:.2f} ms, {100 * share:.1f} %",
        flush=True,
    )
    if flags.profile:
        pstats.Stats(engine.profiler).sort_stats("tottime").print_stats(45)


def _round(engine: _TimedEngine, lines: Sequence[LineOfText], waiting: int) -> np.ndarray:
    """Translate all lines; return the seconds of the host and of programs for each step."""
    window = Settings().window
    batcher = LiveBatcher([engine], wait_seconds=0.0, max_waiting=len(lines), window=window)
    for start in range(0, len(lines), waiting):
        futures = batcher.submit(lines[start : start + waiting], "user")
        concurrent.futures.wait(futures)
        for future in futures:
            future.result()
    batcher.stop()
    return np.diff(engine.times, axis=0)


class _TimedEngine(JobEngine):
    """An engine that measures its steps.

    Attributes:
        times: processor seconds of the host and of programs, at the start and after each step.
        profiler: of the host, if it is profiled.
    """

    def __init__(self, job: SentenceJob, *, profile: bool) -> None:
        super().__init__(job)
        self.times: list[tuple[float, float]] = []
        self.profiler = cProfile.Profile(time.thread_time)
        self._profile = profile
        self._client = time.pthread_getcpuclockid(threading.get_ident())

    def add(self, lines: Sequence[tuple[int, Line]], *, longest: bool = False) -> None:
        """Add lines; the first call starts the measurement."""
        if not self.times:
            self._record()
            if self._profile:
                self.profiler.enable()
        super().add(lines, longest=longest)

    def run(self) -> Iterator[Result]:
        """Run one program."""
        yield from super().run()
        self._record()

    def _record(self) -> None:
        host, client = time.thread_time(), time.clock_gettime(self._client)
        self.times.append((host, time.process_time() - host - client))


def _random_translator(translator: Translator, flags: argparse.Namespace) -> Translator:
    """Return a translator with random parameters, whose vocabulary has unused pieces at its end."""
    config, vocabulary = translator.config, translator.vocabulary
    unused = [f"unused{number}" for number in range(flags.vocab - vocabulary.size)]
    vocabulary = dataclasses.replace(vocabulary, pieces=(*vocabulary.named_pieces, *unused))
    sizes = {"embed": flags.width, "mlp": 4 * flags.width, "heads": flags.width // 64}
    model = dataclasses.replace(config.model, stage_layers=(flags.layers,), **sizes)
    decode = dataclasses.replace(config.decode, max_length_per_source=1.0)
    example = Example(np.array([5, 6]), np.array([7]), 0, 1)
    converter = translator.inference_model.converter(8)
    batch = converter.batch(segments_from_rows([[example]]), 1)
    params = jax.jit(build_model(model, vocabulary.size).init)(jax.random.key(0), batch)["params"]
    return Translator(dataclasses.replace(config, model=model, decode=decode), vocabulary, params)


if __name__ == "__main__":
    run_command(main)
