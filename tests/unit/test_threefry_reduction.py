"""The generator of the tests equals JAX's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import threefry_reduction


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_known_answers_of_random123(key, counter, expected):
    """From Random123, tests/kat_vectors: threefry2x32 20."""
    words = [jnp.uint32(word) for word in (*key, *counter)]
    assert tuple(map(int, threefry_reduction.threefry(*words))) == expected


def test_a_batched_draw_equals_single_draws():
    keys = jax.random.split(jax.random.key(3), 4)
    together = jax.vmap(lambda key: jax.random.bits(key, (5,)))(keys)
    np.testing.assert_array_equal(together, [jax.random.bits(key, (5,)) for key in keys])
