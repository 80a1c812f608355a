"""Counts a model's arithmetic and memory from its plan alone: no array is made, nothing compiled.

A multiply-add counts as two FLOPs; only matrix products are counted. Work that no output needs (see
`live_roles` of layouts) is left out, as the compiler leaves it out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mnmt_jax.config.sections import Model
from mnmt_jax.design.layout import Layout, Stage, live_roles
from mnmt_jax.design.layouts import REGISTER, SOURCE, TRIGGER
from mnmt_jax.design.objective import States
from mnmt_jax.design.plan import Head, Layer, Plan, StagePlan
from mnmt_jax.design.views import View
from mnmt_jax.model.lora import LORA_A, LORA_B
from mnmt_jax.model.param_patterns import matches
from mnmt_jax.model.sublayers import make_plan
from mnmt_jax.model.trainable_params import EVERYTHING, Trainable

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
    products = _products(config, layout, vocab_size, sentence, reads=reads)
    return sum(each.flops for each in products)


def states_flops(config: Model, layout: Layout, reads: Collection[States], source: float) -> float:
    """Counts the FLOPs of `Network.states` of one unpacked source of so many tokens."""
    return sum(each.flops for each in _states_products(config, layout, reads, source))


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

    What is frozen has none by its weight, and what follows from nothing that trains has none by
    what it reads.

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
    products = [*_products(config, layout, vocab_size, sentence, trainable=trainable, reads=own)]
    for view, tokens in views.items():
        if of_view := [each for each in reads if each.view == view]:
            products += _states_products(config, layout, of_view, tokens, trainable)
    return sum(each.flops * (1 + each.gradients) for each in products)


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


class Product(NamedTuple):
    """A matrix product.

    Attributes:
        flops: of itself.
        gradients: how many products as large its gradient has.
    """

    flops: float
    gradients: int


def _wanted(reads: Collection[States]) -> set[tuple[int, str]]:
    return {(each.layer, each.role) for each in reads}


def _products(
    config: Model,
    layout: Layout,
    vocab_size: int,
    sentence: Sentence,
    *,
    trainable: Trainable = EVERYTHING,
    reads: Collection[States] = (),
) -> Iterator[Product]:
    """Yields every product of a pass."""
    plan = make_plan(config, layout)
    generated, last = layout.generated, plan.stages[-1]
    walk = _Walk.of(config, plan, trainable, sentence, layout.embedded_roles())
    live = plan.live_roles(_wanted(reads))
    yield from walk.stages(plan.stages, live)
    yield from walk.layer("", last.after, last.stage, {generated})
    for head in plan.heads:
        yield from walk.head(head, last.stage, generated, vocab_size)


def _states_products(
    config: Model,
    layout: Layout,
    reads: Collection[States],
    source: float,
    trainable: Trainable = EVERYTHING,
) -> Iterator[Product]:
    """Yields the products of a pass that ends with static states."""
    plan = make_plan(config, layout)
    parts = plan.static(max(each.layer for each in reads))
    walk = _Walk.of(config, plan, trainable, Sentence(source, 0), layout.static_roles())
    yield from walk.stages(parts, live_roles(tuple(part.stage for part in parts), _wanted(reads)))


@dataclasses.dataclass
class _Walk:
    """Goes through a model, and keeps which roles' states follow from what trains.

    Attributes:
        config: the model's sizes.
        trainable: which parameters train.
        lengths: of the roles.
        moving: roles whose states so far follow from what trains.
        ended: those after each layer that is done, from 0 for the embedding.
    """

    config: Model
    trainable: Trainable
    lengths: Mapping[str, float]
    moving: set[str]
    ended: list[set[str]]

    @classmethod
    def of(
        cls,
        config: Model,
        plan: Plan,
        trainable: Trainable,
        sentence: Sentence,
        roles: Collection[str],
    ) -> _Walk:
        """Returns the walk before the first stage, of these roles."""
        tables = {role: plan.table_of(role).name for role in roles}
        learned = "learned" in config.positions
        moving = {
            role
            for role, table in tables.items()
            if trainable.trains(table) or (learned and trainable.trains(f"{table}_positions"))
        }
        lengths = {role: sentence.of(role, config) for role in roles}
        return cls(config, trainable, lengths, moving, [set(moving)])

    def stages(
        self, parts: Sequence[StagePlan], live: Sequence[Collection[str]]
    ) -> Iterator[Product]:
        """Yields the products of stages, without what the last one's roles pass at its end."""
        number = 0
        for part in parts:
            yield from self.layer("", part.before, part.stage, part.stage.roles)
            for layer in part.layers:
                yield from self.layer(f"layer_{number}/", layer, part.stage, live[number])
                self.ended.append(set(self.moving))
                number += 1
            if part is not parts[-1]:
                yield from self.layer("", part.after, part.stage, part.stage.roles)

    def layer(
        self, path: str, layer: Layer, stage: Stage, live: Collection[str]
    ) -> Iterator[Product]:
        """Yields the products of sublayers, of those of a stage's roles that are asked for."""
        for each in layer:
            roles = [role for role in stage.roles if role in live and each.passes(role)]
            seen = {key for role in roles for key in stage.key_roles(role)}
            seen |= {memory for role in roles if (memory := stage.memory_role(role))}
            name, norm = f"{path}{each.name}", f"{path}{each.name}_norm/scale"
            trains = each.norm != "none" and self.trainable.trains(norm)
            moves = trains or not self.moving.isdisjoint((*roles, *seen))
            maps = [*each.kind.matmuls(self.config, stage, roles, self.lengths)]
            for weight, positions, widths in maps:
                for product, own in self._projection(f"{name}/{weight}", moves, positions, widths):
                    trains |= own
                    yield product
            moves |= trains or (not maps and self.trainable.trains(f"{name}/scale"))
            pairs = each.kind.attention_pairs(stage, roles, self.lengths)
            yield Product(4 * pairs * self.config.embed, 2 * moves)
            if moves:
                self.moving.update(roles)

    def head(self, head: Head, stage: Stage, role: str, vocab_size: int) -> Iterator[Product]:
        """Yields the products of a head, which reads a role of the last stage."""
        moving = self.ended[head.layer] if head.layer else self.moving
        own = dataclasses.replace(self, moving=set(moving))
        yield from own.layer("", head.after, stage, {role})
        flops = 2 * self.lengths[role] * self.config.embed * vocab_size
        yield Product(flops, self.trainable.trains(head.table) + (role in own.moving))

    def _projection(
        self, path: str, moves: bool, positions: float, widths: tuple[int, int]
    ) -> Iterator[tuple[Product, bool]]:
        """Yields the products of a projection and its LoRA, each with whether its weight trains."""
        trains, rank = self.trainable.trains(f"{path}/kernel"), self.config.lora_rank
        yield Product(2 * positions * math.prod(widths), trains + moves), trains
        if rank and any(matches(pattern, path) for pattern in self.config.lora):
            for name, width in zip((LORA_A, LORA_B), widths, strict=True):
                trains = self.trainable.trains(f"{path}/{name}")
                yield Product(2 * positions * width * rank, trains + moves), trains
                moves |= trains
