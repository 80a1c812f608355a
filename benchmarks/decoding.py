"""Speed of greedy and beam search with a random model on the local devices.

    python benchmarks/decoding.py --layout register --embed 128 --layers 4 --vocab 6000

Every sentence generates a fixed number of tokens, because eos is made unlikely, so the times do not
depend on the output. Prints JSON for each search. `fitting` and `whole`: sentences per second,
milliseconds per step and seconds of compilation for a batch whose sentences all have `--steps`
tokens, with a target buffer of `--steps` or of `--max_length`. `together` and `turns`: sentences
per second for `--batches` batches whose sentences have between a quarter of `--steps` and `--steps`
tokens, in static batches or with continuous batching. `--kinds` selects some of them.
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
from engines import alone

from mnmt_jax.config.sections import Decode, Model
from mnmt_jax.decoding.continuous_batching import Admission, search_continuously
from mnmt_jax.decoding.generate import generate
from mnmt_jax.decoding.inference_model import InferenceModel
from mnmt_jax.decoding.search import EOS_ID, Request
from mnmt_jax.decoding.search_settings import make_search
from mnmt_jax.decoding.weight_precision import compute_config, round_weights
from mnmt_jax.design.layouts import LAYOUTS
from mnmt_jax.model.network import Network, build_model
from mnmt_jax.runtime.run_command import run_command

KINDS = ("fitting", "whole", "together", "turns")


def main() -> None:
    """Build a model and a batch, time the searches and print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layout", default="register", choices=LAYOUTS)
    parser.add_argument("--embed", type=int, default=128)
    parser.add_argument("--head_dim", type=int, default=32)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocab", type=int, default=6000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--source_length", type=int, default=16)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--max_length", type=int, default=200)
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 4, 5])
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--weights", default="stored", choices=("stored", "bfloat16", "int8"))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds per measurement")
    flags = parser.parse_args()
    stages = len(LAYOUTS[flags.layout].stages)
    config = Model(
        layout=flags.layout,
        stage_layers=(flags.layers // stages,) * stages,
        embed=flags.embed,
        mlp=4 * flags.embed,
        heads=max(1, flags.embed // flags.head_dim),
    )
    model = build_model(config, flags.vocab)
    example_batch = _batch(model, flags, 1) | _span("target", flags, 1)
    params = jax.jit(model.init)(jax.random.key(0), example_batch)["params"]
    params["embedding"] = params["embedding"].at[EOS_ID].set(0.0)
    model = build_model(compute_config(config, flags.weights), flags.vocab)
    params = round_weights(params, flags.weights, ("embedding",))
    measurements = {
        f"beam {beam}": _measure_searches(model, params, flags, beam) for beam in flags.beams
    }
    print(json.dumps({"device": str(jax.devices()[0]), **vars(flags), **measurements}, indent=2))


def _measure_searches(
    model: Network, params: Any, flags: argparse.Namespace, beam: int
) -> dict[str, Any]:
    search = make_search(Decode(beam_size=beam))
    batch, lengths = _batch(model, flags, flags.batch), np.full(flags.batch, flags.steps)

    def time_batch(max_steps: int) -> dict[str, float]:
        request = _request(lengths, max_steps)
        run = functools.partial(generate, model, params, batch, request, search=search)
        best, compile_seconds = _measure(run, flags)
        return {
            "sentences_per_second": round(flags.batch / best, 1),
            "ms_per_step": round(1000 * best / flags.steps, 2),
            "compile_seconds": round(compile_seconds, 1),
        }

    unused: Any = None  # vocabulary and converter: batches are built here
    loaded = InferenceModel(model, params, unused, unused)
    sentences = flags.batch * flags.batches
    steps_by_sentence = np.random.default_rng(0).integers(
        flags.steps // 4, flags.steps + 1, sentences
    )

    def admissions(size: int) -> Iterator[Admission]:
        admitted_batch = _batch(model, flags, size)
        for start in range(0, sentences, size):
            request = _request(steps_by_sentence[start : start + size], flags.steps)
            yield Admission(range(start, start + size), admitted_batch, request)

    def time_continuous(size: int) -> dict[str, float]:
        run = lambda: list(search_continuously(loaded, search, admissions(size), flags.batch))  # noqa: E731
        best, compile_seconds = _measure(run, flags)
        return {
            "sentences_per_second": round(sentences / best, 1),
            "compile_seconds": round(compile_seconds, 1),
        }

    measure: dict[str, Callable[[], dict[str, float]]] = {
        "fitting": lambda: time_batch(flags.steps),
        "whole": lambda: time_batch(flags.max_length + 1),
        "together": lambda: time_continuous(flags.batch),
        "turns": lambda: time_continuous(flags.batch // 4),
    }
    return {kind: measure[kind]() for kind in flags.kinds}


def _measure(call: Callable[[], Any], flags: argparse.Namespace) -> tuple[float, float]:
    """Return the seconds of the fastest call, and the excess of the first call over it.

    The minimum is the estimate least affected by other load on the machine.
    """
    start = time.perf_counter()
    call()
    first_seconds = time.perf_counter() - start
    with alone():
        best, start = first_seconds, time.perf_counter()
        while time.perf_counter() - start < flags.seconds:
            before = time.perf_counter()
            call()
            best = min(best, time.perf_counter() - before)
    return best, first_seconds - best


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
