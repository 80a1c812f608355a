"""Milliseconds of the products of a decoding step with float32 and int8 weights, beside PyTorch's.

    taskset --cpu-list 0 python benchmarks/int8_products.py --rows 32 160 --vocab_size 8000

The shapes are those of an encoder-decoder's decoder, the rows are lines times beam size. `int8` is
the product of `Decode.weights='int8'`, with the rounding of the states; PyTorch's is its dynamic
quantisation, by the engine it prefers (FBGEMM or oneDNN), if PyTorch is installed. Attention and
search take the same time with either weights, so translation gains less than the products.
"""

from __future__ import annotations

import argparse
import collections
import functools
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from turns import medians

from mnmt_jax.model.quantized_weights import Int8, to_int8
from mnmt_jax.pages.markdown_tables import markdown_table
from mnmt_jax.runtime.run_command import run_command

FLOAT32 = "float32"


def main() -> None:
    """Measure all products and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[32, 160])
    parser.add_argument("--embed", type=int, default=512)
    parser.add_argument("--mlp", type=int, default=2048)
    parser.add_argument("--vocab_size", type=int, default=8000)
    parser.add_argument("--layers", type=int, default=12, help="of the decoder")
    parser.add_argument("--rounds", type=int, default=20)
    flags = parser.parse_args()
    square, layers = (flags.embed, flags.embed), flags.layers
    counts = {  # inputs, features -> products of a step
        square: 6 * layers,  # queries, keys, values and outputs; queries and outputs of the source
        (flags.embed, flags.mlp): layers,
        (flags.mlp, flags.embed): layers,
        (flags.embed, flags.vocab_size): 1,
    }
    rows = [row for number in flags.rows for row in _table(number, counts, flags.rounds)]
    engines = list(rows[0])[3:]
    header = [*list(rows[0])[:3], *(f"{name}, ms (speed)" for name in engines)]
    print(markdown_table(header, [list(row.values()) for row in rows]))


def _table(rows: int, counts: Mapping[tuple[int, int], int], rounds: int) -> list[dict[str, str]]:
    """Return the products of a step and, last, all of them, with milliseconds by engine."""
    table, step = [], collections.Counter[str]()
    for (inputs, features), count in counts.items():
        seconds = medians(_products(rows, inputs, features), rounds)
        step.update({name: count * value for name, value in seconds.items()})
        table.append(_row(rows, f"{inputs} x {features}", count, seconds))
    return [*table, _row(rows, "all", sum(counts.values()), step)]


def _row(rows: int, product: str, count: int, seconds: Mapping[str, float]) -> dict[str, str]:
    cells = {"rows": f"{rows}", "inputs x features": product, "per step": f"{count}"}
    speeds = {name: seconds[FLOAT32] / value for name, value in seconds.items()}
    return cells | {
        name: f"{1e3 * value:.3f} ({speeds[name]:.2f})" for name, value in seconds.items()
    }


def _products(rows: int, inputs: int, features: int) -> dict[str, Callable[[], Any]]:
    """Return the product of states [rows, inputs] and a kernel, by engine."""
    draw = np.random.default_rng(0)
    states = draw.standard_normal((rows, inputs), np.float32)
    kernel = draw.standard_normal((inputs, features), np.float32)
    values, scale = to_int8(jnp.asarray(kernel), (0,))
    int8 = Int8(values, scale.reshape(features), (0,))
    multiply = jax.jit(lambda weights, array: array @ weights)
    multiply_int8 = jax.jit(lambda weights, array: weights.product(array))
    array = jnp.asarray(states)
    ours = {
        FLOAT32: functools.partial(multiply, jnp.asarray(kernel), array),
        "int8": functools.partial(multiply_int8, int8, array),
    }
    return ours | (_torch_products(states, kernel) if importlib.util.find_spec("torch") else {})


def _torch_products(states: np.ndarray, kernel: np.ndarray) -> dict[str, Callable[[], Any]]:
    """Return PyTorch's product of states [rows, inputs] and a kernel [inputs, features]."""
    import torch

    torch.set_num_threads(1)
    inputs, features = kernel.shape
    linear = torch.nn.Linear(inputs, features, bias=False)
    linear.weight.data = torch.tensor(kernel.T.copy())
    model, tensor = torch.nn.Sequential(linear), torch.tensor(states)
    quantized = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, torch.qint8)
    return {
        "PyTorch float32": lambda: model(tensor).detach().numpy(),
        "PyTorch int8": lambda: quantized(tensor).detach().numpy(),
    }


if __name__ == "__main__":
    run_command(main)
