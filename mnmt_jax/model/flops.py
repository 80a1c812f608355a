"""Counts a model's arithmetic and memory from its plan alone: no array is made, nothing compiled.

A multiply-add counts as two FLOPs; only matrix products are counted. Work that no output needs (see
`live_roles` of layouts) is left out, as the compiler leaves it out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping

import numpy as np

from mnmt_jax.config.sections import Model
from mnmt_jax.design.layout import Layout, Stage, live_roles
from mnmt_jax.design.layouts import REGISTER, SOURCE, TRIGGER
from mnmt_jax.design.objective import States
from mnmt_jax.design.plan import Layer, StagePlan
from mnmt_jax.design.views import View
from mnmt_jax.model.lora import LORA_A, LORA_B
from mnmt_jax.model.patterns import matches
from mnmt_jax.model.sublayers import make_plan
from mnmt_jax.model.trainable import EVERYTHING, Trainable

_NO_VIEWS: Mapping[View, float] = {}


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
    config: Model,
    layout: Layout,
    vocab_size: int,
    sentence: Sentence,
    reads: Collection[States] = (),
) -> float:
    """Counts the FLOPs of scoring one unpacked sentence pair under teacher forcing.

    Args:
        config: the model's sizes.
        layout: with its layers.
        vocab_size: entries of the vocabulary.
        sentence: lengths of the pair.
        reads: states that are outputs besides.
    """
    products = _products(config, layout, vocab_size, sentence, reads)
    return sum(flops for _, flops in products)


def states_flops(config: Model, layout: Layout, reads: Collection[States], source: float) -> float:
    """Counts the FLOPs of `Network.states` of one unpacked source of so many tokens."""
    return sum(flops for _, flops in _states_products(config, layout, reads, source))


def train_flops(
    config: Model,
    layout: Layout,
    vocab_size: int,
    sentence: Sentence,
    *,
    trainable: Trainable = EVERYTHING,
    reads: Collection[States] = (),
    views: Mapping[View, float] = _NO_VIEWS,
) -> float:
    """Counts forward and backward: a matrix product has two in its gradient, one by its weight.

    What is frozen has none by its weight. The gradient that no weight below needs is not left out:
    with LoRA that is part of the first layer's.

    Args:
        config: the model's sizes.
        layout: with its layers.
        vocab_size: entries of the vocabulary.
        sentence: lengths of the pair.
        trainable: which parameters train.
        reads: states that objectives read, of the pair and of views.
        views: tokens of each view's source. What stands beside the plan is not counted.
    """
    own = [each for each in reads if not each.view]
    products = [*_products(config, layout, vocab_size, sentence, own)]
    for view, tokens in views.items():
        if of_view := [each for each in reads if each.view == view]:
            products += _states_products(config, layout, of_view, tokens)
    return sum(flops * (3 if not name or trainable.trains(name) else 2) for name, flops in products)


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


Product = tuple[str, float]


def _wanted(reads: Collection[States]) -> set[tuple[int, str]]:
    return {(each.layer, each.role) for each in reads}


def _products(
    config: Model,
    layout: Layout,
    vocab_size: int,
    sentence: Sentence,
    reads: Collection[States] = (),
) -> Iterator[Product]:
    """Yields the FLOPs of every product with the path of its weight; attention's own have none."""
    lengths = {role: sentence.of(role, config) for role in layout.embedded_roles()}
    plan = make_plan(config, layout)
    live = plan.live_roles(_wanted(reads))
    yield from _stages_products(config, plan.stages, live, lengths)
    last = plan.stages[-1]
    asked = last.stage, {layout.generated}
    yield from _layer_products(config, "", last.leave, asked, lengths)
    for head in plan.heads:
        yield from _layer_products(config, "", head.leave, asked, lengths)
        yield head.table, 2 * lengths[layout.generated] * config.embed * vocab_size


def _states_products(
    config: Model, layout: Layout, reads: Collection[States], source: float
) -> Iterator[Product]:
    parts = make_plan(config, layout).static(max(each.layer for each in reads))
    lengths = {role: Sentence(source, 0).of(role, config) for role in layout.static_roles()}
    stages = tuple(part.stage for part in parts)
    live = live_roles(stages, _wanted(reads))
    yield from _stages_products(config, parts, live, lengths)


def _stages_products(
    config: Model,
    parts: tuple[StagePlan, ...],
    live: tuple[frozenset[str], ...],
    lengths: Mapping[str, float],
) -> Iterator[Product]:
    """Yields the products of the stages, without what the last one's roles pass at its end."""
    number = 0
    for part in parts:
        everything = part.stage, part.stage.roles
        yield from _layer_products(config, "", part.enter, everything, lengths)
        for layer in part.layers:
            asked = part.stage, live[number]
            yield from _layer_products(config, f"layer_{number}/", layer, asked, lengths)
            number += 1
        if part is not parts[-1]:
            yield from _layer_products(config, "", part.leave, everything, lengths)


def _layer_products(
    config: Model,
    path: str,
    layer: Layer,
    asked: tuple[Stage, Collection[str]],
    lengths: Mapping[str, float],
) -> Iterator[Product]:
    """Yields the products of sublayers, of those of a stage's roles that are asked for."""
    stage, live = asked
    for each in layer:
        roles = [role for role in stage.roles if role in live and each.passes(role)]
        for name, positions, widths in each.kind.maps(config, stage, roles, lengths):
            yield from _projection(config, f"{path}{each.name}/{name}", positions, widths)
        yield "", 4 * each.kind.pairs(stage, roles, lengths) * config.embed


def _projection(
    config: Model, path: str, positions: float, widths: tuple[int, int]
) -> Iterator[Product]:
    yield f"{path}/kernel", 2 * positions * math.prod(widths)
    if config.lora_rank and any(matches(pattern, path) for pattern in config.lora):
        for name, width in zip((LORA_A, LORA_B), widths, strict=True):
            yield f"{path}/{name}", 2 * positions * width * config.lora_rank
