"""Removal of a residual connection: the "Residual" baseline, MNMT-RC, and SD's encoder.

Without the connection the output of the sublayer no longer contains the state, so a position's
output depends less on its place in the sentence. Norms and dropout stay: LN(drop(f(x))) with
post-norm, drop(f(LN(x))) with pre-norm.

Source: Liu et al. 2021 ("Improving Zero-Shot Translation by Disentangling Positional Information"),
the attention of the middle encoder layer; SD of Qu and Watanabe 2022, its feed-forward
(language-layers spec 2.2, 2.3).
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from mnmt_jax.config.sections import Model
from mnmt_jax.design.fields import Amount
from mnmt_jax.design.method import Method
from mnmt_jax.design.plan import Layer, Plan
from mnmt_jax.errors import UserError, join_names


@dataclasses.dataclass(frozen=True)
class CutResidual(Method, name="cut_residual"):
    """A layer without one residual connection.

    Attributes:
        layer: layer number, counted from 1 across stages; 0 is the middle one of the first stage,
            floor(layers / 2) + 1.
        sublayer: sublayer without the connection: `attention` (Liu et al.) or `mlp` (SD's encoder).
        norm: norm of all sublayers of that layer that have one: `pre`, `post`, or empty for the
            model's; SD's encoder layer in IWSLT17, Europarl and OPUS-100 is `pre` among `post`
            layers (language-layers spec 2.2).
    """

    layer: Amount = 0
    sublayer: str = "attention"
    norm: Literal["", "pre", "post"] = ""

    def edit(self, plan: Plan, config: Model) -> Plan:
        """Return the plan without the connection.

        Raises:
            UserError: if the layer or the sublayer does not exist.
        """
        del config
        layout = plan.layout
        layer_number = self.layer or layout.stages[0].layers // 2 + 1
        if layer_number > layout.layers:
            raise UserError(
                f"CutResidual.layer={layer_number}: the model has {layout.layers} layers; choose "
                "one of them"
            )
        return plan.with_layers(
            lambda number, layer: self._cut(layer) if number == layer_number else layer
        )

    def _cut(self, layer: Layer) -> Layer:
        names = [sublayer.name for sublayer in layer]
        if self.sublayer not in names:
            raise UserError(
                f"CutResidual.sublayer='{self.sublayer}': the layer has {join_names(names)}; "
                "choose one"
            )
        if not layer[names.index(self.sublayer)].residual:
            raise UserError(
                f"CutResidual.sublayer='{self.sublayer}': has no residual connection; choose "
                "another of the layer's sublayers"
            )
        return tuple(
            dataclasses.replace(
                sublayer,
                residual=sublayer.residual and sublayer.name != self.sublayer,
                norm=sublayer.norm if sublayer.norm == "none" else self.norm or sublayer.norm,
            )
            for sublayer in layer
        )
