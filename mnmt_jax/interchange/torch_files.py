"""PyTorch's `.pt` and `.bin` files without PyTorch, and without running what they say.

Such a file is a zip with a pickle and the bytes of each storage. A pickle is a program: it may call
whatever it can name. Here it can name a short list of things, each replaced by a harmless stand-in
of ours, and anything else ends the reading. Values are read later, one tensor at a time.

Source: the layout that `torch.save` has written since PyTorch 1.6.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import io
import pickle
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from mnmt_jax.errors import UserError
from mnmt_jax.lazy_array import LazyArray

_CHUNK = 1 << 24
# The classes written in Python: theirs are the operations that can be taken away or added.
_Unpickler: Any = pickle._Unpickler
_Pickler: Any = pickle._Pickler
_STORAGES = {
    "DoubleStorage": np.dtype("<f8"),
    "FloatStorage": np.dtype("<f4"),
    "HalfStorage": np.dtype("<f2"),
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "LongStorage": np.dtype("<i8"),
    "IntStorage": np.dtype("<i4"),
    "ShortStorage": np.dtype("<i2"),
    "CharStorage": np.dtype("i1"),
    "ByteStorage": np.dtype("u1"),
    "BoolStorage": np.dtype("?"),
}
_STORAGE_NAMES = {dtype: name for name, dtype in _STORAGES.items()}


def read_torch(path: str | Path) -> Any:
    """Opens a file that `torch.save` wrote.

    Args:
        path: the file.

    Returns:
        What was saved: dictionaries, lists, numbers, text, `argparse.Namespace`, and a `LazyArray`
        for each tensor.

    Raises:
        UserError: if the file is damaged, of the format before PyTorch 1.6, or names anything but
            data; nothing of it has been run then.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    if not zipfile.is_zipfile(path):
        raise UserError(
            f"{path}: not in the zip format of PyTorch 1.6 and later, or cut off; save it again "
            "with torch.save of a current version"
        )
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        roots = [name for name in names if name.split("/")[1:] == ["data.pkl"]]
        if len(roots) != 1:
            raise UserError(f"{path}: holds no data.pkl; it is not a file of torch.save")
        folder = roots[0].removesuffix("data.pkl")
        if f"{folder}byteorder" in names and archive.read(f"{folder}byteorder") != b"little":
            raise UserError(f"{path}: was written on a big-endian machine; convert it there")
        sizes = {info.filename: info.file_size for info in archive.infolist()}
        program = archive.read(roots[0])
    try:
        return _Reader(io.BytesIO(program), path, folder, sizes).load()
    except UserError:
        raise
    except Exception as error:  # damaged pickles end in errors of many types
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise UserError(
            f"{path}: data.pkl is damaged or more than weights ({reason}); nothing was run"
        ) from error


class _Reader(_Unpickler):
    """Loads a pickle that can name nothing but `_ALLOWED` and the storages.

    Operations that set attributes are limited to attributes of plain data, or a pickle could change
    classes of this process; operations that no current pickle of PyTorch has are left out.
    """

    dispatch = _Unpickler.dispatch.copy()
    for _left_out in (pickle.EXT1, pickle.EXT2, pickle.EXT4, pickle.INST, pickle.OBJ):
        del dispatch[_left_out[0]]

    def __init__(
        self, program: io.BytesIO, path: Path, folder: str, sizes: Mapping[str, int]
    ) -> None:
        super().__init__(program, encoding="utf-8")
        self._path, self._folder, self._sizes = path, folder, sizes

    def find_class(self, module: str, name: str) -> Any:
        """Returns our stand-in for a name, if it has one."""
        if module in ("torch", "torch.storage") and name in _STORAGES:
            return _StorageType(name)
        allowed = _ALLOWED.get((module, name))
        if allowed is None:
            raise UserError(
                f"{self._path}: names {module}.{name}, which weights do not need; refused, nothing "
                "was run. Save the weights alone, e.g. as safetensors"
            )
        return allowed

    def persistent_load(self, pid: Any) -> _Storage:
        """Returns the storage that a reference of the pickle stands for."""
        kind, storage_type, key, _, count = pid
        if kind != "storage" or not isinstance(storage_type, _StorageType):
            raise ValueError(f"unknown reference {kind!r}")
        member, dtype = f"{self._folder}data/{key}", _STORAGES[storage_type.name]
        if self._sizes.get(member) != int(count) * dtype.itemsize:
            raise ValueError(f"storage {key} is missing or cut off")
        return _Storage(self._path, member, dtype, int(count))

    def _build(self) -> None:
        """Gives an object its attributes: to a namespace alone, others do not need theirs."""
        state, target = self.stack.pop(), self.stack[-1]
        if type(target) is argparse.Namespace and type(state) is dict:
            vars(target).update(state)
        elif type(target) not in (collections.OrderedDict, _Dtype):
            raise ValueError(f"sets attributes of a {type(target).__name__}")

    dispatch[pickle.BUILD[0]] = _build


@dataclasses.dataclass(frozen=True)
class _StorageType:
    name: str


