"""Model plans: the stages of a model, their layers and the sublayers of each, as data.

A layout defines the positions and their visibility; a plan defines the operations on them. The
layout and `Model` yield the plain plan (`mnmt_jax.model.sublayers.plain_plan`), methods edit it,
and it is read by the network, the FLOP count, the names in other toolkits and the training loop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from mnmt_jax.design.layout import Layout, Stage, live_roles
from mnmt_jax.errors import UserError, join_names

Lengths = Mapping[str, float]  # role -> tokens
Maps = Iterator[tuple[str, float, tuple[int, int]]]


class Kind:
    """Mixin that makes a Flax module a kind of sublayer.

    The plan holds the module unbound, with its settings as fields: static and hashable. The network
    clones it under the sublayer's name. A kind that attends has `read`, `out` and
    `project_keys_values` as in `mnmt_jax.model.sublayers.Attention`; every other has `change`.

    Attributes:
        attends: whether a position reads other positions (attention) or only itself.
        languages: those of `mnmt_jax.design.layouts.LANGUAGES` that it needs in `PositionInfo`.
        tags: number of the vocabulary's languages if it needs the vectors of their tags, else 0.
        other_norm: name of its norm in fairseq and Hugging Face.
        inner: name of a group of its parameters -> component under which they are counted instead.
        axes: suffix of a parameter path -> its logical axes
            (`mnmt_jax.distributed.sharding.RULES`), for parameters whose names differ from the
            library's, e.g. `{"gate/kernel": ("embed", "mlp")}`.
    """

    attends = False
    languages: tuple[str, ...] = ()
    tags: int = 0
    other_norm = ""
    inner: ClassVar[Mapping[str, str]] = {}
    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    @property
    def component(self) -> str:
        """Component under which its parameters are counted.

        Raises:
            UserError: if the class sets none.
        """
        raise UserError(f"{type(self).__name__} has no `component`; name what it counts as")

    @property
    def has_dropout(self) -> bool:
        """Whether it applies its own dropout, which replaces the residual stream's."""
        return False

    def change(self, states: Any, info: Any) -> Any:
        """Return the change of the states, with the module bound; for kinds that do not attend.

        Args:
            states: [batch, length, embed].
            info: the `mnmt_jax.model.context.PositionInfo` of the states.

        Raises:
            UserError: if the class does not define it.
        """
        raise UserError(f"{type(self).__name__} has no method `change(states, info)`; define it")

    def unused_elsewhere(self) -> int:
        """Return the number of additional parameters in the authors' code that compute nothing."""
        return 0

    def entries(self, names: Any, path: tuple[str, ...], prefix: str) -> Iterator[Any]:
        """Yield the names of its parameters in fairseq and Hugging Face.

        Args:
            names: factory of entries, a `mnmt_jax.interop.names.Names`.
            path: path of its parameters.
            prefix: prefix of the names in these toolkits, inside the layer.

        Raises:
            UserError: if no toolkit has it.
        """
        raise UserError(f"{path[-1]}: its parameters have no names in other toolkits")

    def matmuls(self, stage: Stage, roles: Sequence[str], lengths: Lengths) -> Maps:
        """Yield the projections: name, number of positions, and (input width, output width).

        Args:
            stage: roles and visibility.
            roles: roles whose states are needed after the sublayer.
            lengths: role -> tokens.
        """
        del stage, roles, lengths
        return iter(())

    def attention_pairs(self, stage: Stage, roles: Sequence[str], lengths: Lengths) -> float:
        """Return the number of (query, key) pairs; arguments as in `matmuls`."""
        del stage, roles, lengths
        return 0.0


@dataclasses.dataclass(frozen=True)
class Sublayer:
    """A change of the states and its place in the residual stream.

    Attributes:
        name: name of its parameters; its norm is `{name}_norm`.
        kind: the unbound Flax module that computes the change.
        norm: `pre` (norm of the input), `post` (norm of the output) or `none`.
        residual: whether the change is added to the states or replaces them.
        roles: roles that it is applied to, if present; empty means all.
    """

    name: str
    kind: Kind
    norm: str = "none"
    residual: bool = True
    roles: tuple[str, ...] = ()

    def passes(self, role: str) -> bool:
        """Return whether it is applied to a role."""
        return not self.roles or role in self.roles


Layer = tuple[Sublayer, ...]


@dataclasses.dataclass(frozen=True)
class StagePlan:
    """The sublayers of one stage of the layout.

    Attributes:
        stage: roles and visibility.
        before: sublayers before the first layer.
        layers: the layers, as many as the stage has.
        after: sublayers after the last layer; in the last stage applied to the generated role only.
    """

    stage: Stage
    before: Layer
    layers: tuple[Layer, ...]
    after: Layer


@dataclasses.dataclass(frozen=True)
class Table:
    """An embedding table: one vector for each token of the vocabulary.

    Attributes:
        name: name of the parameter [vocab, embed]; ends in `embedding`. Learned positions of its
            roles are `{name}_positions`.
        roles: roles whose tokens it embeds; empty means all roles that no other table names.
        embeds: whether it embeds any role; otherwise only heads use it.
    """

    name: str = "embedding"
    roles: tuple[str, ...] = ()
    embeds: bool = True


@dataclasses.dataclass(frozen=True)
class Head:
    """A term of the logits, which sum all heads: states of the generated role times a table.

    Attributes:
        table: name of the table.
        layer: layer whose output states are read, counted from 1 across stages; 0 is the end, after
            the `after` sublayers of the last stage.
        after: sublayers applied before the table.
    """

    table: str = "embedding"
    layer: int = 0
    after: Layer = ()


