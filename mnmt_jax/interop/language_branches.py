"""AdapNonCenter's models, fairseq's encoder-decoder with language-specific layers, and ours.

Their settings say how many languages there are and which of four models it is; which layers have
branches, and how wide these are, only their tensors say. Languages count from 1: the first is the
centre, whose tensors exist and compute nothing. A corpus without a centre has one language more
than it has, of which nothing is ever translated (language-layers spec 1, 2.1).
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

# Theirs -> norm of the encoder layer without a residual connection; None has no such layer.
_KINDS: Mapping[str, Literal["post", "pre"] | None] = {
    "transformer_cll": None,
    "transformer_cll_merged": None,
    "transformer_sd": "post",
    "transformer_sd_merged": "pre",
}
_BRANCH = re.compile(r"(?:^|\.)decoder\.layers\.(\d{1,4})\.language_specific1\.0\.weight$")


def branches_of(fields: TypedFields, tensors: Tensors, layers: int) -> tuple[Any, ...]:
    """Returns the methods of a model of theirs, without its languages; none for other models.

    Args:
        fields: its settings.
        tensors: its weights, of which shapes are read.
        layers: of the encoder.
    """
    kind = fields.text("arch", "") or fields.text("_name", "")
    if kind not in _KINDS:
        return ()
    found = {
        int(match[1]): tensor.shape[0]
        for name, tensor in tensors.items()
        if (match := _BRANCH.search(name)) and tensor.shape
    }
    numbers = tuple(layers + number + 1 for number in sorted(found))
    branches = LanguageLayers(layers=numbers, mlp=max(found.values(), default=1))
    norm = _KINDS[kind]
    if norm is None:
        return (branches,)
    return branches, CutResidual(layers // 2 + 1, "mlp", norm)


def with_languages(model: Model, languages: Sequence[str], counted: int) -> Model:
    """Returns a model of theirs with the languages of its vocabulary.

    Args:
        model: with the methods of `branches_of`.
        languages: codes in the order of their numbers.
        counted: how many they count.

    Raises:
        UserError: if the vocabulary has other languages.
    """
    if counted not in (len(languages), len(languages) + 1):
        raise UserError(
            f"language_num={counted}, but the vocabulary has {len(languages)} languages; name the "
            "vocabulary that it was trained with"
        )
    without = tuple(languages[:1]) if counted == len(languages) else ()
    methods = tuple(
        dataclasses.replace(each, languages=tuple(languages), without=without)
        if isinstance(each, LanguageLayers)
        else each
        for each in model.methods
    )
    return dataclasses.replace(model, methods=methods)


def branch_settings(model: Model) -> dict[str, Any] | None:
    """Returns what their settings say of a model of ours; None if it is none of theirs."""
    branches = [each for each in model.methods if isinstance(each, LanguageLayers)]
    cuts = [each for each in model.methods if isinstance(each, CutResidual)]
    if len(branches) != 1 or len(branches) + len(cuts) != len(model.methods):
        return None
    (branch,), norm = branches, None
    encoder, decoder = model.stage_layers
    middle = encoder // 2 + 1
    wanted = decoding = tuple(range(encoder + 1, encoder + decoder + 1))
    if cuts:
        norm, wanted = cuts[0].norm or model.norm, (encoder + middle,)
        if cuts[0].sublayer != "mlp" or cuts[0].layer not in (0, middle) or model.norm != "post":
            return None
    chosen = branch.layers or decoding
    is_centre = branch.without in ((), branch.languages[:1])
    if tuple(sorted(chosen)) != wanted or branch.off or not is_centre:
        return None
    kind = next(name for name, own in _KINDS.items() if own == norm)
    return {"arch": kind, "language_num": len(branch.languages) + (not branch.without)}
