"""Dropout as a module."""

from __future__ import annotations

from flax import linen as nn
from jaxtyping import Array, Float

from mnmt_jax.distributed.dropout_mask import DropoutMask


class Dropout(nn.Module):
    """Sets elements to zero with probability `rate` and divides the others by 1 - rate.

    Attributes:
        rate: of elements dropped.
    """

    rate: float

    @nn.compact
    def __call__(self, states: Float[Array, "*b"], deterministic: bool) -> Float[Array, "*b"]:
        """Returns the states that are left; all of them if `deterministic`."""
        return self.drawn(deterministic)(states)

    def drawn(self, deterministic: bool) -> DropoutMask:
        """Draws for one array; nothing is dropped if `deterministic`."""
        return (
            DropoutMask()
            if deterministic or not self.rate
            else DropoutMask(self.rate, self.make_rng("dropout"))
        )
