"""PyTorch's `.pt` and `.bin` files without PyTorch, and without running what they say.

Such a file is a zip with a pickle and the bytes of each storage. A pickle is a program: it may call
whatever it can name. Here it can name a short list of things, each replaced by a harmless stand-in
of ours, and anything else ends the reading. Nor can it take much more memory than the file has
bytes: what it may repeat is counted. Values are read later, one tensor at a time.

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
# Names and sizes of tensors take some 200 bytes each. A byte of a pickle can become a hundred in
# memory, an empty list for instance.
_MAX_PROGRAM = 1 << 23
_REMEDY = "Save the weights alone, e.g. as safetensors"
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
        UserError: if the file is damaged, of the format before PyTorch 1.6, names anything but
            data, or says that it holds more than its own size; nothing of it has been run then.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    if not zipfile.is_zipfile(path):
        raise UserError(
            f"{path}: not in the zip format of PyTorch 1.6 and later, or cut off; save it again "
            "with torch.save of a current version"
        )
    program, folder, sizes = _contents(path)
    try:
        return _Reader(program, path, folder, sizes).load()
    except UserError:
        raise
    except Exception as error:  # damaged pickles end in errors of many types
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise UserError(
            f"{path}: data.pkl is damaged or more than weights ({reason}); nothing was run"
        ) from error


def _contents(path: Path) -> tuple[bytes, str, dict[str, int]]:
    """Returns the pickle, the folder in the zip that it lies in, and the sizes of all members.

    Raises:
        UserError: if it is no file of `torch.save`, which compresses nothing.
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
                    f"weights need ({_MAX_PROGRAM:,}); refused, nothing was run. {_REMEDY}"
                )
            folder = roots[0].removesuffix("data.pkl")
            if f"{folder}byteorder" in sizes and archive.read(f"{folder}byteorder") != b"little":
                raise UserError(f"{path}: was written on a big-endian machine; convert it there")
            return archive.read(roots[0]), folder, sizes
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError) as error:
        raise UserError(f"{path}: is damaged ({error}); download it again") from error


def _sizes(path: Path, members: list[zipfile.ZipInfo]) -> dict[str, int]:
    """Returns the members' sizes, which must fit into the file: nothing inflates, none overlap."""
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
    """The operations of a pickle by number; what is left out refuses itself by name."""

    def __missing__(self, number: int) -> Callable[..., None]:
        known = pickletools.code2op.get(chr(number))  # type: ignore[attr-defined]
        if known is None:
            raise ValueError(f"no operation {number}")

        def refuse(reader: _Reader) -> None:
            reader.refuse(f"uses the operation {known.name}")

        return refuse


class _Reader(_Unpickler):
    """Loads a pickle that can name nothing but `_ALLOWED` and the storages.

    Operations that set attributes are limited to attributes of plain data, or a pickle could change
    classes of this process; operations that no pickle of PyTorch has are left out. A pickle can
    refer to a thing again for a few bytes, so what copies things or walks through them is limited
    by the pickle's size.
    """

    dispatch = _Operations(_Unpickler.dispatch)
    for _left_out in (
        *(pickle.EXT1, pickle.EXT2, pickle.EXT4, pickle.INST, pickle.OBJ, pickle.NEWOBJ_EX),
        *(pickle.DICT, pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET),
        *(pickle.BYTEARRAY8, pickle.NEXT_BUFFER, pickle.READONLY_BUFFER),
    ):
        del dispatch[_left_out[0]]

    def __init__(self, program: bytes, path: Path, folder: str, sizes: Mapping[str, int]) -> None:
        super().__init__(io.BytesIO(program), encoding="utf-8")
        self._path, self._folder, self._sizes = path, folder, sizes
        self._may_copy = 1000 + len(program)

    def refuse(self, what: str) -> NoReturn:
        """Ends the reading.

        Raises:
            UserError: always.
        """
        raise UserError(
            f"{self._path}: {what}, which weights do not need; refused, nothing was run. {_REMEDY}"
        )

    def find_class(self, module: str, name: str) -> Any:
        """Returns our stand-in for a name, if it has one."""
        if module in ("torch", "torch.storage") and name in _STORAGES:
            return _StorageType(name)
        allowed = _ALLOWED.get((module, name))
        if allowed is None:
            self.refuse(f"names {module}.{name}")
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
            self._count(state)
            vars(target).update(state)
        elif type(target) not in (collections.OrderedDict, _Dtype):
            raise ValueError(f"sets attributes of a {type(target).__name__}")

    def _reduce(self) -> None:
        """Calls one of our stand-ins."""
        arguments = self.stack[-1]
        self._count(arguments)
        for argument in arguments:
            if isinstance(argument, Collection):
                self._count(argument)
        super().load_reduce()

    def _set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._put([key, value])

    def _set_items(self) -> None:
        self._put(self.pop_mark())

    def _put(self, items: list[Any]) -> None:
        """Puts keys and values, which take turns, into the dictionary that is being made."""
        if not all(isinstance(key, str | int | float | None) for key in items[::2]):
            self.refuse("has keys that are neither texts nor numbers")
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    def _count(self, copied: Collection[Any]) -> None:
        self._may_copy -= len(copied)
        if self._may_copy < 0:
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
    if math.prod(shape) > storage.count:
        raise ValueError("a tensor is larger than its storage")

    def read() -> np.ndarray:
        values = storage.read()[offset:]
        strides = tuple(step * storage.dtype.itemsize for step in steps)
        return np.lib.stride_tricks.as_strided(values, shape, strides, writeable=False)

    return LazyArray(shape, storage.dtype, read, (storage.member, offset, shape, steps))


def _parameter(tensor: Any, *_: Any) -> Any:
    """Stands for `torch._utils._rebuild_parameter`."""
    return tensor


def _ordered(*items: Any) -> collections.OrderedDict[Any, Any]:
    """Stands for `collections.OrderedDict`, which is filled by other operations."""
    if items:
        raise ValueError("a dictionary made of other things")
    return collections.OrderedDict()


def _device(*place: Any) -> str:
    """Stands for `torch.device`."""
    if not all(isinstance(part, str | int) for part in place):
        raise ValueError("a device that is none")
    return ":".join(map(str, place))


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
    ("collections", "OrderedDict"): _ordered,
    ("argparse", "Namespace"): argparse.Namespace,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch", "Size"): tuple,
    ("torch", "device"): _device,
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
