"""Residual sublayers with norms and dropout, and the transformer layer made of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array

from mnmt_jax.config.sections import Model
from mnmt_jax.design.plan import Kind, Layer, Sublayer
from mnmt_jax.model.context import Context, PositionInfo, Spans
from mnmt_jax.model.dropout import Dropout
from mnmt_jax.model.modules import layer_norm
from mnmt_jax.model.rematerialization import ATTENTION


class SublayerStack:
    """Mixin for modules with sublayers: a layer, and the model for the sublayers around its layers.

    Expects `config` and `drop`, the dropout of the residual stream.
    """

    config: Model
    drop: Dropout

    def create(self, sublayers: Iterable[Sublayer]) -> None:
        """Create the sublayers, as clones of their kinds, and their norms; call it in `setup`."""
        for sublayer in sublayers:
            kind: Any = sublayer.kind
            setattr(self, sublayer.name, kind.clone())
            if sublayer.norm != "none":
                setattr(self, _norm_name(sublayer), layer_norm(self.config))

    def apply_sublayers(
        self, sublayers: Layer, spans: Spans, context: Context
    ) -> tuple[Spans, Any]:
        """Apply sublayers in order, each to the roles that pass it.

        Args:
            sublayers: among those passed to `create`.
            spans: role -> [batch, length, embed]; [batch, beam, embed] in a decoding step.
            context: inputs of the sublayers besides the states.

        Returns:
            The new states, and the keys and values of self-attention.
        """
        keys_values: Any = {}
        for sublayer in sublayers:
            role_states = {role: states for role, states in spans.items() if sublayer.passes(role)}
            if role_states and sublayer.kind.attends:
                changed, new_keys_values = self._read(sublayer, role_states, context)
                keys_values = keys_values if new_keys_values is None else new_keys_values
            else:
                changed = context.map_states(
                    lambda s, p, sublayer=sublayer: self._change(sublayer, s, p), role_states
                )
            spans = spans | changed
        return spans, keys_values

    def _read(self, sublayer: Sublayer, spans: Spans, context: Context) -> tuple[Spans, Any]:
        attention = getattr(self, sublayer.name)
        inputs = context.map(lambda states: self._enter(sublayer, states), spans)
        heads, keys_values = attention.read(inputs, context)

        def add(states: Array, heads: Array) -> Array:
            heads = checkpoint_name(heads, ATTENTION)
            change = checkpoint_name(attention.out(heads), ATTENTION)
            return self._leave(sublayer, states, change, context.deterministic)

        return context.map(add, spans, heads), keys_values

    def _change(self, sublayer: Sublayer, states: Array, info: PositionInfo) -> Array:
        kind: Kind = getattr(self, sublayer.name)
        change = kind.change(self._enter(sublayer, states), info)
        return self._leave(sublayer, states, change, info.deterministic)

    def _enter(self, sublayer: Sublayer, states: Array) -> Array:
        return getattr(self, _norm_name(sublayer))(states) if sublayer.norm == "pre" else states

    def _leave(
        self, sublayer: Sublayer, states: Array, change: Array, deterministic: bool
    ) -> Array:
        if not sublayer.kind.has_dropout:
            change = self.drop(change, deterministic=deterministic)
        states = states + change if sublayer.residual else change
        return getattr(self, _norm_name(sublayer))(states) if sublayer.norm == "post" else states


class Block(nn.Module, SublayerStack):
    """One layer over all spans, or over one new position of every beam.

    Parameters: of each sublayer under its name, of its norm under `{name}_norm`.
    """

    config: Model
    sublayers: Layer

    def setup(self) -> None:
        """Create the sublayers and their norms."""
        self.create(self.sublayers)
        self.drop = Dropout(self.config.dropout)

    def __call__(self, spans: Spans, context: Context) -> tuple[Spans, Any]:
        """Apply the layer; see `SublayerStack.apply_sublayers`."""
        return self.apply_sublayers(self.sublayers, spans, context)


def _norm_name(sublayer: Sublayer) -> str:
    return f"{sublayer.name}_norm"
