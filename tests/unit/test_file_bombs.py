"""Decompression bombs and similar files are refused before they use memory."""

from __future__ import annotations

import contextlib
import copy
import json
import struct
import tracemalloc
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mnmt_jax.errors import UserError
from mnmt_jax.interop.safetensors import read_safetensors
from mnmt_jax.interop.torch_files import read_torch
from tests.unit.test_tensor_files import tensor_program, write_pickle

_LITTLE = 1 << 23  # bytes


@contextlib.contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < _LITTLE
    finally:
        tracemalloc.stop()


def refused(path: Path, message: str, read=read_torch) -> None:
    with little_memory(), pytest.raises(UserError, match=message) as caught:
        read(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_compressed_bombs_are_refused_by_size(tmp_path):
    count = 1 << 23
    with zipfile.ZipFile(tmp_path / "x.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        tail = f"I0\n(I{count}\nt(I1\nt"
        archive.writestr("a/data.pkl", tensor_program("FloatStorage", count, tail))
        archive.writestr("a/data/0", bytes(4 * count))
    assert (tmp_path / "x.pt").stat().st_size < 100_000
    refused(tmp_path / "x.pt", r"is compressed .*as torch.save never does; refused")


@pytest.mark.parametrize("copies", [3, 1000])
def test_overlapping_zip_members_are_refused(tmp_path, copies):
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        tail = "I0\n(I2048\nt(I1\nt"
        archive.writestr("a/data.pkl", tensor_program("FloatStorage", 2048, tail))
        archive.writestr("a/data/0", bytes(4 * 2048))
        for number in range(1, copies):
            again = copy.copy(archive.filelist[1])
            again.filename = f"a/data/{number}"
            archive.filelist.append(again)
    refused(tmp_path / "x.pt", rf"holds {8192 * copies + 1:,}|says that it holds .* refused")


def test_a_declared_size_beyond_the_file_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        tail = "I0\n(I1000000000\nt(I1\nt"
        archive.writestr("a/data.pkl", tensor_program("FloatStorage", 10**9, tail))
        archive.writestr("a/data/0", b"few")
        archive.filelist[1].file_size = archive.filelist[1].compress_size = 4 * 10**9
    refused(tmp_path / "x.pt", r"says that it holds 4,000,\d+,\d+ bytes but has .* refused")


TEXT = b"X" + struct.pack("<I", 5000) + b"x" * 5000 + b"q\0"  # remembered as 0
LIST = b"](" + b"K\1" * 5000 + b"eq\0"
_TWICE = (b"h%ch%c\x86q%c0" % (n, n, n + 1) for n in range(60))  # each holds the one before twice
NESTED = b"K\1\x85q\x000" + b"".join(_TWICE) + b"h\x3c"
BOMBS = {
    "an empty list per byte": (b"]" * ((1 << 23) + 1) + b".", "data.pkl has 8,388,"),
    "bytes that are not there": (b"\x96" + struct.pack("<Q", 1 << 34) + b".", "BYTEARRAY8"),
    "copies of a list": (LIST + b"ctorch\nSize\nq\1" + b"h\1h\0\x85R" * 20000 + b".", "repeats"),
    "copies of a text": (
        TEXT + b"c_codecs\nencode\nq\1" + b"h\1h\0\x85R" * 20000 + b".",
        "repeats",
    ),
    "copies of attributes": (
        b"}(" + b"".join(b"M%sK\1" % struct.pack("<H", n) for n in range(5000)) + b"uq\0"
        b"cargparse\nNamespace\nq\1" + b"h\1)Rh\0b" * 20000 + b".",
        "repeats",
    ),
    "a key that takes for ever": (b"}" + NESTED + b"K\1s.", "has keys that are neither"),
    "a name that takes for ever": (
        b"ctorch\ndevice\n" + NESTED + b"\x85R.",
        "a device that is none",
    ),
    "a set": (b"\x8f(" + NESTED + b"\x90.", "EMPTY_SET"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_growing_pickles_are_refused(tmp_path, name):
    program, message = BOMBS[name]
    refused(write_pickle(tmp_path / "x.pt", program), f"{message}.*nothing was executed")


@pytest.mark.parametrize(
    ("program", "operation"),
    [(b"(S'true'\nios\nsystem\n.", "INST"), (b"(cos\nsystem\nS'true'\no.", "OBJ|names os.system")],
)
def test_pickle_operations_not_needed_for_weights_are_refused(tmp_path, program, operation):
    message = rf"({operation}), which weights do not need; refused, nothing was executed"
    refused(write_pickle(tmp_path / "x.pt", program), message)


def test_a_tensor_beyond_its_storage_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        tail = "I0\n(I1000000000\nt(I0\nt"
        archive.writestr("a/data.pkl", tensor_program("FloatStorage", 6, tail))
        archive.writestr("a/data/0", bytes(24))
    refused(tmp_path / "x.pt", "a tensor is larger than its storage")


def write_header(path: Path, header: str, data: int = 8) -> Path:
    text = header.encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(data))
    return path


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (
            json.dumps(
                {str(n): {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} for n in range(99)}
            ),
            "says that it holds 792 bytes of tensors but has 8; refused",
        ),
        (
            '{"a": {"dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 0]}}',
            "not its shape's",
        ),
        ('{"a": {"dtype": ["F32"], "shape": [2], "data_offsets": [0, 8]}}', "header is damaged"),
        ('{"a": {"dtype": "F32", "shape": [2], "data_offsets": ["x", 8]}}', "header is damaged"),
        ("[" * 100_000, "header is damaged"),
    ],
)
def test_safetensors_beyond_their_file_are_refused(tmp_path, header, message):
    refused(write_header(tmp_path / "x.safetensors", header), message, read_safetensors)


def test_an_oversized_header_is_not_read(tmp_path):
    path = tmp_path / "x.safetensors"
    with path.open("wb") as file:
        file.write((30_000_000).to_bytes(8, "little"))
        file.truncate(40_000_000)
    refused(path, "not a safetensors file", read_safetensors)


def test_valid_files_are_accepted(tmp_path):
    """A thousand tensors of one number each: names outweigh data."""
    from mnmt_jax.files.lazy_array import LazyArray
    from mnmt_jax.interop.torch_files import write_torch

    tensors = {f"layer.{n}.weight": LazyArray.of(np.float32([n])) for n in range(1000)}
    write_torch(tmp_path / "x.pt", {"model": tensors})
    actual = read_torch(tmp_path / "x.pt")["model"]
    assert [actual[name].read()[0] for name in tensors] == list(range(1000))
