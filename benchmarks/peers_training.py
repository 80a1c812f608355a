"""Training speed against Hugging Face, with models of the same size.

    python benchmarks/peers_training.py [--updates 4] [--rounds 5]
    python benchmarks/peers_training.py --device=gpu --size=466m \
        --engines="transformers,ours,ours fused,ours prefix"

The lengths of the sentence pairs are random, with a mean of about 20 pieces. Our trainer packs them
into rows; Hugging Face's model (M2M-100's class, AdamW, the usual loop) has batches of similar
lengths with as many target tokens. Every engine is a separate process, and they run in interleaved
rounds. Prints Markdown: sentence tokens per second (the maximum over rounds), their ratio to the
first engine, our FLOP/s as a fraction of the device's peak, and the peak memory. Batching is
counted, reading text is not.

On `cpu` every engine has one thread on one core, and seconds are CPU time. On `gpu` all compute in
bfloat16, the layers of Hugging Face's model are compiled (`torch.compile`), and seconds are wall
time. Our engines of MITRE's sizes recompute layers in the backward pass, but for those with `kept`
in their name; these and Hugging Face's run alone, after the others, because they need the memory.
`ours micro-batches` divides the rows of an update into 8 micro-batches.

`small` is an encoder-decoder with 3 + 3 layers of 256, `transformer-tiny` one with 4 + 4 layers of
128; `466m` and `913m` are MITRE's decoders, compared with an encoder-decoder of the same total
number of layers; `tiny` only checks the program.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from engines import Worker, ask_in_turns
from training_worker import DEVICES, OURS, PEER, SIZES

from mnmt_jax.errors import UserError
from mnmt_jax.pages.markdown_tables import markdown_table
from mnmt_jax.runtime.run_command import run_command


def main() -> None:
    """Run the engines and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=2000, help="sentence pairs, repeated")
    parser.add_argument("--updates", type=int, default=4, help="updates per round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--core", type=int, default=0, help="CPU core of the engines")
    parser.add_argument("--device", choices=DEVICES, default="cpu")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument(
        "--engines", default=f"{PEER},ours", help="comma-separated; the first is the baseline"
    )
    parser.add_argument("--output", type=Path, help="file of the measurements as JSON")
    flags = parser.parse_args()
    engines = flags.engines.split(",")
    if unknown := [name for name in engines if name not in (PEER, *OURS)]:
        raise UserError(f"--engines: {unknown[0]!r} must be one of {', '.join((PEER, *OURS))}")
    answers = run_interleaved(engines, flags)
    print(table(engines, answers))
    if flags.output:
        flags.output.write_text(json.dumps(answers, indent=1), encoding="utf-8")
    if failed := [name for name in engines if not answers[name]]:
        raise UserError(f"{', '.join(failed)}: ended before the first measurement; see above")


def run_interleaved(
    engines: list[str], flags: argparse.Namespace
) -> dict[str, list[dict[str, Any]]]:
    """Run the engines in interleaved rounds; return their answers without the first round.

    On a GPU those that need much memory run alone.
    """
    script = str(Path(__file__).with_name("training_worker.py"))
    core = flags.core if flags.device == "cpu" else None
    workers = {
        name: Worker(
            [sys.executable, script, name, flags.size, flags.device, str(flags.pairs)], core
        )
        for name in engines
    }
    answers: dict[str, list[dict[str, Any]]] = {}
    alone = [name for name in engines if name == PEER or "kept" in name]
    together = [name for name in engines if name not in alone]
    groups = [engines] if flags.device == "cpu" else [together, *([name] for name in alone)]
    for group in groups:
        answers |= ask_in_turns(workers, group, flags.updates, flags.rounds)
        for name in group:
            workers[name].end()
    return answers


def table(engines: list[str], answers: dict[str, list[dict[str, Any]]]) -> str:
    """Return the table of speed, utilization and memory."""
    speeds = {
        name: max(answer["speed"] for answer in answers[name]) for name in engines if answers[name]
    }
    baseline, rows = speeds.get(engines[0]), []
    for name in engines:
        if name not in speeds:
            rows.append([name, "failed", *[""] * 3])
            continue
        last_answer = answers[name][-1]
        flops, peak = last_answer["flops"], last_answer["peak"]
        utilization = flops * speeds[name] / peak if peak and flops else None
        cells = [name, f"{speeds[name]:.0f}"]
        cells += [
            f"{speeds[name] / baseline:.2f}" if baseline else "",
            f"{utilization:.0%}" if utilization else "",
            f"{last_answer['memory'] / 2**30:.2f}",
        ]
        rows.append(cells)
    titles = ["engine", "tokens per second", f"ratio to {engines[0]}", "MFU", "memory, GiB"]
    return markdown_table(titles, rows)


if __name__ == "__main__":
    run_command(main)
