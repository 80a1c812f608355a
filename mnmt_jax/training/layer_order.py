"""All parameters of one run as those of another structure, layer by layer.

Layers are taken in order: layer k of the new model, counted through its stages, starts as what
layer k of the old one was. Of an encoder-decoder that is its decoder: the encoder is not used, and
cross-attention only where the new model has it. The last norm is the last norm; a norm between
stages that the old model did not have starts as a copy of it. What else the old model does not have
(adaption modules, LoRA) stays as drawn.

Source: two-stage paper, 5.2 and 5.4 ("initialize our model's parameters from the decoder"). The
mapping itself is ours: the authors' code for it was not released, and their parameter counts allow
no other number of layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mnmt_jax.config.sections import Config
from mnmt_jax.design.layout import Layout
from mnmt_jax.design.layouts import get_layout
from mnmt_jax.errors import UserError
from mnmt_jax.training.source_runs import ParamSource, ParamSources, SourceRun


def sources_in_order(giver: SourceRun, config: Config, names: Iterable[str]) -> ParamSources:
    """Finds what each parameter of a new run starts as, if its origin has that.

    Args:
        giver: the origin.
        config: of the new run.
        names: of the new run's parameters.

    Raises:
        UserError: if the number of layers does not fit.
    """
    model = giver.config.model
    before = get_layout(model.layout, model.stage_layers)
    after = get_layout(config.model.layout, config.model.stage_layers)
    table = source_names(before, after)
    found = {name: ParamSource(giver, _translate(name, table)) for name in names}
    return {name: source for name, source in found.items() if source.name in giver.arrays}


def source_names(before: Layout, after: Layout) -> dict[str, str]:
    """Maps each layer and norm of a new structure to the one of the old that it starts as.

    Args:
        before: structure of the run that gives.
        after: structure of the new model.

    Returns:
        E.g. `layer_0` to `layer_12`, `stage_1_norm` to `stage_0_norm`.

    Raises:
        UserError: if no choice of layers has the number needed.
    """
    chosen = _layers(before, after)
    names = {f"layer_{k}": f"layer_{layer}" for k, layer in enumerate(chosen)}
    last = len(before.stages) - 1
    same = [stage.layers for stage in before.stages] == [stage.layers for stage in after.stages]
    for number in range(len(after.stages)):
        kept = number if same and chosen == list(range(len(chosen))) else last
        names[f"stage_{number}_norm"] = f"stage_{kept}_norm"
    return names


def _layers(before: Layout, after: Layout) -> list[int]:
    count = sum(stage.layers for stage in after.stages)
    every = [stage for stage in before.stages for _ in range(stage.layers)]
    decoder = [n for n, stage in enumerate(every) if before.generated in stage.roles]
    shape = [(stage.layers, bool(stage.memory)) for stage in before.stages]
    same = shape == [(stage.layers, bool(stage.memory)) for stage in after.stages]
    if same or (len(every) == count and not any(stage.memory for stage in before.stages)):
        return list(range(count))
    if len(decoder) == count:
        return decoder
    raise UserError(
        f"layers do not fit: '{after.name}' has {count}, the run's '{before.name}' has "
        f"{len(decoder)} with a target of {len(every)}; set Model.stage_layers to {len(decoder)} "
        "layers in all"
    )


def _translate(name: str, names: Mapping[str, str]) -> str:
    head, _, rest = name.partition("/")
    return "/".join(part for part in (names.get(head, head), rest) if part)
