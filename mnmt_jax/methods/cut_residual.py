"""A layer without one of its residual connections: the "Residual" baseline, MNMT-RC, SD's encoder.

What the sublayer changes a state into no longer holds the state, so a position's output depends
less on where it stands. Norms and dropout stay: LN(drop(f(x))) with norms after, drop(f(LN(x)))
before.

Source: Liu et al. 2021 ("Improving Zero-Shot Translation by Disentangling Positional
Information"), the attention of the middle encoder layer; the third paper's SD, its feed-forward
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
        layer: counted from 1 through all stages; 0 is the middle one of the first stage, number
            floor(layers / 2) + 1.
        sublayer: whose connection it is: `attention` (Liu et al.) or `mlp` (SD's encoder).
        norm: of all sublayers of that layer that have one: `pre`, `post`, or as the model's; SD's
            encoder layer in IWSLT17, Europarl and OPUS-100 is `pre` amid `post` (language-layers
            spec 2.2).
    """

    layer: Amount = 0
    sublayer: str = "attention"
    norm: Literal["", "pre", "post"] = ""

    def edit(self, plan: Plan, config: Model) -> Plan:
        """Return the plan without the connection.

        Raises:
            UserError: if there is no such layer, or no such sublayer in it.
        """
        del config
        layout = plan.layout
        wanted = self.layer or layout.stages[0].layers // 2 + 1
        if wanted > layout.layers:
            raise UserError(
                f"CutResidual.layer={wanted}: the model has {layout.layers} layers; choose one of "
                "them"
            )
        return plan.with_layers(
            lambda number, layer: self._cut(layer) if number == wanted else layer
        )

    def _cut(self, layer: Layer) -> Layer:
        names = [each.name for each in layer]
        if self.sublayer not in names:
            raise UserError(
                f"CutResidual.sublayer='{self.sublayer}': the layer has {join_names(names)}; choose one"
            )
        if not layer[names.index(self.sublayer)].residual:
            raise UserError(
                f"CutResidual.sublayer='{self.sublayer}': has no residual connection; choose "
                "another of the layer's sublayers"
            )
        return tuple(
            dataclasses.replace(
                each,
                residual=each.residual and each.name != self.sublayer,
                norm=each.norm if each.norm == "none" else self.norm or each.norm,
            )
            for each in layer
        )