@dataclasses.dataclass(frozen=True)
class Plan:
    """The plan of a model.

    Attributes:
        layout: its structure, with layer counts.
        stages: one plan for each stage of the layout.
        auxiliary: sublayers with parameters that the forward pass does not run; only objectives use
            them. Only their kind matters, since they are outside the residual stream.
        tables: embedding tables; each role is embedded by one of them, and heads use them.
        heads: heads whose sum is the logits.
    """

    layout: Layout
    stages: tuple[StagePlan, ...]
    auxiliary: Layer = ()
    tables: tuple[Table, ...] = (Table(),)
    heads: tuple[Head, ...] = (Head(),)

    def check(self) -> None:
        """Check the consistency of an edited plan.

        Raises:
            UserError: if a table has a wrong name or wrong roles, a role is not embedded by exactly
                one table, or a head reads a layer or table that does not exist.
        """
        names, roles = [table.name for table in self.tables], self.layout.embedded_roles()
        for table in self.tables:
            if names.count(table.name) > 1 or not table.name.endswith("embedding"):
                raise UserError(
                    f"table '{table.name}': names of tables differ and end in 'embedding'; choose "
                    "another"
                )
            is_read = any(head.table == table.name for head in self.heads)
            if not table.embeds and (table.roles or not is_read):
                raise UserError(
                    f"table '{table.name}' embeds no role: use it in a head, without roles, or "
                    "leave it out"
                )
            if unknown := set(table.roles) - set(roles):
                raise UserError(
                    f"table '{table.name}': layout '{self.layout.name}' has no role "
                    f"{join_names(sorted(unknown))}; it has {join_names(roles)}"
                )
        for role in roles:
            if len(tables := self._tables_of(role)) != 1:
                raise UserError(
                    f"role '{role}' is embedded by {len(tables)} tables; name it in the roles of "
                    "one"
                )
        passed = self.layout.layers_with(self.layout.generated)
        for head in self.heads:
            if head.table not in names or head.layer not in (0, *passed):
                raise UserError(
                    f"a head reads layer {head.layer} and table '{head.table}'; choose 0 or one of "
                    f"layers {passed[0]} to {passed[-1]}, and one of {join_names(names)}"
                )
        if not self.heads:
            raise UserError("a plan without heads has no logits; give one")

    def table_of(self, role: str) -> Table:
        """Return the table that embeds a role's tokens."""
        return self._tables_of(role)[0]

    def _tables_of(self, role: str) -> list[Table]:
        embedding = [table for table in self.tables if table.embeds]
        by_role = [table for table in embedding if role in table.roles]
        return by_role or [table for table in embedding if not table.roles]

    def layers(self) -> Iterator[tuple[Stage, Layer]]:
        """Yield (stage, layer) for the layers of all stages in order."""
        for stage_plan in self.stages:
            for layer in stage_plan.layers:
                yield stage_plan.stage, layer

    def outer_sublayers(self) -> Iterator[Sublayer]:
        """Yield the sublayers outside the layers: around each stage, and in the heads."""
        for stage_plan in self.stages:
            yield from (*stage_plan.before, *stage_plan.after)
        for head in self.heads:
            yield from head.after

    def live_roles(
        self, extra_outputs: Collection[tuple[int, str]] = ()
    ) -> tuple[frozenset[str], ...]:
        """Return the `live_roles` of the stages; the outputs are the states that the heads read.

        Args:
            extra_outputs: additional outputs: layers, counted from 1, each with a role.
        """
        outputs = {(head.layer or self.layout.layers, self.layout.generated) for head in self.heads}
        return live_roles(self.layout.stages, outputs.union(extra_outputs))

    def languages(self) -> frozenset[str]:
        """Return the languages that the sublayers need."""
        return frozenset(name for kind in self._kinds() for name in kind.languages)

    def tags(self) -> int:
        """Return the number of languages whose tag vectors the sublayers need."""
        return max((kind.tags for kind in self._kinds()), default=0)

    def param_axes(self) -> dict[str, tuple[str, ...]]:
        """Return the logical axes that the kinds declare for their own parameters.

        Raises:
            UserError: if two kinds declare different axes for one name.
        """
        declared: dict[str, tuple[str, ...]] = {}
        for kind in self._kinds():
            for name, axes in kind.axes.items():
                if declared.setdefault(name, axes) != axes:
                    raise UserError(
                        f"{type(kind).__name__}.axes: '{name}' is {declared[name]} elsewhere; "
                        "rename it"
                    )
        return declared

    def _kinds(self) -> Iterator[Kind]:
        for sublayer in (
            *self.outer_sublayers(),
            *self.auxiliary,
            *(s for _, layer in self.layers() for s in layer),
        ):
            yield sublayer.kind

    def static(self, layers: int | None = None) -> tuple[StagePlan, ...]:
        """Return the stage plans of `Layout.static_stages`.

        Args:
            layers: number of layers, counted across stages; None means all.
        """
        stages = self.layout.static_stages(layers)
        return tuple(
            dataclasses.replace(stage_plan, stage=stage, layers=stage_plan.layers[: stage.layers])
            for stage_plan, stage in zip(self.stages, stages, strict=False)
        )

    def with_layers(self, edit: Callable[[int, Layer], Layer]) -> Plan:
        """Return the plan with every layer edited.

        Args:
            edit: called with the number of a layer, counted from 1 across stages, and its
                sublayers.
        """
        number, stages = 0, []
        for stage_plan in self.stages:
            layers = []
            for layer in stage_plan.layers:
                number += 1
                layers.append(edit(number, layer))
            stages.append(dataclasses.replace(stage_plan, layers=tuple(layers)))
        return dataclasses.replace(self, stages=tuple(stages))
