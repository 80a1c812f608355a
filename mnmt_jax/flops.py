"""Counts a model's arithmetic and memory from its layout alone: no array is made, nothing compiled.

A multiply-add counts as two FLOPs; only matrix products are counted. Work that no output needs (see
`Layout.live_roles`) is left out, as the compiler leaves it out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from mnmt_jax.config import Model
from mnmt_jax.layout import Layout, Stage, live_roles
from mnmt_jax.layouts import REGISTER, SOURCE, TRIGGER


@dataclasses.dataclass(frozen=True)
class Sentence:
    """Lengths of one sentence pair's spans, in tokens; `of` gives any role's."""

    source: float
    target: float

    def of(self, role: str, config: Model) -> float:
        """Returns the length of a role's span."""
        if role == SOURCE:
            return self.source
        if role == REGISTER:
            return math.ceil(np.float32(self.source) / np.float32(config.register_factor))
        return 1 if role == TRIGGER else self.target


def forward_flops(
    config: Model, layout: Layout, vocab_size: int, sentence: Sentence, source_layer: int = 0
) -> float:
    """Counts the FLOPs of scoring one unpacked sentence pair under teacher forcing.

    Args:
        config: the model's sizes.
        layout: with its layers.
        vocab_size: entries of the vocabulary.
        sentence: lengths of the pair.
        source_layer: layer, from 1, whose source states are an output besides; 0 is none.
    """
    lengths = {role: sentence.of(role, config) for role in layout.embedded_roles()}
    total: float = 2 * lengths[layout.generated] * config.embed * vocab_size
    total += _stages_flops(config, layout.stages, layout.live_roles(source_layer, SOURCE), lengths)
    if config.adaption_mlp:
        positions = lengths[SOURCE] + lengths[layout.generated]
        total += 4 * positions * config.embed * config.adaption_mlp
    return total


def source_states_flops(config: Model, layout: Layout, layer: int, source: float) -> float:
    """Counts the FLOPs of `Translator.source_states` of one unpacked source of so many tokens."""
    stages = layout.static_stages(layer)
    lengths = {role: Sentence(source, 0).of(role, config) for role in layout.static_roles()}
    live = live_roles(stages, {layer: frozenset([SOURCE])})
    total = _stages_flops(config, stages, live, lengths)
    if config.adaption_mlp and len(stages) == len(layout.stages):
        total += 4 * source * config.embed * config.adaption_mlp
    return total


def train_flops(
    config: Model,
    layout: Layout,
    vocab_size: int,
    sentence: Sentence,
    contrastive: tuple[int, float] = (0, 0.0),
) -> float:
    """Counts forward and backward: every matrix product has two in its gradient.

    Args:
        config: the model's sizes.
        layout: with its layers.
        vocab_size: entries of the vocabulary.
        sentence: lengths of the pair.
        contrastive: the contrastive term's layer and the tokens of the identity pair's source; 0 is
            without.
    """
    layer, identity = contrastive
    forward = forward_flops(config, layout, vocab_size, sentence, layer)
    if layer:
        forward += source_states_flops(config, layout, layer, identity)
    return 3 * forward


def cache_bytes(config: Model, layout: Layout, sentence: Sentence, beam: int) -> dict[str, float]:
    """Counts the bytes of keys and values that decoding one sentence holds.

    Returns:
        `static` and `memory`, held once per sentence, `growing`, held per beam, and their `total`.
    """
    per_position = 2 * config.embed * (2 if config.dtype == "bfloat16" else 4)
    counts: dict[str, float] = {"static": 0, "memory": 0, "growing": 0}
    for stage in layout.stages:
        if layout.generated not in stage.roles:
            continue
        fixed = [role for role in stage.key_roles(layout.generated) if role != layout.generated]
        read = stage.memory_role(layout.generated)
        counts["static"] += stage.layers * sum(sentence.of(role, config) for role in fixed)
        counts["memory"] += stage.layers * (sentence.of(read, config) if read else 0)
        counts["growing"] += stage.layers * beam * sentence.target
    sizes = {name: count * per_position for name, count in counts.items()}
    return sizes | {"total": sum(sizes.values())}


def _stages_flops(
    config: Model,
    stages: tuple[Stage, ...],
    live: tuple[frozenset[str], ...],
    lengths: Mapping[str, float],
) -> float:
    layers = [stage for stage in stages for _ in range(stage.layers)]
    pairs = zip(layers, live, strict=True)
    return sum(_layer_flops(config, stage, roles, lengths) for stage, roles in pairs)


def _layer_flops(
    config: Model, stage: Stage, live: frozenset[str], lengths: Mapping[str, float]
) -> float:
    embed, mlp = config.embed, config.mlp
    queries = [role for role in stage.roles if role in live]
    keys = {key for role in queries for key in stage.key_roles(role)}
    total: float = sum(4 * lengths[role] * embed * embed for role in keys)
    for role in queries:
        length = lengths[role]
        seen = sum(lengths[key] for key in stage.key_roles(role))
        total += 4 * length * embed * (embed + mlp) + 4 * length * seen * embed
        read = stage.memory_role(role)
        if read:
            total += (
                4 * (length + lengths[read]) * embed * embed + 4 * length * lengths[read] * embed
            )
    return total
