"""Conversion of AdapNonCenter's models: fairseq's encoder-decoder with language-specific layers.

Their settings hold the number of languages and which of four models it is. Which layers have
branches, and how wide they are, follows from the tensors. Languages count from 1: the first is the
centre, whose tensors exist but compute nothing. For a corpus without a centre, the count includes
one extra language that is never translated (language-layers spec 1, 2.1).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from mnmt_jax.config.sections import Model
from mnmt_jax.errors import UserError
from mnmt_jax.files.typed_fields import TypedFields
from mnmt_jax.interop.names import Tensors
from mnmt_jax.methods.cut_residual import CutResidual
from mnmt_jax.methods.language_layers import LanguageLayers

# Architecture -> norm of the encoder layer without a residual connection; None: no such layer.
_KINDS: Mapping[str, Literal["post", "pre"] | None] = {
    "transformer_cll": None,
    "transformer_cll_merged": None,
    "transformer_sd": "post",
    "transformer_sd_merged": "pre",
}
_BRANCH = re.compile(r"(?:^|\.)decoder\.layers\.(\d{1,4})\.language_specific1\.0\.weight$")


def branches_of(fields: TypedFields, tensors: Tensors, layers: int) -> tuple[Any, ...]:
    """Return the methods of one of these models, without its languages; () for other models.

    Args:
        fields: settings of the checkpoint.
        tensors: its weights; only shapes are read.
        layers: number of encoder layers.
    """
    kind = fields.text("arch", "") or fields.text("_name", "")
    if kind not in _KINDS:
        return ()
    widths = {
        int(match[1]): tensor.shape[0]
        for name, tensor in tensors.items()
        if (match := _BRANCH.search(name)) and tensor.shape
    }
    numbers = tuple(layers + number + 1 for number in sorted(widths))
    branches = LanguageLayers(layers=numbers, mlp=max(widths.values(), default=1))
    norm = _KINDS[kind]
    if norm is None:
        return (branches,)
    return branches, CutResidual(layers // 2 + 1, "mlp", norm)


def with_languages(model: Model, languages: Sequence[str], language_num: int) -> Model:
    """Return one of these models with the languages of its vocabulary.

    Args:
        model: model with the methods of `branches_of`.
        languages: language codes in the order of their numbers.
        language_num: `language_num` of the checkpoint.

    Raises:
        UserError: if the vocabulary has other languages.
    """
    if language_num not in (len(languages), len(languages) + 1):
        raise UserError(
            f"language_num={language_num}, but the vocabulary has {len(languages)} languages; name "
            "the vocabulary that it was trained with"
        )
    without = tuple(languages[:1]) if language_num == len(languages) else ()
    methods = tuple(
        dataclasses.replace(method, languages=tuple(languages), without=without)
        if isinstance(method, LanguageLayers)
        else method
        for method in model.methods
    )
    return dataclasses.replace(model, methods=methods)


def branch_settings(model: Model) -> dict[str, Any] | None:
    """Return AdapNonCenter's settings of a model; None if it has no such model."""
    branches = [method for method in model.methods if isinstance(method, LanguageLayers)]
    cuts = [method for method in model.methods if isinstance(method, CutResidual)]
    if len(branches) != 1 or len(branches) + len(cuts) != len(model.methods):
        return None
    (branch,), norm = branches, None
    encoder, decoder = model.stage_layers
    middle = encoder // 2 + 1
    expected = decoder_layers = tuple(range(encoder + 1, encoder + decoder + 1))
    if cuts:
        norm, expected = cuts[0].norm or model.norm, (encoder + middle,)
        if cuts[0].sublayer != "mlp" or cuts[0].layer not in (0, middle) or model.norm != "post":
            return None
    layers = branch.layers or decoder_layers
    is_centre = branch.without in ((), branch.languages[:1])
    if tuple(sorted(layers)) != expected or branch.off or not is_centre:
        return None
    kind = next(name for name, cut_norm in _KINDS.items() if cut_norm == norm)
    return {"arch": kind, "language_num": len(branch.languages) + (not branch.without)}
