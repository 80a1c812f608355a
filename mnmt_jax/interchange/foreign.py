"""A checkpoint of another toolkit, opened: everything is known of it but the values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mnmt_jax.config.sections import Decode, Model
from mnmt_jax.errors import UserError
from mnmt_jax.interchange.names import Dialect, Tensors
from mnmt_jax.interchange.token_table import TokenTable


@dataclasses.dataclass(frozen=True)
class Foreign:
    """What a format's reader found.

    Attributes:
        path: file or folder, for messages.
        model: sizes and layout.
        instruction: where the model expects language tags.
        tensors: by their names there.
        dialect: of the names.
        tokens: its vocabulary, if it lies beside the weights or was given.
        decode: how its authors search.
        fit: makes the model of the vocabulary's languages, where it depends on them.
    """

    path: Path
    model: Model
    instruction: str
    tensors: Tensors
    dialect: Dialect
    tokens: TokenTable | None = None
    decode: Decode = Decode()
    fit: Callable[[tuple[str, ...]], Model] | None = None


def check_supported(path: Path, settings: Sequence[tuple[str, Any, Any]]) -> None:
    """Refuses a model that only one of two toolkits has.

    Args:
        path: of the checkpoint, or what is exported.
        settings: name, value found, value needed.

    Raises:
        UserError: listing all settings that differ.
    """
    differing = [
        f"{name}={found!r} (only {needed!r} is supported)"
        for name, found, needed in settings
        if found != needed
    ]
    if differing:
        raise UserError(f"{path}: no model of both sides has {'; '.join(differing)}")
