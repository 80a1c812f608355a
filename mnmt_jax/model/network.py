"""The network of any layout: `logits`, `prefill` and `step`.

`features` are the inputs of the output tables, for losses that never hold all logits at once.
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
from mnmt_jax.design.generated_batch import Batch
from mnmt_jax.design.layout import Layout, Sees, Stage
from mnmt_jax.design.layouts import SOURCE, get_layout
from mnmt_jax.design.objective import States
from mnmt_jax.design.plan import Head, Kind, Layer, StagePlan, Table
from mnmt_jax.distributed.sharding import constrain_row_sharding, gather_table_width, platform
from mnmt_jax.errors import UserError
from mnmt_jax.model import key_values, learned_positions
from mnmt_jax.model.attention import IMPLEMENTATIONS
from mnmt_jax.model.attention.core import pair_mask
from mnmt_jax.model.block import SublayerStack
from mnmt_jax.model.context import (
    Context,
    PositionInfo,
    SpanAttention,
    Spans,
    StepAttention,
    map_spans,
)
from mnmt_jax.model.dropout import Dropout
from mnmt_jax.model.key_values import Cache, KeyValue, LayerCache, SpanKeyValue
from mnmt_jax.model.layer_stack import LayerOutput, LayerStack
from mnmt_jax.model.modules import sinusoid
from mnmt_jax.model.quantized_weights import look_up, project
from mnmt_jax.model.sublayers import cross_attending, make_plan
from mnmt_jax.vocabulary.special_ids import PAD_ID


def build_model(config: Model, vocab_size: int) -> Network:
    """Build the model of a configuration.

    Args:
        config: sizes and layout.
        vocab_size: rows of the embedding, from the vocabulary.

    Raises:
        UserError: if the layout is unknown or does not fit the configuration, or if `config` names
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
    """A transformer whose attention follows a layout and whose layers follow a plan.

    Attributes:
        config: sizes; the plan's kinds must have the same.
        plan: sublayers of its stages.
        vocab_size: rows of each table.

    Parameters: tables [vocab, embed] under their names (a single `embedding` unless methods add
    others); with learned positions, `{table}_positions` [rows, embed] for each table that embeds,
    with row p for position p (fairseq's row p + 2); `layer_{i}` counted through all stages; the
    sublayers before and after the layers of a stage (`stage_{i}_norm`, adaption modules) under
    their names.
    """

    vocab_size: int

    def __hash__(self) -> int:
        """Hash the sizes alone: each call of a compiled program hashes its network."""
        return hash((self.config, self.vocab_size))

    @property
    def layout(self) -> Layout:
        """The layout, with layer counts."""
        return self.plan.layout

    def setup(self) -> None:
        """Create the parameters."""
        self._check_kinds()
        config = self.config

        def matrix(name: str, rows: int, init: Callable[..., Array]) -> Array:
            return self.param(name, init, (rows, config.embed), jnp.float32)

        self.tables = {
            table.name: matrix(
                table.name, self.vocab_size, _embedding_init if table.embeds else _normal_init
            )
            for table in self.plan.tables
        }
        learned = "learned" in config.positions
        self.position_tables = {
            table.name: matrix(f"{table.name}_positions", config.positions[1], _normal_init)
            for table in self.plan.tables
            if learned and table.embeds
        }
        self.create_layers()
        self.create((*self.plan.outer_sublayers(), *self.plan.auxiliary))
        self.drop = Dropout(config.dropout)

    def __call__(self, batch: Batch) -> Float[Array, "batch target vocab"]:
        """Return `logits`; the entry point for `init`."""
        if self.is_initializing():
            for sublayer in self.plan.auxiliary:
                self.apply_auxiliary(
                    batch, sublayer.name, self._embed_spans(batch, [SOURCE])[SOURCE]
                )
        return self.logits(batch)

    def features(
        self, batch: Batch, deterministic: bool = True
    ) -> tuple[Float[Array, "batch target embed"], ...]:
        """Compute the input of each head's table at the target positions, under teacher forcing.

        Args:
            batch: `{role}_tokens`, `{role}_positions`, `{role}_segment_ids`, int32 [batch, length],
                for every role of the layout.
            deterministic: no dropout; otherwise the rng stream "dropout" is used.
        """
        return self.features_and_states(batch, (), deterministic)[0]

    def features_and_states(
        self, batch: Batch, requests: Sequence[States], deterministic: bool = True
    ) -> tuple[tuple[Float[Array, "batch target embed"], ...], tuple[Array, ...]]:
        """Compute `features`, and in the same pass the states that `states` returns."""
        _, _, layers = self._run(batch, self.plan.stages, deterministic)
        after = [output.spans.get(self.layout.generated) for output in layers]
        context = self._context(batch, deterministic)
        return self._head_inputs(after, context), self._select_states(
            layers, requests, batch, context
        )

    def states(
        self, batch: Batch, requests: Sequence[States], deterministic: bool = True
    ) -> tuple[Array, ...]:
        """Compute states of static roles after layers, and no layer beyond the last requested one.

        With norms first they are the residual stream, before any norm at the end of a stage unless
        `States.ended` asks for it; otherwise they are the output of the layer's last norm.

        Args:
            batch: as for `features`; the spans of the generated role are not needed.
            requests: the requested states, at least one; [batch, length of the role, embed] each.
            deterministic: as for `features`.
        """
        stages = self.plan.static(max(states.layer for states in requests))
        _, _, layers = self._run(batch, stages, deterministic)
        return self._select_states(layers, requests, batch, self._context(batch, deterministic))

    def apply_auxiliary(
        self,
        batch: Batch,
        name: str,
        states: Float[Array, "batch length embed"],
        role: str = SOURCE,
        deterministic: bool = True,
    ) -> Array:
        """Apply a sublayer of `Plan.auxiliary` to states; see `ForwardPasses.auxiliary`."""
        info = PositionInfo(self._context(batch, deterministic), (role,))
        kind: Kind = getattr(self, name)
        return kind.change(states, info)

    def logits(
        self,
        batch: Batch,
        deterministic: bool = True,
        target_indices: Int[Array, "batch positions"] | None = None,
    ) -> Float[Array, "batch positions vocab"]:
        """Compute float32 logits of the next token at each target position; see `features`.

        Args:
            batch: as for `features`.
            deterministic: as for `features`.
            target_indices: indices into each row's target span; None computes all positions.
        """
        features = self.features(batch, deterministic)
        if target_indices is not None:
            indices = jnp.asarray(target_indices)[:, :, None]
            features = tuple(jnp.take_along_axis(f, indices, axis=1) for f in features)
        return self._project(features)

    def check_lengths(self, lengths: Mapping[str, int]) -> None:
        """Check that every position of the spans has a position vector.

        Args:
            lengths: role -> length of its span.

        Raises:
            UserError: if positions are learned and a span is longer than their table.
        """
        learned_positions.check_lengths(self.config, lengths)

    def prefill(self, batch: Batch, *, beam: int, max_steps: int) -> Cache:
        """Run the static roles once and return an empty decoding cache.

        Args:
            batch: spans of the static roles, one sentence per row; the languages if there are no
                static roles; no target span.
            beam: hypotheses per sentence.
            max_steps: maximum number of steps.
        """
        looped = platform() != "cpu"  # a loop would hold the layers' parameters twice there
        _, memory, outputs = self._run(batch, self.plan.static(), True, looped=looped)
        rows = jax.tree.leaves(dict(batch))[0].shape[0]
        growing = key_values.new_growing(self.config, rows, beam, max_steps)
        step_key_values = functools.partial(key_values.step_key_values, beam=beam)
        layers = []
        for (stage, layer), block, output in zip(
            self.plan.layers(), self.layer, outputs, strict=True
        ):
            if self.layout.generated in stage.roles:
                static = step_key_values(self._static_keys_values(stage, output.keys_values, batch))
                memory_kv = step_key_values(
                    self._memory_keys_values(stage, layer, block, memory, batch)
                )
                layers.append(LayerCache(static, memory_kv, growing))
        ancestry = key_values.new_ancestry(rows, beam, max_steps)
        return Cache(tuple(layers), jnp.zeros((), jnp.int32), ancestry, self._languages(batch))

    def step(
        self, tokens: Int[Array, "batch beam"], cache: Cache
    ) -> tuple[Float[Array, "batch beam vocab"], Cache]:
        """Feed one token to every hypothesis.

        Args:
            tokens: the trigger at the first step, then the generated tokens.
            cache: from `prefill` or the previous step.

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
        after: list[Any] = []  # states after each layer; None in stages without the role
        for stage_plan in self.plan.stages:
            if role not in stage_plan.stage.roles:
                after += [None] * stage_plan.stage.layers
                continue
            spans, _ = self.apply_sublayers(stage_plan.before, spans, context)
            for _ in stage_plan.layers:
                layer = cache.layers[len(layers)]
                attention = StepAttention(layer, cache.index, past)
                layer_context = dataclasses.replace(context, attention=attention)
                output = self.one_layer(len(after), spans, layer_context)
                spans = output.spans
                layers.append(dataclasses.replace(layer, growing_kv=output.keys_values))
                after.append(spans[role])
            if stage_plan is not self.plan.stages[-1]:
                spans, _ = self.apply_sublayers(stage_plan.after, spans, context)
        logits = self._project(self._head_inputs(after, context))
        return logits, dataclasses.replace(cache, layers=tuple(layers), index=cache.index + 1)

    def _check_kinds(self) -> None:
        """Refuse layers of another configuration, e.g. after `clone(config=...)`."""
        attention, remat = self.config.attention, self.config.remat
        in_layers = (sublayer for _, layer in self.plan.layers() for sublayer in layer)
        for sublayer in (*self.plan.outer_sublayers(), *in_layers):
            config = getattr(sublayer.kind, "config", None)
            if not isinstance(config, Model) or config is self.config:
                continue
            if dataclasses.replace(config, attention=attention, remat=remat) != self.config:
                raise UserError(
                    f"sublayer '{sublayer.name}' has `Model` settings of its own, but all layers "
                    "share those of the network: change the fields of its kind instead (e.g. "
                    "FeedForward.dropout), or build the network anew with build_model"
                )

    def _run(
        self,
        batch: Batch,
        stages: tuple[StagePlan, ...],
        deterministic: bool,
        *,
        looped: bool = True,
    ) -> tuple[Spans, Spans, list[LayerOutput]]:
        """Return the last spans, the spans of roles that ended earlier, and each layer's output."""
        context = self._context(batch, deterministic)
        spans: Spans = {}
        memory: Spans = {}
        layers: list[LayerOutput] = []
        roles = list(
            dict.fromkeys(role for stage_plan in stages for role in stage_plan.stage.roles)
        )
        vectors = self._embed_spans(batch, roles)
        for number, stage_plan in enumerate(stages):
            stage = stage_plan.stage
            memory |= {role: states for role, states in spans.items() if role not in stage.roles}
            spans = {
                r: spans[r] if r in spans else self.drop(vectors[r], deterministic=deterministic)
                for r in stage.roles
            }
            before_context = dataclasses.replace(context, layers=tuple(o.spans for o in layers))
            spans, _ = self.apply_sublayers(stage_plan.before, spans, before_context)
            attention = self._attention(stage, memory, context.segment_ids) if stage.roles else None
            layer_context = dataclasses.replace(context, attention=attention)
            outputs = self.apply_layers(
                stage_plan, len(layers), spans, layer_context, looped=looped
            )
            spans = outputs[-1].spans
            layers += outputs
            if number + 1 < len(stages):
                spans, _ = self.apply_sublayers(stage_plan.after, spans, context)
        return spans, memory, layers

    def _context(self, batch: Batch, deterministic: bool) -> Context:
        positions, segment_ids = (_by_role(batch, kind) for kind in ("positions", "segment_ids"))
        languages = self._languages(batch)
        tags = self._tags(languages)
        return Context(positions, segment_ids, languages, tags=tags, deterministic=deterministic)

    def _languages(self, batch: Batch) -> dict[str, Array]:
        """Return the language arrays of the batch that the plan's sublayers use."""
        return {name: jnp.asarray(batch[name]) for name in self.plan.languages() & batch.keys()}

    def _tags(self, languages: Mapping[str, Array]) -> dict[str, Array]:
        """Return the vectors of language tags, which are the last entries of the vocabulary."""
        count = self.plan.tags()
        first_tag, table = self.vocab_size - count, self.plan.table_of(SOURCE)
        tagged = languages if count else {}
        return {
            name: constrain_row_sharding(
                self._look_up_tokens(table, first_tag + jnp.maximum(index, 0))
            )
            for name, index in tagged.items()
        }

    def _attention(self, stage: Stage, memory: Spans, segment_ids: Spans) -> SpanAttention:
        masks = IMPLEMENTATIONS[self.config.attention].make_masks(stage, segment_ids)
        edges = {
            reader: (memory[read], pair_mask(Sees.FULL, segment_ids[reader], segment_ids[read]))
            for reader, read in stage.memory
        }
        return SpanAttention(masks, edges, stage, self.config.attention)

    def _head_inputs(
        self, after: Sequence[Any], context: Context
    ) -> tuple[Float[Array, "*b embed"], ...]:
        """Return the input of each head's table.

        Args:
            after: states of the generated role after each layer of all stages.
            context: of the states.
        """
        role = self.layout.generated

        def apply_final(sublayers: Layer, states: Array) -> Array:
            return self.apply_sublayers(sublayers, {role: states}, context)[0][role]

        last_states = apply_final(self.plan.stages[-1].after, after[-1])
        states_after = (last_states, *after)
        return tuple(apply_final(head.after, states_after[head.layer]) for head in self.plan.heads)

    def _select_states(
        self,
        layers: Sequence[LayerOutput],
        requests: Sequence[States],
        batch: Batch,
        context: Context,
    ) -> tuple[Array, ...]:
        stage_by_last_layer = dict(zip(self.layout.last_layers, self.plan.stages, strict=True))

        def select(request: States) -> Array:
            if not request.layer:
                return self._embed_spans(batch, [request.role])[request.role]
            states = layers[request.layer - 1].spans[request.role]
            if not request.ended:
                return states
            sublayers = stage_by_last_layer[request.layer].after
            return self.apply_sublayers(sublayers, {request.role: states}, context)[0][request.role]

        return tuple(map(select, requests))

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
                vectors = vectors + gather_table_width(self.position_tables[table.name])[positions]
        return vectors.astype(jnp.dtype(config.dtype))

    def _look_up_tokens(self, table: Table, tokens: Int[Array, "*b"]) -> Float[Array, "*b embed"]:
        vectors = look_up(self.tables[table.name], tokens)
        if self.config.embedding_scale:
            vectors = vectors * jnp.float32(math.sqrt(self.config.embed))
        return vectors

    def _look_up(self, table: Table, tokens: Array, positions: Array) -> Array:
        return constrain_row_sharding(self._embed(table, tokens, positions))

    def _embed_spans(self, batch: Batch, roles: list[str]) -> Spans:
        """Look up all spans of a table at once: its gradient is summed over devices once."""
        self.check_lengths({role: batch[f"{role}_tokens"].shape[1] for role in roles})
        embedded: Spans = {}
        for table in self.plan.tables:
            table_roles = [role for role in roles if self.plan.table_of(role) == table]
            tokens, positions = (
                {role: batch[f"{role}_{kind}"] for role in table_roles}
                for kind in ("tokens", "positions")
            )
            if table_roles:
                embedded |= map_spans(
                    functools.partial(self._look_up, table), True, tokens, positions
                )
        return {role: embedded[role] for role in roles}

    def _static_keys_values(
        self, stage: Stage, keys_values: Mapping[str, KeyValue], batch: Batch
    ) -> SpanKeyValue | None:
        roles = [r for r in stage.key_roles(self.layout.generated) if r != self.layout.generated]
        if not roles:
            return None
        visible = (keys_values[role] for role in roles)
        joined = jax.tree.map(lambda *arrays: jnp.concatenate(arrays, axis=1), *visible)
        return joined, [jnp.asarray(batch[f"{role}_segment_ids"]) for role in roles]

    def _memory_keys_values(
        self, stage: Stage, layer: Layer, block: Any, memory: Spans, batch: Batch
    ) -> SpanKeyValue | None:
        role, sublayer = stage.memory_role(self.layout.generated), cross_attending(layer)
        if role is None or sublayer is None:
            return None
        projected = getattr(block, sublayer.name).project_keys_values(memory[role])
        return projected, [jnp.asarray(batch[f"{role}_segment_ids"])]


def _by_role(batch: Batch, kind: str) -> dict[str, Array]:
    suffix = f"_{kind}"
    arrays = {name: array for name, array in batch.items() if name.endswith(suffix)}
    return {name.removesuffix(suffix): jnp.asarray(array) for name, array in arrays.items()}


def _normal_init(rng: Array, shape: tuple[int, int], dtype: Any) -> Array:
    """Draw from N(0, embed ** -0.5), as fairseq does (MITRE spec 4.5)."""
    return jax.random.normal(rng, shape, dtype) * jnp.asarray(shape[1] ** -0.5, dtype)


def _embedding_init(rng: Array, shape: tuple[int, int], dtype: Any) -> Array:
    """Draw as `_normal_init`, with a zero row for padding."""
    return _normal_init(rng, shape, dtype).at[PAD_ID].set(0)
