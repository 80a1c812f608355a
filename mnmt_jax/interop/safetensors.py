"""Reader and writer of the safetensors format, one tensor at a time.

Reading does not map the file into memory, so its pages do not count as memory of the process.
Writing holds one tensor at a time; the format's own package holds all of them.

Source: the format's description in its repository's README: eight bytes, little endian, give the
length of the header; the header maps each name to dtype, shape and [begin, end) after the header.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from mnmt_jax.errors import UserError, join_names
from mnmt_jax.files.json_objects import parse_json, read_json
from mnmt_jax.files.lazy_array import LazyArray
from mnmt_jax.files.typed_fields import TypedFields, short_repr

SHARD_BYTES = 5_000_000_000
_MAX_HEADER = 25_000_000  # about 100,000 tensors; parsed JSON takes up to 20 times the memory
_MAX_AXES = 32
_REMEDY = "download it again"
_DTYPES = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def read_safetensors(path: str | Path) -> dict[str, LazyArray]:
    """Open the tensors of a file; their values are read later.

    Args:
        path: a `.safetensors` file, or the `.safetensors.index.json` of a sharded one.

    Raises:
        UserError: if the file or a shard is missing or damaged.
    """
    path = Path(path)
    if path.suffix == ".json":
        return read_shards(path, read_safetensors)
    header, start = _read_header(path)
    header.pop("__metadata__", None)
    end = path.stat().st_size - start
    tensors = {
        name: _lazy_tensor(path, name, entry, (start, end)) for name, entry in header.items()
    }
    total = sum(tensor.bytes for tensor in tensors.values())
    if total > end:
        raise UserError(
            f"{path}: says that it holds {total:,} bytes of tensors but has {end:,}; refused. "
            "Download it again"
        )
    return tensors


def read_shards(index: Path, read: Any) -> dict[str, LazyArray]:
    """Open the tensors of a sharded checkpoint.

    Args:
        index: a JSON file whose `weight_map` maps each tensor to a file in the same folder.
        read: opens one file.

    Raises:
        UserError: if the index or a shard is missing, or a shard lacks a tensor of the index.
    """
    values = read_json(index, remedy=_REMEDY)
    try:
        weight_map = TypedFields(index, values).object("weight_map")
        files = {name: weight_map.text(name) for name in weight_map.values}
    except UserError as error:
        raise UserError(f"{index}: not an index of shards; {_REMEDY}") from error
    invalid = sorted({file for file in files.values() if not _is_shard(file)})
    if invalid:
        names = join_names([short_repr(file) for file in invalid])
        raise UserError(f"{index}: names files outside its folder, or indices: {names}")
    shards = {file: read(index.parent / file) for file in sorted(set(files.values()))}
    absent = sorted(name for name, file in files.items() if name not in shards[file])
    if absent:
        raise UserError(f"{index}: not in the files it names: {', '.join(absent)}")
    all_tensors = {name: tensor for shard in shards.values() for name, tensor in shard.items()}
    return all_tensors | {name: shards[file][name] for name, file in files.items()}


def write_safetensors(
    directory: Path,
    tensors: Iterable[tuple[str, LazyArray]],
    *,
    stem: str = "model",
    shard_bytes: int = SHARD_BYTES,
) -> list[Path]:
    """Write tensors one at a time, in shards with an index if one file is not enough.

    Args:
        directory: existing folder to write to.
        tensors: pairs of name and array.
        stem: stem of the file names.
        shard_bytes: maximum size of a file, unless a single tensor is larger.

    Returns:
        The files written.
    """
    shards = _split(tensors, shard_bytes)
    if len(shards) == 1:
        path = directory / f"{stem}.safetensors"
        _write_file(path, shards[0])
        return [path]
    count, paths = len(shards), []
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        path = directory / f"{stem}-{number:05d}-of-{count:05d}.safetensors"
        _write_file(path, shard)
        weight_map |= {name: path.name for name, _ in shard}
        paths.append(path)
    total = sum(tensor.bytes for shard in shards for _, tensor in shard)
    index = directory / f"{stem}.safetensors.index.json"
    contents = {"metadata": {"total_size": total}, "weight_map": weight_map}
    index.write_text(json.dumps(contents, indent=1) + "\n", encoding="utf-8")
    return [*paths, index]


def _is_shard(name: str) -> bool:
    """Return whether a name is a file in the index's folder and not an index itself."""
    return Path(name).name == name and len(name) < 256 and not name.endswith(".json")


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    if not path.is_file():
        raise UserError(f"{path}: no such file; download the whole checkpoint")
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(_MAX_HEADER, size - 8):
            raise UserError(f"{path}: not a safetensors file, or cut off; download it again")
        try:
            header = parse_json(file.read(length))
        except ValueError as error:
            raise UserError(f"{path}: its header is damaged; download it again") from error
    if not isinstance(header, dict):
        raise UserError(f"{path}: its header is damaged; download it again")
    return header, 8 + length


def _lazy_tensor(path: Path, name: str, entry: Any, data_range: tuple[int, int]) -> LazyArray:
    try:
        fields = TypedFields(path, entry)
        code, shape = fields.text("dtype"), fields.integers("shape")
        begin, end = fields.integers("data_offsets")
    except ValueError as error:
        raise UserError(f"{path}: its header is damaged at '{name}'; download it again") from error
    if len(shape) > _MAX_AXES:
        raise UserError(f"{path}: '{name}' has {len(shape)} axes; at most {_MAX_AXES} are read")
    if code not in _DTYPES:
        raise UserError(f"{path}: '{name}' has the type {code}; only {', '.join(_DTYPES)} are read")
    start, available = data_range
    count, dtype = math.prod(shape), _DTYPES[code]  # NumPy's product would overflow silently
    if not 0 <= begin <= end <= available:
        raise UserError(f"{path}: '{name}' lies outside the file; download it again")
    if end - begin != count * dtype.itemsize:
        raise UserError(f"{path}: '{name}' has a size that is not its shape's; download it again")

    def read() -> np.ndarray:
        data = np.fromfile(path, np.uint8, end - begin, offset=start + begin)
        return data.view(dtype).reshape(shape)

    return LazyArray(shape, dtype, read)


def _split(
    tensors: Iterable[tuple[str, LazyArray]], limit: int
) -> list[list[tuple[str, LazyArray]]]:
    shards: list[list[tuple[str, LazyArray]]] = [[]]
    remaining = limit
    for name, tensor in sorted(tensors, key=lambda pair: pair[0]):
        if shards[-1] and tensor.bytes > remaining:
            shards.append([])
            remaining = limit
        shards[-1].append((name, tensor))
        remaining -= tensor.bytes
    return shards


def _write_file(path: Path, tensors: Sequence[tuple[str, LazyArray]]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors:
        end = offset + tensor.bytes
        entry = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape)}
        header[name] = entry | {"data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name, tensor in tensors:
            array = np.asarray(tensor.read(), tensor.dtype, order="C")
            if array.shape != tensor.shape:
                raise ValueError(f"{name} has shape {array.shape}, announced as {tensor.shape}")
            file.write(array.reshape(-1).view(np.uint8).data)
