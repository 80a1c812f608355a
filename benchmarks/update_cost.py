"""Compares what an update of several configurations costs on the device at hand.

    python benchmarks/update_cost.py --gin_file=MODEL.gin plain "tpdm:Model.methods=('tpdm',)"

Each is `NAME[:BINDING[;BINDING...]]` upon the files. Every row is full of sentence pairs of
`--length` tokens a side, the same for all; each goes on from the state that it left. Prints the
compiler's FLOPs of an update and the median of its seconds over rounds in which all take turns,
both also as multiples of the first's. The logits of all tokens are made at one time, because the
compiler counts a loop's body once; so it does with micro-batches (Optimizer.accumulate), of which
the FLOPs are those of one.
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

_TAG, _FIRST = UNK_ID + 2, UNK_ID + 3  # ids of a tag and of what sentences have


def main() -> None:
    """Compiles, takes turns and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("variants", nargs="+", metavar="NAME[:BINDING[;BINDING...]]")
    parser.add_argument("--gin_file", action="append", required=True)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--length", type=int, default=24, help="tokens of a side of a pair")
    parser.add_argument("--pairs", type=int, default=4, help="of a row")
    parser.add_argument("--vocab_size", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=9)
    flags = parser.parse_args()
    made = {}
    for each in flags.variants:
        name, _, bindings = each.partition(":")
        config = load_config(flags.gin_file, bindings.split(";") if bindings else [])
        made[name] = prepare(_sized(config, flags), flags)
    taken = medians({name: update for name, (update, _) in made.items()}, flags.rounds)
    print("| configuration | GFLOPs | of the first's | seconds | of the first's |")
    print("|---|---:|---:|---:|---:|")
    counted = {name: flops for name, (_, flops) in made.items()}
    first = next(iter(made))
    for name in made:
        flops, time_of = counted[name] / counted[first], taken[name] / taken[first]
        cells = f"{counted[name] / 1e9:.1f} | {flops:.2f} | {taken[name]:.3f} | {time_of:.2f}"
        print(f"| {name} | {cells} |")


def prepare(config: Config, flags: argparse.Namespace) -> tuple[Callable[[], Any], float]:
    """Returns the next update on a batch that stays, and its FLOPs."""
    mesh = make_mesh(config.mesh, jax.devices()[:1])
    learner = Learner.from_config(config, flags.vocab_size, mesh)
    learner = dataclasses.replace(learner, chunk=flags.rows * config.data.target_length)
    batch = _batch(learner, config, flags)
    init = make_init(learner, {name: array[0] for name, array in batch.items()}, 0)
    state, placed = create_state(init, mesh), place_batch(batch, mesh, leading=1)
    # As in training: without memory that is its own, an update would also ask for new memory.
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
    """Returns a configuration with the batch that the flags ask for."""
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
    """Draws sentence pairs."""
    rng = np.random.default_rng(0)
    vocabulary: Any = types.SimpleNamespace(
        tag_ids=np.full(1, _TAG, np.int32), eos_id=EOS_ID, mask_id=UNK_ID, size=flags.vocab_size
    )
    sizes = (flags.rows, flags.pairs, 2, flags.length)
    drawn = rng.integers(_FIRST, flags.vocab_size, sizes).astype(np.int32)
    rows = [[Example(source, target, 0, 0) for source, target in row] for row in drawn]
    layout = learner.model.layout
    converter = make_converter(vocabulary, layout, config.data, BatchExtras.of(config))
    made = converter.batch(segments_from_rows(rows), flags.rows)
    times = config.optimizer.accumulate
    return {name: np.stack([array] * times) for name, array in made.items() if name != TASK}


if __name__ == "__main__":
    run_command(main)
