"""How states pass sublayers: the residual stream, its norms and its dropout, and the layer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flax import linen as nn
from jaxtyping import Array

from mnmt_jax.config.sections import Model
from mnmt_jax.design.plan import Layer, Sublayer
from mnmt_jax.model.context import Context, PositionInfo, Spans
from mnmt_jax.model.dropout import Dropout
from mnmt_jax.model.modules import layer_norm


class SublayerStack:
    """What owns sublayers: a layer, and the model for those around its layers.

    Expects `config` and `drop`, the dropout of the residual stream.
    """

    config: Model
    drop: Dropout

    def create(self, sublayers: Iterable[Sublayer]) -> None:
        """Creates the modules of sublayers and their norms, in `setup`."""
        for each in sublayers:
            setattr(self, each.name, each.kind.module(self.config))
            if each.norm != "none":
                setattr(self, _norm_name(each), layer_norm(self.config))

    def apply_sublayers(
        self, sublayers: Layer, spans: Spans, context: Context
    ) -> tuple[Spans, Any]:
        """Changes the states of each role by each sublayer that it passes.

        Args:
            sublayers: of those that `create` was given.
            spans: role -> [batch, length, embed]; [batch, beam, embed] at a step of decoding.
            context: what they may ask for.

        Returns:
            The new states, and what the reader keeps for the self-attention among them.
        """
        kept: Any = {}
        for each in sublayers:
            own = {role: states for role, states in spans.items() if each.passes(role)}
            if own and each.kind.attends:
                changed, read = self._read(each, own, context)
                kept = kept if read is None else read
            else:
                changed = context.map_places(lambda s, p, each=each: self._change(each, s, p), own)
            spans = spans | changed
        return spans, kept

    def _read(self, each: Sublayer, spans: Spans, context: Context) -> tuple[Spans, Any]:
        attention = getattr(self, each.name)
        entered = context.map(lambda states: self._enter(each, states), spans)
        heads, kept = attention.read(entered, context)

        def leave(states: Array, heads: Array) -> Array:
            return self._leave(each, states, attention.out(heads), context.deterministic)

        return context.map(leave, spans, heads), kept

    def _change(self, each: Sublayer, states: Array, place: PositionInfo) -> Array:
        change = each.kind.change(getattr(self, each.name), self._enter(each, states), place)
        return self._leave(each, states, change, place.deterministic)

    def _enter(self, each: Sublayer, states: Array) -> Array:
        return getattr(self, _norm_name(each))(states) if each.norm == "pre" else states

    def _leave(self, each: Sublayer, states: Array, change: Array, deterministic: bool) -> Array:
        if not each.kind.has_dropout:
            change = self.drop(change, deterministic=deterministic)
        states = states + change if each.residual else change
        return getattr(self, _norm_name(each))(states) if each.norm == "post" else states


class Block(nn.Module, SublayerStack):
    """One layer over all spans, or over one new position of every beam.

    Parameters: of each sublayer under its name, of its norm under `{name}_norm`.
    """

    config: Model
    sublayers: Layer

    def setup(self) -> None:
        """Creates the sublayers and their norms."""
        self.create(self.sublayers)
        self.drop = Dropout(self.config.dropout)

    def __call__(self, spans: Spans, context: Context) -> tuple[Spans, Any]:
        """Applies the layer; see `SublayerStack.pass_through`."""
        return self.apply_sublayers(self.sublayers, spans, context)


def _norm_name(each: Sublayer) -> str:
    return f"{each.name}_norm"
