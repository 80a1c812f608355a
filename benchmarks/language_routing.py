"""Times the implementations that pass each position through the branch of its language.

    python benchmarks/language_routing.py [--languages 4,20,100] [--rounds 5]
    python benchmarks/language_routing.py --topology v5e:2x2

Branches are the paper's, 512 -> 1024 -> 512. A batch of training has 4,096 positions of which every
16 have a language drawn uniformly, forward and backward are timed; a step of decoding has 80
positions of one language, or of languages drawn for every 5, forward alone. `one slot` is what a
batch of one language costs at least. Each figure is the median of rounds in which all take turns,
as a multiple of the fastest; with --topology the compiler's estimated cycles for one TPU chip, of
those whose loops do not depend on the batch: it counts any other round once.
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

from mnmt_jax.model.language_routing import ROUTINGS, Branches, choose_routing, one_slot
from mnmt_jax.runtime.run_command import run_command

EMBED, HIDDEN = 512, 1024
# Name -> positions, positions that share a language, whether it is one language for all, gradients.
CASES = {
    "training": (4096, 16, False, True),
    "training, one language": (4096, 16, True, True),
    "decoding": (80, 5, False, False),
    "decoding, one language": (80, 5, True, False),
}


def main() -> None:
    """Prints one table per case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--languages", default="4,20,100")
    parser.add_argument("--case", choices=CASES, help="this one alone")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--topology", default="", help="compile for it instead of running")
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
            least = min(cost for name, cost in costs.items() if name != "one_slot")
            cells = " | ".join(f"{costs[n] / least:.2f}" if n in costs else "-" for n in names)
            shown = f"{least:,.0f}" if flags.topology else f"{1e3 * least:.2f}"
            chosen = choose_routing(count - 1, "tpu" if flags.topology else jax.default_backend())
            print(f"| {case} | {count} | {shown} | {cells} | {chosen} |")


def functions(case: str, languages: int) -> dict[str, Callable[..., Any]]:
    """Returns what to run, by name."""
    _, _, is_one, differentiates = CASES[case]
    routings = {**ROUTINGS, **({"one_slot": one_slot} if is_one else {})}
    if languages > 20 and differentiates and jax.default_backend() == "cpu":
        del routings["ragged"], routings["one_hot"]  # on a CPU both take minutes
    return {name: _program(routing, differentiates) for name, routing in routings.items()}


def _program(routing: Callable[..., Any], differentiates: bool) -> Callable[..., Any]:
    def forward(states: Any, branches: Branches, slots: Any) -> Any:
        return routing(states, slots, branches, jax.nn.relu)

    def both(states: Any, branches: Branches, slots: Any) -> Any:
        found, pull = jax.vjp(lambda s, b: forward(s, b, slots), states, branches)
        return found, pull(found)

    return jax.jit(both if differentiates else forward)


def arguments(case: str, languages: int) -> tuple[Any, ...]:
    """Draws states, branches and slots; one language in as many as there are has no branch."""
    positions, together, is_one, _ = CASES[case]
    rng = np.random.default_rng(0)
    shapes = ((EMBED, HIDDEN), (HIDDEN,), (HIDDEN, EMBED), (EMBED,))
    count = languages - 1

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(0.02 * rng.standard_normal(shape, np.float32))

    drawn = rng.integers(-1, count, positions // together)
    slots = np.full(positions, 1) if is_one else drawn.repeat(together)
    branches = Branches(*(normal(count, *shape) for shape in shapes))
    return normal(positions, EMBED), branches, jnp.asarray(slots, jnp.int32)


class Timed:
    """Seconds on this machine."""

    def __init__(self, rounds: int) -> None:
        """Remembers how often to take turns."""
        self._rounds = rounds

    def __call__(self, programs: dict[str, Any], arguments: tuple[Any, ...]) -> dict[str, float]:
        """Returns the median of each."""
        calls = {name: functools.partial(each, *arguments) for name, each in programs.items()}
        return medians(calls, self._rounds)


class Ahead:
    """The compiler's estimate for a TPU that is not there."""

    def __init__(self, topology: str) -> None:
        """Takes one chip of a topology."""
        from mnmt_jax.cost.topologies import topology_devices

        self._sharding = jax.sharding.SingleDeviceSharding(topology_devices(topology)[0])

    def __call__(self, programs: dict[str, Any], arguments: tuple[Any, ...]) -> dict[str, float]:
        """Returns the cycles of those whose loops do not depend on the batch."""
        from mnmt_jax.cost.cycle_estimates import estimate_cycles

        like = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=self._sharding), arguments
        )
        return {
            name: estimate_cycles(program.lower(*like).compile().as_text()).executed
            for name, program in programs.items()
            if name not in ("loop", "ragged")
        }


if __name__ == "__main__":
    run_command(main)
