"""The translation model: any layout of the table, used through `logits`, `prefill` and `step`.

`features` is `logits` before the tables of the heads, for losses that never hold all logits.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from mnmt_jax.config.sections import Model
from mnmt_jax.design.layout import Layout, Sees, Stage
from mnmt_jax.design.layouts import REGISTER, SOURCE, TARGET, TRIGGER, get_layout
from mnmt_jax.design.objective import Batch, States
from mnmt_jax.design.plan import Head, Layer, StagePlan, Table
from mnmt_jax.distributed.sharding import platform, split_rows, whole_width
from mnmt_jax.errors import UserError
from mnmt_jax.model import key_values
from mnmt_jax.model.attention import IMPLEMENTATIONS
from mnmt_jax.model.attention.core import pair_mask
from mnmt_jax.model.block import SublayerStack
from mnmt_jax.model.context import Context, PositionInfo, SpanReader, Spans, StepReader, map_spans
from mnmt_jax.model.dropout import Dropout
from mnmt_jax.model.key_values import Cache, Kept, KeyValue, LayerCache
from mnmt_jax.model.layer_stack import LayerOutput, LayerStack
from mnmt_jax.model.modules import sinusoid
from mnmt_jax.model.quantized_weights import look_up, project
from mnmt_jax.model.sublayers import cross_attending, make_plan
from mnmt_jax.vocabulary.special_ids import PAD_ID

# What makes a role's span shorter, in training and in translation.
_SHORTENED = {
    SOURCE: "Data.source_length or Decode.buckets",
    REGISTER: "Data.source_length, Data.max_segments or Decode.buckets",
    TRIGGER: "Data.max_segments",
    TARGET: "Data.target_length or Decode.max_length",
}


def build_model(config: Model, vocab_size: int) -> Network:
    """Builds the model that a configuration describes.

    Args:
        config: sizes and layout.
        vocab_size: rows of the embedding, from the vocabulary.

    Raises:
        UserError: if the layout is unknown or does not fit the configuration, or this expects
            another vocabulary size.
    """
    if config.vocab_size not in (0, vocab_size):
        raise UserError(
            f"Model.vocab_size={config.vocab_size} but the vocabulary has {vocab_size} entries; "
            "use the vocabulary the model was made for, or Model.vocab_size=0"
        )
    layout = get_layout(config.layout, config.stage_layers)
    return Network(config, make_plan(config, layout), vocab_size)


class Network(LayerStack, SublayerStack):
    """A transformer whose attention follows a layout, and whose layers follow a plan.

    Attributes:
        config: sizes.
        plan: what its stages consist of.
        vocab_size: rows of each table.

    Parameters: tables [vocab, embed] by their names, which is the one `embedding` unless methods
    say otherwise; if positions are learned `{table}_positions` [rows, embed] of each table that
    embeds, of which row p is position p (fairseq's row p + 2); `layer_{i}` counted through all
    stages; what the plan has before and after the layers of a stage (`stage_{i}_norm`, adaption
    modules) by its name.
    """

    vocab_size: int

    @property
    def layout(self) -> Layout:
        """Structure, with layer counts."""
        return self.plan.layout

    def setup(self) -> None:
        """Creates the parameters."""
        config = self.config

        def matrix(name: str, rows: int, init: Callable[..., Array]) -> Array:
            return self.param(name, init, (rows, config.embed), jnp.float32)

        self.tables = {
            each.name: matrix(
                each.name, self.vocab_size, _embedding_init if each.embeds else _normal_init
            )
            for each in self.plan.tables
        }
        learned = "learned" in config.positions
        self.rows = {
            each.name: matrix(f"{each.name}_positions", config.positions[1], _normal_init)
            for each in self.plan.tables
            if learned and each.embeds
        }
        self.create_layers()
        self.create((*self.plan.around(), *self.plan.auxiliary))
        self.drop = Dropout(config.dropout)

    def __call__(self, batch: Batch) -> Float[Array, "batch target vocab"]:
        """Same as `logits`; the entry for `init`."""
        if self.is_initializing():
            for each in self.plan.auxiliary:
                self.change_aside(batch, each.name, self._embed_spans(batch, [SOURCE])[SOURCE])
        return self.logits(batch)

    def features(
        self, batch: Batch, deterministic: bool = True
    ) -> tuple[Float[Array, "batch target embed"], ...]:
        """Computes what each head multiplies by its table, of the target under teacher forcing.

        Args:
            batch: `{role}_tokens`, `{role}_positions`, `{role}_segment_ids`, int32 [batch, length],
                for every role of the layout.
            deterministic: no dropout; otherwise the rng stream "dropout" is used.
        """
        return self.features_and_states(batch, (), deterministic)[0]

    def features_and_states(
        self, batch: Batch, reads: Sequence[States], deterministic: bool = True
    ) -> tuple[tuple[Float[Array, "batch target embed"], ...], tuple[Array, ...]]:
        """Computes `features` and, in the same pass, states as those of `states`."""
        _, _, layers = self._run(batch, self.plan.stages, deterministic)
        after = [passed.spans.get(self.layout.generated) for passed in layers]
        context = self._context(batch, deterministic)
        return self._finish(after, context), self._picked(layers, reads, batch, context)

    def states(
        self, batch: Batch, reads: Sequence[States], deterministic: bool = True
    ) -> tuple[Array, ...]:
        """Computes states of static roles after layers, and no layer beyond the last of them.

        With norms first they are the residual stream, before any norm at the end of a stage unless
        that is asked for; otherwise the output of the layer's last norm.

        Args:
            batch: as for `features`; the generated role's spans are not needed.
            reads: which states, at least one; [batch, length of the role, embed] each.
            deterministic: as for `features`.
        """
        parts = self.plan.static(max(each.layer for each in reads))
        _, _, layers = self._run(batch, parts, deterministic)
        return self._picked(layers, reads, batch, self._context(batch, deterministic))

    def change_aside(
        self,
        batch: Batch,
        name: str,
        states: Float[Array, "batch length embed"],
        role: str = SOURCE,
        deterministic: bool = True,
    ) -> Array:
        """Computes what a sublayer beside the plan makes of states; see `ForwardPasses.aside`."""
        (kind,) = [each.kind for each in self.plan.auxiliary if each.name == name]
        place = PositionInfo(self._context(batch, deterministic), (role,))
        return kind.change(getattr(self, name), states, place)

    def logits(
        self,
        batch: Batch,
        deterministic: bool = True,
        at: Int[Array, "batch places"] | None = None,
    ) -> Float[Array, "batch places vocab"]:
        """Computes float32 logits of the next token at each target position; see `features`.

        Args:
            batch: as for `features`.
            deterministic: as for `features`.
            at: the positions in each row's span that are wanted; None is all.
        """
        features = self.features(batch, deterministic)
        if at is not None:
            places = jnp.asarray(at)[:, :, None]
            features = tuple(jnp.take_along_axis(each, places, axis=1) for each in features)
        return self._project(features)

    def check_lengths(self, lengths: Mapping[str, int]) -> None:
        """Checks that every position of spans has a vector.

        Args:
            lengths: of roles' spans.

        Raises:
            UserError: if positions are learned and a span is longer than their rows.
        """
        rows = self.config.positions[1] if "learned" in self.config.positions else math.inf
        for role, length in lengths.items():
            if length > rows:
                raise UserError(
                    f"Model.positions=('learned', {rows}): the {role} span has {length} positions; "
                    f"give as many rows, or lower {_SHORTENED[role]}"
                )

    def prefill(self, batch: Batch, *, beam: int, max_steps: int) -> Cache:
        """Runs the static roles once and prepares decoding.

        Args:
            batch: spans of the static roles, one sentence per row, or where there are none its
                languages; no target span.
            beam: hypotheses per sentence.
            max_steps: steps that may be taken.
        """
        looped = platform() != "cpu"  # where it holds its layers' parameters twice for nothing
        _, memory, passed = self._run(batch, self.plan.static(), True, looped=looped)
        rows = jax.tree.leaves(dict(batch))[0].shape[0]
        growing = key_values.new_growing(self.config, rows, beam, max_steps)
        readable = functools.partial(key_values.readable, beam=beam)
        layers = []
        for (stage, layer), block, one in zip(self.plan.layers(), self.layer, passed, strict=True):
            if self.layout.generated in stage.roles:
                fixed = readable(self._static(stage, one.keys_values, batch))
                remembered = readable(self._memory(stage, layer, block, memory, batch))
                layers.append(LayerCache(fixed, remembered, growing))
        ancestry = key_values.new_ancestry(rows, beam, max_steps)
        return Cache(tuple(layers), jnp.zeros((), jnp.int32), ancestry, self._languages(batch))

    def step(
        self, tokens: Int[Array, "batch beam"], cache: Cache
    ) -> tuple[Float[Array, "batch beam vocab"], Cache]:
        """Feeds one token to every hypothesis.

        Args:
            tokens: the trigger at the first step, then what was generated.
            cache: from `prefill` or the step before.

        Returns:
            float32 logits of the next token, and the cache after this step.
        """
        role, positions = self.layout.generated, cache.index.reshape(-1, 1)
        self.check_lengths({role: cache.ancestry.shape[2]})
        spans = {role: self._embed(self.plan.table_of(role), tokens, positions)}
        segment_ids = {role: jnp.ones_like(tokens[:, :1])}
        tags = self._tags(cache.languages)
        context = Context({role: positions}, segment_ids, cache.languages, tags=tags)
        past, layers = cache.past(), list[LayerCache]()
        after: list[Any] = []  # of each layer, None before the role is there
        for part in self.plan.stages:
            if role not in part.stage.roles:
                after += [None] * part.stage.layers
                continue
            spans, _ = self.apply_sublayers(part.before, spans, context)
            for _ in part.layers:
                layer = cache.layers[len(layers)]
                reader = StepReader(layer, cache.index, past)
                within = dataclasses.replace(context, reader=reader)
                passed = self.one_layer(len(after), spans, within)
                spans = passed.spans
                layers.append(dataclasses.replace(layer, growing_kv=passed.keys_values))
                after.append(spans[role])
            if part is not self.plan.stages[-1]:
                spans, _ = self.apply_sublayers(part.after, spans, context)
        logits = self._project(self._finish(after, context))
        return logits, dataclasses.replace(cache, layers=tuple(layers), index=cache.index + 1)

    def _run(
        self,
        batch: Batch,
        parts: tuple[StagePlan, ...],
        deterministic: bool,
        *,
        looped: bool = True,
    ) -> tuple[Spans, Spans, list[LayerOutput]]:
        """Returns the last spans, those that ended before, and what each layer made."""
        context = self._context(batch, deterministic)
        spans: Spans = {}
        memory: Spans = {}
        layers: list[LayerOutput] = []
        roles = list(dict.fromkeys(role for part in parts for role in part.stage.roles))
        vectors = self._embed_spans(batch, roles)
        for number, part in enumerate(parts):
            stage = part.stage
            memory |= {role: states for role, states in spans.items() if role not in stage.roles}
            spans = {
                r: spans[r] if r in spans else self.drop(vectors[r], deterministic=deterministic)
                for r in stage.roles
            }
            spans, _ = self.apply_sublayers(part.before, spans, context)
            reader = self._reader(stage, memory, context.segment_ids) if stage.roles else None
            within = dataclasses.replace(context, reader=reader)
            passed = self.apply_layers(part, len(layers), spans, within, looped=looped)
            spans = passed[-1].spans
            layers += passed
            if number + 1 < len(parts):
                spans, _ = self.apply_sublayers(part.after, spans, context)
        return spans, memory, layers

    def _context(self, batch: Batch, deterministic: bool) -> Context:
        positions, segment_ids = (_by_role(batch, kind) for kind in ("positions", "segment_ids"))
        languages = self._languages(batch)
        tags = self._tags(languages)
        return Context(positions, segment_ids, languages, tags=tags, deterministic=deterministic)

    def _languages(self, batch: Batch) -> dict[str, Array]:
        """Returns what the batch has of the languages that a sublayer asks for."""
        return {name: jnp.asarray(batch[name]) for name in self.plan.languages() & batch.keys()}

    def _tags(self, languages: Mapping[str, Array]) -> dict[str, Array]:
        """Returns the vectors of languages' tags, which are a vocabulary's last entries."""
        count = self.plan.tags()
        first, table = self.vocab_size - count, self.plan.table_of(SOURCE)
        found = languages if count else {}
        return {
            name: split_rows(self._look_up_tokens(table, first + jnp.maximum(index, 0)))
            for name, index in found.items()
        }

    def _reader(self, stage: Stage, memory: Spans, segment_ids: Spans) -> SpanReader:
        masks = IMPLEMENTATIONS[self.config.attention].make_masks(stage, segment_ids)
        edges = {
            reader: (memory[read], pair_mask(Sees.FULL, segment_ids[reader], segment_ids[read]))
            for reader, read in stage.memory
        }
        return SpanReader(masks, edges, stage, self.config.attention)

    def _finish(
        self, after: Sequence[Any], context: Context
    ) -> tuple[Float[Array, "*b embed"], ...]:
        """Returns what each head multiplies by its table.

        Args:
            after: states of the generated role after each layer of all stages.
            context: of the states.
        """
        role = self.layout.generated

        def passed(leave: Layer, states: Array) -> Array:
            return self.apply_sublayers(leave, {role: states}, context)[0][role]

        end = passed(self.plan.stages[-1].after, after[-1])
        read = (end, *after)
        return tuple(passed(head.after, read[head.layer]) for head in self.plan.heads)

    def _picked(
        self, layers: Sequence[LayerOutput], reads: Sequence[States], batch: Batch, context: Context
    ) -> tuple[Array, ...]:
        ends = dict(zip(self.layout.ends, self.plan.stages, strict=True))

        def picked(each: States) -> Array:
            if not each.layer:
                return self._embed_spans(batch, [each.role])[each.role]
            states = layers[each.layer - 1].spans[each.role]
            if not each.ended:
                return states
            leave = ends[each.layer].after
            return self.apply_sublayers(leave, {each.role: states}, context)[0][each.role]

        return tuple(map(picked, reads))

    def _project(self, features: tuple[Float[Array, "*b embed"], ...]) -> Float[Array, "*b vocab"]:
        def term(head: Head, states: Array) -> Array:
            return project(states, self.tables[head.table])

        return functools.reduce(jnp.add, map(term, self.plan.heads, features))

    def _embed(
        self, table: Table, tokens: Int[Array, "*b"], positions: Int[Array, "*#b"]
    ) -> Float[Array, "*b embed"]:
        config = self.config
        vectors = self._look_up_tokens(table, tokens)
        match config.positions:
            case ("sinusoidal", base):
                vectors = vectors + sinusoid(positions, config.embed, base)
            case ("learned", _):
                vectors = vectors + whole_width(self.rows[table.name])[positions]
        return vectors.astype(jnp.dtype(config.dtype))

    def _look_up_tokens(self, table: Table, tokens: Int[Array, "*b"]) -> Float[Array, "*b embed"]:
        vectors = look_up(self.tables[table.name], tokens)
        if self.config.embedding_scale:
            vectors = vectors * jnp.float32(math.sqrt(self.config.embed))
        return vectors

    def _look_up(self, table: Table, tokens: Array, positions: Array) -> Array:
        return split_rows(self._embed(table, tokens, positions))

    def _embed_spans(self, batch: Batch, roles: list[str]) -> Spans:
        """Looks all spans of a table up at once: its gradient is summed over devices once."""
        self.check_lengths({role: batch[f"{role}_tokens"].shape[1] for role in roles})
        found: Spans = {}
        for table in self.plan.tables:
            own = [role for role in roles if self.plan.table_of(role) == table]
            tokens, positions = (
                {role: batch[f"{role}_{kind}"] for role in own} for kind in ("tokens", "positions")
            )
            if own:
                found |= map_spans(functools.partial(self._look_up, table), True, tokens, positions)
        return {role: found[role] for role in roles}

    def _static(self, stage: Stage, read: Mapping[str, KeyValue], batch: Batch) -> Kept | None:
        roles = [r for r in stage.key_roles(self.layout.generated) if r != self.layout.generated]
        if not roles:
            return None
        own = (read[role] for role in roles)
        joined = jax.tree.map(lambda *arrays: jnp.concatenate(arrays, axis=1), *own)
        return joined, [jnp.asarray(batch[f"{role}_segment_ids"]) for role in roles]

    def _memory(
        self, stage: Stage, layer: Layer, block: Any, memory: Spans, batch: Batch
    ) -> Kept | None:
        role, sublayer = stage.memory_role(self.layout.generated), cross_attending(layer)
        if role is None or sublayer is None:
            return None
        projected = getattr(block, sublayer.name).project_keys_values(memory[role])
        return projected, [jnp.asarray(batch[f"{role}_segment_ids"])]


def _by_role(batch: Batch, kind: str) -> dict[str, Array]:
    suffix = f"_{kind}"
    found = {name: array for name, array in batch.items() if name.endswith(suffix)}
    return {name.removesuffix(suffix): jnp.asarray(array) for name, array in found.items()}


def _normal_init(rng: Array, shape: tuple[int, int], dtype: Any) -> Array:
    """Draws N(0, embed ** -0.5), as fairseq does (MITRE spec 4.5)."""
    return jax.random.normal(rng, shape, dtype) * jnp.asarray(shape[1] ** -0.5, dtype)


def _embedding_init(rng: Array, shape: tuple[int, int], dtype: Any) -> Array:
    """The same with a zero row for padding."""
    return _normal_init(rng, shape, dtype).at[PAD_ID].set(0)
