"""safetensors and PyTorch files: round trips, shards, damage, and malicious pickles."""

from __future__ import annotations

import argparse
import collections
import io
import json
import os
import pickle
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from mnmt_jax.errors import UserError
from mnmt_jax.files.lazy_array import LazyArray
from mnmt_jax.interop import torch_files
from mnmt_jax.interop.golden import open_golden
from mnmt_jax.interop.safetensors import read_safetensors, write_safetensors
from mnmt_jax.interop.torch_files import read_torch, write_torch


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "layer.weight": rng.normal(size=(3, 5)).astype(np.float32),
        "half": rng.normal(size=(4,)).astype(np.float16),
        "brain": rng.normal(size=(2, 2)).astype(ml_dtypes.bfloat16),
        "double": rng.normal(size=(2,)),
        "count": np.array(7, np.int64),
        "empty": np.zeros((0, 3), np.float32),
        "flags": np.array([True, False]),
    }


def lazily(values: dict[str, np.ndarray]) -> list[tuple[str, LazyArray]]:
    return [(name, LazyArray.of(array)) for name, array in values.items()]


def assert_equal(actual: dict[str, LazyArray], expected: dict[str, np.ndarray]) -> None:
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        read = actual[name].read()
        assert (read.shape, read.dtype) == (array.shape, array.dtype)
        assert (actual[name].shape, actual[name].dtype) == (array.shape, array.dtype)
        assert read.tobytes() == array.tobytes()


def test_safetensors_round_trip(tmp_path):
    paths = write_safetensors(tmp_path, lazily(arrays()))
    assert [path.name for path in paths] == ["model.safetensors"]
    assert_equal(read_safetensors(paths[0]), arrays())


def test_shards_round_trip(tmp_path):
    paths = write_safetensors(tmp_path, lazily(arrays()), shard_bytes=40)
    assert len(paths) > 3 and paths[-1].name == "model.safetensors.index.json"
    assert_equal(read_safetensors(paths[-1]), arrays())
    index = json.loads(paths[-1].read_text())
    assert index["metadata"]["total_size"] == sum(array.nbytes for array in arrays().values())
    assert set(index["weight_map"]) == set(arrays())


def test_writing_keeps_one_tensor_in_memory(tmp_path):
    alive: list[int] = []

    class Counted(np.ndarray):
        def __del__(self):
            if self.base is None:
                alive.remove(1)

    most = 0

    def read() -> np.ndarray:
        nonlocal most
        array = Counted(4, np.float32)
        array[:] = 1
        alive.append(1)
        most = max(most, len(alive))
        return array

    tensors = [(str(n), LazyArray((4,), np.dtype(np.float32), read)) for n in range(5)]
    write_safetensors(tmp_path, tensors)
    assert most <= 2 and len(read_safetensors(tmp_path / "model.safetensors")) == 5


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:6], "not a safetensors file"),
        (lambda data: data[:-4], "outside the file"),
        (lambda data: b"\xff" * 8 + data[8:], "not a safetensors file"),
        (lambda data: data.replace(b'"F32"', b'"F99"'), "has the type F99"),
        (lambda data: data.replace(b"[3,5]", b"[3,6]"), "not its shape's"),
        (lambda data: data.replace(b'{"__met', b'?"__met'), "header is damaged"),
        (lambda data: data.replace(b"data_offsets", b"data_0ffsets"), "header is damaged"),
    ],
)
def test_damaged_safetensors_are_refused(tmp_path, damage, message):
    path = write_safetensors(tmp_path, lazily(arrays()))[0]
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match=message):
        read_safetensors(path)


def test_bad_indices_are_refused(tmp_path):
    shards = write_safetensors(tmp_path, lazily(arrays()), shard_bytes=40)
    index = shards[-1]
    good = json.loads(index.read_text())
    name = next(iter(good["weight_map"]))

    def rewrite(file: str) -> None:
        places = good["weight_map"] | {name: file}
        index.write_text(json.dumps({"weight_map": places}))

    rewrite("../elsewhere.safetensors")
    with pytest.raises(UserError, match="outside its folder"):
        read_safetensors(index)
    rewrite("absent.safetensors")
    with pytest.raises(UserError, match="no such file"):
        read_safetensors(index)
    rewrite(next(p.name for p in shards if p.name != good["weight_map"][name]))
    with pytest.raises(UserError, match=f"not in the files it names: {name}"):
        read_safetensors(index)
    index.write_text("{}")
    with pytest.raises(UserError, match="not an index"):
        read_safetensors(index)


