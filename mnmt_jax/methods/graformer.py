"""Graformer's two heads: what the grafted layers say is added to what the language model says.

    logits = LN(g12) W2^T + LN_lm(g6) W1^T

g6 leaves the target's first layers, which are a language model's and know no source; g12 the layers
above them, which get g6 as it is, without a norm. W1 is `target_embedding`, which embeds the target
too, W2 `output_embedding`, which embeds nobody; the source has a table of its own, `embedding`.
Logits are added, before the one softmax.

Where the parameters come from is data (`mnmt_jax.methods.graft`), and so is what is frozen
(`Optimizer.frozen`): `gin_configs/models/graformer_*.gin`, `gin_configs/runs/settings/graft_*.gin`.

Source: Sun, Wang, Li 2021 ("Multilingual Translation via Grafting Pre-trained Language Models"),
section 3.3 and figure 3; that W2 is a matrix of its own, which norms there are and where g6 is
taken, in their code alone (graft spec 2.3).
"""

from __future__ import annotations

import dataclasses

from mnmt_jax.config.method import Method
from mnmt_jax.config.sections import Model
from mnmt_jax.design.plan import Head, Plan, Sublayer
from mnmt_jax.errors import UserError
from mnmt_jax.methods.tables import TARGET_TABLE, Tables
from mnmt_jax.model.sublayers import StageNorm


@dataclasses.dataclass(frozen=True)
class Graformer(Method, name="graformer"):
    """A table of each side, a third for the output, and two heads.

    Attributes:
        fusion: whether the language model's head is there; without it, its table still embeds the
            target (row 7 of their Table 3).
    """

    fusion: bool = True

    def edit(self, plan: Plan, config: Model) -> Plan:
        """Returns the plan with the tables and heads, and g6 as it is.

        Raises:
            UserError: if the target has no layers of its own before those that read the source.
        """
        generated = plan.layout.generated
        *before, language_model, grafted = plan.stages
        own = language_model.stage.roles == (generated,) and not language_model.stage.memory
        if not before or not own or not grafted.stage.memory:
            raise UserError(
                f"graformer: layout '{plan.layout.name}' has no layers of the target alone before "
                "those that read the source; set Model.layout='grafted'"
            )
        norm = Sublayer("lm_norm", StageNorm(), residual=False)
        fused = Head(TARGET_TABLE, plan.layout.ends[-2], (norm,) if config.norm == "pre" else ())
        apart = Tables(target=True, output=True).edit(plan, config)
        bare = dataclasses.replace(language_model, leave=())
        heads = (*((fused,) if self.fusion else ()), *apart.heads)
        return dataclasses.replace(apart, stages=(*before, bare, grafted), heads=heads)
