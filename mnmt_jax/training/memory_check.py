"""Pre-training check that the devices have enough memory for the parameters."""

from __future__ import annotations

import math

import jax

from mnmt_jax.config.sections import Config
from mnmt_jax.distributed.chips import GIB, device_bytes
from mnmt_jax.errors import UserError
from mnmt_jax.model.shapes import parameter_shapes


def check_state_memory(config: Config, vocab_size: int, mesh: jax.sharding.Mesh) -> None:
    """Check that the devices have at least the memory of the parameters.

    An allocation that a machine cannot fulfil may never return, so it is refused beforehand. The
    bound is low: float32 parameters, split over all devices of the mesh. Gradients and Adam's
    moments exist only for trainable parameters, which may be few.

    Args:
        config: configuration of the run.
        vocab_size: size of its vocabulary.
        mesh: mesh of all devices.

    Raises:
        UserError: otherwise.
    """
    shapes = jax.tree.leaves(parameter_shapes(config.model, vocab_size))
    count = sum(math.prod(leaf.shape) for leaf in shapes)
    needed = 4 * count // mesh.size
    available = device_bytes(jax.local_devices()[0])
    if needed > available:
        raise UserError(
            f"the model has {count:,} parameters, which need at least {needed / GIB:,.1f} GiB on "
            f"each device, which has {available / GIB:,.1f} GiB; lower Model.embed, Model.mlp or "
            "Model.stage_layers, or use more devices"
        )