def state() -> dict:
    values = arrays()
    tensors = collections.OrderedDict(lazily(values))
    weight = values["layer.weight"]
    for name in ("tied", "tied again"):
        tensors[name] = LazyArray(weight.shape, weight.dtype, lambda: weight, "tie")
    settings = argparse.Namespace(layers=2, name="größer", rate=0.5, flags=[True, None])
    return {"args": settings, "model": tensors, "nested": {"history": [1, (2.5, "x")]}}


def test_equal_places_in_two_files_are_not_one_tensor(tmp_path):
    ones, zeros = (np.full((4, 2), value, np.float32) for value in (1, 0))
    for name, values in (("x.pt", ones), ("y.pt", zeros)):
        write_torch(tmp_path / name, {"weight": LazyArray((4, 2), ones.dtype, lambda v=values: v)})
    left, right, again = (read_torch(tmp_path / f"{n}.pt")["weight"].storage for n in "xyx")
    assert left == again != right


def test_torch_files_round_trip(tmp_path):
    write_torch(tmp_path / "x.pt", state())
    actual = read_torch(tmp_path / "x.pt")
    assert actual["args"] == state()["args"] and actual["nested"] == state()["nested"]
    assert isinstance(actual["model"], collections.OrderedDict)
    weight = arrays()["layer.weight"]
    assert_equal(actual["model"], arrays() | {"tied": weight, "tied again": weight})
    tied, again = actual["model"]["tied"], actual["model"]["tied again"]
    assert tied.storage == again.storage != actual["model"]["layer.weight"].storage
    with zipfile.ZipFile(tmp_path / "x.pt") as archive:
        storages = [name for name in archive.namelist() if "/data/" in name]
    assert len(storages) == len(arrays()) + 1


