"""Types of the role layout: which kinds of position a model has and which see which.

A *role* is what a position is (source, register, trigger, target). A *stage* is a run of layers
with one table: a row per query role, a letter per key role. A *layout* is a list of stages.
Structure is static and lives here, in plain Python; which positions hold real tokens is data
(`segment_ids`).

Everything a model needs to know about its variant follows from the layout: the attention mask, the
keys each role's queries meet, and what the decode cache must hold.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Collection

from mnmt_jax.errors import UserError


class Sees(enum.Enum):
    """What a query role sees of a key role: nothing, everything, or its own past and itself."""

    NONE = "."
    FULL = "f"
    CAUSAL = "c"


@dataclasses.dataclass(frozen=True)
class Stage:
    """A run of layers that share one visibility table.

    Attributes:
        roles: spans present in these layers, in order.
        sees: one string per query role, one letter (`Sees`) per key role, e.g. `("f.", "fc")`.
        memory: cross-attention edges `(reader, read)`: the reader role attends, with projections
            and a softmax of its own, to the read role's states at the end of the stage that last
            held it.
        layers: number of layers; 0 in the rows of the table, set by `Layout.with_layers`.
    """

    roles: tuple[str, ...]
    sees: tuple[str, ...]
    memory: tuple[tuple[str, str], ...] = ()
    layers: int = 0

    def visibility(self, query_role: str, key_role: str) -> Sees:
        """Returns what `query_role` sees of `key_role`."""
        return Sees(self.sees[self.roles.index(query_role)][self.roles.index(key_role)])

    def key_roles(self, query_role: str) -> tuple[str, ...]:
        """Returns the roles that `query_role` attends to, in row order."""
        return tuple(r for r in self.roles if self.visibility(query_role, r) is not Sees.NONE)

    def restrict(self, roles: tuple[str, ...]) -> Stage:
        """Returns the stage with the given roles alone, without its memory edges."""
        kept = tuple(role for role in self.roles if role in roles)
        sees = tuple("".join(self.visibility(q, k).value for k in kept) for q in kept)
        return Stage(kept, sees, layers=self.layers)

    def memory_role(self, reader: str) -> str | None:
        """Returns the role whose frozen states `reader` cross-attends to, or None."""
        return dict(self.memory).get(reader)


@dataclasses.dataclass(frozen=True)
class Layout:
    """A model's structure: its stages and the one role that predicts and grows.

    Raises:
        ValueError: at construction, if a rule of the design is broken: (1) CAUSAL stands only on
            the diagonal; (2) no role but `generated` sees `generated`, which is why prefilled keys
            stay valid while decoding; (3) every role sees itself, so no real query has an empty
            row; (4) a role is carried from the stage before or embedded where it first appears, and
            never returns once gone; a memory edge reads a role of an earlier stage.
    """

    name: str
    stages: tuple[Stage, ...]
    generated: str = "target"

    def __post_init__(self) -> None:
        """Checks rules 1 to 4."""
        for number, stage in enumerate(self.stages):
            _check_table(self, number, stage)
        _check_lifetimes(self)

    def with_layers(self, stage_layers: tuple[int, ...]) -> Layout:
        """Returns the layout with `stage_layers[i]` layers in stage i.

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
        """Returns every role, in order of first appearance; the batch holds a span for each."""
        roles: dict[str, None] = {}
        for stage in self.stages:
            roles.update(dict.fromkeys(stage.roles))
        return tuple(roles)

    def static_roles(self) -> tuple[str, ...]:
        """Returns the roles fixed before decoding: all but `generated`."""
        return tuple(role for role in self.embedded_roles() if role != self.generated)

    def static_stages(self, layers: int | None = None) -> tuple[Stage, ...]:
        """Returns the stages with the static roles alone; by rule 2 they run without the rest.

        Args:
            layers: how many, counted through all stages; None is all.
        """
        static, stages = self.static_roles(), []
        left = self.layers if layers is None else layers
        for stage in self.stages:
            if left > 0:
                kept = min(stage.layers, left)
                stages.append(dataclasses.replace(stage.restrict(static), layers=kept))
                left -= kept
        return tuple(stages)

    @property
    def grows(self) -> bool:
        """Whether the generated role predicts what follows; otherwise it predicts what it holds.

        That is so where it sees its own future: there is nothing left to say but what is masked.
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
    def ends(self) -> tuple[int, ...]:
        """The last layer of each stage, counted from 1 through all stages."""
        return tuple(itertools.accumulate(stage.layers for stage in self.stages))

    def check_passed(self, field: str, layer: int, role: str) -> None:
        """Checks that a role passes a layer.

        Args:
            field: of the configuration, which names the layer.
            layer: counted from 1 through all stages.
            role: whose states are wanted.

        Raises:
            UserError: otherwise.
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
        """Returns the layers that a role passes, counted from 1 through all stages."""
        passed = [role in stage.roles for stage in self.stages for _ in range(stage.layers)]
        return tuple(number for number, present in enumerate(passed, start=1) if present)

    def reachable(self, query_role: str) -> frozenset[str]:
        """Returns the roles whose input vectors can influence `query_role`'s final state.

        This is boolean reachability of the tables over all layers; the tests hold it against the
        support of the model's Jacobian.
        """
        carried = {role: frozenset([role]) for role in self.embedded_roles()}
        for stage in self.stages:
            before_stage = dict(carried)
            for _ in range(stage.layers):
                carried = {**carried, **_one_layer(stage, carried, before_stage)}
        return carried[query_role]


def live_roles(
    stages: tuple[Stage, ...], wanted: Collection[tuple[int, str]]
) -> tuple[frozenset[str], ...]:
    """Returns, per layer over all stages, the roles whose states after it reach an output.

    Other roles' queries and feed-forward layers are dead work there; the compiler removes them,
    because spans are separate arrays. This list is what the tests hold the compiler to, and what
    `mnmt_jax.model.flops` counts.

    Args:
        stages: with their layers.
        wanted: layers, counted from 1, each with a role whose states after it are an output.
    """
    live: list[frozenset[str]] = []
    needed: frozenset[str] = frozenset()
    remembered: frozenset[str] = frozenset()
    layer = sum(stage.layers for stage in stages)
    for stage in reversed(stages):
        needed = (needed | remembered).intersection(stage.roles)
        for _ in range(stage.layers):
            needed |= {role for after, role in wanted if after == layer}
            live.append(needed)
            needed = needed.union(*(stage.key_roles(role) for role in needed))
            layer -= 1
        remembered |= frozenset(read for _, read in stage.memory)
    return tuple(reversed(live))


def _one_layer(
    stage: Stage, carried: dict[str, frozenset[str]], memory: dict[str, frozenset[str]]
) -> dict[str, frozenset[str]]:
    after = {}
    for role in stage.roles:
        origins = [carried[key] for key in stage.key_roles(role)]
        read = stage.memory_role(role)
        after[role] = carried[role].union(*origins, memory[read] if read else frozenset())
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
        for reader, read in stage.memory:
            if reader not in stage.roles or read not in gone:
                raise ValueError(
                    f"{where}: rule 4, memory ({reader}, {read}) must read an ended role"
                )
    if layout.generated not in layout.stages[-1].roles:
        raise ValueError(f"layout '{layout.name}': the last stage lacks '{layout.generated}'")
