"""Tiny reference models in `.npz` files: parameters under fairseq's names, sizes as scalars."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mnmt_jax.config.sections import Model
from mnmt_jax.errors import UserError
from mnmt_jax.files.lazy_array import LazyArray
from mnmt_jax.files.storage_errors import one_line
from mnmt_jax.interop.foreign import Foreign
from mnmt_jax.interop.names import FAIRSEQ
from mnmt_jax.methods.adaption import Adaption

_PREFIX = "param/"


def open_golden(path: Path) -> Foreign:
    """Open a reference model of the authors.

    Raises:
        UserError: if the file is not a valid `.npz` reference model.
    """
    if not path.is_file() or path.suffix != ".npz":
        problem = "is a folder; " if path.is_dir() else "" if path.exists() else "no such file; "
        raise UserError(f"{path}: {problem}--format golden reads one .npz file")
    try:
        with np.load(path, allow_pickle=False) as archive:
            values = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, zipfile.BadZipFile, MemoryError) as error:
        raise UserError(f"{path}: not a file of NumPy arrays ({one_line(error)})") from error
    tensors = {
        name.removeprefix(_PREFIX): LazyArray.of(value)
        for name, value in values.items()
        if name.startswith(_PREFIX)
    }
    try:
        model = golden_model(values)
    except KeyError as error:
        raise UserError(f"{path}: lacks the value {error}") from error
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{path}: has a wrong value ({one_line(error)})") from error
    instruction = "register" if "register_factor" in values else "1"
    return Foreign(path, model, instruction, tensors, FAIRSEQ)


def golden_model(values: Mapping[str, Any]) -> Model:
    """Return the model that a file's scalars describe, with dropout 0.

    Raises:
        KeyError: if a scalar is missing.
    """
    sizes: dict[str, Any] = {
        "embed": int(values["dim"]),
        "mlp": int(values["ffn"]),
        "heads": int(values["heads"]),
        "dropout": 0.0,
    }
    if "register_factor" in values:
        return Model(
            layout="register",
            stage_layers=(int(values["layers"]),),
            register_factor=float(values["register_factor"]),
            **sizes,
        )
    stages = (int(values["stage1_layers"]), int(values["stage2_layers"]))
    layout = two_stage_layout(stages[0], int(values["attention_position_bias"]))
    return Model(
        layout=layout,
        stage_layers=stages if stages[0] else stages[1:],
        norm="pre" if values["pre_norm"] else "post",
        methods=(Adaption(int(values["adaption_inner"])),) if values["adaption"] else (),
        **sizes,
    )


def two_stage_layout(first_stage: int, attention_position_bias: int) -> str:
    """Return the layout of PhasedDecoder with these settings.

    Args:
        first_stage: number of layers before the target joins.
        attention_position_bias: number of target positions visible to the source, 0 or 1.
    """
    name = "two_stage" if first_stage else "prefix"
    return f"{name}_trigger" if attention_position_bias else name
