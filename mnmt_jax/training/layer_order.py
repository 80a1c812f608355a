"""Layer-by-layer initialisation of a model from a run of another structure.

Layers are copied in order: layer k of the new model, counted through its stages, starts as layer k
of the old model. Of an encoder-decoder only the decoder is used, and cross-attention only where the
new model has it. The final norm starts as the final norm; a norm between stages that the old model
did not have starts as a copy of it. Embedding tables, their learned positions and the output matrix
are copied by role. Parameters that the old model does not have (adaption modules, LoRA) keep their
random values.

Source: two-stage paper, 5.2 and 5.4 ("initialize our model's parameters from the decoder"). The
mapping itself is ours: the authors' code for it was not released, and their parameter counts allow
no other number of layers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from mnmt_jax.config.sections import Config
from mnmt_jax.design.layout import Layout
from mnmt_jax.design.layouts import get_layout
from mnmt_jax.design.plan import Plan, Table
from mnmt_jax.errors import UserError, join_names
from mnmt_jax.model.sublayers import make_plan
from mnmt_jax.training.source_runs import ParamSource, ParamSources, SourceRun


def sources_in_order(source_run: SourceRun, config: Config, names: Iterable[str]) -> ParamSources:
    """Return the source of each parameter of a new run that its source run has.

    Args:
        source_run: the source run.
        config: configuration of the new run.
        names: names of the new run's parameters.

    Raises:
        UserError: if the number of layers does not fit, or an embedding table would start as two.
    """
    before, after = (
        make_plan(model, get_layout(model.layout, model.stage_layers))
        for model in (source_run.config.model, config.model)
    )
    renamed = source_names(before.layout, after.layout)
    renamed |= source_tables(before, after, source_run.spec.flag)
    sources = {name: ParamSource(source_run, _translate(name, renamed)) for name in names}
    return {name: source for name, source in sources.items() if source.name in source_run.arrays}


def source_names(before: Layout, after: Layout) -> dict[str, str]:
    """Map each layer and norm of a new structure to the old one that it starts as.

    Args:
        before: structure of the source run.
        after: structure of the new model.

    Returns:
        E.g. `layer_0` to `layer_12`, `stage_1_norm` to `stage_0_norm`.

    Raises:
        UserError: if no choice of layers has the number needed.
    """
    source_layers = _source_layers(before, after)
    names = {f"layer_{k}": f"layer_{layer}" for k, layer in enumerate(source_layers)}
    last_stage = len(before.stages) - 1
    same_stages = [stage.layers for stage in before.stages] == [
        stage.layers for stage in after.stages
    ]
    for number in range(len(after.stages)):
        source_stage = (
            number
            if same_stages and source_layers == list(range(len(source_layers)))
            else last_stage
        )
        names[f"stage_{number}_norm"] = f"stage_{source_stage}_norm"
    return names


def source_tables(before: Plan, after: Plan, flag: str) -> dict[str, str]:
    """Map each table of a new plan, and its positions, to the old one of the same roles.

    If only the old model's decoder is used, all tables start as the decoder's.

    Args:
        before: plan of the source run.
        after: plan of the new model.
        flag: flag that names the source run.

    Returns:
        E.g. `target_embedding` to `embedding`.

    Raises:
        UserError: if the roles of a new table have different tables in the source run.
    """
    is_decoder_alone = len(_source_layers(before.layout, after.layout)) < before.layout.layers
    known_roles = () if is_decoder_alone else before.layout.embedded_roles()
    names = {}
    for table in after.tables:
        embedding = _embedding_tables(table, before, after, known_roles)
        sources = list(dict.fromkeys([*embedding, *_output_tables(table, before, after)]))
        if len(sources) > 1:
            raise UserError(
                f"{flag}: '{table.name}' would start as {join_names(sources, separator=' and ')} "
                "of that run, which differ; keep them apart with 'tables' in Model.methods "
                "(Tables.target, Tables.output)"
            )
        if sources:
            names[table.name] = sources[0]
        if embedding:
            names[f"{table.name}_positions"] = f"{embedding[0]}_positions"
    return names


def _embedding_tables(
    table: Table, before: Plan, after: Plan, known_roles: Collection[str]
) -> list[str]:
    """Return the old tables of the roles that a new one embeds; the target's for unknown roles."""
    roles = [role for role in after.layout.embedded_roles() if after.table_of(role) == table]
    known = [role for role in roles if role in known_roles]
    fallback = [before.layout.generated] if roles else []
    return list(dict.fromkeys(before.table_of(role).name for role in known or fallback))


def _output_tables(table: Table, before: Plan, after: Plan) -> list[str]:
    """Return the old tables of the heads that a new one is for.

    Heads correspond in order; if their numbers differ, those that read the end, and those that read
    a layer before it.
    """
    if len(before.heads) == len(after.heads):
        pairs = list(zip(after.heads, before.heads, strict=True))
    else:
        pairs = [
            (new, old)
            for new in after.heads
            for old in before.heads
            if bool(new.layer) == bool(old.layer)
        ]
    return [old.table for new, old in pairs if new.table == table.name]


def _source_layers(before: Layout, after: Layout) -> list[int]:
    count = sum(stage.layers for stage in after.stages)
    stage_of_layer = [stage for stage in before.stages for _ in range(stage.layers)]
    decoder_layers = [
        n for n, stage in enumerate(stage_of_layer) if before.generated in stage.roles
    ]
    shape = [(stage.layers, bool(stage.memory)) for stage in before.stages]
    same_shape = shape == [(stage.layers, bool(stage.memory)) for stage in after.stages]
    if same_shape or (
        len(stage_of_layer) == count and not any(stage.memory for stage in before.stages)
    ):
        return list(range(count))
    if len(decoder_layers) == count:
        return decoder_layers
    raise UserError(
        f"layer counts do not match: '{after.name}' has {count}, the run's '{before.name}' has "
        f"{len(decoder_layers)} with a target of {len(stage_of_layer)}; set Model.stage_layers to "
        f"{len(decoder_layers)} layers in all"
    )


def _translate(name: str, table: Mapping[str, str]) -> str:
    head, _, suffix = name.partition("/")
    return "/".join(component for component in (table.get(head, head), suffix) if component)
