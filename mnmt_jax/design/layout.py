"""Role layouts: the kinds of position of a model and their visibility.

A *role* is the kind of a position (source, register, trigger, target). A *stage* is a run of layers
that share one table: a row per query role, a letter per key role. A *layout* is a list of stages.
Structure is static and defined here in plain Python; which positions hold real tokens is data
(`segment_ids`).

The layout determines everything that a model needs to know about its variant: the attention mask,
the keys that each role's queries attend to, and the content of the decode cache.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Collection

from mnmt_jax.errors import UserError


class Sees(enum.Enum):
    """Visibility of a key role to a query role: none, full, or causal (past and present)."""

    NONE = "."
    FULL = "f"
    CAUSAL = "c"


@dataclasses.dataclass(frozen=True)
class Stage:
    """A run of layers that share one visibility table.

    Attributes:
        roles: roles present in these layers, in order.
        sees: one string per query role, one letter (`Sees`) per key role, e.g. `("f.", "fc")`.
        memory: cross-attention edges `(reader, read)`: the reader role attends, with separate
            projections and a separate softmax, to the read role's states at the end of the last
            stage that contains it.
        layers: number of layers; 0 in the table of layouts, set by `Layout.with_layers`.
    """

    roles: tuple[str, ...]
    sees: tuple[str, ...]
    memory: tuple[tuple[str, str], ...] = ()
    layers: int = 0

    def visibility(self, query_role: str, key_role: str) -> Sees:
        """Return the visibility of `key_role` to `query_role`."""
        return Sees(self.sees[self.roles.index(query_role)][self.roles.index(key_role)])

    def key_roles(self, query_role: str) -> tuple[str, ...]:
        """Return the roles that `query_role` attends to, in row order."""
        return tuple(r for r in self.roles if self.visibility(query_role, r) is not Sees.NONE)

    def restrict(self, roles: tuple[str, ...]) -> Stage:
        """Return the stage restricted to some roles, without its memory edges."""
        remaining = tuple(role for role in self.roles if role in roles)
        sees = tuple("".join(self.visibility(q, k).value for k in remaining) for q in remaining)
        return Stage(remaining, sees, layers=self.layers)

    def memory_role(self, reader: str) -> str | None:
        """Return the role whose frozen states `reader` cross-attends to, or None."""
        return dict(self.memory).get(reader)


@dataclasses.dataclass(frozen=True)
class Layout:
    """A model's structure: its stages and the role that is generated.

    Raises:
        ValueError: at construction, if a rule of the design is broken: (1) CAUSAL occurs only on
            the diagonal; (2) no role but `generated` sees `generated`, which is why prefilled keys
            stay valid while decoding; (3) every role sees itself, so no real query has an empty
            row; (4) a role is carried over from the previous stage or embedded where it first
            appears, and never reappears after it has ended; a memory edge reads a role of an
            earlier stage.
    """

    name: str
    stages: tuple[Stage, ...]
    generated: str = "target"

    def __post_init__(self) -> None:
        """Check rules 1 to 4."""
        for number, stage in enumerate(self.stages):
            _check_table(self, number, stage)
        _check_lifetimes(self)

    def with_layers(self, stage_layers: tuple[int, ...]) -> Layout:
        """Return the layout with `stage_layers[i]` layers in stage i.

        Raises:
            UserError: if the number of entries differs from the number of stages or one is < 1.
        """
        if len(stage_layers) != len(self.stages) or min(stage_layers, default=0) < 1:
            raise UserError(
                f"Model.stage_layers={tuple(stage_layers)}: layout '{self.name}' needs "
                f"{len(self.stages)} entries, each at least 1"
            )
        stages = tuple(
            dataclasses.replace(stage, layers=int(layers))
            for stage, layers in zip(self.stages, stage_layers, strict=True)
        )
        return dataclasses.replace(self, stages=stages)

    def embedded_roles(self) -> tuple[str, ...]:
        """Return every role, in order of first appearance; the batch holds a span for each."""
        roles: dict[str, None] = {}
        for stage in self.stages:
            roles.update(dict.fromkeys(stage.roles))
        return tuple(roles)

    def static_roles(self) -> tuple[str, ...]:
        """Return the roles fixed before decoding: all but `generated`."""
        return tuple(role for role in self.embedded_roles() if role != self.generated)

    def static_stages(self, layers: int | None = None) -> tuple[Stage, ...]:
        """Return the stages restricted to the static roles; rule 2 lets them run alone.

        Args:
            layers: number of layers, counted across stages; None means all.
        """
        static, stages = self.static_roles(), []
        remaining = self.layers if layers is None else layers
        for stage in self.stages:
            if remaining > 0:
                count = min(stage.layers, remaining)
                stages.append(dataclasses.replace(stage.restrict(static), layers=count))
                remaining -= count
        return tuple(stages)

    @property
    def is_autoregressive(self) -> bool:
        """Whether the generated role predicts the next token; otherwise it predicts masked tokens.

        It predicts masked tokens if it sees its own future.
        """
        role = self.generated
        return all(
            stage.visibility(role, role) is Sees.CAUSAL
            for stage in self.stages
            if role in stage.roles
        )

    @property
    def layers(self) -> int:
        """Number of layers of all stages."""
        return sum(stage.layers for stage in self.stages)

    @property
    def last_layers(self) -> tuple[int, ...]:
        """The last layer of each stage, counted from 1 across stages."""
        return tuple(itertools.accumulate(stage.layers for stage in self.stages))

    def check_layer(self, field: str, layer: int, role: str) -> None:
        """Check that a role is present in a layer.

        Args:
            field: configuration field that names the layer.
            layer: number of the layer, counted from 1 across stages.
            role: role whose states are needed.

        Raises:
            UserError: if it is not.
        """
        legal = self.layers_with(role)
        if not legal:
            raise UserError(f"{field}={layer}: layout '{self.name}' has no {role}; choose another")
        if layer not in legal:
            raise UserError(
                f"{field}={layer}: layout '{self.name}' has {role} states after the layers "
                f"{legal[0]} to {legal[-1]}; choose one of them"
            )

    def layers_with(self, role: str) -> tuple[int, ...]:
        """Return the layers in which a role is present, counted from 1 across stages."""
        passed = [role in stage.roles for stage in self.stages for _ in range(stage.layers)]
        return tuple(number for number, present in enumerate(passed, start=1) if present)

    def reachable(self, query_role: str) -> frozenset[str]:
        """Return the roles whose input vectors can influence `query_role`'s final state.

        This is boolean reachability of the tables over all layers; the tests compare it with the
        support of the model's Jacobian.
        """
        carried = {role: frozenset([role]) for role in self.embedded_roles()}
        for stage in self.stages:
            before_stage = dict(carried)
            for _ in range(stage.layers):
                carried = {**carried, **_one_layer(stage, carried, before_stage)}
        return carried[query_role]


def live_roles(
    stages: tuple[Stage, ...], outputs: Collection[tuple[int, str]]
) -> tuple[frozenset[str], ...]:
    """Return, per layer over all stages, the roles whose states after it reach an output.

    Queries and feed-forward layers of other roles are dead code; the compiler removes them because
    spans are separate arrays. The tests compare the compiled program with this list, and
    `mnmt_jax.model.flops` counts by it.

    Args:
        stages: stages with layer counts.
        outputs: layers, counted from 1, each with a role whose states after that layer are an
            output.
    """
    live: list[frozenset[str]] = []
    needed: frozenset[str] = frozenset()
    remembered: frozenset[str] = frozenset()
    layer = sum(stage.layers for stage in stages)
    for stage in reversed(stages):
        needed = (needed | remembered).intersection(stage.roles)
        for _ in range(stage.layers):
            needed |= {role for after, role in outputs if after == layer}
            live.append(needed)
            needed = needed.union(*(stage.key_roles(role) for role in needed))
            layer -= 1
        remembered |= frozenset(memory_role for _, memory_role in stage.memory)
    return tuple(reversed(live))


def _one_layer(
    stage: Stage, carried: dict[str, frozenset[str]], memory: dict[str, frozenset[str]]
) -> dict[str, frozenset[str]]:
    after = {}
    for role in stage.roles:
        origins = [carried[key] for key in stage.key_roles(role)]
        memory_role = stage.memory_role(role)
        after[role] = carried[role].union(
            *origins, memory[memory_role] if memory_role else frozenset()
        )
    return after


def _check_table(layout: Layout, number: int, stage: Stage) -> None:
    where = f"layout '{layout.name}', stage {number}"
    size = len(stage.roles)
    if len(stage.sees) != size or any(len(row) != size for row in stage.sees):
        raise ValueError(f"{where}: table must be {size} rows of {size} letters, got {stage.sees}")
    for query in stage.roles:
        for key in stage.roles:
            sees = stage.visibility(query, key)
            if sees is Sees.CAUSAL and query != key:
                raise ValueError(f"{where}: rule 1, '{query}' cannot be causal over '{key}'")
            if key == layout.generated != query and sees is not Sees.NONE:
                raise ValueError(f"{where}: rule 2, '{query}' must not see generated '{key}'")
        if stage.visibility(query, query) is Sees.NONE:
            raise ValueError(f"{where}: rule 3, '{query}' must see itself")


def _check_lifetimes(layout: Layout) -> None:
    gone: set[str] = set()
    for number, stage in enumerate(layout.stages):
        where = f"layout '{layout.name}', stage {number}"
        returned = gone.intersection(stage.roles)
        if returned:
            raise ValueError(f"{where}: rule 4, {sorted(returned)} left an earlier stage")
        if number:
            gone |= set(layout.stages[number - 1].roles) - set(stage.roles)
        for reader, memory_role in stage.memory:
            if reader not in stage.roles or memory_role not in gone:
                raise ValueError(
                    f"{where}: rule 4, memory ({reader}, {memory_role}) must read an ended role"
                )
    if layout.generated not in layout.stages[-1].roles:
        raise ValueError(f"layout '{layout.name}': the last stage lacks '{layout.generated}'")
