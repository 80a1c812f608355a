"""Adapters as wide as the feed-forward: the "Adapter" baseline of Graformer's paper.

Every layer ends in one more feed-forward, with a norm and a residual connection of its own, and
where the target reads the source, it does so after the feed-forward that was there: what is below
is a layer of a language model, what is above is new.

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
from mnmt_jax.model.sublayers import FeedForward, cross_attending

_NAME = "tuning"


@dataclasses.dataclass(frozen=True)
class _Tuning(FeedForward):
    """The added feed-forward."""

    component: str = _NAME
    other: tuple[str, str] = ("fc1_tuning", "fc2_tuning")
    other_norm = "final_layer_norm_tuning"


@dataclasses.dataclass(frozen=True)
class TuningLayers(Method, name="tuning_layers"):
    """A feed-forward more in every layer.

    Attributes:
        mlp: its width; 0 is that of the model's.
    """

    mlp: Annotated[int, Range(low=0, high=2**20)] = 0

    def edit(self, plan: Plan, config: Model) -> Plan:
        """Return the plan with the added feed-forward layers.

        Raises:
            UserError: if a layer has no feed-forward to come after.
        """
        kind = _Tuning(self.mlp or config.mlp)
        added = Sublayer(_NAME, kind, config.norm)
        return plan.with_layers(lambda number, layer: _above(layer, added))


def _above(layer: Layer, added: Sublayer) -> Layer:
    """Return a layer with what is new after what a language model has."""
    if all(each.name != "mlp" for each in layer):
        raise UserError("tuning_layers: a layer has no 'mlp'; leave out the method that took it")
    recalled = cross_attending(layer)
    new = () if recalled is None else (recalled,)
    return (*(each for each in layer if each not in new), *new, added)
