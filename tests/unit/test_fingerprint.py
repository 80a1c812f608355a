"""Fingerprints of arrays are equal on host and devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mnmt_jax.config.sections import Mesh
from mnmt_jax.distributed.sharding import batch_sharding, make_mesh
from mnmt_jax.runs import fingerprint
from mnmt_jax.runs.fingerprint import array_fingerprint, tree_fingerprint


def random_array(shape, dtype):
    return np.asarray(100 * np.random.default_rng(0).normal(size=shape)).astype(dtype)


def by_hand(array):
    """Return the sum of words weighted by position."""
    words = array.view(f"uint{array.itemsize * 8}")
    total = 0
    for index in np.ndindex(array.shape):
        often = 1 + sum(n * 2 * (0x4F1BBCDC >> axis) for axis, n in enumerate(index))
        total += int(words[index]) * often
    return total % (1 << 32)


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.int8, np.uint32])
@pytest.mark.parametrize("shape", [(), (7,), (0, 4), (3, 0), (5, 3), (4, 5, 6), (2, 3, 2, 5)])
def test_host_and_device_fingerprints_equal_a_loop(shape, dtype, monkeypatch):
    monkeypatch.setattr(fingerprint, "_WORDS", 8)  # several parts of each
    array = random_array(shape, dtype)
    actual = int(array_fingerprint(array)), int(fingerprint._of_devices(jnp.asarray(array)))
    assert actual == (by_hand(array),) * 2


def test_strided_and_sharded_arrays_have_the_fingerprint_of_their_values():
    array = random_array((8, 6), np.float32)
    desired = array_fingerprint(array)
    assert array_fingerprint(np.asfortranarray(array)) == desired
    assert array_fingerprint(np.repeat(array, 2, axis=1)[:, ::2]) == desired
    split = jax.device_put(array, batch_sharding(make_mesh(Mesh(fsdp=2))))
    assert array_fingerprint(split) == desired
    assert len({desired, array_fingerprint(array.T), array_fingerprint(array[::-1])}) == 3


def test_every_bit_counts():
    tree = {"a": random_array((3, 2), np.float32), "b": {"c": random_array((2,), np.float32)}}
    actual, before = list[int](), tree_fingerprint(tree)
    for leaf in jax.tree.leaves(tree):
        words = leaf.reshape(-1).view(np.uint32)
        for word in range(words.size):
            for bit in range(32):
                words[word] ^= np.uint32(1 << bit)
                actual.append(tree_fingerprint(tree))
                words[word] ^= np.uint32(1 << bit)
    assert len(actual) == 8 * 32 and before not in actual
    assert tree_fingerprint(tree) == before
