"""PyTorch's `.pt` and `.bin` files, read and written without PyTorch and without running code.

Such a file is a zip archive with a pickle and the bytes of each storage. A pickle is a program that
may call anything it can name. Here it can name a short list of classes and functions, which are
replaced by harmless stand-ins; any other name is refused. Memory stays close to the size of the
file, because repeated references are counted. Values are read later, one tensor at a time.

Source: the layout that `torch.save` has written since PyTorch 1.6.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import io
import math
import pickle
import pickletools
import zipfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn

import ml_dtypes
import numpy as np

from mnmt_jax.errors import UserError
from mnmt_jax.files.lazy_array import LazyArray

_CHUNK = 1 << 24
# The name and sizes of a tensor take about 200 bytes. One byte of a pickle can take a hundred bytes
# in memory, for example an empty list.
_MAX_PROGRAM = 1 << 23
_REMEDY = "Save the weights alone, e.g. as safetensors"
# The pure-Python classes: only their operations can be removed or replaced.
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
_USUAL_NAMES = ("checkpoint.pt", "checkpoint_best.pt", "checkpoint_last.pt")  # of fairseq
_STORAGE_NAMES = {dtype: name for name, dtype in _STORAGES.items()}


def read_torch(path: str | Path) -> Any:
    """Open a file that `torch.save` wrote.

    Args:
        path: the file.

    Returns:
        The saved object: dictionaries, lists, numbers, text, `argparse.Namespace`, and a
        `LazyArray` for each tensor.

    Raises:
        UserError: if the file is damaged, has the format before PyTorch 1.6, names anything but
            data, or declares more bytes than it has; none of its code is run.
    """
    path = Path(path)
    if path.is_dir():
        raise UserError(f"{path}: is a folder; name its file{_suggest_file(path)}")
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    if not zipfile.is_zipfile(path):
        raise UserError(
            f"{path}: not in the zip format of PyTorch 1.6 and later, or cut off; save it again "
            "with torch.save of a current version"
        )
    program, folder, sizes = _read_archive(path)
    try:
        return _Reader(program, path, folder, sizes).load()
    except UserError:
        raise
    except Exception as error:  # damaged pickles raise errors of many types
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise UserError(
            f"{path}: data.pkl is damaged or more than weights ({reason}); nothing was executed"
        ) from error


def _suggest_file(folder: Path) -> str:
    """Return the checkpoint of a folder that is probably meant, for an error; "" if unclear."""
    names = sorted(path.name for path in folder.glob("*.pt") if path.is_file())
    usual = [name for name in _USUAL_NAMES if name in names] or names
    return f", such as {folder / usual[0]}" if usual else ""


def _read_archive(path: Path) -> tuple[bytes, str, dict[str, int]]:
    """Return the pickle, its folder in the zip archive, and the sizes of all members.

    Raises:
        UserError: if `torch.save` did not write the file; it never compresses members.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = _sizes(path, archive.infolist())
            roots = [name for name in sizes if name.split("/")[1:] == ["data.pkl"]]
            if len(roots) != 1:
                raise UserError(f"{path}: holds no data.pkl; it is not a file of torch.save")
            if sizes[roots[0]] > _MAX_PROGRAM:
                raise UserError(
                    f"{path}: its data.pkl has {sizes[roots[0]]:,} bytes, more than the names of "
                    f"weights need ({_MAX_PROGRAM:,}); refused, nothing was executed. {_REMEDY}"
                )
            folder = roots[0].removesuffix("data.pkl")
            if f"{folder}byteorder" in sizes and archive.read(f"{folder}byteorder") != b"little":
                raise UserError(f"{path}: was written on a big-endian machine; convert it there")
            return archive.read(roots[0]), folder, sizes
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError) as error:
        raise UserError(f"{path}: is damaged ({error}); download it again") from error


def _sizes(path: Path, members: list[zipfile.ZipInfo]) -> dict[str, int]:
    """Return the members' sizes; refuse compressed members and a sum above the file's size."""
    for member in members:
        if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size:
            raise UserError(
                f"{path}: '{member.filename}' is compressed ({member.file_size:,} bytes), as "
                "torch.save never does; refused. Pack it again without compression"
            )
    total, size = sum(member.file_size for member in members), path.stat().st_size
    if total > size:
        raise UserError(
            f"{path}: says that it holds {total:,} bytes but has {size:,}; refused. Download it "
            "again"
        )
    return {member.filename: member.file_size for member in members}


