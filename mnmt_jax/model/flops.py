"""FLOP and cache-size counts of a model, computed from its plan without arrays or compilation.

A multiply-add counts as two FLOPs; only matrix products are counted. Work that no output needs (see
`live_roles` of layouts) is excluded, because the compiler removes it.
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
    """Span lengths of one sentence pair, in tokens; `of` returns the length of any role."""

    source: float
    target: float

    def of(self, role: str, config: Model) -> float:
        """Return the length of a role's span."""
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
    requests: Collection[States] = (),
) -> float:
    """Count the FLOPs of scoring one unpacked sentence pair under teacher forcing.

    Args:
        config: the model's sizes.
        layout: with its layers.
        vocab_size: entries of the vocabulary.
        sentence: lengths of the pair.
        requests: states that are additional outputs.
    """
    products = _products(config, layout, vocab_size, sentence, requests=requests)
    return sum(product.flops for product in products)


def train_flops(
    config: Model,
    layout: Layout,
    vocab_size: int,
    sentence: Sentence,
    *,
    trainable: Trainable = EVERYTHING,
    requests: Collection[States] = (),
    views: Mapping[View, float] = _NO_VIEWS,
) -> float:
    """Count the FLOPs of forward and backward passes.

    The gradient of a matrix product has two products: by its weight and by its input. The one by
    the weight is omitted for frozen weights, and the one by the input where nothing before it
    trains.

    Args:
        config: the model's sizes.
        layout: with its layers.
        vocab_size: entries of the vocabulary.
        sentence: lengths of the pair.
        trainable: which parameters train.
        requests: states that objectives read, of the pair and of views.
        views: tokens of each view's source. Auxiliary sublayers are not counted.
    """
    pair_requests = [states for states in requests if not states.view]
    products = [
        *_products(
            config, layout, vocab_size, sentence, trainable=trainable, requests=pair_requests
        )
    ]
    for view, tokens in views.items():
        if of_view := [states for states in requests if states.view == view]:
            products += _states_products(config, layout, of_view, tokens, trainable)
    return sum(product.flops * (1 + product.gradients) for product in products)


def cache_bytes(config: Model, layout: Layout, sentence: Sentence, beam: int) -> dict[str, float]:
    """Count the bytes of keys and values in the decoding cache of one sentence.

    Returns:
        `static` and `memory`, held once per sentence, `growing`, held per beam, and their `total`.
    """
    per_position = 2 * config.embed * (2 if config.dtype == "bfloat16" else 4)
    counts: dict[str, float] = {"static": 0, "memory": 0, "growing": 0}
    for stage in layout.stages:
        if layout.generated not in stage.roles:
            continue
        static_roles = [
            role for role in stage.key_roles(layout.generated) if role != layout.generated
        ]
        memory_role = stage.memory_role(layout.generated)
        counts["static"] += stage.layers * sum(sentence.of(role, config) for role in static_roles)
        counts["memory"] += stage.layers * (sentence.of(memory_role, config) if memory_role else 0)
        counts["growing"] += stage.layers * beam * sentence.target
    sizes = {name: count * per_position for name, count in counts.items()}
    return sizes | {"total": sum(sizes.values())}


class Product(NamedTuple):
    """A matrix product.

    Attributes:
        flops: of the product itself.
        gradients: number of products of the same size in its gradient.
    """

    flops: float
    gradients: int


def _layers_and_roles(requests: Collection[States]) -> set[tuple[int, str]]:
    return {(states.layer, states.role) for states in requests}


def _products(
    config: Model,
    layout: Layout,
    vocab_size: int,
    sentence: Sentence,
    *,
    trainable: Trainable = EVERYTHING,
    requests: Collection[States] = (),
) -> Iterator[Product]:
    """Yield every product of a pass."""
    plan = make_plan(config, layout)
    generated, last_stage = layout.generated, plan.stages[-1]
    counter = _FlopCounter.of(config, plan, trainable, sentence, layout.embedded_roles())
    live = plan.live_roles(_layers_and_roles(requests))
    yield from counter.stages(plan.stages, live)
    yield from counter.layer("", last_stage.after, last_stage.stage, {generated})
    for head in plan.heads:
        yield from counter.head(head, last_stage.stage, generated, vocab_size)


def _states_products(
    config: Model,
    layout: Layout,
    requests: Collection[States],
    source: float,
    trainable: Trainable = EVERYTHING,
) -> Iterator[Product]:
    """Yield the products of a pass that ends with static states."""
    plan = make_plan(config, layout)
    stages = plan.static(max(states.layer for states in requests))
    counter = _FlopCounter.of(config, plan, trainable, Sentence(source, 0), layout.static_roles())
    yield from counter.stages(
        stages,
        live_roles(tuple(stage_plan.stage for stage_plan in stages), _layers_and_roles(requests)),
    )


