"""Shapes of a model's parameters, without allocating them."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any

import jax
import numpy as np

from mnmt_jax.config.sections import Model
from mnmt_jax.design.layouts import LANGUAGES
from mnmt_jax.design.plan import Head, Plan, StagePlan
from mnmt_jax.model.network import Network, build_model

_LAYER_NUMBER = re.compile(r"[0-9*?[]")  # without these, a pattern of LoRA selects no single layer


@functools.cache
def parameter_shapes(config: Model, vocab_size: int) -> Any:
    """Return the parameter tree as shapes, without allocating arrays. Do not modify the tree."""
    return shapes_of_model(build_model(config, vocab_size))


def shapes_of_model(model: Network) -> Any:
    """Return the parameter tree of a model as shapes.

    Identical layers of a stage are traced once: tracing every layer of a deep model takes seconds.

    Args:
        model: the network, whose plan may have been edited.
    """
    if model.config.lora_rank and any(map(_LAYER_NUMBER.search, model.config.lora)):
        return _traced_shapes(model)
    plan, first_identical = without_repeated_layers(model.plan)
    shapes = _traced_shapes(model.clone(plan=plan))
    layers = {
        f"layer_{number}": shapes[f"layer_{first}"] for number, first in enumerate(first_identical)
    }
    return dict(sorted((shapes | layers).items()))


def without_repeated_layers(plan: Plan) -> tuple[Plan, tuple[int, ...]]:
    """Return the plan with one of the identical layers of each stage.

    Args:
        plan: plan of a model.

    Returns:
        The shorter plan, and for every layer of `plan`, counted from 0 across stages, the number
        of the identical layer in the shorter plan.
    """
    stages: list[StagePlan] = []
    first_identical: list[int] = []
    for stage_plan in plan.stages:
        kept, before = tuple(dict.fromkeys(stage_plan.layers)), sum(s.stage.layers for s in stages)
        first_identical += [before + kept.index(layer) for layer in stage_plan.layers]
        stage = dataclasses.replace(stage_plan.stage, layers=len(kept))
        stages.append(dataclasses.replace(stage_plan, stage=stage, layers=kept))

    def moved(head: Head) -> Head:
        layer = first_identical[head.layer - 1] + 1 if head.layer else 0
        return dataclasses.replace(head, layer=layer)

    layout = plan.layout.with_layers(tuple(len(stage_plan.layers) for stage_plan in stages))
    heads = tuple(moved(head) for head in plan.heads)
    shorter = dataclasses.replace(plan, layout=layout, stages=tuple(stages), heads=heads)
    return shorter, tuple(first_identical)


def _traced_shapes(model: Network) -> Any:
    """Return the shapes of the parameters that the initialisation draws."""
    batch = {
        f"{role}_{kind}": jax.ShapeDtypeStruct((1, 2), np.int32)
        for role in model.layout.embedded_roles()
        for kind in ("tokens", "positions", "segment_ids")
    } | dict.fromkeys(LANGUAGES, jax.ShapeDtypeStruct((1, 1), np.int32))
    return jax.eval_shape(model.init, jax.random.key(0), batch)["params"]
