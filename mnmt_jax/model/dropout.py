"""Dropout module with mesh-independent masks."""

from __future__ import annotations

from flax import linen as nn
from jaxtyping import Array, Float

from mnmt_jax.distributed.dropout_mask import DropoutMask


class Dropout(nn.Module):
    """Dropout: set elements to zero with probability `rate` and divide the others by 1 - rate.

    Attributes:
        rate: of elements dropped.
    """

    rate: float

    @nn.compact
    def __call__(self, states: Float[Array, "*b"], deterministic: bool) -> Float[Array, "*b"]:
        """Return the states after dropout; unchanged if `deterministic`."""
        return self.draw_mask(deterministic)(states)

    def draw_mask(self, deterministic: bool) -> DropoutMask:
        """Draw a mask for one array; it drops nothing if `deterministic`."""
        return (
            DropoutMask()
            if deterministic or not self.rate
            else DropoutMask(self.rate, self.make_rng("dropout"))
        )
