"""Checkpoint arrays are read into memory that a CPU device uses without a copy."""

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from mnmt_jax.errors import UserError
from mnmt_jax.runs.checkpoint_files import array_handler, load_numpy
from mnmt_jax.runs.parameters import load_params, place_params


@pytest.fixture
def folder(tmp_path):
    tree = {"a": {"b": np.arange(600.0, dtype=np.float32).reshape(20, 30)}}
    tree["c"] = np.arange(7).astype(jnp.bfloat16)
    tree["d"] = np.asarray(3, np.int32)
    with ocp.Checkpointer(array_handler()) as writer:
        writer.save(tmp_path / "params", ocp.args.PyTreeSave(tree))
    return tmp_path / "params"


def test_arrays_are_read_without_copying_to_the_device(folder):
    actual = load_numpy(folder)
    np.testing.assert_array_equal(actual["a"]["b"], np.arange(600.0).reshape(20, 30))
    assert actual["c"].dtype == jnp.bfloat16 and actual["c"].tolist() == [*range(7)]
    assert actual["d"].shape == () and int(actual["d"]) == 3
    starts = [leaf.ctypes.data for leaf in jax.tree.leaves(actual)]
    placed = jax.tree.leaves(place_params(actual, None))
    assert [leaf.unsafe_buffer_pointer() for leaf in placed] == starts


def test_files_can_be_deleted_after_reading(folder):
    actual = load_numpy(folder)
    for path in folder.rglob("*"):
        if path.is_file():
            path.write_bytes(b"")
    assert actual["a"]["b"].sum() == 600 * 599 / 2


def test_a_truncated_file_is_an_error(folder):
    (data,) = sorted(folder.rglob("d/*"), key=lambda path: path.stat().st_size)[-1:]
    data.write_bytes(data.read_bytes()[:100])
    with pytest.raises(Exception, match="."):
        load_numpy(folder)


def test_a_folder_without_a_run_has_no_parameters(tmp_path):
    with pytest.raises(UserError, match="no complete checkpoint"):
        load_params(tmp_path)
