"""Opened checkpoints of other toolkits: settings and lazy tensors, and checks of support."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mnmt_jax.config.sections import Decode, Model
from mnmt_jax.errors import UserError
from mnmt_jax.files.typed_fields import TypedFields, short_repr
from mnmt_jax.interop.names import Dialect, Tensors
from mnmt_jax.interop.token_table import TokenTable
from mnmt_jax.vocabulary.normalization import NONE, check_normalization

CTRANSLATE2_LAYOUT = "encoder_decoder"
"""The only layout that CTranslate2 supports."""

NORMALIZATION_SETTING = "mnmt_jax_text_normalization"
"""Setting in exported files that holds the vocabulary's normalization; absent for `none`."""

# Types of settings that are compared by value.
_PLAIN = (bool, int, float, str, list, tuple, type(None))


@dataclasses.dataclass(frozen=True)
class Foreign:
    """A checkpoint of another toolkit, with its tensors not yet read.

    Attributes:
        path: file or folder, for messages.
        model: sizes and layout.
        instruction: key of the instruction, i.e. where the model expects language tags.
        tensors: tensors by their names in the checkpoint.
        dialect: dialect of these names.
        tokens: its vocabulary, if found beside the weights or passed by the caller.
        decode: search settings of its authors.
        build_model: builds the model from the vocabulary's languages, if the model depends on them.
        normalization: normalization of text before `tokens` encodes it.
        dropped: settings that have no counterpart here, from `dropped_settings`.
    """

    path: Path
    model: Model
    instruction: str
    tensors: Tensors
    dialect: Dialect
    tokens: TokenTable | None = None
    decode: Decode = Decode()
    build_model: Callable[[tuple[str, ...]], Model] | None = None
    normalization: str = NONE
    dropped: tuple[str, ...] = ()


def normalization_of(settings: TypedFields) -> str:
    """Return the normalization of text that exported settings name.

    Raises:
        UserError: if it is unknown.
    """
    normalization = settings.text(NORMALIZATION_SETTING, NONE)
    check_normalization(normalization)
    return normalization


def dropped_settings(fields: TypedFields, neutral: Mapping[str, Any]) -> tuple[str, ...]:
    """Return settings without a counterpart here that are not neutral, as `NAME=VALUE`.

    Args:
        fields: settings of a checkpoint.
        neutral: by name, the value without effect, which a missing setting has.
    """
    values = {name: fields.values.get(name) for name in neutral}
    return tuple(
        f"{name}={short_repr(value)}"
        for name, value in values.items()
        if value is not None and (type(value) not in _PLAIN or value != neutral[name])
    )


class Mismatch(NamedTuple):
    """A setting of a run that the model of another toolkit does not support.

    Attributes:
        reason: what differs, as a clause.
        binding: flag of `train` that resolves the difference.
    """

    reason: str
    binding: str


def positions_mismatch(model: Model, *others: tuple[Any, ...]) -> list[Mismatch]:
    """Return a mismatch if a model's positions differ from those of fairseq and its descendants.

    Args:
        model: model of the run.
        others: further values of `Model.positions` that the toolkit supports.
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


def width_mismatch(model: Model) -> list[Mismatch]:
    """Return a mismatch if the feed-forward layers of a model's stages differ in width."""
    if len(set(model.mlp_widths)) == 1:
        return []
    reason = (
        f"the feed-forward layers of its stages are as wide as each other, not {model.mlp_widths}"
    )
    return [Mismatch(reason, '--gin.Model.stage_mlp="()"')]


def refuse_mismatches(toolkit: str, model: Model, mismatches: Sequence[Mismatch]) -> None:
    """Refuse an export, with all reasons and the bindings to train with in one message.

    Args:
        toolkit: name of the toolkit and, if needed, of its model.
        model: model of the run.
        mismatches: from `positions_mismatch` and the like; nothing is raised if empty.

    Raises:
        UserError: if there are mismatches.
    """
    if mismatches:
        reasons, bindings = zip(*mismatches, strict=True)
        raise UserError(
            f"{toolkit} has no such model: {'; '.join(reasons)}. Train with {' '.join(bindings)} "
            f"to export, or export with --format t5x{_and_ctranslate2(model)}"
        )


def _and_ctranslate2(model: Model) -> str:
    """Return the text that names CTranslate2, if it can export the model."""
    has_layout = model.layout == CTRANSLATE2_LAYOUT and not model.methods
    fits = has_layout and model.positions[:1] == ("sinusoidal",)
    return " or ctranslate2" if fits else ""


def check_supported(path: Path, settings: Sequence[tuple[str, Any, Any]]) -> None:
    """Refuse a model that only one of the two toolkits supports.

    Args:
        path: path of the checkpoint, or a name of what is exported.
        settings: triples of name, actual value, required value.

    Raises:
        UserError: if settings differ; lists all of them.
    """
    differing = [
        f"{name}={short_repr(value)} (only {required!r} is supported)"
        for name, value, required in settings
        if type(value) not in _PLAIN or value != required
    ]
    if differing:
        raise UserError(f"{path}: no model of both sides has {'; '.join(differing)}")
