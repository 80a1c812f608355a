"""Attention on a GPU: the kernels of `fused` against `split`, and sizes of their blocks.

    python benchmarks/gpu_kernels.py [--parts exactness,speed,tiles] [--output FILE]

Prints Markdown, and writes JSON to FILE. `exactness`: relative errors of outputs and gradients in
bfloat16, against `split` with exact float32 products. `speed`: milliseconds of the attention of one
layer of MITRE-466M's width (16 heads of 64, 32 rows of 256 tokens and their registers), for rows
with one sentence and packed rows, with and without dropout; `cudnn` is cuDNN's attention of as many
queries and keys, without masks or dropout. `tiles`: the same with other sizes of blocks, one kernel
changed at a time. `--interpret` checks the program on a CPU at small sizes; its times mean nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from engines import alone
from jax.experimental import pallas as pl

from mnmt_jax.design.layout import Stage
from mnmt_jax.design.layouts import LAYOUTS
from mnmt_jax.distributed.dropout_mask import DropoutMask
from mnmt_jax.errors import UserError
from mnmt_jax.model.attention import fused, gpu_kernel, split
from mnmt_jax.pages.markdown_tables import markdown_table
from mnmt_jax.runtime.run_command import run_command

PARTS = ("exactness", "speed", "tiles")
WIDTH = 1024  # of a layer
MODULES = {"split": split, "fused": fused}
CANDIDATES = (
    *((64, 64, 4, stages) for stages in (2, 3, 4)),
    (64, 64, 8, 2),
    *((*block, 4, 2) for block in ((32, 32), (32, 64), (64, 32), (64, 128), (128, 32), (128, 64))),
    *((*block, 8, 2) for block in ((64, 128), (128, 64), (128, 128))),
)
REPEATS = 20  # of an attention, within one program


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of the measured layer.

    Attributes:
        widths: of heads.
        rows: of a batch.
        length: tokens of a span.
        sentence: mean tokens of a sentence in packed rows.
    """

    widths: tuple[int, ...] = (64, 128)
    rows: int = 32
    length: int = 256
    sentence: int = 21


Attention = Callable[[Any, jax.Array], Any]  # (states, key) -> outputs by role


