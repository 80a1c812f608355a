"""Cost of an update for several configurations on the local device.

    python benchmarks/update_cost.py --gin_file=MODEL.gin plain "tpdm:Model.methods=('tpdm',)"

A configuration is `NAME[:BINDING[;BINDING...]]` on top of the gin files. Every row is full of
random sentence pairs with `--length` tokens per side, the same for all configurations; an update
continues from the state of the previous one. Prints the compiler's FLOPs of an update and its
median seconds over interleaved rounds, also as multiples of the first configuration. The logits of
all tokens are computed at once, because the compiler counts the body of a loop once. For the same
reason the FLOPs of micro-batches (Optimizer.accumulate) are those of one.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import types
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from turns import medians

from mnmt_jax.config.loading import load_config
from mnmt_jax.config.sections import Config
from mnmt_jax.data.converter import TASK, BatchExtras, Example, make_converter, segments_from_rows
from mnmt_jax.distributed.sharding import make_mesh, place_batch
from mnmt_jax.runtime.run_command import run_command
from mnmt_jax.training.learner import Learner
from mnmt_jax.training.state import create_state, make_init
from mnmt_jax.training.train_step import train_step
from mnmt_jax.vocabulary.special_ids import EOS_ID, UNK_ID

_TAG, _FIRST = UNK_ID + 2, UNK_ID + 3  # ids of a tag and of the first piece of sentences


def main() -> None:
    """Compile the updates, time them and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("variants", nargs="+", metavar="NAME[:BINDING[;BINDING...]]")
    parser.add_argument("--gin_file", action="append", required=True)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--length", type=int, default=24, help="tokens per side of a pair")
    parser.add_argument("--pairs", type=int, default=4, help="pairs per row")
    parser.add_argument("--vocab_size", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=9)
    flags = parser.parse_args()
    prepared = {}
    for variant in flags.variants:
        name, _, bindings = variant.partition(":")
        config = load_config(flags.gin_file, bindings.split(";") if bindings else [])
        prepared[name] = prepare(_sized(config, flags), flags)
    seconds = medians({name: update for name, (update, _) in prepared.items()}, flags.rounds)
    print("| configuration | GFLOPs | ratio | seconds | ratio |")
    print("|---|---:|---:|---:|---:|")
    flops = {name: update_flops for name, (_, update_flops) in prepared.items()}
    baseline = next(iter(prepared))
    for name in prepared:
        ratios = flops[name] / flops[baseline], seconds[name] / seconds[baseline]
        cells = f"{flops[name] / 1e9:.1f} | {ratios[0]:.2f} | {seconds[name]:.3f} | {ratios[1]:.2f}"
        print(f"| {name} | {cells} |")


def prepare(config: Config, flags: argparse.Namespace) -> tuple[Callable[[], Any], float]:
    """Return a function that runs the next update on a fixed batch, and the FLOPs of an update."""
    mesh = make_mesh(config.mesh, jax.devices()[:1])
    learner = Learner.from_config(config, flags.vocab_size, mesh)
    learner = dataclasses.replace(learner, chunk=flags.rows * config.data.target_length)
    batch = _batch(learner, config, flags)
    init = make_init(learner, {name: array[0] for name, array in batch.items()}, 0)
    state, placed = create_state(init, mesh), place_batch(batch, mesh, leading=1)
    # Donated as in training: otherwise every update would also allocate a new state.
    update = jax.jit(functools.partial(train_step, learner), donate_argnums=0)
    with jax.set_mesh(mesh):
        compiled = update.lower(state, placed).compile()
    costs: Any = compiled.cost_analysis()

    def next_update() -> Any:
        nonlocal state
        state, metrics = compiled(state, placed)
        return metrics, state.step

    return next_update, costs["flops"]


def _sized(config: Config, flags: argparse.Namespace) -> Config:
    """Return a configuration with the batch size of the flags."""
    length = flags.pairs * (flags.length + 2)
    data = dataclasses.replace(
        config.data,
        rows=flags.rows,
        source_length=length,
        target_length=length,
        max_segments=flags.pairs,
        instruction="3",
    )
    return dataclasses.replace(config, data=data)


def _batch(learner: Learner, config: Config, flags: argparse.Namespace) -> dict[str, Any]:
    """Return a batch of random sentence pairs."""
    rng = np.random.default_rng(0)
    vocabulary: Any = types.SimpleNamespace(
        tag_ids=np.full(1, _TAG, np.int32), eos_id=EOS_ID, mask_id=UNK_ID, size=flags.vocab_size
    )
    sizes = (flags.rows, flags.pairs, 2, flags.length)
    tokens = rng.integers(_FIRST, flags.vocab_size, sizes).astype(np.int32)
    rows = [[Example(source, target, 0, 0) for source, target in row] for row in tokens]
    layout = learner.model.layout
    converter = make_converter(vocabulary, layout, config.data, BatchExtras.of(config))
    arrays = converter.batch(segments_from_rows(rows), flags.rows)
    micro_batches = config.optimizer.accumulate
    return {
        name: np.stack([array] * micro_batches) for name, array in arrays.items() if name != TASK
    }


if __name__ == "__main__":
    run_command(main)
