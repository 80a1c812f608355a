"""Throughput of the input pipeline on synthetic caches of MITRE's 194 directions.

    python benchmarks/data_pipeline.py --workers 0,1,2,4

Prints JSON for short sentences (4 to 20 pieces, packed into rows of 128) and long ones (100 to 400
pieces, rows of 512), without and with the target-side view that InstruCL adds to a batch. For each
number of worker processes (0: a thread), in target tokens:

- `tokens_per_second` of wall time, the median of the rounds, and its `ratio` to the first number;
- `tokens_per_cpu_second` of all processes; `main_tokens_per_cpu_second` of the process that trains;
- `cores_for_5_million`: processor seconds that 5 million target tokens take. It extrapolates from
  processor time, so it ignores limits of memory bandwidth;
- `first_batch_seconds` from the start of the workers, and `worker_mib`, the largest worker.

`chunk_mib` is the size of a chunk's batches, `plan_seconds` the time to plan a chunk, which each
host does for the rows of all hosts. Rounds alternate between the numbers of workers, so that other
work on the machine affects all of them. Generated batches of methods are not here: the update makes
them on the device, from the same batch, and the loader does nothing for them.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mnmt_jax.config.sections import Config, Data, Decode, Mesh, Model, Optimizer, Train
from mnmt_jax.data.batch_iterator import BatchIterator
from mnmt_jax.data.cache import TokenCache
from mnmt_jax.data.cache_writer import TaskSource, write_cache
from mnmt_jax.data.converter import BatchExtras, HostBatch
from mnmt_jax.data.input_pipeline import Pipeline
from mnmt_jax.design.layouts import LAYOUTS
from mnmt_jax.design.method import Method
from mnmt_jax.methods.instructcl import InstruCL
from mnmt_jax.runtime.run_command import run_command
from mnmt_jax.vocabulary.languages import MITRE_LANGUAGES, mitre_directions
from mnmt_jax.vocabulary.sentencepiece_options import SentencePieceOptions
from mnmt_jax.vocabulary.sentencepiece_training import train_sentencepiece
from mnmt_jax.vocabulary.vocabulary import Vocabulary

GOAL = 5_000_000  # target tokens per second of a host that trains a base model on eight H100s


@dataclasses.dataclass(frozen=True)
class Text:
    """Sentences of a corpus and the rows that they are packed into.

    Attributes:
        shortest: pieces of the shortest sentence.
        longest: pieces of the longest sentence.
        rows: rows of a batch.
        length: tokens of each span of a row.
        share: share of `--examples` that a direction has.
    """

    shortest: int
    longest: int
    rows: int
    length: int
    share: float = 1.0


TEXTS = {"short": Text(4, 20, 128, 128), "long": Text(100, 400, 32, 512, 0.15)}


@dataclasses.dataclass(frozen=True)
class Round:
    """One measurement: tokens, seconds of wall time, and processor seconds.

    Attributes:
        tokens: target tokens.
        wall: seconds.
        main: processor seconds of this process.
        workers: processor seconds of the workers.
        first_batch: seconds until the first batch.
        worker_mib: memory of the largest worker.
    """

    tokens: int
    wall: float
    main: float
    workers: float
    first_batch: float
    worker_mib: int


def main() -> None:
    """Write caches, read batches and print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--workers", default="0,1,2,4", help="numbers of worker processes")
    parser.add_argument("--texts", default=",".join(TEXTS), help="short, long or both")
    parser.add_argument("--examples", type=int, default=2000, help="per direction")
    parser.add_argument("--chunk_examples", type=int, default=16384)
    parser.add_argument("--seconds", type=float, default=4.0, help="of one measurement")
    parser.add_argument("--rounds", type=int, default=3)
    flags = parser.parse_args()
    results = {}
    for name in flags.texts.split(","):
        text = TEXTS[name]
        with tempfile.TemporaryDirectory() as directory:
            cache = _write_cache(directory, text, max(1, round(flags.examples * text.share)))
            for case, methods in ((name, ()), (f"{name}, InstruCL", (InstruCL(),))):
                pipeline = _make_pipeline(cache, text, flags.chunk_examples, methods)
                results[case] = _measure(pipeline, flags)
    print(json.dumps(results, indent=2))


def _measure(pipeline: Pipeline, flags: argparse.Namespace) -> dict[str, object]:
    """Measure each number of workers in alternating rounds."""
    numbers = [int(number) for number in flags.workers.split(",")]
    rounds: dict[int, list[Round]] = {number: [] for number in numbers}
    for _ in range(flags.rounds):
        for number in numbers:
            rounds[number].append(_measure_round(pipeline, number, flags.seconds))
    first = _median_rate(rounds[numbers[0]])
    planning = time.process_time()
    pipeline.plan(1000)
    planning = time.process_time() - planning
    batches = list(pipeline.iterate_chunk(0))
    padding = _padding_fractions(batches[0])
    return {
        "chunk_mib": round(sum(_size(batch) for batch in batches) / 2**20),
        "plan_seconds": round(planning, 3),
        "padding": {name: round(fraction, 3) for name, fraction in padding.items()},
        "workers": {number: _summarize(rounds[number], first) for number in numbers},
    }


