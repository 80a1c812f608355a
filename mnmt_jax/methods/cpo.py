"""CPO: contrastive preference optimisation.

With y_w the preferred and y_l the dispreferred translation of x, a batch's loss is

    L = mean_pairs -log sigmoid(beta (log p(y_w | x) - log p(y_l | x))) + NLL(y_w)

with log-probabilities summed, and NLL averaged, over target tokens.

Source: Xu et al. 2024 ("Contrastive Preference Optimization: Pushing the Boundaries of LLM
Performance in Machine Translation", arXiv 2401.08417), and the authors' code (ALMA,
`utils/cpo_trainer.py`): beta = 0.1. The paper takes both translations from a fixed set that is
ranked by two reference-free metrics. Here y_w is the target of the pair, a reference or a selected
translation, and y_l is the model's translation by greedy search with the current parameters. A pair
of which both are equal adds log 2 and no gradient, as the formula has it. NLL is the run's cross
entropy, without label smoothing in the paper. Each micro-batch has a mean over its pairs, weighted
by its share of the update's target tokens.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from mnmt_jax.config.sections import Config
from mnmt_jax.data.instruction import get_instruction
from mnmt_jax.design.fields import Positive, Range, Weight
from mnmt_jax.design.generated_batch import Batch, GenerationModel
from mnmt_jax.design.layouts import TARGET, check_method_translates
from mnmt_jax.design.method import Method
from mnmt_jax.design.objective import Forward, LogProbs, Objective
from mnmt_jax.design.plan import Plan
from mnmt_jax.errors import UserError
from mnmt_jax.methods._row_checks import check_one_pair_per_row
from mnmt_jax.model.learned_positions import check_lengths
from mnmt_jax.vocabulary.special_ids import EOS_ID

_KINDS = ("tokens", "labels", "segment_ids", "positions")
_TARGET_ARRAYS = tuple(f"{TARGET}_{kind}" for kind in _KINDS)
_TOKENS, _LABELS, _SEGMENT_IDS, _ = _TARGET_ARRAYS


@dataclasses.dataclass(frozen=True)
class CPO(Method, name="cpo"):
    """The preference term.

    Attributes:
        beta: scale of the difference of log-probabilities.
        weight: weight of the term relative to the cross entropy per token.
        max_length: maximum length of the model's translation, as a multiple of the target's.
    """

    beta: Positive = 0.1
    weight: Weight = 1.0
    max_length: Annotated[float, Range(low=0.01, high=100)] = 1.5

    translates = True

    def check(self, config: Config, plan: Plan) -> None:
        """Check that the model translates rows of one pair each, whose inputs no method changes.

        Raises:
            UserError: if not.
        """
        check_method_translates(self.name, plan.layout)
        check_one_pair_per_row(self.name, config.data)
        changing = [other.name for other in config.methods if other.batch_changes()]
        if changing:
            raise UserError(
                f"cpo: '{changing[0]}' changes the inputs of the targets, but not those of the "
                "translations that they are compared with; leave one of them out"
            )
        self._check_length(config)

    def _check_length(self, config: Config) -> None:
        """Check that the target span has its tags, and a translation's positions exist."""
        length, key = config.data.target_length, config.data.instruction
        prefix_length = get_instruction(key).target_extra
        if length < prefix_length:
            raise UserError(
                f"cpo: Data.target_length={length} is shorter than the {prefix_length} first "
                f"inputs of Data.instruction='{key}'; raise it"
            )
        longest = prefix_length + self._longest(length - prefix_length)
        check_lengths(config.model, {TARGET: longest}, "CPO.max_length or Data.target_length")

    def _longest(self, width: int) -> int:
        """Return the maximum number of pieces of a translation in a row with room for `width`."""
        return max(1, math.ceil(self.max_length * width))

    def objectives(self) -> tuple[Objective, ...]:
        """Return the term."""
        return (Objective("preference", (_PREFERRED, self._dispreferred), self._term),)

    @property
    def _dispreferred(self) -> LogProbs:
        return LogProbs("dispreferred", self._translate)

    def _translate(self, model: GenerationModel) -> Batch:
        """Replace the targets by the model's translations; rows where both are equal are empty."""
        batch, prefix_length = model.batch, model.prefix_length
        prefix = batch[_TOKENS][:, :prefix_length]
        lengths = (batch[_SEGMENT_IDS] != 0).sum(axis=1, dtype=jnp.int32) - prefix_length
        longest = self._longest(batch[_TOKENS].shape[1] - prefix_length)
        limits = jnp.ceil(lengths.astype(jnp.float32) * jnp.float32(self.max_length))
        limits = jnp.where(lengths >= 0, jnp.clip(limits.astype(jnp.int32), 1, longest), 0)
        static = {name: array for name, array in batch.items() if name not in _TARGET_ARRAYS}
        generated = model.greedy(static, prefix, limits, longest + 1)
        forced = batch[_LABELS][:, : prefix_length - 1]
        labels = jnp.concatenate([forced, generated], axis=1)
        tokens = jnp.concatenate([prefix, generated[:, :-1]], axis=1)
        return _laid_out(tokens, labels, prefix_length, is_differing(labels, batch))

    def _term(self, forward: Forward) -> Array:
        """Return the weighted mean over pairs, scaled to the target's tokens."""
        preferred, dispreferred = (
            forward.read(request).sum(axis=1) for request in (_PREFERRED, self._dispreferred)
        )
        is_different = forward.changed(self._dispreferred)[_SEGMENT_IDS][:, 0] != 0
        margins = jnp.where(is_different, preferred - dispreferred, 0.0)
        present = forward.batch[_SEGMENT_IDS] != 0
        count = present[:, 0].sum(dtype=jnp.float32)
        tokens = present.sum(dtype=jnp.float32)
        total = preference_loss(margins, present[:, 0], self.beta)
        return self.weight * total * tokens / jnp.maximum(count, 1.0)


