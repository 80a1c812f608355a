"""Adaption modules of the two-stage decoder-only model (TDO): h + dropout(W2 relu(W1 h + b1) + b2).

One is applied to the source before the first layer of the last stage, one to the target at its end;
neither has a norm.

Source: two-stage decoder-only paper, section 4.1; the residual is in the authors' code only
(two-stage spec 4.4).
"""

from __future__ import annotations

import dataclasses

from mnmt_jax.config.sections import Model
from mnmt_jax.design.fields import Rate, Width
from mnmt_jax.design.layouts import SOURCE
from mnmt_jax.design.method import Method
from mnmt_jax.design.plan import Plan, Sublayer
from mnmt_jax.errors import UserError
from mnmt_jax.model.sublayers import FeedForward


@dataclasses.dataclass(frozen=True)
class Adaption(Method, name="adaption"):
    """Adaption modules.

    Attributes:
        mlp: hidden width.
        dropout: rate on their output, instead of the model's.
    """

    mlp: Width = 2048
    dropout: Rate = 0.1

    inert_fields = ("dropout",)

    def edit(self, plan: Plan, config: Model) -> Plan:
        """Return the plan with the two modules.

        Raises:
            UserError: if the last stage has no source.
        """
        layout, (*earlier, last_stage) = plan.layout, plan.stages
        if SOURCE not in last_stage.stage.roles:
            raise UserError(
                f"adaption: layout '{layout.name}' has no source beside the target; leave "
                "'adaption' out of Model.methods"
            )
        source, target = (
            Sublayer(f"adaption_{side}", self._kind(config, side), roles=(role,))
            for side, role in (("input", SOURCE), ("output", layout.generated))
        )
        before, after = (*last_stage.before, source), (target, *last_stage.after)
        edited = dataclasses.replace(last_stage, before=before, after=after)
        return dataclasses.replace(plan, stages=(*earlier, edited))

    def _kind(self, config: Model, side: str) -> FeedForward:
        other_names = f"fc1_{side}", f"fc2_{side}"  # in PhasedDecoder
        return FeedForward(config, self.mlp, "adaption", other_names, "relu", self.dropout)
