"""A model's methods as one program each: by itself, every operation would be one to compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from mnmt_jax.config.sections import Mesh
from mnmt_jax.distributed.sharding import jit_with_mesh, make_mesh, place_batch
from mnmt_jax.model.network import Network


def compiled(model: Network, *arguments: Any, **options: Any) -> Callable[[Any, Any], Any]:
    """Return `apply` as a function of parameters and batch, to be called several times.

    It traces and compiles once for each set of shapes, where every call of `apply` does.

    Args:
        model: the network.
        arguments: arguments of the method, constants of the program.
        options: options of `model.apply` and the method, likewise.
    """

    @jax.jit
    def run(params: Any, batch: Any) -> Any:
        return model.apply({"params": params}, batch, *arguments, **options)

    return lambda params, batch: jax.tree.map(np.asarray, run(params, batch))


def apply(model: Network, params: Any, batch: Any, *arguments: Any, **options: Any) -> Any:
    """Return what `model.apply` does, as NumPy arrays: indexing others compiles a program too.

    Args:
        model: the network.
        params: its parameters.
        batch: arrays by name.
        arguments: of the method, constants of the program.
        options: of `model.apply` and the method, likewise.
    """
    return compiled(model, *arguments, **options)(params, batch)


def assert_same_on_a_mesh(
    model: Network, params: Any, batch: Any, mesh: Mesh, *, atol: float
) -> None:
    """Assert that a model computes on eight devices what it computes on one."""
    devices = make_mesh(mesh, jax.devices()[:8])
    run = jit_with_mesh(devices, lambda p, b: model.apply({"params": p}, b))
    actual = run(params, place_batch(jax.tree.map(np.asarray, batch), devices))
    np.testing.assert_allclose(np.asarray(actual), apply(model, params, batch), atol=atol)
