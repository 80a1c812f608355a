r"""Shards of a large token cache from which a chunk of training pairs is drawn.

    python benchmarks/touched_shards.py --tasks 194 --pairs 1000000000 --hosts 1 16

Makes up tasks of log-normal sizes and plans chunks without any file. For each number of hosts it
prints as JSON the number of shards that one host reads for a chunk, on average over chunks, and
with how many other shards the next chunk begins (`new`).
"""

from __future__ import annotations

import argparse
import json
import statistics

import numpy as np

from mnmt_jax.config.sections import Data
from mnmt_jax.data.cache_writer import DEFAULT_SHARD_EXAMPLES
from mnmt_jax.data.mixing_schedule import MixingSchedule

_SIGMA = 1.2  # of the logarithms of sizes
_CHUNKS = 8


def main() -> None:
    """Plan chunks and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=194)
    parser.add_argument("--pairs", type=int, default=1_000_000_000)
    parser.add_argument("--shard_examples", type=int, default=DEFAULT_SHARD_EXAMPLES)
    parser.add_argument("--chunk_examples", type=int, default=Data.chunk_examples)
    parser.add_argument("--temperature", type=float, default=Data.temperature)
    parser.add_argument("--hosts", type=int, nargs="+", default=[1])
    flags = parser.parse_args()
    weights = np.random.default_rng(0).lognormal(0, _SIGMA, flags.tasks)
    sizes = np.maximum(1, weights / weights.sum() * flags.pairs).astype(int)
    schedule = MixingSchedule(
        tuple(f"task{number}" for number in range(flags.tasks)),
        tuple(sizes.tolist()),
        flags.temperature,
        1,
        flags.chunk_examples,
    )
    print(
        json.dumps(
            {
                "shards": int((-(-sizes // flags.shard_examples)).sum()),
                "hosts": {
                    hosts: count_shards(schedule, flags.shard_examples, hosts)
                    for hosts in flags.hosts
                },
            },
            indent=2,
        )
    )


def count_shards(schedule: MixingSchedule, shard_examples: int, hosts: int) -> dict[str, float]:
    """Return how many shards a host reads for a chunk, and how many the chunk before had not."""
    generator = np.random.default_rng(1)
    touched = []
    for chunk in range(_CHUNKS):
        task, index, _ = schedule.chunk(chunk)
        rows = generator.permutation(len(task))[: len(task) // hosts]
        touched.append(set(zip(task[rows], index[rows] // shard_examples, strict=True)))
    new = [len(after - before) for before, after in zip(touched, touched[1:], strict=False)]
    return {"read": statistics.mean(map(len, touched)), "new": statistics.mean(new)}


if __name__ == "__main__":
    main()
