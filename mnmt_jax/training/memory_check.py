"""Pre-training check that the devices have enough memory for the parameters."""

from __future__ import annotations

import math
from typing import Any

import jax

from mnmt_jax.distributed.chips import GIB, device_bytes
from mnmt_jax.errors import UserError


def check_state_memory(params: Any, mesh: jax.sharding.Mesh) -> None:
    """Check that the devices have at least the memory of the parameters.

    An allocation that a machine cannot fulfil may never return, so it is refused beforehand. The
    bound is low: float32 parameters, split over all devices of the mesh. Gradients and Adam's
    moments exist only for trainable parameters, which may be few.

    Args:
        params: tree of the parameters, or of their shapes.
        mesh: mesh of all devices.

    Raises:
        UserError: otherwise.
    """
    count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
    needed = 4 * count // mesh.size
    available = device_bytes(jax.local_devices()[0])
    if needed > available:
        raise UserError(
            f"the model has {count:,} parameters, which need at least {needed / GIB:,.1f} GiB on "
            f"each device, which has {available / GIB:,.1f} GiB; lower Model.embed, Model.mlp or "
            "Model.stage_layers, or use more devices"
        )
