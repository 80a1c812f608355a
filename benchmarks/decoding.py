"""Times greedy and beam search with a random model on the devices at hand.

    python benchmarks/decoding.py --layout register --embed 128 --layers 4 --vocab 6000

Every sentence generates exactly `--steps` tokens (a random model would not stop by itself; eos is
made unlikely), so the figures do not depend on what the model says. Prints JSON: per search,
sentences per second, milliseconds per step and seconds of compilation; and the same with a cache of
`--max_length` positions from the start (`whole`), which is what growing it on demand saves.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from mnmt_jax.config.sections import Decode, Model
from mnmt_jax.decoding.generate import generate, make_search
from mnmt_jax.decoding.search import EOS_ID, Request, beam_search, greedy
from mnmt_jax.design.layouts import LAYOUTS
from mnmt_jax.errors import run_command
from mnmt_jax.model.key_values import reorder
from mnmt_jax.model.network import Network, build_model


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
    batch = _batch(model, flags)
    params = jax.jit(model.init)(jax.random.key(0), batch | _span("target", flags))["params"]
    params["embedding"] = params["embedding"].at[EOS_ID].set(0.0)
    figures = {
        f"beam {beam}": {
            "growing": _measure(
                functools.partial(_growing, model, params, batch, flags, beam), flags
            ),
            "whole": _measure(functools.partial(_whole, model, params, batch, flags, beam), flags),
        }
        for beam in flags.beams
    }
    print(json.dumps({"device": str(jax.devices()[0]), **vars(flags), **figures}, indent=2))


def _growing(model: Network, params: Any, batch: dict, flags: argparse.Namespace, beam: int) -> Any:
    search = make_search(Decode(beam_size=beam))
    return generate(model, params, batch, _request(flags), search=search)


def _whole(model: Network, params: Any, batch: dict, flags: argparse.Namespace, beam: int) -> Any:
    return jax.block_until_ready(_whole_jitted(params, batch, _request(flags), model, beam))


@functools.partial(jax.jit, static_argnames=("model", "beam"))
def _whole_jitted(params: Any, batch: dict, request: Request, model: Network, beam: int) -> Any:
    variables = {"params": params}
    cache = model.apply(
        variables, batch, beam=beam, max_steps=request.cache_steps(), method="prefill"
    )
    step = functools.partial(model.apply, variables, method="step")
    if beam == 1:
        return greedy(step, cache, request=request)
    return beam_search(step, cache, request=request, reorder=reorder, beam=beam)


def _measure(call: Callable[[], Any], flags: argparse.Namespace) -> dict[str, float]:
    """Times the fastest of several calls: other work on the machine only ever adds."""
    start = time.perf_counter()
    call()
    first = time.perf_counter() - start
    best, start = first, time.perf_counter()
    while time.perf_counter() - start < flags.seconds:
        before = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - before)
    return {
        "sentences_per_second": round(flags.batch / best, 1),
        "ms_per_step": round(1000 * best / flags.steps, 2),
        "compile_seconds": round(first - best, 1),
    }


def _request(flags: argparse.Namespace) -> Request:
    rows = flags.batch
    return Request(
        prefix=np.full((rows, 1), EOS_ID, np.int32),
        max_length=np.full(rows, flags.steps - 1, np.int32),
        active=np.ones(rows, bool),
        max_steps=flags.max_length + 1,
    )


def _batch(model: Network, flags: argparse.Namespace) -> dict[str, np.ndarray]:
    batch: dict[str, np.ndarray] = {}
    for role in model.layout.static_roles():
        batch |= _span(role, flags)
    return batch


def _span(role: str, flags: argparse.Namespace) -> dict[str, np.ndarray]:
    shape = (flags.batch, 1 if role == "trigger" else flags.source_length)
    tokens = np.random.default_rng(0).integers(3, flags.vocab, shape)
    return {
        f"{role}_tokens": tokens.astype(np.int32),
        f"{role}_positions": np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape),
        f"{role}_segment_ids": np.ones(shape, np.int32),
    }


if __name__ == "__main__":
    run_command(main)
