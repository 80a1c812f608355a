"""Times greedy and beam search with a random model on the devices at hand.

    python benchmarks/decoding.py --layout register --embed 128 --layers 4 --vocab 6000

Every sentence generates exactly as many tokens as it is told to (a random model would not stop by
itself; eos is made unlikely), so the figures do not depend on what the model says. Prints JSON: per
search, sentences per second, milliseconds per step and seconds of compilation of a batch whose
sentences all take `--steps`, with room for as many (`fitting`) and for `--max_length` (`whole`);
and sentences per second of `--batches` batches whose sentences take between a quarter of `--steps`
and all of them, ending together (`together`) or leaving their rows to others (`turns`).
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from mnmt_jax.config.sections import Decode, Model
from mnmt_jax.decoding.continuous_batching import Admission, search_continuously
from mnmt_jax.decoding.generate import generate, make_search
from mnmt_jax.decoding.inference_model import InferenceModel
from mnmt_jax.decoding.search import EOS_ID, Request
from mnmt_jax.design.layouts import LAYOUTS
from mnmt_jax.model.network import Network, build_model
from mnmt_jax.runtime.run_command import run_command


def main() -> None:
    """Makes a model and a batch, times the searches, prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layout", default="register", choices=LAYOUTS)
    parser.add_argument("--embed", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocab", type=int, default=6000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--source_length", type=int, default=16)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--max_length", type=int, default=200)
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 4, 5])
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=3.0, help="per measurement")
    flags = parser.parse_args()
    stages = len(LAYOUTS[flags.layout].stages)
    config = Model(
        layout=flags.layout,
        stage_layers=(flags.layers // stages,) * stages,
        embed=flags.embed,
        mlp=4 * flags.embed,
        heads=max(1, flags.embed // 32),
    )
    model = build_model(config, flags.vocab)
    given = _batch(model, flags, 1) | _span("target", flags, 1)
    params = jax.jit(model.init)(jax.random.key(0), given)["params"]
    params["embedding"] = params["embedding"].at[EOS_ID].set(0.0)
    figures = {f"beam {beam}": _figures(model, params, flags, beam) for beam in flags.beams}
    print(json.dumps({"device": str(jax.devices()[0]), **vars(flags), **figures}, indent=2))


def _figures(model: Network, params: Any, flags: argparse.Namespace, beam: int) -> dict[str, Any]:
    search = make_search(Decode(beam_size=beam))
    batch, lengths = _batch(model, flags, flags.batch), np.full(flags.batch, flags.steps)

    def of_room(steps: int) -> dict[str, float]:
        request = _request(lengths, steps)
        run = functools.partial(generate, model, params, batch, request, search=search)
        best, compiling = _measure(run, flags)
        return {
            "sentences_per_second": round(flags.batch / best, 1),
            "ms_per_step": round(1000 * best / flags.steps, 2),
            "compile_seconds": round(compiling, 1),
        }

    unused: Any = None  # the batches are laid out here
    inference_model = InferenceModel(model, params, unused, unused)
    sentences = flags.batch * flags.batches
    drawn = np.random.default_rng(0).integers(flags.steps // 4, flags.steps + 1, sentences)

    def turns(size: int) -> Iterator[Admission]:
        given = _batch(model, flags, size)
        for first in range(0, sentences, size):
            request = _request(drawn[first : first + size], flags.steps)
            yield Admission(range(first, first + size), given, request)

    def in_turns(size: int) -> dict[str, float]:
        run = lambda: list(search_continuously(inference_model, search, turns(size), flags.batch))  # noqa: E731
        best, compiling = _measure(run, flags)
        return {
            "sentences_per_second": round(sentences / best, 1),
            "compile_seconds": round(compiling, 1),
        }

    return {
        "fitting": of_room(flags.steps),
        "whole": of_room(flags.max_length + 1),
        "together": in_turns(flags.batch),
        "turns": in_turns(flags.batch // 4),
    }


def _measure(call: Callable[[], Any], flags: argparse.Namespace) -> tuple[float, float]:
    """Returns seconds of the fastest of several calls, and how much longer the first one took.

    Other work on the machine only ever adds.
    """
    start = time.perf_counter()
    call()
    first = time.perf_counter() - start
    best, start = first, time.perf_counter()
    while time.perf_counter() - start < flags.seconds:
        before = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - before)
    return best, first - best


def _request(lengths: np.ndarray, steps: int) -> Request:
    rows = len(lengths)
    return Request(
        prefix=np.full((rows, 1), EOS_ID, np.int32),
        max_length=(lengths - 1).astype(np.int32),
        active=np.ones(rows, bool),
        max_steps=steps,
    )


def _batch(model: Network, flags: argparse.Namespace, rows: int) -> dict[str, np.ndarray]:
    batch: dict[str, np.ndarray] = {}
    for role in model.layout.static_roles():
        batch |= _span(role, flags, rows)
    return batch


def _span(role: str, flags: argparse.Namespace, rows: int) -> dict[str, np.ndarray]:
    shape = (rows, 1 if role == "trigger" else flags.source_length)
    tokens = np.random.default_rng(0).integers(3, flags.vocab, shape)
    return {
        f"{role}_tokens": tokens.astype(np.int32),
        f"{role}_positions": np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape),
        f"{role}_segment_ids": np.ones(shape, np.int32),
    }


if __name__ == "__main__":
    run_command(main)