def _padding_fractions(batch: HostBatch) -> dict[str, float]:
    """Return the fraction of padding positions of each span of a batch."""
    suffix = "_segment_ids"
    return {
        name.removesuffix(suffix): float(np.mean(ids == 0))
        for name, ids in batch.items()
        if name.endswith(suffix)
    }


def _summarize(rounds: list[Round], first: float) -> dict[str, float]:
    tokens = sum(measured.tokens for measured in rounds)
    main, workers = (sum(getattr(m, name) for m in rounds) for name in ("main", "workers"))
    return {
        "tokens_per_second": round(_median_rate(rounds)),
        "ratio": round(_median_rate(rounds) / first, 2),
        "tokens_per_cpu_second": round(tokens / (main + workers)),
        "main_tokens_per_cpu_second": round(tokens / main),
        "cores_for_5_million": round(GOAL * (main + workers) / tokens, 2),
        "first_batch_seconds": round(statistics.median(m.first_batch for m in rounds), 2),
        "worker_mib": max(measured.worker_mib for measured in rounds),
    }


def _median_rate(rounds: list[Round]) -> float:
    return statistics.median(measured.tokens / measured.wall for measured in rounds)


def _measure_round(pipeline: Pipeline, workers: int, seconds: float) -> Round:
    """Read batches for some seconds after every worker has delivered two chunks."""
    iterator = BatchIterator(pipeline, workers=workers)
    with contextlib.closing(iterator):
        start = time.perf_counter()
        _use(next(iterator))
        first_batch = time.perf_counter() - start
        while iterator.get_state()["chunk"] < 2 * max(1, workers):
            _use(next(iterator))
        main, workers_cpu = time.process_time(), _worker_seconds(iterator)
        start, tokens = time.perf_counter(), 0
        while (wall := time.perf_counter() - start) < seconds:
            tokens += _use(next(iterator))
        return Round(
            tokens=tokens,
            wall=wall,
            main=time.process_time() - main,
            workers=_worker_seconds(iterator) - workers_cpu,
            first_batch=first_batch,
            worker_mib=max(map(_peak_mib, iterator.worker_ids), default=0),
        )


def _use(batch: HostBatch) -> int:
    """Copy a batch, as training does before it is sent to the devices; return its tokens."""
    copied = {name: np.stack([array]) for name, array in batch.items()}
    return int((copied["target_segment_ids"] > 0).sum())


def _worker_seconds(iterator: BatchIterator) -> float:
    """Return the processor seconds of the workers so far, by Linux's /proc."""
    ticks = 0
    for process in iterator.worker_ids:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])  # utime and stime
    return ticks / os.sysconf("SC_CLK_TCK")


def _peak_mib(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 2**10


def _size(batch: HostBatch) -> int:
    return sum(array.nbytes for array in batch.values())


def _make_pipeline(
    cache: TokenCache, text: Text, chunk_examples: int, methods: tuple[Method, ...]
) -> Pipeline:
    data = Data(
        instruction="register",
        rows=text.rows,
        source_length=text.length,
        target_length=text.length,
        max_segments=16,
        chunk_examples=chunk_examples,
    )
    config = Config(data, Model(), Optimizer(), Train(methods=methods), Decode(), Mesh())
    return Pipeline(cache, LAYOUTS["register"], data, extras=BatchExtras.of(config))


def _write_cache(directory: str, text: Text, examples: int) -> TokenCache:
    vocabulary = _vocabulary(directory)
    sources = [
        TaskSource(
            f"made_{source}_{target}",
            source,
            target,
            {"train": functools.partial(_pairs, text, examples, seed)},
        )
        for seed, (source, target) in enumerate(mitre_directions())
    ]
    return write_cache(f"{directory}/cache", sources, vocabulary=vocabulary)


def _vocabulary(directory: str) -> Vocabulary:
    text = {
        code: ["".join(chr(97 + (i * k) % 26) for k in range(1, 9)) for i in range(200)]
        for code in MITRE_LANGUAGES
    }
    options = SentencePieceOptions(vocab_size=30, byte_fallback=False)
    return train_sentencepiece(text, f"{directory}/vocabulary", options=options)


def _pairs(text: Text, examples: int, seed: int) -> Iterator[tuple[list[int], list[int]]]:
    rng = np.random.default_rng(seed)
    for source, target in rng.integers(text.shortest, text.longest + 1, (examples, 2)):
        yield rng.integers(3, 30, source).tolist(), rng.integers(3, 30, target).tolist()


if __name__ == "__main__":
    run_command(main)
