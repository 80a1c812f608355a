"""Parameters by their names in other toolkits: one table, read one way and written the other.

fairseq, Hugging Face's M2M-100 and MITRE name what is inside a layer alike; a `Dialect` says what
stands around it. Names are matched by suffix, because releases put different prefixes before them.
An entry holds both changes of form (PyTorch's Linear is [out, in]) so that a round trip is exact.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from mnmt_jax.config.sections import Model
from mnmt_jax.design.layout import Layout
from mnmt_jax.design.plan import Head, Plan, Sublayer, Table
from mnmt_jax.errors import UserError, join_names
from mnmt_jax.files.lazy_array import LazyArray
from mnmt_jax.model.modules import FIRST_ROW
from mnmt_jax.model.sublayers import make_plan

Path = tuple[str, ...]
Change = Callable[[np.ndarray], np.ndarray]
Tensors = Mapping[str, LazyArray]


@dataclasses.dataclass(frozen=True)
class Dialect:
    """How a toolkit names what is around the layers.

    Attributes:
        prefix: put before every name that is written.
        embedding: names the one embedding may be stored under; empty where each side's table and
            each head's matrix has a name, and learned positions have.
        written: those it is written under.
        encoder: name of the stages that the generated role does not pass.
        decoder: name of the others; empty where there are no others.
    """

    prefix: str
    embedding: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    encoder: str = "encoder"
    decoder: str = "decoder"


_SIDES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")

FAIRSEQ = Dialect("")
M2M100 = Dialect("model.", ("shared.weight", *_SIDES, "lm_head.weight"), ("shared.weight",))
# MITRE's modelling file derives from M2M-100's decoder; its prefixes were not seen, so names are
# matched without them.
MITRE = Dialect(
    "model.decoder.",
    ("embed_tokens.weight", "shared.weight", "lm_head.weight"),
    ("embed_tokens.weight",),
    decoder="",
)

# Computed position tables and versions are bookkeeping; `embed_positions.weight` is learned.
_NO_PARAMETER = re.compile(
    r"(^|\.)(version|embed_positions\.(weights|_float_tensor)|final_logits_bias)$"
)


@dataclasses.dataclass(frozen=True)
class Entry:
    """How one parameter of ours is stored elsewhere.

    Attributes:
        path: keys into our parameter tree; () is a tensor of theirs that we do not have: it is
            not read, and zeros are written.
        shape: ours, without the axis of slots.
        names: suffixes of the other name; several where a matrix may be stored more than once.
        written: the names to write.
        other_shape: the other one.
        read: from their array to ours.
        write: the inverse.
        slot: where along our first axis theirs stands, if several of theirs are one of ours.
    """

    path: Path
    shape: tuple[int, ...]
    names: tuple[str, ...]
    written: tuple[str, ...]
    other_shape: tuple[int, ...]
    read: Change
    write: Change
    slot: int | None = None


def entries(config: Model, layout: Layout, dialect: Dialect, rows: np.ndarray) -> list[Entry]:
    """Returns the table of a model.

    Args:
        config: sizes.
        layout: structure, with layer counts.
        dialect: whose names.
        rows: their embedding row of each of our ids, int [vocab].
    """
    return list(Names(config, layout, dialect).entries(np.asarray(rows)))


def read_params(tensors: Tensors, table: list[Entry]) -> dict[str, Any]:
    """Finds every parameter of ours; reads nothing but what must be compared.

    Args:
        tensors: by their names.
        table: from `entries`.

    Returns:
        Our parameter tree of float32 arrays to be read.

    Raises:
        UserError: with one list of all tensors that are missing, unexpected or of another shape.
    """
    found, unexpected, problems = _match(tensors, table)
    if problems:
        expected = sum(math.prod(entry.other_shape) for entry in table)
        once = [names[0] for names in found if names] + unexpected
        stored = sum(tensors[name].size for name in once)
        raise UserError(
            f"the checkpoint does not fit the model ({stored:,} values stored, {expected:,} "
            f"expected); nothing was written. {len(problems)} problems:\n  " + "\n  ".join(problems)
        )
    params: dict[str, Any] = {}
    stacks: dict[Path, dict[int, LazyArray]] = {}
    for entry, names in zip(table, found, strict=True):
        if not entry.path:
            continue
        ours = _ours(tensors[names[0]], entry)
        if entry.slot is None:
            put(params, entry.path, ours)
        else:
            stacks.setdefault(entry.path, {})[entry.slot] = ours
    for path, slots in stacks.items():
        put(params, path, LazyArray.stacked([slots[number] for number in sorted(slots)]))
    return params


def written_tensors(
    params: Mapping[str, Any], table: list[Entry]
) -> Iterator[tuple[str, LazyArray]]:
    """Yields their name and array of every parameter of ours; the inverse of `read_params`.

    Args:
        params: our tree of NumPy or lazy arrays.
        table: from `entries`.
    """
    for entry in table:
        if entry.path:
            leaf = get(params, entry.path)
            lazy = leaf if isinstance(leaf, LazyArray) else LazyArray.of(np.asarray(leaf))
        else:
            lazy = LazyArray.of(np.zeros(entry.shape, np.float32))
        if entry.slot is not None:
            lazy = lazy.then(operator.itemgetter(entry.slot), entry.shape, lazy.dtype)
        storage = "/".join(entry.path) if len(entry.written) > 1 else None
        for name in entry.written:
            found = lazy.then(entry.write, entry.other_shape, lazy.dtype)
            yield name, dataclasses.replace(found, storage=storage)


def put(tree: dict[str, Any], path: Path, leaf: Any) -> None:
    """Sets a leaf of a nested dictionary, making the dictionaries on the way."""
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = leaf


def get(tree: Mapping[str, Any], path: Path) -> Any:
    """Returns a leaf of a nested dictionary."""
    for key in path:
        tree = tree[key]
    return tree


def _ours(tensor: LazyArray, entry: Entry) -> LazyArray:
    def change(array: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(entry.read(array), np.float32)

    return tensor.then(change, entry.shape, np.dtype(np.float32))


def _match(tensors: Tensors, table: list[Entry]) -> tuple[list[list[str]], list[str], list[str]]:
    """Returns the names found for each entry, the names of no entry, and what is wrong."""
    by_suffix: dict[str, list[str]] = {}
    for name in tensors:
        parts = name.split(".")
        for start in range(len(parts)):
            by_suffix.setdefault(".".join(parts[start:]), []).append(name)
    found: list[list[str]] = []
    problems: list[str] = []
    for entry in table:
        names = sorted({name for suffix in entry.names for name in by_suffix.get(suffix, [])})
        found.append(names)
        problems += _problems(tensors, entry, names)
    used = {name for names in found for name in names}
    unexpected = [n for n in sorted(set(tensors) - used) if not _NO_PARAMETER.search(n)]
    problems += [f"unexpected {name} {list(tensors[name].shape)}" for name in unexpected]
    return found, unexpected, problems


def _problems(tensors: Tensors, entry: Entry, names: list[str]) -> list[str]:
    if not names:
        return [f"missing {entry.names[0]} {list(entry.other_shape)}"]
    wrong = [name for name in names if tensors[name].shape != entry.other_shape]
    if wrong:
        return [
            f"{name} has shape {list(tensors[name].shape)}, expected {list(entry.other_shape)}"
            for name in wrong
        ]
    if len(names) > 1 and len(entry.names) == 1:
        return [f"{' and '.join(names)} both end in {entry.names[0]}"]
    return [
        f"{name} differs from {names[0]}: the model has one matrix for both"
        for name in names[1:]
        if not _same_values(tensors[names[0]], tensors[name])
    ]


def _same_values(one: LazyArray, other: LazyArray) -> bool:
    if one.storage is not None and one.storage == other.storage:
        return True
    return np.array_equal(one.read(), other.read())


@dataclasses.dataclass(frozen=True)
class Names:
    """Makes the table of a model; a kind of sublayer asks it for the entries of its parts."""

    config: Model
    layout: Layout
    dialect: Dialect

    def entries(self, rows: np.ndarray) -> Iterator[Entry]:
        """Yields all entries; `rows` as in the function `entries`.

        Raises:
            UserError: if a parameter has no name there.
        """
        plan, layout = make_plan(self.config, self.layout), self.layout
        yield from self._tables(plan, rows)
        number, layers = 0, collections.Counter[str]()  # those of each side
        for part in plan.stages:
            side = self._side(layout.grows and layout.generated in part.stage.roles)
            for sublayers in part.layers:
                ours, theirs = (f"layer_{number}",), f"{side}layers.{layers[side]}."
                for each in sublayers:
                    yield from self._sublayer(each, ours, theirs)
                number += 1
                layers[side] += 1
            for each in (*part.before, *part.after):
                yield from self._sublayer(each, (), side)
        for head in plan.heads:
            for each in head.after:
                yield from self._sublayer(each, (), f"{side}lm_")

    def _side(self, decodes: bool) -> str:
        name = self.dialect.decoder if decodes else self.dialect.encoder
        return f"{name}." if name else ""

    def _tables(self, plan: Plan, rows: np.ndarray) -> Iterator[Entry]:
        """Yields the entries of tables and learned positions."""
        if not self.dialect.embedding:
            for table in plan.tables:
                yield from self._table(plan, table, rows)
            return
        if "learned" in self.config.positions:
            raise UserError(
                f"Model.positions={self.config.positions!r}: learned positions are read from "
                "fairseq and written for it, not for other toolkits"
            )
        if (plan.tables, plan.heads) != ((Table(),), (Head(),)):
            names = join_names([table.name for table in plan.tables])
            raise UserError(
                f"tables {names} and {len(plan.heads)} heads: the toolkits whose names are known, "
                "fairseq apart, have one table, which is the only head's too"
            )
        yield self._matrix("embedding", self.dialect.embedding, self.dialect.written, rows)

    def _table(self, plan: Plan, table: Table, rows: np.ndarray) -> Iterator[Entry]:
        """Yields the entries of a table and of its roles' learned positions, as in fairseq."""
        grows, generated = self.layout.grows, self.layout.generated
        roles = [role for role in self.layout.embedded_roles() if plan.table_of(role) == table]
        sides = list(dict.fromkeys(self._side(grows and role == generated) for role in roles))
        last = self._side(grows)
        names = [f"{side}embed_tokens.weight" for side in sides] + [
            f"{last}{'lm_' if head.layer else ''}output_projection.weight"
            for head in plan.heads
            if head.table == table.name
        ]
        yield self._matrix(table.name, tuple(names), tuple(names), rows)
        if "learned" not in self.config.positions or not sides:
            return
        if len(sides) > 1:
            raise UserError(
                f"Model.positions={self.config.positions!r}: '{table.name}' has positions for both "
                "sides, which fairseq has for each; add 'tables' to Model.methods"
            )
        count, embed = self.config.positions[1], self.config.embed
        unused = np.zeros((FIRST_ROW, embed), np.float32)
        yield self._entry(
            (f"{table.name}_positions",),
            (count, embed),
            f"{sides[0]}embed_positions.weight",
            (count + FIRST_ROW, embed),
            lambda theirs: theirs[FIRST_ROW:],
            lambda ours: np.concatenate([unused.astype(ours.dtype), ours]),
        )

    def _matrix(
        self, ours: str, names: tuple[str, ...], written: tuple[str, ...], rows: np.ndarray
    ) -> Entry:
        """Returns the entry of a table, whose rows they have in another order."""

        def write(table: np.ndarray) -> np.ndarray:
            theirs = np.empty_like(table)
            theirs[rows] = table
            return theirs

        shape = (len(rows), self.config.embed)
        written = tuple(self.dialect.prefix + name for name in written)
        return Entry((ours,), shape, names, written, shape, lambda table: table[rows], write)

    def _sublayer(self, each: Sublayer, ours: Path, theirs: str) -> Iterator[Entry]:
        """Yields the entries of a sublayer and its norm; `ours` and `theirs` come before them."""
        yield from each.kind.entries(self, (*ours, each.name), theirs)
        if each.norm != "none":
            name = theirs + each.kind.other_norm
            yield from self.norm((*ours, f"{each.name}_norm"), name)

    def attention(self, path: Path, name: str) -> Iterator[Entry]:
        """Yields the entries of an attention's projections.

        Args:
            path: of the attention.
            name: their one of it.
        """
        embed, heads, width = self.config.embed, self.config.heads, self.config.head_dim
        square = (embed, embed)
        for ours, theirs in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj")):
            yield self._entry(
                (*path, ours, "kernel"),
                (embed, heads, width),
                f"{name}.{theirs}.weight",
                square,
                lambda weight: weight.T.reshape(embed, heads, width),
                lambda kernel: kernel.reshape(square).T,
            )
            yield self._entry(
                (*path, ours, "bias"),
                (heads, width),
                f"{name}.{theirs}.bias",
                (embed,),
                lambda bias: bias.reshape(heads, width),
                lambda bias: bias.reshape(embed),
            )
        yield self._entry(
            (*path, "out", "kernel"),
            (heads, width, embed),
            f"{name}.out_proj.weight",
            square,
            lambda weight: weight.T.reshape(heads, width, embed),
            lambda kernel: kernel.reshape(square).T,
        )
        yield self.vector((*path, "out", "bias"), f"{name}.out_proj.bias", embed)

    def mlp(self, path: Path, names: tuple[str, str], hidden: int) -> Iterator[Entry]:
        """Yields the entries of a feed-forward's two layers.

        Args:
            path: of the feed-forward.
            names: their names of the layers.
            hidden: width between them.
        """
        embed = self.config.embed
        sizes = (("wi", embed, hidden), ("wo", hidden, embed))
        for (ours, before, after), name in zip(sizes, names, strict=True):
            kernel, weight = (before, after), (after, before)
            path_ = (*path, ours, "kernel")
            yield self._entry(path_, kernel, f"{name}.weight", weight, np.transpose, np.transpose)
            yield self.vector((*path, ours, "bias"), f"{name}.bias", after)

    def slots(self, path: Path, names: tuple[str, str], sizes: tuple[int, int]) -> Iterator[Entry]:
        """Yields the entries of the branches of languages, and of the centre's, which we lack.

        Args:
            path: of the branches.
            names: their names of the lists of layers.
            sizes: number of branches, and the width between their layers.
        """
        count, hidden = sizes
        embed = self.config.embed
        pairs = (("first", embed, hidden), ("second", hidden, embed))
        for (ours, before, after), name in zip(pairs, names, strict=True):
            for theirs in range(count + 1):
                slot = theirs - 1 if theirs else None
                kernel = self._entry(
                    (*path, ours, "kernel"),
                    (before, after),
                    f"{name}.{theirs}.weight",
                    (after, before),
                    np.transpose,
                    np.transpose,
                )
                bias = self.vector((*path, ours, "bias"), f"{name}.{theirs}.bias", after)
                for entry in (kernel, bias):
                    own = entry.path if theirs else ()
                    yield dataclasses.replace(entry, path=own, slot=slot)

    def norm(self, path: Path, name: str) -> Iterator[Entry]:
        """Yields the entries of a norm; arguments as in `attention`."""
        yield self.vector((*path, "scale"), f"{name}.weight", self.config.embed)
        yield self.vector((*path, "bias"), f"{name}.bias", self.config.embed)

    def vector(self, path: Path, name: str, size: int) -> Entry:
        """Returns the entry of a vector; arguments as in `attention`."""
        return self._entry(path, (size,), name, (size,), _same, _same)

    def _entry(
        self,
        path: Path,
        shape: tuple[int, ...],
        name: str,
        other_shape: tuple[int, ...],
        read: Change,
        write: Change,
    ) -> Entry:
        written = (self.dialect.prefix + name,)
        return Entry(path, shape, (name,), written, other_shape, read, write)


def _same(array: np.ndarray) -> np.ndarray:
    return array