class _Operations(dict[int, Callable[..., None]]):
    """Pickle operations by number; an operation that was removed is refused by its name."""

    def __missing__(self, number: int) -> Callable[..., None]:
        known = pickletools.code2op.get(chr(number))  # type: ignore[attr-defined]
        if known is None:
            raise ValueError(f"no operation {number}")

        def refuse(reader: _Reader) -> None:
            reader.refuse(f"uses the operation {known.name}")

        return refuse


class _Reader(_Unpickler):
    """Unpickler that can name only `_ALLOWED` and the storages.

    Operations that set attributes are limited to plain data, because otherwise a pickle could
    change classes of this process. Operations that PyTorch's pickles do not use are removed. A
    pickle can refer to an object repeatedly at a few bytes each, so operations that copy or iterate
    over objects are limited by the pickle's size.
    """

    dispatch = _Operations(_Unpickler.dispatch)
    for _removed in (
        *(pickle.EXT1, pickle.EXT2, pickle.EXT4, pickle.INST, pickle.OBJ, pickle.NEWOBJ_EX),
        *(pickle.DICT, pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET),
        *(pickle.BYTEARRAY8, pickle.NEXT_BUFFER, pickle.READONLY_BUFFER),
    ):
        del dispatch[_removed[0]]

    def __init__(self, program: bytes, path: Path, folder: str, sizes: Mapping[str, int]) -> None:
        super().__init__(io.BytesIO(program), encoding="utf-8")
        self._path, self._folder, self._sizes = path, folder, sizes
        self._copy_budget = 1000 + len(program)

    def refuse(self, what: str) -> NoReturn:
        """Refuse the file.

        Raises:
            UserError: always.
        """
        raise UserError(
            f"{self._path}: {what}, which weights do not need; refused, nothing was executed. "
            f"{_REMEDY}"
        )

    def find_class(self, module: str, name: str) -> Any:
        """Return the stand-in for a name; refuse other names."""
        if module in ("torch", "torch.storage") and name in _STORAGES:
            return _StorageType(name)
        allowed = _ALLOWED.get((module, name))
        if allowed is None:
            self.refuse(f"names {module}.{name}")
        return allowed

    def persistent_load(self, pid: Any) -> _Storage:
        """Return the storage of a persistent id."""
        kind, storage_type, key, _, count = pid
        if kind != "storage" or not isinstance(storage_type, _StorageType):
            raise ValueError(f"unknown reference {kind!r}")
        member, dtype = f"{self._folder}data/{key}", _STORAGES[storage_type.name]
        if self._sizes.get(member) != int(count) * dtype.itemsize:
            raise ValueError(f"storage {key} is missing or cut off")
        return _Storage(self._path, member, dtype, int(count))

    def _build(self) -> None:
        """Set the attributes of a namespace; ignore those of dictionaries and dtypes."""
        state, target = self.stack.pop(), self.stack[-1]
        if type(target) is argparse.Namespace and type(state) is dict:
            self._spend_copy_budget(state)
            vars(target).update(state)
        elif type(target) not in (collections.OrderedDict, _Dtype):
            raise ValueError(f"sets attributes of a {type(target).__name__}")

    def _reduce(self) -> None:
        """Call a stand-in."""
        arguments = self.stack[-1]
        self._spend_copy_budget(arguments)
        for argument in arguments:
            if isinstance(argument, Collection):
                self._spend_copy_budget(argument)
        super().load_reduce()

    def _set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._put([key, value])

    def _set_items(self) -> None:
        self._put(self.pop_mark())

    def _put(self, items: list[Any]) -> None:
        """Add alternating keys and values to the dictionary on top of the stack."""
        if not all(isinstance(key, str | int | float | None) for key in items[::2]):
            self.refuse("has keys that are neither texts nor numbers")
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    def _spend_copy_budget(self, items: Collection[Any]) -> None:
        self._copy_budget -= len(items)
        if self._copy_budget < 0:
            self.refuse("repeats itself to more than its size")

    dispatch[pickle.BUILD[0]] = _build
    dispatch[pickle.REDUCE[0]] = _reduce
    dispatch[pickle.SETITEM[0]] = _set_item
    dispatch[pickle.SETITEMS[0]] = _set_items


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
        """Return all values of the storage; verifies the checksum of the zip member."""
        data = np.empty(self.count * self.dtype.itemsize, np.uint8)
        filled = 0
        with zipfile.ZipFile(self.path) as archive, archive.open(self.member) as file:
            while chunk := file.read(_CHUNK):
                data[filled : filled + len(chunk)] = np.frombuffer(chunk, np.uint8)
                filled += len(chunk)
        return data.view(self.dtype)


