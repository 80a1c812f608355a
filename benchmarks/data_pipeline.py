"""Throughput of the input pipeline on a synthetic cache of MITRE's 194 directions.

    python benchmarks/data_pipeline.py --batches 100

Prints JSON: target tokens per second of process CPU time and of wall time; the fraction of padding;
seconds to plan one chunk. There is no prefetching, so one thread does all the work.
"""

from __future__ import annotations

import argparse
import functools
import json
import tempfile
import time
from collections.abc import Iterator

import numpy as np

from mnmt_jax.config.sections import Data
from mnmt_jax.data.batch_iterator import BatchIterator
from mnmt_jax.data.cache_writer import TaskSource, write_cache
from mnmt_jax.data.input_pipeline import Pipeline, padding_fraction
from mnmt_jax.design.layouts import LAYOUTS
from mnmt_jax.runtime.run_command import run_command
from mnmt_jax.vocabulary.languages import MITRE_LANGUAGES, mitre_directions
from mnmt_jax.vocabulary.sentencepiece_training import SentencePieceOptions, train_sentencepiece
from mnmt_jax.vocabulary.vocabulary import Vocabulary

SHORTEST, LONGEST = 4, 20  # pieces


def main() -> None:
    """Write a cache, read batches and print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--examples", type=int, default=2000, help="per direction")
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--length", type=int, default=128, help="tokens of each span of a row")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        vocabulary = _vocabulary(directory)
        sources = [
            TaskSource(
                f"made_{source}_{target}",
                source,
                target,
                {"train": functools.partial(_pairs, arguments, seed)},
            )
            for seed, (source, target) in enumerate(mitre_directions())
        ]
        cache = write_cache(f"{directory}/cache", sources, vocabulary=vocabulary)
        data = Data(
            instruction="register",
            rows=arguments.rows,
            source_length=arguments.length,
            target_length=arguments.length,
            max_segments=16,
        )
        pipeline = Pipeline(cache, LAYOUTS["register"], data)
        print(json.dumps(_measure(pipeline, arguments.batches), indent=2))


def _measure(pipeline: Pipeline, batches: int) -> dict[str, object]:
    iterator = BatchIterator(pipeline, threads=0)
    next(iterator)  # imports Grain and opens the files
    cpu, wall, tokens = time.process_time(), time.perf_counter(), 0
    for _ in range(batches):
        batch = next(iterator)
        tokens += int((batch["target_segment_ids"] > 0).sum())
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    planning = time.process_time()
    pipeline.plan(1000)
    return {
        "target_tokens": tokens,
        "target_tokens_per_cpu_second": round(tokens / cpu),
        "target_tokens_per_second": round(tokens / wall),
        "padding": {name: round(fraction, 3) for name, fraction in padding_fraction(batch).items()},
        "plan_seconds": round(time.process_time() - planning, 3),
    }


def _vocabulary(directory: str) -> Vocabulary:
    text = {
        code: ["".join(chr(97 + (i * k) % 26) for k in range(1, 9)) for i in range(200)]
        for code in MITRE_LANGUAGES
    }
    options = SentencePieceOptions(vocab_size=30, byte_fallback=False)
    return train_sentencepiece(text, f"{directory}/vocabulary", options=options)


def _pairs(arguments: argparse.Namespace, seed: int) -> Iterator[tuple[list[int], list[int]]]:
    rng = np.random.default_rng(seed)
    for source, target in rng.integers(SHORTEST, LONGEST, (arguments.examples, 2)):
        yield rng.integers(3, 30, source).tolist(), rng.integers(3, 30, target).tolist()


if __name__ == "__main__":
    run_command(main)