def main() -> None:
    """Measure the parts and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128], help="of heads")
    parser.add_argument("--output", type=Path, help="file of the results as JSON")
    parser.add_argument("--interpret", action="store_true", help="small sizes, on a CPU")
    flags = parser.parse_args()
    parts = flags.parts.split(",")
    if unknown := [part for part in parts if part not in PARTS]:
        raise UserError(f"--parts: {unknown[0]!r} must be one of {', '.join(PARTS)}")
    sizes = Sizes(widths=tuple(flags.widths))
    if flags.interpret:
        _interpret()
        sizes = Sizes(sizes.widths, rows=2, length=64, sentence=8)
    elif jax.default_backend() != "gpu":
        raise UserError("JAX has no GPU here; --interpret checks the program on a CPU")
    results: dict[str, Any] = {"device": jax.devices()[0].device_kind, "jax": jax.__version__}
    measure = {"exactness": exactness, "speed": speeds, "tiles": tile_speeds}
    for part in parts:
        results[part] = measure[part](sizes)
        titles = list(results[part][0])
        print(f"\n{part}\n")
        print(markdown_table(titles, [[_cell(row[t]) for t in titles] for row in results[part]]))
        if flags.output:
            flags.output.write_text(json.dumps(results, indent=1), encoding="utf-8")


def exactness(sizes: Sizes) -> list[dict[str, Any]]:
    """Return the relative errors of both implementations, for layouts, head widths and dropout."""
    cases = [("register", width, 0.1) for width in (16, 32, 64, 128)]
    cases += [(layout, 64, rate) for layout in ("causal", "prefix_trigger") for rate in (0.0, 0.1)]
    cases += [("register", 64, 0.0)]
    compiled = _compile_all([_error_program(sizes, *case) for case in cases])
    rows = []
    for case, (run, arguments) in zip(cases, compiled, strict=True):
        errors = jax.device_get(run(*arguments))
        row = dict(zip(("layout", "head width", "dropout"), case, strict=True))
        for name in MODULES:
            outputs, gradients = map(float, errors[name])
            row |= {f"{name}, outputs": outputs, f"{name}, gradients": gradients}
        rows.append(row)
    return rows


def _error_program(sizes: Sizes, layout: str, width: int, rate: float) -> tuple[Any, Any]:
    """Return a function that compares both implementations with an exact one, and its arguments."""
    small = dataclasses.replace(sizes, rows=min(sizes.rows, 4))
    stage = LAYOUTS[layout].stages[0]
    states, segments = draw_states(stage, small, width, packed=True)
    weights, _ = draw_states(stage, small, width, packed=True, seed=1)

    def gradients(module: Any, states: Any, key: jax.Array) -> Any:
        read = attention(module, stage, segments, rate)
        outputs, back = jax.vjp(lambda states: read(states, key), states)
        weights_of = {role: weights[0][role].astype(x.dtype) for role, x in outputs.items()}
        return outputs, back(weights_of)

    def compare(states: Any, key: jax.Array) -> dict[str, Any]:
        with jax.default_matmul_precision("highest"):
            exact = gradients(split, jax.tree.map(lambda x: x.astype(jnp.float32), states), key)
        return {
            name: tuple(
                _largest_error(one, other)
                for one, other in zip(gradients(module, states, key), exact, strict=True)
            )
            for name, module in MODULES.items()
        }

    return compare, (states, jax.random.key(3))


def _largest_error(states: Any, exact: Any) -> jax.Array:
    """Return the largest relative error of the arrays of a tree."""
    leaves = zip(jax.tree.leaves(states), jax.tree.leaves(exact), strict=True)
    return jnp.stack(
        [
            jnp.linalg.norm(one.astype(jnp.float32) - other) / jnp.linalg.norm(other)
            for one, other in leaves
        ]
    ).max()


def speeds(sizes: Sizes) -> list[dict[str, Any]]:
    """Return milliseconds of a register layer, forward and with gradients."""
    cases: list[tuple[str, int, bool, float]] = []
    for width in sizes.widths:
        cases += [
            (name, width, packed, rate)
            for packed, rate in ((False, 0.0), (False, 0.1), (True, 0.0), (True, 0.1))
            for name in MODULES
        ]
        if jax.default_backend() == "gpu":
            cases.append(("cudnn", width, False, 0.0))
    programs = [
        program for case in cases for program in (_timed(sizes, *case), _timed(sizes, *case, True))
    ]
    times = _times(_compile_all(programs))
    titles = ("attention", "head width", "packed", "dropout")
    return [
        dict(zip(titles, case, strict=True)) | {"forward, ms": forward, "and backward, ms": both}
        for case, forward, both in zip(cases, times[::2], times[1::2], strict=True)
    ]


def tile_speeds(sizes: Sizes) -> list[dict[str, Any]]:
    """Return milliseconds of a packed layer with other blocks in one kernel at a time."""
    rows, programs = [], []
    standard = dict(gpu_kernel.TILES)
    for width in sizes.widths:
        for name, candidate in [("forward", standard["forward"])] + [
            (name, gpu_kernel.Tiles(*candidate)) for name in standard for candidate in CANDIDATES
        ]:
            gpu_kernel.TILES[name] = candidate
            run, arguments = _timed(sizes, "fused", width, True, 0.1, gradients=True)
            lowered = jax.jit(run).lower(*arguments)  # takes the blocks of now
            programs.append((lowered, arguments))
            gpu_kernel.TILES[name] = standard[name]
            rows.append({"head width": width, "kernel": name} | candidate._asdict())
    times = _times(_compile_all(programs))
    for row, milliseconds in zip(rows, times, strict=True):
        row["forward and backward, ms"] = milliseconds
    return rows


def attention(module: Any, stage: Stage, segments: Any, rate: float) -> Attention:
    """Return the attention of a stage by an implementation."""

    def read(states: Any, key: jax.Array) -> Any:
        keys = iter(jax.random.split(key, len(stage.roles)))

        def dropout() -> DropoutMask:
            return DropoutMask(rate, next(keys)) if rate else DropoutMask()

        return module.attend(stage, module.make_masks(stage, segments), *states, dropout=dropout)

    return read


def _timed(
    sizes: Sizes, name: str, width: int, packed: bool, rate: float, gradients: bool = False
) -> tuple[Any, Any]:
    """Return a program that attends `REPEATS` times, with its arguments."""
    stage = LAYOUTS["register"].stages[0]
    states, segments = draw_states(stage, sizes, width, packed)
    module = _Cudnn if name == "cudnn" else MODULES[name]
    read = attention(module, stage, segments, rate)

    def once(states: Any, key: jax.Array) -> Any:
        """Return states that depend on all results and are nearly the old ones."""
        outputs, back = jax.vjp(lambda states: read(states, key), states)
        changes = back(outputs)[0] if gradients else [outputs]
        changed = jax.tree.map(lambda x, change: x + change * 1e-3, states[: len(changes)], changes)
        return [*changed, *states[len(changes) :]]

    def repeat(states: Any, key: jax.Array) -> Any:
        return jax.lax.fori_loop(0, REPEATS, lambda _, states: once(states, key), states)

    return repeat, (states, jax.random.key(5))


class _Cudnn:
    """cuDNN's attention with the interface of an implementation, without masks and dropout."""

    @staticmethod
    def make_masks(stage: Stage, segments: Any) -> None:
        """Return nothing: every query attends to every key."""

    @staticmethod
    def attend(
        stage: Stage, masks: Any, queries: Any, keys: Any, values: Any, *, dropout: Any
    ) -> dict[str, jax.Array]:
        """Attend as `split.attend` does, to all keys of the visible roles."""
        del masks, dropout
        return {
            role: jax.nn.dot_product_attention(
                queries[role],
                *(
                    jnp.concatenate([spans[r] for r in stage.key_roles(role)], 1)
                    for spans in (keys, values)
                ),
                scale=1.0,
                implementation="cudnn",
            )
            for role in stage.roles
        }


