"""A checkpoint of another toolkit, opened: everything is known of it but the values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mnmt_jax.config.sections import Decode, Model
from mnmt_jax.errors import UserError
from mnmt_jax.files.typed_fields import short_repr
from mnmt_jax.interop.names import Dialect, Tensors
from mnmt_jax.interop.token_table import TokenTable
from mnmt_jax.vocabulary.normalization import NONE

CTRANSLATE2_LAYOUT = "encoder_decoder"
"""The one layout that CTranslate2 has."""

# Types of settings that compare by value.
_PLAIN = (bool, int, float, str, list, tuple, type(None))


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
        normalization: what is done to text before `tokens` encodes it.
    """

    path: Path
    model: Model
    instruction: str
    tensors: Tensors
    dialect: Dialect
    tokens: TokenTable | None = None
    decode: Decode = Decode()
    fit: Callable[[tuple[str, ...]], Model] | None = None
    normalization: str = NONE


class Mismatch(NamedTuple):
    """A setting of a run that another toolkit's model does not have.

    Attributes:
        reason: what differs, as a clause.
        binding: flag of `train` that makes them equal.
    """

    reason: str
    binding: str


def positions_mismatch(model: Model, *others: tuple[Any, ...]) -> list[Mismatch]:
    """Return whether a model's positions are not those of fairseq and its descendants.

    Args:
        model: of the run.
        others: values of `Model.positions` that the toolkit has besides the published ones.
    """
    published = Model().positions
    if model.positions in (published, *others):
        return []
    kind, base = published
    reason = (
        f"it adds sines and cosines of base {base:g} to the embeddings, this run was trained with "
        f"Model.positions={model.positions!r}"
    )
    return [Mismatch(reason, f"--gin.Model.positions=\"('{kind}', {base})\"")]


def refuse_mismatches(toolkit: str, model: Model, mismatches: Sequence[Mismatch]) -> None:
    """Refuse an export with all reasons, and all bindings to train with, in one line.

    Args:
        toolkit: its name and that of its model.
        model: of the run.
        mismatches: none is no refusal.

    Raises:
        UserError: if there are any.
    """
    if mismatches:
        reasons, bindings = zip(*mismatches, strict=True)
        raise UserError(
            f"{toolkit} has no such model: {'; '.join(reasons)}. Train with {' '.join(bindings)} "
            f"to export, or export with --format t5x{_and_ctranslate2(model)}"
        )


def _and_ctranslate2(model: Model) -> str:
    """Return the other format that has the layout with any base."""
    fits = model.layout == CTRANSLATE2_LAYOUT and model.positions[:1] == ("sinusoidal",)
    return " or ctranslate2" if fits else ""


def check_supported(path: Path, settings: Sequence[tuple[str, Any, Any]]) -> None:
    """Refuses a model that only one of two toolkits has.

    Args:
        path: of the checkpoint, or what is exported.
        settings: name, value found, value needed.

    Raises:
        UserError: listing all settings that differ.
    """
    differing = [
        f"{name}={short_repr(found)} (only {needed!r} is supported)"
        for name, found, needed in settings
        if type(found) not in _PLAIN or found != needed
    ]
    if differing:
        raise UserError(f"{path}: no model of both sides has {'; '.join(differing)}")
