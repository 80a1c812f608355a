"""A toy method with a table for each side, a third one for the output, and two heads."""

from __future__ import annotations

import dataclasses

from mnmt_jax.design.fields import Amount
from mnmt_jax.design.method import Method
from mnmt_jax.design.plan import Head, Sublayer, Table
from mnmt_jax.model.sublayers import StageNorm

TABLES = ("source_embedding", "target_embedding", "output_embedding")


@dataclasses.dataclass(frozen=True)
class TwoHeads(Method, name="two_heads"):
    """Separate table for the generated role, which a head in the middle uses too.

    Attributes:
        layer: that this head reads; 0 is the first that the generated role passes.
    """

    layer: Amount = 0

    def edit(self, plan, config):
        generated = plan.layout.generated
        layer = self.layer or plan.layout.layers_with(generated)[0]
        norm = Sublayer("middle_norm", StageNorm(config), residual=False)
        source, target, output = TABLES
        return dataclasses.replace(
            plan,
            tables=(Table(source), Table(target, (generated,)), Table(output, embeds=False)),
            heads=(Head(target, layer, (norm,)), Head(output)),
        )


# A grafted model's ends, with room for the tests' spans.
ENDS = {
    "methods": (TwoHeads(),),
    "positions": ("learned", 16),
    "activation": "gelu",
    "embedding_scale": False,
}
