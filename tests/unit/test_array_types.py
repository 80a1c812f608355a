"""The import hook of conftest is on: a wrong rank or kind of array raises where it enters."""

import jax.numpy as jnp
import pytest
from jaxtyping import TypeCheckError

from mnmt_jax.design.layout import Sees
from mnmt_jax.model.attention.core import masked_softmax, pair_mask


def test_wrong_rank_and_kind_are_refused():
    ids = jnp.ones((2, 3), jnp.int32)
    assert pair_mask(Sees.FULL, ids, ids).shape == (2, 1, 3, 3)
    with pytest.raises(TypeCheckError):
        pair_mask(Sees.FULL, ids[0], ids)
    with pytest.raises(TypeCheckError):
        pair_mask(Sees.FULL, ids, ids.astype(jnp.float32))
    with pytest.raises(TypeCheckError):
        masked_softmax(jnp.zeros((2, 3)), jnp.ones((2, 3), jnp.float32))