@dataclasses.dataclass
class _FlopCounter:
    """Traversal of a model that tracks which roles' states depend on trainable parameters.

    Attributes:
        config: the model's sizes.
        trainable: which parameters train.
        lengths: of the roles.
        trained_roles: roles whose states so far depend on trainable parameters.
        trained_after: `trained_roles` after each completed layer, with the embedding as item 0.
    """

    config: Model
    trainable: Trainable
    lengths: Mapping[str, float]
    trained_roles: set[str]
    trained_after: list[set[str]]

    @classmethod
    def of(
        cls,
        config: Model,
        plan: Plan,
        trainable: Trainable,
        sentence: Sentence,
        roles: Collection[str],
    ) -> _FlopCounter:
        """Return the counter of these roles before the first stage."""
        tables = {role: plan.table_of(role).name for role in roles}
        learned = "learned" in config.positions
        trained_roles = {
            role
            for role, table in tables.items()
            if trainable.trains(table) or (learned and trainable.trains(f"{table}_positions"))
        }
        lengths = {role: sentence.of(role, config) for role in roles}
        return cls(config, trainable, lengths, trained_roles, [set(trained_roles)])

    def stages(
        self, stage_plans: Sequence[StagePlan], live: Sequence[Collection[str]]
    ) -> Iterator[Product]:
        """Yield the products of stages, without the sublayers after the last stage's layers."""
        number = 0
        for stage_plan in stage_plans:
            yield from self.layer("", stage_plan.before, stage_plan.stage, stage_plan.stage.roles)
            for layer in stage_plan.layers:
                yield from self.layer(f"layer_{number}/", layer, stage_plan.stage, live[number])
                self.trained_after.append(set(self.trained_roles))
                number += 1
            if stage_plan is not stage_plans[-1]:
                yield from self.layer(
                    "", stage_plan.after, stage_plan.stage, stage_plan.stage.roles
                )

    def layer(
        self, path: str, layer: Layer, stage: Stage, live: Collection[str]
    ) -> Iterator[Product]:
        """Yield the products of sublayers for the live roles of a stage."""
        for sublayer in layer:
            roles = [role for role in stage.roles if role in live and sublayer.passes(role)]
            seen = {key for role in roles for key in stage.key_roles(role)}
            seen |= {memory for role in roles if (memory := stage.memory_role(role))}
            name, norm = f"{path}{sublayer.name}", f"{path}{sublayer.name}_norm/scale"
            trains = sublayer.norm != "none" and self.trainable.trains(norm)
            depends = trains or not self.trained_roles.isdisjoint((*roles, *seen))
            maps = [*sublayer.kind.matmuls(stage, roles, self.lengths)]
            for weight, positions, widths in maps:
                for product, weight_trains in self._projection(
                    f"{name}/{weight}", depends, positions, widths
                ):
                    trains |= weight_trains
                    yield product
            depends |= trains or (not maps and self.trainable.trains(f"{name}/scale"))
            pairs = sublayer.kind.attention_pairs(stage, roles, self.lengths)
            yield Product(4 * pairs * self.config.embed, 2 * depends)
            if depends:
                self.trained_roles.update(roles)

    def head(self, head: Head, stage: Stage, role: str, vocab_size: int) -> Iterator[Product]:
        """Yield the products of a head, which reads a role of the last stage."""
        trained_roles = self.trained_after[head.layer] if head.layer else self.trained_roles
        head_counter = dataclasses.replace(self, trained_roles=set(trained_roles))
        yield from head_counter.layer("", head.after, stage, {role})
        flops = 2 * self.lengths[role] * self.config.embed * vocab_size
        yield Product(
            flops, self.trainable.trains(head.table) + (role in head_counter.trained_roles)
        )

    def _projection(
        self, path: str, depends: bool, positions: float, widths: tuple[int, int]
    ) -> Iterator[tuple[Product, bool]]:
        """Yield the products of a projection and its LoRA, each with whether its weight trains."""
        trains, rank = self.trainable.trains(f"{path}/kernel"), self.config.lora_rank
        yield Product(2 * positions * math.prod(widths), trains + depends), trains
        if rank and any(matches(pattern, path) for pattern in self.config.lora):
            for name, width in zip((LORA_A, LORA_B), widths, strict=True):
                trains = self.trainable.trains(f"{path}/{name}")
                yield Product(2 * positions * width * rank, trains + depends), trains
                depends |= trains
