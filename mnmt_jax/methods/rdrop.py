"""R-Drop: two passes with different dropout should predict the same distributions.

Every row is in the micro-batch twice, so that its two copies have different dropout. With P_1 and
P_2 the distributions of a target token in the two, the loss of the token is

    L = -log P_1(y) - log P_2(y) + alpha / 2 [KL(P_1 || P_2) + KL(P_2 || P_1)]

divided by 2, since both copies count as target tokens. The authors' code does not divide it: Adam
does not see this factor, `Optimizer.clip_norm` does.

Source: Wu, Liang et al. 2021 ("R-Drop: Regularized Dropout for Neural Networks", arXiv 2106.14448,
equations 1 to 4), and their code for fairseq, which repeats the batch in the same way; alpha = 5
for translation. Label smoothing applies to the cross entropies, as there.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mnmt_jax.config.sections import Config
from mnmt_jax.design.fields import Weight
from mnmt_jax.design.generated_batch import Batch, BatchChange, GenerationModel
from mnmt_jax.design.layouts import TARGET
from mnmt_jax.design.method import Method
from mnmt_jax.design.objective import Forward, Objective
from mnmt_jax.design.plan import Plan
from mnmt_jax.errors import UserError

_COPIES = 2


@dataclasses.dataclass(frozen=True)
class RDrop(Method, name="rdrop"):
    """The term that brings the two passes together.

    Attributes:
        weight: alpha, the weight of the mean of the two divergences.
    """

    weight: Weight = 5.0

    def check(self, config: Config, plan: Plan) -> None:
        """Check that there is dropout, and no method whose objectives would see rows twice.

        Raises:
            UserError: otherwise.
        """
        if not plan.layout.is_autoregressive:
            raise UserError(
                f"rdrop: layout '{plan.layout.name}' does not predict next tokens; leave 'rdrop' "
                "out of Train.methods"
            )
        if not (config.model.dropout or config.model.attention_dropout):
            raise UserError(
                "rdrop compares passes with different dropout; set Model.dropout, for example to "
                "0.3"
            )
        others = [
            other.name
            for other in config.methods
            if other.name != self.name and (other.objectives() or other.generated_batches(config))
        ]
        if others:
            raise UserError(
                f"rdrop repeats every row, which '{others[0]}' does not expect; leave one of them "
                "out"
            )

    def batch_changes(self) -> tuple[BatchChange, ...]:
        """Return the repetition of rows."""
        return (BatchChange(_repeat_rows, copies=_COPIES),)

    def objectives(self) -> tuple[Objective, ...]:
        """Return the term."""
        return (Objective("rdrop", (), self._term),)

    def _term(self, forward: Forward) -> Array:
        """Return the weighted sum of the divergences over target tokens."""
        present = forward.batch[f"{TARGET}_segment_ids"] != 0
        valid = (present & (forward.batch[f"{TARGET}_labels"] >= 0))[::_COPIES]
        divergence = forward.map_logits(mean_divergence)
        return self.weight * jnp.where(valid, divergence, 0.0).sum()


def _repeat_rows(model: GenerationModel) -> Batch:
    """Return all arrays with every row twice, in consecutive rows that stay on their device."""

    def repeat(array: Array) -> Array:
        copies = jnp.broadcast_to(array[:, None], (array.shape[0], _COPIES, *array.shape[1:]))
        return copies.reshape(-1, *array.shape[1:])

    return {name: repeat(jnp.asarray(array)) for name, array in model.batch.items()}


def mean_divergence(logits: Float[Array, "rows width vocab"]) -> Float[Array, "pairs width"]:
    """Return (KL(P_1 || P_2) + KL(P_2 || P_1)) / 2 in nats of each pair of consecutive rows.

    It equals half the sum of (P_1 - P_2) (log P_1 - log P_2) over the vocabulary.

    Args:
        logits: of the next token.
    """
    log_probs = jax.nn.log_softmax(logits).reshape(-1, _COPIES, *logits.shape[1:])
    first, second = log_probs[:, 0], log_probs[:, 1]
    return 0.5 * ((jnp.exp(first) - jnp.exp(second)) * (first - second)).sum(axis=-1)