def draw_states(
    stage: Stage, sizes: Sizes, width: int, packed: bool, seed: int = 0
) -> tuple[list[dict[str, jax.Array]], dict[str, jax.Array]]:
    """Draw queries, keys and values in bfloat16, and segments whose last positions are padding."""
    rng = np.random.default_rng(seed)
    lengths = {role: sizes.length for role in stage.roles}
    lengths |= {role: sizes.length // 2 for role in lengths if role == "register"}
    lengths |= {role: max(16, sizes.length // 16) for role in lengths if role == "trigger"}

    def draw(role: str, scale: float) -> jax.Array:
        shape = (sizes.rows, lengths[role], WIDTH // width, width)
        return jnp.asarray(rng.normal(size=shape) * scale, jnp.bfloat16)

    states = [
        {role: draw(role, scale) for role in stage.roles} for scale in (width**-0.5, 1.0, 1.0)
    ]
    ends = np.cumsum(rng.integers(2, 2 * sizes.sentence - 1, (sizes.rows, sizes.length)), 1)
    segments = {}
    for role, length in lengths.items():
        position = np.arange(length) * sizes.length // length
        ids = (ends[:, None] <= position[:, None]).sum(2) + 1 if packed else None
        ids = np.ones((sizes.rows, length), int) if ids is None else ids
        ids[:, length - max(1, length // 25) :] = 0
        segments[role] = jnp.asarray(ids, jnp.int32)
    return states, segments


def _compile_all(programs: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Compile functions or lowered ones on all cores; return them with their arguments."""

    def compile_one(program: tuple[Any, Any]) -> tuple[Any, Any]:
        run, arguments = program
        lowered = run if hasattr(run, "compile") else jax.jit(run).lower(*arguments)
        return lowered.compile(), arguments

    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(compile_one, programs))


def _times(programs: Sequence[tuple[Any, Any]], rounds: int = 5) -> list[float]:
    """Return milliseconds of one attention, the median of interleaved rounds."""
    seconds: list[list[float]] = [[] for _ in programs]
    with alone():
        for _ in range(rounds + 1):
            for i, (run, arguments) in enumerate(programs):
                start = time.perf_counter()
                jax.block_until_ready(run(*arguments))
                seconds[i].append(time.perf_counter() - start)
    return [1000 * float(np.median(times[1:])) / REPEATS for times in seconds]


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _interpret() -> None:
    """Run kernels on the CPU, as if it were a GPU."""
    pl.pallas_call = functools.partial(pl.pallas_call, interpret=True)
    fused.platform = lambda: "gpu"
    global CANDIDATES, REPEATS
    CANDIDATES, REPEATS = CANDIDATES[:2], 2


if __name__ == "__main__":
    run_command(main)
