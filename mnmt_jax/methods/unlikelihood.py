"""Language-aware unlikelihood training: lower the probability of a target after a wrong tag.

For each pair, a language other than the target's is drawn, and the pair is laid out with its tag.
With p_t the probability of the target's token t in that pass, the loss per target token is

    L = L_MLE + alpha L_UL,    L_UL = -mean_t log(1 - p_t)

Source: Zan et al. 2024 ("Building Accurate Translation-Tailored LLMs with Language Aware
Instruction Tuning", arXiv 2403.14399), and their code (`LanguageAware_Tuning`, `train.py`): alpha
= 0.05, 1 - p_t at least 1e-9. They train by maximum likelihood first, and 100 updates with both
terms from there: `--initialize_from`, or `Unlikelihood.start`. Their wrong instruction is that of
another training example, so it may also change the source language; here the language is uniform
among the others, and only the target's tag changes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from mnmt_jax.config.sections import Config
from mnmt_jax.data.instruction import INSTRUCTIONS, get_instruction
from mnmt_jax.design.fields import Amount, Weight
from mnmt_jax.design.generated_batch import Batch, GenerationModel
from mnmt_jax.design.layouts import TARGET
from mnmt_jax.design.method import Method
from mnmt_jax.design.objective import Forward, LogProbs, Objective
from mnmt_jax.design.plan import Plan
from mnmt_jax.errors import UserError, join_names
from mnmt_jax.methods._language_draws import draw

_SMALLEST = 1e-9  # of 1 - p


@dataclasses.dataclass(frozen=True)
class Unlikelihood(Method, name="unlikelihood"):
    """The unlikelihood loss.

    Attributes:
        weight: alpha, the weight of the term relative to the cross entropy per token.
        start: updates of maximum likelihood alone, before the term counts.
        pool: codes of the languages whose tags are drawn; () means all.
        vocabulary: codes of all languages, in the order of the vocabulary's tags; () uses the
            vocabulary's.
    """

    weight: Weight = 0.05
    start: Amount = 0
    pool: tuple[str, ...] = ()
    vocabulary: tuple[str, ...] = ()

    languages_field = "vocabulary"
    code_fields = ("pool",)

    def check(self, config: Config, plan: Plan) -> None:
        """Check that a tag of the target language exists and that there is another to draw.

        Raises:
            UserError: if not.
        """
        if not plan.layout.is_autoregressive:
            raise UserError(
                f"unlikelihood: layout '{plan.layout.name}' does not translate; leave "
                "'unlikelihood' out of Train.methods"
            )
        if not get_instruction(config.data.instruction).has_target_tag:
            fitting = [key for key, row in INSTRUCTIONS.items() if row.has_target_tag]
            raise UserError(
                "unlikelihood replaces the tag of the target language, which "
                f"Data.instruction='{config.data.instruction}' has not; choose one of "
                f"{join_names(fitting)}"
            )
        if not config.train.epochs and 0 < config.train.steps <= self.start:
            raise UserError(
                f"Unlikelihood.start={self.start}: the term never counts in Train.steps="
                f"{config.train.steps} updates; lower it, or leave 'unlikelihood' out of "
                "Train.methods"
            )
        self._check_pool()

    def objectives(self) -> tuple[Objective, ...]:
        """Return the term."""
        schedule = self._schedule if self.start else None
        return (Objective("unlikelihood", (self._log_probs,), self._term, schedule),)

    def _check_pool(self) -> None:
        languages = self.known_languages()
        if unknown := [code for code in self.pool if code not in languages]:
            raise UserError(
                f"Unlikelihood.pool names {join_names(unknown)}; the vocabulary has "
                f"{join_names(languages)}"
            )
        if len(set(self.pool)) < len(self.pool):
            raise UserError(f"Unlikelihood.pool={self.pool!r} names a language twice; name it once")
        if len(self.pool or languages) < 2:
            raise UserError(
                f"Unlikelihood.pool={self.pool or languages!r} needs two languages, so that one "
                "other than the target's can be drawn"
            )

    @property
    def _log_probs(self) -> LogProbs:
        return LogProbs("wrong_tag", self._change)

    def _change(self, model: GenerationModel) -> Batch:
        """Draw a wrong language for each pair and replace the tags by its tag."""
        languages, right = self.known_languages(), model.batch["target_lang"]
        pool = np.array([languages.index(code) for code in self.pool or languages], np.int32)
        drawn, is_chosen = draw(model.rng, right.reshape(-1), pool, 1.0)
        wrong = jnp.where(
            is_chosen.reshape(right.shape) & (right >= 0), drawn.reshape(right.shape), -1
        )
        first_tag = model.vocab_size - len(languages)
        return replace_tags(model.batch, wrong, first_tag, model.layout.embedded_roles())

    def _term(self, forward: Forward) -> Array:
        """Return the weighted sum over the target's tokens."""
        batch = forward.changed(self._log_probs)
        valid = (batch[f"{TARGET}_segment_ids"] != 0) & (batch[f"{TARGET}_labels"] >= 0)
        return self.weight * unlikelihood_loss(forward.read(self._log_probs), valid)

    def _schedule(self, step: Array) -> Array:
        return (step >= self.start).astype(jnp.float32)


def unlikelihood_loss(
    log_probs: Float[Array, "rows length"], valid: Bool[Array, "rows length"]
) -> Float[Array, ""]:
    """Compute -sum_t log(max(1 - p_t, 1e-9)) over valid tokens, in nats.

    Args:
        log_probs: log p_t.
        valid: whether the token counts.
    """
    remaining = jnp.maximum(-jnp.expm1(jnp.where(valid, log_probs, -1.0)), _SMALLEST)
    return -jnp.where(valid, jnp.log(remaining), 0.0).sum()


def replace_tags(
    batch: Batch, wrong: Int[Array, "rows segments"], first_tag: int, roles: Sequence[str]
) -> Batch:
    """Return a batch whose pairs have the tags of other target languages.

    Every token that is the tag of its pair's target language is replaced, in all roles: at the
    start of the source, in registers and triggers, and at the start of the target. A tag among the
    labels is not predicted (-1).

    Args:
        batch: arrays of the batch.
        wrong: index of the other language of each pair; -1 leaves a pair out, with no label.
        first_tag: id of the first language's tag.
        roles: roles of the layout.
    """
    right = batch["target_lang"]
    arrays = {"target_lang": jnp.where(wrong >= 0, wrong, right)}

    def at_tokens(languages: Array, role: str) -> Array:
        padded = jnp.pad(languages, ((0, 0), (1, 0)), constant_values=-1)
        return jnp.take_along_axis(padded, batch[f"{role}_segment_ids"], axis=1)

    for role in roles:
        tokens, old, new = batch[f"{role}_tokens"], at_tokens(right, role), at_tokens(wrong, role)
        is_tag = (old >= 0) & (new >= 0) & (tokens == old + first_tag)
        arrays[f"{role}_tokens"] = jnp.where(is_tag, new + first_tag, tokens)
    labels, old = batch[f"{TARGET}_labels"], at_tokens(right, TARGET)
    is_omitted = (at_tokens(wrong, TARGET) < 0) | (labels == old + first_tag)
    return arrays | {f"{TARGET}_labels": jnp.where(is_omitted, -1, labels)}