def write_pickle(path: Path, program: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", program)
    return path


class Calling:
    """Pickles as a call."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def harmful(marker: Path) -> dict[str, bytes]:
    """Return pickles that would write a file or change this process if they ran."""
    touch = f"open({str(marker)!r}, 'w').close()"
    calls = {
        "system": Calling(os.system, f"touch {marker}"),
        "eval": Calling(eval, touch),
        "exec": Calling(exec, touch),
        "open": Calling(open, str(marker), "w"),
        "getattr": Calling(getattr, os, "system"),
        "import": Calling(__import__, "os"),
    }
    programs = {}
    for name, call in calls.items():
        for protocol in (0, 2, 4):
            try:
                programs[f"{name} {protocol}"] = pickle.dumps({"model": call}, protocol)
            except (TypeError, pickle.PicklingError):
                continue  # modules cannot be pickled as an argument
    text = str(marker).encode()
    programs["inst"] = b"(S'touch " + text + b"'\nios\nsystem\n."
    programs["obj"] = b"(cos\nsystem\nS'touch " + text + b"'\no."
    programs["dotted"] = b"\x80\x04\x8c\x08argparse\x8c\x12Namespace.__init__\x93."
    programs["attribute of a class"] = (
        b"\x80\x02cargparse\nNamespace\nN}X\x04\x00\x00\x00evilK\x01s\x86b."
    )
    programs["attribute of a function"] = (
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nN}X\x04\x00\x00\x00evilK\x01s\x86b."
    )
    programs["extension"] = b"\x80\x02\x82\x01."
    programs["other reference"] = b"\x80\x02X\x01\x00\x00\x00xQ."
    return programs


def test_pickles_cannot_run_code(tmp_path):
    marker = tmp_path / "ran"
    programs = harmful(marker)
    assert len(programs) > 15
    for name, program in programs.items():
        with pytest.raises(UserError) as refused:
            read_torch(write_pickle(tmp_path / "x.pt", program))
        assert "nothing was executed" in str(refused.value) and "\n" not in str(refused.value), name
        assert not marker.exists(), name
    assert not hasattr(argparse.Namespace, "evil")
    assert not hasattr(torch_files._tensor, "evil")
    for name in ("system 2", "inst", "obj"):  # they do run where nothing stops them
        pickle.loads(programs[name])
        assert marker.exists(), name
        marker.unlink()


def test_a_refused_pickle_operation_is_named(tmp_path):
    program = pickle.dumps(Calling(os.system, "true"), 2)
    with pytest.raises(UserError, match=r"names (posix|nt)\.system.*nothing was executed"):
        read_torch(write_pickle(tmp_path / "x.pt", program))


def tensor_program(storage: str, count: int, rest: str) -> bytes:
    """Return a pickle of one tensor; `rest` is offset, size and stride as pickle text."""
    return (
        f"ctorch._utils\n_rebuild_tensor_v2\n((S'storage'\nctorch\n{storage}\nS'0'\nS'cpu'\n"
        f"I{count}\ntQ{rest}I00\nccollections\nOrderedDict\n(tRtR."
    ).encode()


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("I0\n(I2\nI3\nt(I3\nI1\nt", [[0, 1, 2], [3, 4, 5]]),
        ("I0\n(I3\nI2\nt(I1\nI3\nt", [[0, 3], [1, 4], [2, 5]]),  # a transposed view
        ("I4\n(I2\nt(I1\nt", [4, 5]),
        ("I2\n(I3\nt(I0\nt", [2, 2, 2]),
        ("I5\n(t(t", 5),
        ("I0\n(I7\nt(I1\nt", None),
        ("I3\n(I2\nI2\nt(I3\nI1\nt", None),
        ("I1\n(I2\nt(I-1\nt", None),
        ("I-1\n(I2\nt(I1\nt", None),
        ("I0\n(I2\nt(t", None),
    ],
)
def test_views_of_storages_are_read_and_bounded(tmp_path, rest, expected):
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        archive.writestr("a/data.pkl", tensor_program("FloatStorage", 6, rest))
        archive.writestr("a/data/0", np.arange(6, dtype=np.float32).tobytes())
    if expected is None:
        with pytest.raises(UserError, match=r"beyond its storage|without storage"):
            read_torch(tmp_path / "x.pt")
    else:
        actual = read_torch(tmp_path / "x.pt").read()
        np.testing.assert_array_equal(actual, np.array(expected, np.float32))


@pytest.mark.parametrize(
    ("names", "remedy"),
    [
        ((), "name its file$"),
        (("a.pt", "b.pt"), "name its file, such as .*/a.pt$"),
        (("a.pt", "checkpoint_best.pt"), "name its file, such as .*/checkpoint_best.pt$"),
    ],
)
def test_a_folder_is_not_a_file_of_torch(tmp_path, names, remedy):
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(UserError, match=f"^{tmp_path}: is a folder; {remedy}"):
        read_torch(tmp_path)
    with pytest.raises(UserError, match="is a folder; --format golden reads one .npz file"):
        open_golden(tmp_path)


def test_files_of_other_formats_are_refused(tmp_path):
    path = tmp_path / "x.pt"
    with pytest.raises(UserError, match="no such file"):
        read_torch(path)
    path.write_bytes(pickle.dumps({"model": 1}))  # what torch.save wrote before 1.6 starts so
    with pytest.raises(UserError, match="zip format"):
        read_torch(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("notes.txt", "")
    with pytest.raises(UserError, match=r"holds no data\.pkl"):
        read_torch(path)
    with pytest.raises(UserError, match="damaged"):
        read_torch(write_pickle(path, b"\x80\x02}q"))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", pickle.dumps(1))
        archive.writestr("a/byteorder", b"big")
    with pytest.raises(UserError, match="big-endian"):
        read_torch(path)


def test_a_truncated_storage_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        archive.writestr("a/data.pkl", tensor_program("FloatStorage", 6, "I0\n(I6\nt(I1\nt"))
        archive.writestr("a/data/0", b"\0" * 20)
    with pytest.raises(UserError, match="cut off"):
        read_torch(tmp_path / "x.pt")


def test_numpy_scalars_are_read(tmp_path):
    program = io.BytesIO()
    pickle.Pickler(program, 2).dump({"loss": np.float64(1.5), "best": np.float32(0.25)})
    assert read_torch(write_pickle(tmp_path / "x.pt", program.getvalue())) == {
        "loss": 1.5,
        "best": 0.25,
    }