@dataclasses.dataclass(frozen=True)
class _Storage:
    path: Path
    member: str
    dtype: np.dtype
    count: int

    def read(self) -> np.ndarray:
        """Returns all values of the storage; the zip's checksum is checked on the way."""
        data = np.empty(self.count * self.dtype.itemsize, np.uint8)
        filled = 0
        with zipfile.ZipFile(self.path) as archive, archive.open(self.member) as file:
            while piece := file.read(_CHUNK):
                data[filled : filled + len(piece)] = np.frombuffer(piece, np.uint8)
                filled += len(piece)
        return data.view(self.dtype)


def _tensor(storage: _Storage, offset: int, size: Any, stride: Any, *_: Any) -> LazyArray:
    """Stands for `torch._utils._rebuild_tensor_v2`."""
    shape, steps = tuple(map(int, size)), tuple(map(int, stride))
    if not isinstance(storage, _Storage) or len(shape) != len(steps):
        raise ValueError("a tensor without storage")
    empty = 0 in shape
    last = offset + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))
    if min((*shape, *steps, offset), default=0) < 0 or (not empty and last >= storage.count):
        raise ValueError("a tensor reaches beyond its storage")

    def read() -> np.ndarray:
        values = storage.read()[offset:]
        strides = tuple(step * storage.dtype.itemsize for step in steps)
        return np.lib.stride_tricks.as_strided(values, shape, strides, writeable=False)

    return LazyArray(shape, storage.dtype, read, (storage.member, offset, shape, steps))


def _parameter(tensor: Any, *_: Any) -> Any:
    """Stands for `torch._utils._rebuild_parameter`."""
    return tensor


class _Dtype:
    """Stands for `numpy.dtype`: plain numbers only."""

    def __init__(self, code: str, *_: Any) -> None:
        self.dtype = np.dtype(code if code in ("f8", "f4", "f2", "i8", "i4", "b1") else "V1")


def _scalar(kind: _Dtype, data: bytes) -> Any:
    """Stands for NumPy's `scalar`."""
    return np.frombuffer(data, kind.dtype)[0].item()


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """Stands for `_codecs.encode`, which bytes are pickled with."""
    return text.encode("latin1" if encoding == "latin1" else "utf-8")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("argparse", "Namespace"): argparse.Namespace,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch", "Size"): tuple,
    ("torch", "device"): lambda *place: ":".join(map(str, place)),
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("_codecs", "encode"): _encode,
}


def write_torch(path: str | Path, data: Mapping[str, Any]) -> None:
    """Writes what `torch.load` reads, one tensor at a time.

    Args:
        path: the file.
        data: dictionaries, lists, numbers, text, `argparse.Namespace` and `LazyArray`. Arrays with
            the same `storage` are written once and share their memory when loaded.
    """
    program = io.BytesIO()
    writer = _Writer(program)
    writer.dump(data)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", program.getvalue())
        archive.writestr("archive/byteorder", b"little")
        for key, array in enumerate(writer.arrays):
            info = zipfile.ZipInfo(f"archive/data/{key}")
            with archive.open(info, "w", force_zip64=True) as file:
                values = np.ascontiguousarray(array.read(), array.dtype)
                file.write(values.reshape(-1).view(np.uint8).data)
        archive.writestr("archive/version", b"3\n")


@dataclasses.dataclass(frozen=True)
class _Name:
    """Something of PyTorch's, written by its name alone."""

    module: str
    name: str

    def __call__(self) -> None:
        """Makes pickle accept it as the function of a reduction."""


class _OutStorage:
    def __init__(self, key: int, array: LazyArray) -> None:
        self.key, self.array = key, array


class _Writer(_Pickler):
    """Pickles `LazyArray` as PyTorch pickles tensors, in protocol 2 as PyTorch does."""

    dispatch = _Pickler.dispatch.copy()

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=2)
        self.arrays: list[LazyArray] = []
        self._storages: dict[Any, _OutStorage] = {}

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, _OutStorage):
            return None
        kind = _Name("torch", _STORAGE_NAMES[obj.array.dtype])
        return ("storage", kind, str(obj.key), "cpu", obj.array.size)

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, LazyArray):
            return NotImplemented
        identity = obj.storage if obj.storage is not None else ("own", id(obj))
        if identity not in self._storages:
            self._storages[identity] = _OutStorage(len(self.arrays), obj)
            self.arrays.append(obj)
        strides = tuple(int(np.prod(obj.shape[axis + 1 :])) for axis in range(len(obj.shape)))
        rest: tuple[Any, ...] = (0, tuple(obj.shape), strides, False, collections.OrderedDict())
        return _Name("torch._utils", "_rebuild_tensor_v2"), (self._storages[identity], *rest)

    def _save_name(self, obj: _Name) -> None:
        self.write(pickle.GLOBAL + f"{obj.module}\n{obj.name}\n".encode())

    _save: dict[type, Callable[..., None]] = {_Name: _save_name}
    dispatch.update(_save)
