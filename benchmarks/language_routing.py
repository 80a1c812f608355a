"""Cost of the implementations of language routing: every position passes its language's branch.

    python benchmarks/language_routing.py [--languages 4,20,100] [--rounds 5]
    python benchmarks/language_routing.py --topology v5e:2x2

The branches are those of Qu and Watanabe (2022), 512 -> 1024 -> 512. A training batch has 4,096
positions, with a random language for every 16; forward and backward pass are timed. A decoding step
has 80 positions, with one language or a random language for every 5; the forward pass is timed.
`one_slot` is the lower bound for a batch of one language. Prints the median over interleaved
rounds, as a multiple of the fastest implementation. With --topology, prints the cycles that the
compiler estimates for one TPU chip instead, for the implementations whose loops do not depend on
the batch: the estimate counts the body of any other loop once.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from turns import medians

from mnmt_jax.model.language_routing import ROUTINGS, Branches, choose_routing
from mnmt_jax.runtime.run_command import run_command

EMBED, HIDDEN = 512, 1024
# Name -> positions, positions per language change, whether all have one language, backward pass.
CASES = {
    "training": (4096, 16, False, True),
    "training, one language": (4096, 16, True, True),
    "decoding": (80, 5, False, False),
    "decoding, one language": (80, 5, True, False),
}


def main() -> None:
    """Print a table of all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--languages", default="4,20,100")
    parser.add_argument("--case", choices=CASES, help="default: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--topology", default="", help="TPU topology; compile for it instead of running"
    )
    flags = parser.parse_args()
    languages = [int(number) for number in flags.languages.split(",")]
    names = [*ROUTINGS, "one_slot"]
    unit = "cycles" if flags.topology else "fastest, ms"
    print(f"| case | languages | {unit} | {' | '.join(names)} | chosen |")
    print("|---|---:|---:|" + "---:|" * len(names) + "---|")
    for case in [flags.case] if flags.case else CASES:
        for count in languages:
            measure = Ahead(flags.topology) if flags.topology else Timed(flags.rounds)
            costs = measure(functions(case, count), arguments(case, count))
            lowest = min(cost for name, cost in costs.items() if name != "one_slot")
            cells = " | ".join(
                f"{costs[name] / lowest:.2f}" if name in costs else "-" for name in names
            )
            absolute = f"{lowest:,.0f}" if flags.topology else f"{1e3 * lowest:.2f}"
            chosen = choose_routing(count - 1, "tpu" if flags.topology else jax.default_backend())
            print(f"| {case} | {count} | {absolute} | {cells} | {chosen} |")


def functions(case: str, languages: int) -> dict[str, Callable[..., Any]]:
    """Return the programs to measure, by name."""
    _, _, is_one, differentiates = CASES[case]
    routings = {**ROUTINGS, **({"one_slot": one_slot} if is_one else {})}
    if languages > 20 and differentiates and jax.default_backend() == "cpu":
        del routings["ragged"], routings["one_hot"]  # both take minutes on a CPU
    return {name: _program(routing, differentiates) for name, routing in routings.items()}


def one_slot(states: Any, slots: Any, branches: Branches, activation: Callable[..., Any]) -> Any:
    """Pass all positions through one branch; correct only if all routed positions share a slot."""
    slot = jnp.maximum(slots.max(), 0)
    branch = Branches(*(array[slot].astype(states.dtype) for array in branches))
    inner = activation(states @ branch.first_kernel + branch.first_bias[None])
    outputs = inner @ branch.second_kernel + branch.second_bias[None]
    return jnp.where((slots >= 0)[:, None], outputs, 0)


def _program(routing: Callable[..., Any], differentiates: bool) -> Callable[..., Any]:
    def forward(states: Any, branches: Branches, slots: Any) -> Any:
        return routing(states, slots, branches, jax.nn.relu)

    def both(states: Any, branches: Branches, slots: Any) -> Any:
        outputs, pullback = jax.vjp(lambda s, b: forward(s, b, slots), states, branches)
        return outputs, pullback(outputs)

    return jax.jit(both if differentiates else forward)


def arguments(case: str, languages: int) -> tuple[Any, ...]:
    """Return random states, branches and slots; one of the languages has no branch."""
    positions, group_size, is_one, _ = CASES[case]
    rng = np.random.default_rng(0)
    shapes = ((EMBED, HIDDEN), (HIDDEN,), (HIDDEN, EMBED), (EMBED,))
    count = languages - 1

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(0.02 * rng.standard_normal(shape, np.float32))

    slot_groups = rng.integers(-1, count, positions // group_size)
    slots = np.full(positions, 1) if is_one else slot_groups.repeat(group_size)
    branches = Branches(*(normal(count, *shape) for shape in shapes))
    return normal(positions, EMBED), branches, jnp.asarray(slots, jnp.int32)


class Timed:
    """Timing on this machine."""

    def __init__(self, rounds: int) -> None:
        """Set the number of rounds."""
        self._rounds = rounds

    def __call__(self, programs: dict[str, Any], arguments: tuple[Any, ...]) -> dict[str, float]:
        """Return the median seconds of each program."""
        calls = {name: functools.partial(program, *arguments) for name, program in programs.items()}
        return medians(calls, self._rounds)


class Ahead:
    """The compiler's estimate for a TPU, without the device."""

    def __init__(self, topology: str) -> None:
        """Select one chip of a topology."""
        from mnmt_jax.cost.topologies import topology_devices

        self._sharding = jax.sharding.SingleDeviceSharding(topology_devices(topology)[0])

    def __call__(self, programs: dict[str, Any], arguments: tuple[Any, ...]) -> dict[str, float]:
        """Return the cycles of the programs whose loops do not depend on the batch."""
        from mnmt_jax.cost.cycle_estimates import estimate_cycles

        abstract_arguments = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=self._sharding), arguments
        )
        return {
            name: estimate_cycles(program.lower(*abstract_arguments).compile().as_text()).executed
            for name, program in programs.items()
            if name not in ("loop", "ragged")
        }


if __name__ == "__main__":
    run_command(main)
