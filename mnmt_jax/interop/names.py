"""Parameter name tables of other toolkits, for both import and export.

fairseq, Hugging Face's M2M-100 and MITRE use the same names inside a layer; a `Dialect` holds the
names outside the layers. Names are matched by suffix, because releases use different prefixes.
An entry holds the conversions in both directions (PyTorch's Linear is [out, in]), so a round trip
is exact.
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
from flax.traverse_util import flatten_dict, unflatten_dict

from mnmt_jax.config.sections import Model
from mnmt_jax.design.layout import Layout
from mnmt_jax.design.plan import Head, Plan, Sublayer, Table
from mnmt_jax.errors import UserError, join_names
from mnmt_jax.files.lazy_array import LazyArray
from mnmt_jax.model.modules import FIRST_ROW
from mnmt_jax.model.sublayers import make_plan

ParamPath = tuple[str, ...]
Change = Callable[[np.ndarray], np.ndarray]
Tensors = Mapping[str, LazyArray]


@dataclasses.dataclass(frozen=True)
class Dialect:
    """The names that a toolkit uses outside the layers.

    Attributes:
        prefix: prefix of every exported name.
        embedding: names that the single embedding may be stored under; empty if the table of each
            side, the matrix of each head and learned positions have names of their own.
        export_names: names that the embedding is exported under.
        encoder: name of the stages that the generated role does not pass through.
        decoder: name of the other stages; empty if there are none.
    """

    prefix: str
    embedding: tuple[str, ...] = ()
    export_names: tuple[str, ...] = ()
    encoder: str = "encoder"
    decoder: str = "decoder"


_SIDES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")

FAIRSEQ = Dialect("")
M2M100 = Dialect("model.", ("shared.weight", *_SIDES, "lm_head.weight"), ("shared.weight",))
# MITRE's modelling file derives from M2M-100's decoder. Its prefixes are not verified, so names are
# matched without prefixes.
MITRE = Dialect(
    "model.decoder.",
    ("embed_tokens.weight", "shared.weight", "lm_head.weight"),
    ("embed_tokens.weight",),
    decoder="",
)

# Computed position tables and versions are not parameters; `embed_positions.weight` is learned.
_NO_PARAMETER = re.compile(
    r"(^|\.)(version|embed_positions\.(weights|_float_tensor)|final_logits_bias)$"
)


@dataclasses.dataclass(frozen=True)
class Entry:
    """How another toolkit stores one of our parameters.

    Attributes:
        path: keys into our parameter tree; () marks a tensor that we do not have: it is not read,
            and zeros are exported.
        shape: shape of our parameter, without the slot axis.
        names: suffixes of the stored name; several if a matrix may be stored more than once.
        export_names: names to export.
        other_shape: shape of the stored tensor.
        read: converts the stored array to ours.
        write: the inverse of `read`.
        slot: index along our first axis, if we stack several stored tensors into one parameter.
    """

    path: ParamPath
    shape: tuple[int, ...]
    names: tuple[str, ...]
    export_names: tuple[str, ...]
    other_shape: tuple[int, ...]
    read: Change
    write: Change
    slot: int | None = None


def parameter_entries(
    config: Model, layout: Layout, dialect: Dialect, rows: np.ndarray
) -> list[Entry]:
    """Return the name table of a model.

    Args:
        config: sizes.
        layout: structure, with layer counts.
        dialect: naming of the other toolkit.
        rows: embedding row in the other toolkit of each of our ids, int [vocab].
    """
    return list(Names(config, layout, dialect).entries(np.asarray(rows)))


def read_params(tensors: Tensors, table: list[Entry]) -> dict[str, Any]:
    """Return our parameters as lazy arrays; only duplicates that must be compared are read.

    Args:
        tensors: stored tensors by name.
        table: from `parameter_entries`.

    Returns:
        Our parameter tree of lazy float32 arrays.

    Raises:
        UserError: if tensors are missing, unexpected or have another shape; lists all of them.
    """
    name_lists, unexpected, problems = _match(tensors, table)
    if problems:
        expected = sum(math.prod(entry.other_shape) for entry in table)
        counted_names = [names[0] for names in name_lists if names] + unexpected
        stored = sum(tensors[name].size for name in counted_names)
        raise UserError(
            f"the checkpoint does not fit the model ({stored:,} values stored, {expected:,} "
            f"expected); nothing was written. {len(problems)} problems:\n  " + "\n  ".join(problems)
        )
    params: dict[ParamPath, LazyArray] = {}
    stacks: dict[ParamPath, dict[int, LazyArray]] = {}
    for entry, names in zip(table, name_lists, strict=True):
        if not entry.path:
            continue
        parameter = _convert(tensors[names[0]], entry)
        if entry.slot is None:
            params[entry.path] = parameter
        else:
            stacks.setdefault(entry.path, {})[entry.slot] = parameter
    for path, slots in stacks.items():
        params[path] = LazyArray.stacked([slots[number] for number in sorted(slots)])
    return unflatten_dict(params)


def written_tensors(
    params: Mapping[str, Any], table: list[Entry]
) -> Iterator[tuple[str, LazyArray]]:
    """Yield the exported name and array of each parameter; the inverse of `read_params`.

    Args:
        params: our parameter tree, of NumPy or lazy arrays.
        table: from `parameter_entries`.
    """
    leaves = flatten_dict(params)
    for entry in table:
        if entry.path:
            leaf = leaves[entry.path]
            lazy = leaf if isinstance(leaf, LazyArray) else LazyArray.of(np.asarray(leaf))
        else:
            lazy = LazyArray.of(np.zeros(entry.shape, np.float32))
        if entry.slot is not None:
            lazy = lazy.then(operator.itemgetter(entry.slot), entry.shape, lazy.dtype)
        storage = "/".join(entry.path) if len(entry.export_names) > 1 else None
        for name in entry.export_names:
            converted = lazy.then(entry.write, entry.other_shape, lazy.dtype)
            yield name, dataclasses.replace(converted, storage=storage)


def _convert(tensor: LazyArray, entry: Entry) -> LazyArray:
    def convert(array: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(entry.read(array), np.float32)

    return tensor.then(convert, entry.shape, np.dtype(np.float32))


def _match(tensors: Tensors, table: list[Entry]) -> tuple[list[list[str]], list[str], list[str]]:
    """Return the stored names of each entry, the names without an entry, and the problems."""
    by_suffix: dict[str, list[str]] = {}
    for name in tensors:
        components = name.split(".")
        for start in range(len(components)):
            by_suffix.setdefault(".".join(components[start:]), []).append(name)
    name_lists: list[list[str]] = []
    problems: list[str] = []
    for entry in table:
        names = sorted({name for suffix in entry.names for name in by_suffix.get(suffix, [])})
        name_lists.append(names)
        problems += _problems(tensors, entry, names)
    used = {name for names in name_lists for name in names}
    unexpected = [name for name in sorted(set(tensors) - used) if not _NO_PARAMETER.search(name)]
    problems += [f"unexpected {name} {list(tensors[name].shape)}" for name in unexpected]
    return name_lists, unexpected, problems


def _problems(tensors: Tensors, entry: Entry, names: list[str]) -> list[str]:
    if not names:
        return [f"missing {entry.names[0]} {list(entry.other_shape)}"]
    misshapen = [name for name in names if tensors[name].shape != entry.other_shape]
    if misshapen:
        return [
            f"{name} has shape {list(tensors[name].shape)}, expected {list(entry.other_shape)}"
            for name in misshapen
        ]
    if len(names) > 1 and len(entry.names) == 1:
        return [f"{' and '.join(names)} both end in {entry.names[0]}"]
    return [
        f"{name} differs from {names[0]}: the model has one matrix for both"
        for name in names[1:]
        if not _same_values(tensors[names[0]], tensors[name])
    ]


def _same_values(left: LazyArray, right: LazyArray) -> bool:
    if left.storage is not None and left.storage == right.storage:
        return True
    return np.array_equal(left.read(), right.read())


@dataclasses.dataclass(frozen=True)
class Names:
    """Builder of a model's name table; sublayer kinds call its methods for their parameters."""

    config: Model
    layout: Layout
    dialect: Dialect

    def entries(self, rows: np.ndarray) -> Iterator[Entry]:
        """Yield all entries; `rows` as in `parameter_entries`.

        Raises:
            UserError: if a parameter has no name in the dialect.
        """
        plan, layout = make_plan(self.config, self.layout), self.layout
        yield from self._tables(plan, rows)
        number, layers = 0, collections.Counter[str]()  # layers per side
        for stage_plan in plan.stages:
            side = self._side(
                layout.is_autoregressive and layout.generated in stage_plan.stage.roles
            )
            for sublayers in stage_plan.layers:
                path, prefix = (f"layer_{number}",), f"{side}layers.{layers[side]}."
                for sublayer in sublayers:
                    yield from self._sublayer(sublayer, path, prefix)
                number += 1
                layers[side] += 1
            for sublayer in (*stage_plan.before, *stage_plan.after):
                yield from self._sublayer(sublayer, (), side)
        for head in plan.heads:
            for sublayer in head.after:
                yield from self._sublayer(sublayer, (), f"{side}lm_")

    def _side(self, decodes: bool) -> str:
        name = self.dialect.decoder if decodes else self.dialect.encoder
        return f"{name}." if name else ""

    def _tables(self, plan: Plan, rows: np.ndarray) -> Iterator[Entry]:
        """Yield the entries of tables and learned positions."""
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
                f"tables {names} and {len(plan.heads)} heads: only fairseq's format supports this; "
                "others need one embedding table that the only output head shares"
            )
        yield self._matrix("embedding", self.dialect.embedding, self.dialect.export_names, rows)

    def _table(self, plan: Plan, table: Table, rows: np.ndarray) -> Iterator[Entry]:
        """Yield the entries of a table and of its roles' learned positions, as fairseq has them."""
        grows, generated = self.layout.is_autoregressive, self.layout.generated
        roles = [role for role in self.layout.embedded_roles() if plan.table_of(role) == table]
        sides = list(dict.fromkeys(self._side(grows and role == generated) for role in roles))
        output_side = self._side(grows)
        names = [f"{side}embed_tokens.weight" for side in sides] + [
            f"{output_side}{'lm_' if head.layer else ''}output_projection.weight"
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
            lambda stored: stored[FIRST_ROW:],
            lambda positions: np.concatenate([unused.astype(positions.dtype), positions]),
        )

    def _matrix(
        self,
        parameter: str,
        names: tuple[str, ...],
        export_names: tuple[str, ...],
        rows: np.ndarray,
    ) -> Entry:
        """Return the entry of a table; the other toolkit orders its rows differently."""

        def write(table: np.ndarray) -> np.ndarray:
            stored = np.empty_like(table)
            stored[rows] = table
            return stored

        shape = (len(rows), self.config.embed)
        export_names = tuple(self.dialect.prefix + name for name in export_names)
        return Entry(
            (parameter,), shape, names, export_names, shape, lambda table: table[rows], write
        )

    def _sublayer(self, sublayer: Sublayer, path: ParamPath, prefix: str) -> Iterator[Entry]:
        """Yield the entries of a sublayer and its norm; `path` and `prefix` precede their names."""
        yield from sublayer.kind.entries(self, (*path, sublayer.name), prefix)
        if sublayer.norm != "none":
            name = prefix + sublayer.kind.other_norm
            yield from self.norm((*path, f"{sublayer.name}_norm"), name)

    def attention(self, path: ParamPath, name: str) -> Iterator[Entry]:
        """Yield the entries of an attention's projections.

        Args:
            path: path of the attention in our tree.
            name: its name in the other toolkit.
        """
        embed, heads, width = self.config.embed, self.config.heads, self.config.head_dim
        square = (embed, embed)
        for our_name, stored_name in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj")):
            yield self._entry(
                (*path, our_name, "kernel"),
                (embed, heads, width),
                f"{name}.{stored_name}.weight",
                square,
                lambda weight: weight.T.reshape(embed, heads, width),
                lambda kernel: kernel.reshape(square).T,
            )
            yield self._entry(
                (*path, our_name, "bias"),
                (heads, width),
                f"{name}.{stored_name}.bias",
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

    def mlp(self, path: ParamPath, names: tuple[str, str], hidden: int) -> Iterator[Entry]:
        """Yield the entries of the two layers of a feed-forward.

        Args:
            path: path of the feed-forward in our tree.
            names: names of the two layers in the other toolkit.
            hidden: hidden width.
        """
        embed = self.config.embed
        sizes = (("wi", embed, hidden), ("wo", hidden, embed))
        for (our_name, before, after), name in zip(sizes, names, strict=True):
            kernel, weight = (before, after), (after, before)
            kernel_path = (*path, our_name, "kernel")
            yield self._entry(
                kernel_path, kernel, f"{name}.weight", weight, np.transpose, np.transpose
            )
            yield self.vector((*path, our_name, "bias"), f"{name}.bias", after)

    def slots(
        self, path: ParamPath, names: tuple[str, str], sizes: tuple[int, int]
    ) -> Iterator[Entry]:
        """Yield the entries of language branches, and of the centre's branch, which we do not have.

        Args:
            path: path of the branches in our tree.
            names: names of the two lists of layers in the other toolkit.
            sizes: number of branches, and their hidden width.
        """
        count, hidden = sizes
        embed = self.config.embed
        pairs = (("first", embed, hidden), ("second", hidden, embed))
        for (our_name, before, after), name in zip(pairs, names, strict=True):
            for branch in range(count + 1):
                slot = branch - 1 if branch else None
                kernel = self._entry(
                    (*path, our_name, "kernel"),
                    (before, after),
                    f"{name}.{branch}.weight",
                    (after, before),
                    np.transpose,
                    np.transpose,
                )
                bias = self.vector((*path, our_name, "bias"), f"{name}.{branch}.bias", after)
                for entry in (kernel, bias):
                    entry_path = entry.path if branch else ()
                    yield dataclasses.replace(entry, path=entry_path, slot=slot)

    def norm(self, path: ParamPath, name: str) -> Iterator[Entry]:
        """Yield the entries of a norm; arguments as in `attention`."""
        yield self.vector((*path, "scale"), f"{name}.weight", self.config.embed)
        yield self.vector((*path, "bias"), f"{name}.bias", self.config.embed)

    def vector(self, path: ParamPath, name: str, size: int) -> Entry:
        """Return the entry of a vector; arguments as in `attention`."""
        return self._entry(path, (size,), name, (size,), _identity, _identity)

    def _entry(
        self,
        path: ParamPath,
        shape: tuple[int, ...],
        name: str,
        other_shape: tuple[int, ...],
        read: Change,
        write: Change,
    ) -> Entry:
        written = (self.dialect.prefix + name,)
        return Entry(path, shape, (name,), written, other_shape, read, write)


def _identity(array: np.ndarray) -> np.ndarray:
    return array
