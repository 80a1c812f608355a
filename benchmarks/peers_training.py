"""Compares training with Hugging Face's, of a model of the same sizes.

    python benchmarks/peers_training.py [--updates 4] [--rounds 5]
    python benchmarks/peers_training.py --device=gpu --size=466m \
        --engines="transformers,ours,ours fused,ours prefix"

Sentence pairs have lengths that vary as a text's do, a mean of 20 pieces. Ours packs them into
rows, Hugging Face's (M2M-100's class, AdamW, the usual loop) takes batches of similar lengths of as
many target tokens. Each is a process of its own; they take turns. Prints Markdown: sentence tokens
for each second (the most of all rounds), as multiples of the first engine's, the share of the
device's FLOP/s that ours use, and the most memory. Making batches of sentences is counted, reading
text is not.

On `cpu` each has one thread on one core, and seconds are the processor's. On `gpu` both compute in
bfloat16, theirs is compiled (`torch.compile`), and seconds are the clock's. `small` is an
encoder-decoder of 3 and 3 layers of 256; `466m` and `913m` are MITRE's decoders, and theirs is an
encoder-decoder of as many layers in all.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path
from typing import Any

from engines import Worker
from training_worker import DEVICES, OURS, PEER, SIZES

from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.markdown_tables import markdown_table
from mnmt_jax.runtime.run_command import run_command


def main() -> None:
    """Lets engines take turns and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=2000, help="sentence pairs, again and again")
    parser.add_argument("--updates", type=int, default=4, help="of a turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--core", type=int, default=0, help="of the CPU")
    parser.add_argument("--device", choices=DEVICES, default="cpu")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--engines", default=f"{PEER},ours", help="the first is compared with")
    flags = parser.parse_args()
    engines = flags.engines.split(",")
    if unknown := [name for name in engines if name not in (PEER, *OURS)]:
        raise UserError(f"--engines: no '{unknown[0]}'; there are {', '.join((PEER, *OURS))}")
    print(table(engines, turns(engines, flags)))


def turns(engines: list[str], flags: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Lets engines train by turns; returns what each says, without the first time."""
    script = str(Path(__file__).with_name("training_worker.py"))
    core = flags.core if flags.device == "cpu" else None
    workers = {
        name: Worker(
            [sys.executable, script, name, flags.size, flags.device, str(flags.pairs)], core
        )
        for name in engines
    }
    told: dict[str, list[dict[str, Any]]] = {name: [] for name in engines}
    for _, name in itertools.product(range(flags.rounds + 1), engines):
        told[name].append(workers[name].ask(flags.updates))
    for worker in workers.values():
        worker.end()
    return {name: each[1:] for name, each in told.items()}


def table(engines: list[str], told: dict[str, list[dict[str, Any]]]) -> str:
    """Returns what each engine reaches."""
    most = {name: max(each["speed"] for each in told[name]) for name in engines}
    rows = []
    for name in engines:
        last = told[name][-1]
        used = last["flops"] * most[name] / last["peak"] if last["peak"] and last["flops"] else None
        cells = [name, f"{most[name]:.0f}", f"{most[name] / most[engines[0]]:.2f}"]
        cells += [f"{used:.0%}" if used else "", f"{last['memory'] / 2**30:.2f}"]
        rows.append(cells)
    titles = ["engine", "tokens a second", f"of {engines[0]}", "of the FLOP/s", "memory, GiB"]
    return markdown_table(titles, rows)


if __name__ == "__main__":
    run_command(main)
