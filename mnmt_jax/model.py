"""The translation model: any layout of the table, used through `logits`, `prefill` and `step`.

`features` is `logits` before the tied output projection, for losses that never hold all logits.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from mnmt_jax.attention import IMPLEMENTATIONS
from mnmt_jax.attention.core import pair_mask
from mnmt_jax.cache import Cache, KeyValue, LayerCache, Shared
from mnmt_jax.config import Model
from mnmt_jax.errors import UserError
from mnmt_jax.layout import Layout, Sees, Stage
from mnmt_jax.layouts import SOURCE, get_layout
from mnmt_jax.modules import Adaption, Block, Memory, Spans, layer_norm, map_spans, sinusoid
from mnmt_jax.sharding import split_rows, whole_width
from mnmt_jax.special_ids import PAD_ID

Batch = Mapping[str, Array]

_LOOPED_FROM = 8  # layers of a stage: fewer compile fast, and run faster unrolled
_UNROLLED = 2  # last layers of a stage, where some roles are dead work that the compiler removes


def build_model(config: Model, vocab_size: int) -> Translator:
    """Builds the model that a configuration describes.

    Args:
        config: sizes and layout.
        vocab_size: rows of the embedding, from the vocabulary.

    Raises:
        UserError: if the layout is unknown or its stages do not fit `config.stage_layers`, or the
            configuration expects another vocabulary size.
    """
    if config.vocab_size not in (0, vocab_size):
        raise UserError(
            f"Model.vocab_size={config.vocab_size} but the vocabulary has {vocab_size} entries; "
            "use the vocabulary the model was made for, or Model.vocab_size=0"
        )
    return Translator(config, get_layout(config.layout, config.stage_layers), vocab_size)


class _Passed(NamedTuple):
    """What a layer made: the states of each role after it, and its keys and values."""

    spans: Spans
    keys_values: dict[str, KeyValue]


class Translator(nn.Module):
    """A transformer whose attention follows a layout.

    Attributes:
        config: sizes.
        layout: structure, with layer counts.
        vocab_size: rows of the one embedding shared by all spans and the output projection.

    Parameters: `embedding` [vocab, embed]; `layer_{i}` counted through all stages; `stage_{i}_norm`
    at the end of each stage when norms come first; `adaption_input`, `adaption_output` if
    configured.
    """

    config: Model
    layout: Layout
    vocab_size: int

    def setup(self) -> None:
        """Creates the parameters."""
        config = self.config
        self.embedding = self.param(
            "embedding", _embedding_init, (self.vocab_size, config.embed), jnp.float32
        )
        block = nn.remat(Block, static_argnums=(1, 5, 6)) if config.remat else Block
        self.layer = [
            block(config, has_memory=bool(stage.memory))
            for stage in self.layout.stages
            for _ in range(stage.layers)
        ]
        if config.norm == "pre":
            for number in range(len(self.layout.stages)):
                setattr(self, f"stage_{number}_norm", layer_norm(config))
        if config.adaption_mlp:
            if SOURCE not in self.layout.stages[-1].roles:
                raise UserError(
                    f"Model.adaption_mlp={config.adaption_mlp}: layout '{self.layout.name}' has no "
                    "source beside the target; set Model.adaption_mlp=0"
                )
            adaption = (config, config.adaption_mlp, config.adaption_dropout)
            self.adaption_input, self.adaption_output = Adaption(*adaption), Adaption(*adaption)
        self.drop = nn.Dropout(config.dropout)

    def __call__(self, batch: Batch) -> Float[Array, "batch target vocab"]:
        """Same as `logits`; the entry for `init`."""
        return self.logits(batch)

    def features(
        self, batch: Batch, deterministic: bool = True
    ) -> Float[Array, "batch target embed"]:
        """Computes the final states of the target span under teacher forcing.

        Args:
            batch: `{role}_tokens`, `{role}_positions`, `{role}_segment_ids`, int32 [batch, length],
                for every role of the layout.
            deterministic: no dropout; otherwise the rng stream "dropout" is used.
        """
        spans, _, _ = self._run(batch, self.layout.stages, deterministic)
        return self._finish(spans[self.layout.generated], deterministic)

    def features_and_states(
        self, batch: Batch, layer: int, deterministic: bool = True
    ) -> tuple[Float[Array, "batch target embed"], Float[Array, "batch source embed"]]:
        """Computes `features` and, in the same pass, the `source_states` of a layer."""
        spans, _, layers = self._run(batch, self.layout.stages, deterministic)
        features = self._finish(spans[self.layout.generated], deterministic)
        return features, layers[layer - 1].spans[SOURCE]

    def source_states(
        self, batch: Batch, layer: int, deterministic: bool = True
    ) -> Float[Array, "batch source embed"]:
        """Computes the states of the source span after a layer, and no layer beyond it.

        With norms first they are the residual stream, before any norm at the end of a stage;
        otherwise the output of the layer's last norm.

        Args:
            batch: as for `features`; the generated role's spans are not needed.
            layer: counted from 1 through all stages; one of `Layout.layers_with("source")`.
            deterministic: as for `features`.
        """
        _, _, layers = self._run(batch, self.layout.static_stages(layer), deterministic)
        return layers[-1].spans[SOURCE]

    def logits(
        self, batch: Batch, deterministic: bool = True
    ) -> Float[Array, "batch target vocab"]:
        """Computes float32 logits of the next token at each target position; see `features`."""
        return self._project(self.features(batch, deterministic))

    def prefill(self, batch: Batch, *, beam: int, max_steps: int) -> Cache:
        """Runs the static roles once and prepares decoding.

        Args:
            batch: spans of the static roles, one sentence per row; no target span.
            beam: hypotheses per sentence.
            max_steps: steps that may be taken.
        """
        _, memory, passed = self._run(batch, self.layout.static_stages(), True)
        rows, config = batch[f"{SOURCE}_tokens"].shape[0], self.config
        shape = (rows, beam, max_steps, config.heads, config.head_dim)
        zeros = jnp.zeros(shape, jnp.dtype(config.dtype))
        layers = []
        for stage, block, layer in zip(self._stage_of_layer(), self.layer, passed, strict=True):
            if self.layout.generated in stage.roles:
                fixed = self._static(stage, layer.keys_values, batch)
                remembered = self._memory(stage, block, memory, batch)
                layers.append(LayerCache(fixed, remembered, KeyValue(zeros, zeros)))
        return Cache(tuple(layers), jnp.zeros((), jnp.int32))

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
        states = self._embed(tokens, cache.index[None, None])
        first = len(self.layer) - len(cache.layers)
        layers = []
        for block, layer in zip(self.layer[first:], cache.layers, strict=True):
            states, growing = block.step(states, layer, cache.index)
            layers.append(dataclasses.replace(layer, growing_kv=growing))
        logits = self._project(self._finish(states, True))
        return logits, Cache(tuple(layers), cache.index + 1)

    def _run(
        self, batch: Batch, stages: tuple[Stage, ...], deterministic: bool
    ) -> tuple[Spans, Spans, list[_Passed]]:
        """Returns the last spans, those that ended before, and what each layer made."""
        segment_ids = _segment_ids(batch)
        attention = IMPLEMENTATIONS[self.config.attention]
        spans: Spans = {}
        memory: Spans = {}
        layers: list[_Passed] = []
        vectors = self._embed_spans(batch, list(dict.fromkeys(r for s in stages for r in s.roles)))
        for number, stage in enumerate(stages):
            memory |= {role: states for role, states in spans.items() if role not in stage.roles}
            spans = {
                r: spans[r] if r in spans else self.drop(vectors[r], deterministic=deterministic)
                for r in stage.roles
            }
            if self.config.adaption_mlp and number + 1 == len(self.layout.stages):
                spans[SOURCE] = self.adaption_input.adapt(spans[SOURCE], deterministic)
            masks = attention.make_masks(stage, segment_ids) if stage.roles else None
            edges: dict[str, Memory] = {}
            for reader, read in stage.memory:
                mask = pair_mask(Sees.FULL, segment_ids[reader], segment_ids[read])
                edges[reader] = (memory[read], mask)
            passed = self._pass(stage, len(layers), spans, (masks, edges, deterministic))
            spans = passed[-1].spans
            layers += passed
            if number + 1 < len(stages):
                spans = {role: self._stage_norm(number, states) for role, states in spans.items()}
        return spans, memory, layers

    def _pass(self, stage: Stage, first: int, spans: Spans, rest: tuple[Any, ...]) -> list[_Passed]:
        """Runs the layers of a stage, all but the last ones as a loop if they are many."""
        if not stage.roles:
            return [_Passed(spans, {})] * stage.layers
        looped = max(stage.layers - _UNROLLED, 0) if self._can_loop(stage, first) else 0
        passed = self._loop(stage, first, looped, spans, rest) if looped else []
        for number in range(first + looped, first + stage.layers):
            spans = passed[-1].spans if passed else spans
            # Drawing parameters asks for no states: joined there is less to trace.
            joined = self.is_initializing()
            passed.append(self._one_layer(number, stage, spans, *rest, joined))
        return passed

    def _can_loop(self, stage: Stage, first: int) -> bool:
        if self.is_initializing() or stage.layers < _LOOPED_FROM:
            return False
        layers = (self._layer_params(first + number) for number in range(stage.layers))
        return len({jax.tree.structure(layer) for layer in layers}) == 1

    def _loop(
        self, stage: Stage, first: int, count: int, spans: Spans, rest: tuple[Any, ...]
    ) -> list[_Passed]:
        """Runs layers as `lax.scan`: the program holds one of them, and compiles in its time.

        Each round puts a layer's parameters in the place of the first one's, whose name they then
        have: so what names decide (LoRA) is what it is outside.
        """
        layers = [self._layer_params(number) for number in range(first, first + count)]
        stacked = jax.tree.map(lambda *arrays: jnp.stack(arrays), *layers)
        params, apply = self.variables["params"], self.clone(parent=None).apply
        deterministic = rest[-1]
        rng = None if deterministic else self.make_rng("dropout")

        def one(spans: Spans, layer: tuple[Any, Array]) -> tuple[Spans, _Passed]:
            own, number = layer
            rngs = None if rng is None else {"dropout": jax.random.fold_in(rng, number)}
            passed: Any = apply(
                {"params": {**params, f"layer_{first}": own}},
                *(first, stage, spans, *rest, True),
                rngs=rngs,
                method="_one_layer",
            )
            return passed.spans, passed

        _, every = jax.lax.scan(one, spans, (stacked, jnp.arange(count)))
        return [jax.tree.map(lambda a: a[number], every) for number in range(count)]  # noqa: B023

    def _one_layer(self, number: int, stage: Stage, *inputs: Any) -> _Passed:
        return _Passed(*self.layer[number](stage, *inputs))

    def _layer_params(self, number: int) -> Any:
        return self.variables["params"][f"layer_{number}"]

    def _finish(
        self, states: Float[Array, "*b embed"], deterministic: bool
    ) -> Float[Array, "*b embed"]:
        if self.config.adaption_mlp:
            states = self.adaption_output.adapt(states, deterministic)
        return self._stage_norm(len(self.layout.stages) - 1, states)

    def _stage_norm(self, number: int, states: Array) -> Array:
        return (
            getattr(self, f"stage_{number}_norm")(states) if self.config.norm == "pre" else states
        )

    def _project(self, states: Float[Array, "*b embed"]) -> Float[Array, "*b vocab"]:
        table = self.embedding.astype(states.dtype)
        return jnp.einsum("...m,vm->...v", states, table, preferred_element_type=jnp.float32)

    def _embed(
        self, tokens: Int[Array, "*b"], positions: Int[Array, "*#b"]
    ) -> Float[Array, "*b embed"]:
        config = self.config
        scaled = whole_width(self.embedding)[tokens] * jnp.float32(math.sqrt(config.embed))
        vectors = scaled + sinusoid(positions, config.embed, config.position_base)
        return vectors.astype(jnp.dtype(config.dtype))

    def _embed_spans(self, batch: Batch, roles: list[str]) -> Spans:
        """Looks all spans up at once: the gradient of the table is summed over devices once."""
        tokens, positions = (
            {role: batch[f"{role}_{kind}"] for role in roles} for kind in ("tokens", "positions")
        )
        return map_spans(lambda t, p: split_rows(self._embed(t, p)), True, tokens, positions)

    def _stage_of_layer(self) -> list[Stage]:
        return [stage for stage in self.layout.stages for _ in range(stage.layers)]

    def _static(self, stage: Stage, read: Mapping[str, KeyValue], batch: Batch) -> Shared | None:
        roles = [r for r in stage.key_roles(self.layout.generated) if r != self.layout.generated]
        if not roles:
            return None
        segment_ids = _segment_ids(batch)
        return (
            jnp.concatenate([read[role].keys for role in roles], axis=1),
            jnp.concatenate([read[role].values for role in roles], axis=1),
            jnp.concatenate([segment_ids[role] != 0 for role in roles], axis=1),
        )

    def _memory(self, stage: Stage, block: Any, memory: Spans, batch: Batch) -> Shared | None:
        read = stage.memory_role(self.layout.generated)
        if read is None:
            return None
        projected = block.memory_attention.project_keys_values(memory[read])
        return projected.keys, projected.values, _segment_ids(batch)[read] != 0


def _segment_ids(batch: Batch) -> dict[str, Array]:
    suffix = "_segment_ids"
    return {
        name.removesuffix(suffix): jnp.asarray(ids)
        for name, ids in batch.items()
        if name.endswith(suffix)
    }


def _embedding_init(rng: Array, shape: tuple[int, int], dtype: Any) -> Array:
    """Draws N(0, embed ** -0.5) with a zero row for padding, as fairseq does (MITRE spec 4.5)."""
    table = jax.random.normal(rng, shape, dtype) * jnp.asarray(shape[1] ** -0.5, dtype)
    return table.at[PAD_ID].set(0)
