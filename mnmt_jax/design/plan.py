"""What the layers of a model consist of, as data: stages of layers, layers of sublayers.

A layout says which positions exist and which see which; a plan says what is done to them. Layout
and `Model` give the plain one (`mnmt_jax.model.sublayers.plain_plan`), methods edit it, and whoever
must know what a layer holds walks it: the network, the count of FLOPs, the names in other toolkits,
the loop.
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
    """What computes a change of states: static and hashable, with the settings it needs.

    Attributes:
        reads: whether a position reads others (attention), or is changed by itself.
        drops: whether its module drops units of the change, in the place of the residual stream's
            dropout.
        languages: of `mnmt_jax.design.layouts.LANGUAGES`, those that it asks a place for.
        tags: number of the vocabulary's languages, if it asks for the vectors of their tags.
        other_norm: name of its norm in fairseq and Hugging Face.
        inner: name of a part of its parameters -> under which they are counted instead.
        axes: end of a parameter's path -> its logical axes (`mnmt_jax.distributed.sharding.RULES`),
            of those that are named unlike the library's, e.g. `{"gate/kernel": ("embed", "mlp")}`.
    """

    attends = False
    has_dropout = False
    languages: tuple[str, ...] = ()
    tags: int = 0
    other_norm = ""
    inner: ClassVar[Mapping[str, str]] = {}
    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    @property
    def component(self) -> str:
        """Under which its parameters are counted."""
        raise NotImplementedError

    def module(self, config: Any) -> Any:
        """Returns the Flax module that owns the parameters.

        Args:
            config: sizes, a `mnmt_jax.config.sections.Model`.

        Returns:
            For a kind that reads, what has `read`, `out` and `project_keys_values` as those of
            `mnmt_jax.model.modules`.
        """
        raise NotImplementedError

    def change(self, module: Any, states: Any, place: Any) -> Any:
        """Returns the change of states, of a kind that does not read.

        Args:
            module: from `module`.
            states: [batch, length, embed].
            place: where they stand, a `mnmt_jax.model.context.PositionInfo`.
        """
        raise NotImplementedError

    def unused_elsewhere(self, config: Any) -> int:
        """Returns the parameters that the authors' code has besides and that compute nothing."""
        del config
        return 0

    def entries(self, names: Any, path: tuple[str, ...], theirs: str) -> Iterator[Any]:
        """Yields how its parameters are stored in fairseq and Hugging Face.

        Args:
            names: makes entries, a `mnmt_jax.interop.names.Names`.
            path: of its parameters.
            theirs: what stands before their names of what is inside the layer.

        Raises:
            UserError: if no toolkit has it.
        """
        raise UserError(f"{path[-1]}: its parameters have no names in other toolkits")

    def matmuls(self, config: Any, stage: Stage, roles: Sequence[str], lengths: Lengths) -> Maps:
        """Yields the projections, each with the positions it maps and its widths in and out.

        Args:
            config: sizes.
            stage: roles and visibility.
            roles: whose states are asked for after the sublayer.
            lengths: role -> tokens.
        """
        del config, stage, roles, lengths
        return iter(())

    def attention_pairs(self, stage: Stage, roles: Sequence[str], lengths: Lengths) -> float:
        """Returns the number of queries times the keys that each meets; arguments as in `maps`."""
        del stage, roles, lengths
        return 0.0


@dataclasses.dataclass(frozen=True)
class Sublayer:
    """A change of states and how it stands in the residual stream.

    Attributes:
        name: of its parameters; those of its norm are `{name}_norm`.
        kind: what computes the change.
        norm: `pre` (of what it reads), `post` (of what it leaves) or `none`.
        residual: add the change to the states, or put it in their place.
        roles: that pass it, of those that are there; empty is all.
    """

    name: str
    kind: Kind
    norm: str = "none"
    residual: bool = True
    roles: tuple[str, ...] = ()

    def passes(self, role: str) -> bool:
        """Returns whether a role is changed by it."""
        return not self.roles or role in self.roles


Layer = tuple[Sublayer, ...]


@dataclasses.dataclass(frozen=True)
class StagePlan:
    """What a stage of the layout consists of.

    Attributes:
        stage: roles and visibility.
        enter: what the roles pass before its first layer.
        layers: as many as the stage has.
        leave: what they pass after its last layer; of the last stage, the generated role alone.
    """

    stage: Stage
    before: Layer
    layers: tuple[Layer, ...]
    after: Layer


@dataclasses.dataclass(frozen=True)
class Table:
    """A vector for each token of the vocabulary.

    Attributes:
        name: of the parameter [vocab, embed]; ends in `embedding`. Learned positions of its roles
            are `{name}_positions`.
        roles: whose tokens it embeds; empty is all that no other table names.
        embeds: whether it embeds any; otherwise heads alone read it.
    """

    name: str = "embedding"
    roles: tuple[str, ...] = ()
    embeds: bool = True