def _tensor(storage: _Storage, offset: int, size: Any, stride: Any, *_: Any) -> LazyArray:
    """Stand-in for `torch._utils._rebuild_tensor_v2`."""
    shape, steps = tuple(map(int, size)), tuple(map(int, stride))
    if not isinstance(storage, _Storage) or len(shape) != len(steps):
        raise ValueError("a tensor without storage")
    is_empty = 0 in shape
    last_index = offset + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))
    if min((*shape, *steps, offset), default=0) < 0 or (
        not is_empty and last_index >= storage.count
    ):
        raise ValueError("a tensor reaches beyond its storage")
    if math.prod(shape) > storage.count:
        raise ValueError("a tensor is larger than its storage")

    def read() -> np.ndarray:
        values = storage.read()[offset:]
        strides = tuple(step * storage.dtype.itemsize for step in steps)
        return np.lib.stride_tricks.as_strided(values, shape, strides, writeable=False)

    return LazyArray(
        shape, storage.dtype, read, (storage.path, storage.member, offset, shape, steps)
    )


def _rebuild_parameter(tensor: Any, *_: Any) -> Any:
    """Stand-in for `torch._utils._rebuild_parameter`."""
    return tensor


def _empty_ordered_dict(*items: Any) -> collections.OrderedDict[Any, Any]:
    """Stand-in for `collections.OrderedDict`; other operations fill it."""
    if items:
        raise ValueError("a dictionary made of other things")
    return collections.OrderedDict()


def _device_name(*components: Any) -> str:
    """Stand-in for `torch.device`."""
    if not all(isinstance(component, str | int) for component in components):
        raise ValueError("a device that is none")
    return ":".join(map(str, components))


class _Dtype:
    """Stand-in for `numpy.dtype`; supports plain numbers only."""

    def __init__(self, code: str, *_: Any) -> None:
        self.dtype = np.dtype(code if code in ("f8", "f4", "f2", "i8", "i4", "b1") else "V1")


def _scalar(kind: _Dtype, data: bytes) -> Any:
    """Stand-in for NumPy's `scalar`."""
    return np.frombuffer(data, kind.dtype)[0].item()


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """Stand-in for `_codecs.encode`, which pickles of bytes call."""
    return text.encode("latin1" if encoding == "latin1" else "utf-8")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): _empty_ordered_dict,
    ("argparse", "Namespace"): argparse.Namespace,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    ("torch", "Size"): tuple,
    ("torch", "device"): _device_name,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("_codecs", "encode"): _encode,
}


def write_torch(path: str | Path, data: Mapping[str, Any]) -> None:
    """Write a file that `torch.load` reads, one tensor at a time.

    Args:
        path: the file.
        data: dictionaries, lists, numbers, text, `argparse.Namespace` and `LazyArray`. Arrays with
            the same `storage` are written once and share memory when loaded.
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
    """A global of PyTorch that is pickled by name."""

    module: str
    name: str

    def __call__(self) -> None:
        """Do nothing; pickle requires the function of a reduction to be callable."""


class _OutputStorage:
    def __init__(self, key: int, array: LazyArray) -> None:
        self.key, self.array = key, array


class _Writer(_Pickler):
    """Pickler that writes a `LazyArray` as PyTorch writes a tensor, in PyTorch's protocol 2."""

    dispatch = _Pickler.dispatch.copy()

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=2)
        self.arrays: list[LazyArray] = []
        self._storages: dict[Any, _OutputStorage] = {}

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, _OutputStorage):
            return None
        kind = _Name("torch", _STORAGE_NAMES[obj.array.dtype])
        return ("storage", kind, str(obj.key), "cpu", obj.array.size)

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, LazyArray):
            return NotImplemented
        identity = obj.storage if obj.storage is not None else ("own", id(obj))
        if identity not in self._storages:
            self._storages[identity] = _OutputStorage(len(self.arrays), obj)
            self.arrays.append(obj)
        strides = tuple(int(np.prod(obj.shape[axis + 1 :])) for axis in range(len(obj.shape)))
        layout: tuple[Any, ...] = (0, tuple(obj.shape), strides, False, collections.OrderedDict())
        return _Name("torch._utils", "_rebuild_tensor_v2"), (self._storages[identity], *layout)

    def _save_name(self, obj: _Name) -> None:
        self.write(pickle.GLOBAL + f"{obj.module}\n{obj.name}\n".encode())

    _save: dict[type, Callable[..., None]] = {_Name: _save_name}
    dispatch.update(_save)
