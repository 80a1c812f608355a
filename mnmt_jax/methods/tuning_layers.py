"""Adapters as wide as the feed-forward: the "Adapter" baseline of Graformer's paper.

Every layer ends in an additional feed-forward with its own norm and residual connection.
Cross-attention follows the original feed-forward: the sublayers before it form a layer of a
language model, the later ones are new.

    encoder  attention, mlp, tuning
    decoder  attention, mlp, memory_attention, tuning

Source: Guo et al. 2020 ("Incorporating BERT into Parallel Sequence Decoding with Adapters") as in
Sun, Wang, Li 2021, section 4.6, and their code.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated

from mnmt_jax.config.sections import Model
from mnmt_jax.design.fields import Range
from mnmt_jax.design.method import Method
from mnmt_jax.design.plan import Layer, Plan, Sublayer
from mnmt_jax.errors import UserError
from mnmt_jax.model.sublayers import FeedForward, cross_attending, feed_forward_of

_NAME = "tuning"


class _Tuning(FeedForward):
    """The added feed-forward."""

    component: str = _NAME
    other: tuple[str, str] = ("fc1_tuning", "fc2_tuning")
    other_norm = "final_layer_norm_tuning"


@dataclasses.dataclass(frozen=True)
class TuningLayers(Method, name="tuning_layers"):
    """An additional feed-forward in every layer.

    Attributes:
        mlp: its hidden width; 0 uses that of the layer's feed-forward.
    """

    mlp: Annotated[int, Range(low=0, high=2**20)] = 0

    def edit(self, plan: Plan, config: Model) -> Plan:
        """Return the plan with the added feed-forward layers.

        Raises:
            UserError: if a layer has no feed-forward.
        """
        return plan.with_layers(lambda number, layer: _with_adapter(layer, config, self.mlp))


def _with_adapter(layer: Layer, config: Model, width: int) -> Layer:
    """Return a layer with the new sublayers after those of a language model; width as `mlp`."""
    feed_forward = feed_forward_of(layer)
    if feed_forward is None:
        raise UserError("tuning_layers: a layer has no 'mlp'; leave out the method that removes it")
    added = Sublayer(_NAME, _Tuning(config, width or feed_forward.hidden), config.norm)
    cross_attention = cross_attending(layer)
    cross_attentions = () if cross_attention is None else (cross_attention,)
    return (
        *(sublayer for sublayer in layer if sublayer not in cross_attentions),
        *cross_attentions,
        added,
    )