@dataclasses.dataclass(frozen=True)
class Head:
    """A term of the logits, which are the sum of all: states of the generated role times a table.

    Attributes:
        table: its name.
        layer: after which the states are read, counted from 1 through all stages; 0 is the end,
            after the `leave` of the last stage.
        leave: what they pass before the table.
    """

    table: str = "embedding"
    layer: int = 0
    after: Layer = ()


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a model consists of.

    Attributes:
        layout: its structure, with layer counts.
        stages: one plan for each of the layout's stages.
        aside: sublayers that have parameters and that no pass runs: what objectives alone ask for.
            Of each only the kind matters: there is no residual stream.
        tables: that embed tokens, each role by one, and that heads read.
        heads: whose sum the logits are.
    """

    layout: Layout
    stages: tuple[StagePlan, ...]
    auxiliary: Layer = ()
    tables: tuple[Table, ...] = (Table(),)
    heads: tuple[Head, ...] = (Head(),)

    def check(self) -> None:
        """Checks what edits may have left wrong.

        Raises:
            UserError: if a table's name or roles do not do, a role has not one table, or a head
                reads what is not there.
        """
        names, roles = [table.name for table in self.tables], self.layout.embedded_roles()
        for table in self.tables:
            if names.count(table.name) > 1 or not table.name.endswith("embedding"):
                raise UserError(
                    f"table '{table.name}': names of tables differ and end in 'embedding'; choose "
                    "another"
                )
            read = any(head.table == table.name for head in self.heads)
            if not table.embeds and (table.roles or not read):
                raise UserError(
                    f"table '{table.name}' embeds nobody: give it a head and no roles, or leave it "
                    "out"
                )
            if unknown := set(table.roles) - set(roles):
                raise UserError(
                    f"table '{table.name}': layout '{self.layout.name}' has no role "
                    f"{join_names(sorted(unknown))}; it has {join_names(roles)}"
                )
        for role in roles:
            if len(found := self._tables_of(role)) != 1:
                raise UserError(
                    f"role '{role}' is embedded by {len(found)} tables; name it in the roles of one"
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
        """Returns the table that embeds a role's tokens."""
        return self._tables_of(role)[0]

    def _tables_of(self, role: str) -> list[Table]:
        embed = [table for table in self.tables if table.embeds]
        named = [table for table in embed if role in table.roles]
        return named or [table for table in embed if not table.roles]

    def layers(self) -> Iterator[tuple[Stage, Layer]]:
        """Yields the layers of all stages in order, each with its stage."""
        for part in self.stages:
            for layer in part.layers:
                yield part.stage, layer

    def around(self) -> Iterator[Sublayer]:
        """Yields what stands before and after the layers of the stages, and before tables."""
        for part in self.stages:
            yield from (*part.before, *part.after)
        for head in self.heads:
            yield from head.after

    def live_roles(self, also: Collection[tuple[int, str]] = ()) -> tuple[frozenset[str], ...]:
        """Returns `live_roles` of the stages; the outputs are what the heads read.

        Args:
            also: layers, counted from 1, and roles whose states after them are wanted besides.
        """
        read = {(head.layer or self.layout.layers, self.layout.generated) for head in self.heads}
        return live_roles(self.layout.stages, read.union(also))

    def languages(self) -> frozenset[str]:
        """Returns the languages that any sublayer asks for."""
        return frozenset(name for kind in self._kinds() for name in kind.languages)

    def tags(self) -> int:
        """Returns the number of languages whose tags' vectors any sublayer asks for."""
        return max((kind.tags for kind in self._kinds()), default=0)

    def param_axes(self) -> dict[str, tuple[str, ...]]:
        """Return the logical axes that the kinds declare for parameters of their own.

        Raises:
            ValueError: if two kinds declare different axes for one name.
        """
        declared: dict[str, tuple[str, ...]] = {}
        for kind in self._kinds():
            for name, axes in kind.axes.items():
                if declared.setdefault(name, axes) != axes:
                    raise ValueError(
                        f"{type(kind).__name__}.axes: '{name}' is {declared[name]} elsewhere; "
                        "rename it"
                    )
        return declared

    def _kinds(self) -> Iterator[Kind]:
        for each in (
            *self.around(),
            *self.auxiliary,
            *(s for _, layer in self.layers() for s in layer),
        ):
            yield each.kind

    def static(self, layers: int | None = None) -> tuple[StagePlan, ...]:
        """Returns the plans of `Layout.static_stages`.

        Args:
            layers: how many, counted through all stages; None is all.
        """
        stages = self.layout.static_stages(layers)
        return tuple(
            dataclasses.replace(part, stage=stage, layers=part.layers[: stage.layers])
            for part, stage in zip(self.stages, stages, strict=False)
        )

    def with_layers(self, edit: Callable[[int, Layer], Layer]) -> Plan:
        """Returns the plan with every layer edited.

        Args:
            edit: takes the number of a layer, from 1 through all stages, and its sublayers.
        """
        number, stages = 0, []
        for part in self.stages:
            layers = []
            for layer in part.layers:
                number += 1
                layers.append(edit(number, layer))
            stages.append(dataclasses.replace(part, layers=tuple(layers)))
        return dataclasses.replace(self, stages=tuple(stages))