_PREFERRED = LogProbs("preferred")


def preference_loss(
    margins: Float[Array, " pairs"], present: Bool[Array, " pairs"], beta: float
) -> Float[Array, ""]:
    """Compute -sum log sigmoid(beta (log p(y_w) - log p(y_l))) over pairs, in nats.

    Args:
        margins: log p(y_w) - log p(y_l); 0 if both are the same translation.
        present: whether the row has a pair.
        beta: the scale.
    """
    return jnp.where(present, jax.nn.softplus(-beta * margins), 0.0).sum()


def is_differing(labels: Array, batch: Batch) -> Bool[Array, " rows"]:
    """Return whether rows have a pair and its target is not the sequence of some labels.

    Args:
        labels: [rows, length], ending in eos, then pad; of any length.
        batch: arrays of the pairs, one per row.
    """
    present = batch[_SEGMENT_IDS] != 0
    targets = jnp.where(present, batch[_LABELS], 0)
    width = max(labels.shape[1], targets.shape[1])
    first, second = (jnp.pad(a, ((0, 0), (0, width - a.shape[1]))) for a in (labels, targets))
    return (first != second).any(axis=1) & present[:, 0]


def _laid_out(tokens: Array, labels: Array, prefix_length: int, is_kept: Array) -> Batch:
    """Return the arrays of the target role; rows that are not kept are empty."""
    ended = jnp.cumsum(labels[:, prefix_length - 1 :] == EOS_ID, axis=1)
    counts = prefix_length + (ended == 0).sum(axis=1, dtype=jnp.int32)
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32)[None], tokens.shape)
    valid = (positions < counts[:, None]) & is_kept[:, None]
    arrays = {
        "tokens": tokens,
        "positions": positions,
        "segment_ids": jnp.ones_like(tokens),
        "labels": labels,
    }
    return {f"{TARGET}_{kind}": jnp.where(valid, array, 0) for kind, array in arrays.items()}
