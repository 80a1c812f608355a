"""InstruCL: instruction-level contrastive learning, beside the cross entropy.

An anchor is the state of a source's target-language tag after some layer; its positive is the same
state of the identity pair, which translates the target into itself; the other anchors of the batch
are its negatives.

Source: two-stage decoder-only paper, section 4.2, equations 8 and 9; PhasedDecoder's
`label_smoothed_cross_entropy_instruction`. Where they differ, `contrastive_loss` can follow either.
The authors compare the pairs of one GPU. Here a batch is one of `InstruCL.groups` equal parts of a
micro-batch's rows, whatever device they are on, so that a value does not depend on the mesh.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from mnmt_jax.config.sections import Config
from mnmt_jax.data.instruction import INSTRUCTIONS, get_instruction
from mnmt_jax.design.fields import Count
from mnmt_jax.design.layouts import SOURCE
from mnmt_jax.design.method import Method
from mnmt_jax.design.objective import Forward, Objective, States
from mnmt_jax.design.plan import Plan
from mnmt_jax.design.views import View
from mnmt_jax.errors import UserError
from mnmt_jax.model.vectors import unit_vectors

_IDENTITY = View("identity")  # each target as a source of its own language

# Form -> whether languages are weighted, whether the sum is scaled to the source tokens.
_FORMS = {"code": (True, True), "unweighted": (False, True), "paper": (False, False)}


@dataclasses.dataclass(frozen=True)
class InstruCL(Method, name="instructcl"):
    """The contrastive term.

    Attributes:
        layer: counted from 1 through all stages, after which the states of the source's tags are
            compared; the two-stage paper takes the last of stage 1 and deeper ones.
        form: `code` (as the authors train), `unweighted` (the same without the weights of the
            languages) or `paper` (the plain sum of its equations 8 and 9).
        groups: parts of a micro-batch's rows, each with negatives, weights and scale of its own;
            the authors have as many as GPUs.
    """

    layer: Count = 6
    form: Literal["code", "unweighted", "paper"] = "code"
    groups: Count = 1

    def check(self, config: Config, plan: Plan) -> None:
        """Check that there are such a layer, tags to compare, and groups of equal size.

        Raises:
            UserError: otherwise; it names the layers or instructions to choose from.
        """
        plan.layout.check_passed("InstruCL.layer", self.layer, SOURCE)
        if get_instruction(config.data.instruction).source_tag != "target":
            fitting = [key for key, row in INSTRUCTIONS.items() if row.source_tag == "target"]
            raise UserError(
                "instructcl compares the target's tags in the source, where "
                f"Data.instruction='{config.data.instruction}' has none; choose one of "
                f"{', '.join(fitting)}, or leave 'instructcl' out of Train.methods"
            )
        if config.data.rows % self.groups:
            raise UserError(
                f"InstruCL.groups={self.groups} must divide Data.rows={config.data.rows}"
            )

    def objectives(self) -> tuple[Objective, ...]:
        """Return the term."""
        reads = States(self.layer), States(self.layer, view=_IDENTITY)
        return (Objective("contrastive", reads, self._term),)

    def _term(self, forward: Forward) -> Array:
        """Compare the tags of each group's sources with those of its identity pairs."""
        anchors, positives = (self._tags(forward, view) for view in (None, _IDENTITY))
        tags = forward.batch["target_lang"].reshape(self.groups, -1)
        present = (forward.batch[f"{SOURCE}_segment_ids"] != 0).reshape(self.groups, -1)

        def term(anchors: Array, positives: Array, tags: Array, tokens: Array) -> Array:
            return contrastive_loss(
                anchors, positives, tags, tags >= 0, source_tokens=tokens, form=self.form
            )

        source_tokens = present.sum(axis=-1, dtype=jnp.float32)
        return jax.vmap(term)(anchors, positives, tags, source_tokens).sum()

    def _tags(self, forward: Forward, view: View | None) -> Array:
        """Return the state of every pair's tag, [groups, instances, embed]."""
        batch = forward.view(view) if view else forward.batch
        states = forward.read(States(self.layer, view=view))
        segment_ids, segments = batch[f"{SOURCE}_segment_ids"], batch["target_lang"].shape[1]
        found = tag_states(states, segment_ids, segments)
        return found.reshape(self.groups, -1, states.shape[-1])


def contrastive_loss(
    anchors: Float[Array, "instances embed"],
    positives: Float[Array, "instances embed"],
    tags: Int[Array, " instances"],
    valid: Bool[Array, " instances"],
    *,
    source_tokens: Float[Array, ""],
    form: str = "code",
) -> Float[Array, ""]:
    """Compute the contrastive term of a batch of B valid instances.

    l_i = -log(exp(cos(a_i, p_i)) / (exp(cos(a_i, p_i)) + sum_{j != i} exp(cos(a_i, a_j))))

    `code` is (sum_i w_i l_i) N / B with w_i = 1 - (instances with the tag of i) / B and N the
    number of source tokens: 0 if all tags are one. `unweighted` has w_i = 1. `paper` is the plain
    sum of l_i. The temperature is 1 in all of them.

    Args:
        anchors: states of the tags, of any float type; cosines and softmax are float32.
        positives: states of the identity pairs' tags.
        tags: target language of each instance; only equality matters.
        valid: whether there is an instance.
        source_tokens: N, of the anchors' batch, tags and eos included.
        form: `code`, `unweighted` or `paper`.

    Returns:
        The term in nats, to be added to a loss summed over target tokens.

    Source: two-stage paper, equations 8 and 9; weights and scale are in the code alone (two-stage
    spec 5.5, 5.6).
    """
    anchors, positives = unit_vectors(anchors), unit_vectors(positives)
    likeness = (anchors * positives).sum(axis=-1)
    unlike = jnp.einsum("im,jm->ij", anchors, anchors, precision="highest")
    # An anchor is no negative of itself: the positive takes its place on the diagonal.
    is_self = jnp.eye(len(tags), dtype=bool)
    logits = jnp.where(valid[None, :], unlike, -jnp.inf)
    logits = jnp.where(is_self, likeness[:, None], logits)
    losses = jax.nn.logsumexp(logits, axis=-1) - likeness
    weighted, scaled = _FORMS[form]
    instances = jnp.maximum(valid.sum(dtype=jnp.float32), 1.0)
    if weighted:
        same = (tags[:, None] == tags[None, :]) & valid[None, :]
        losses = losses * (1.0 - same.sum(axis=-1, dtype=jnp.float32) / instances)
    total = jnp.where(valid, losses, 0.0).sum()
    return total * (source_tokens / instances) if scaled else total


def tag_states(
    states: Float[Array, "batch source embed"],
    segment_ids: Int[Array, "batch source"],
    segments: int,
) -> Float[Array, "instances embed"]:
    """Pick the state of each packed pair's first source token.

    Args:
        states: of the source span.
        segment_ids: of the source span.
        segments: pairs per row at most.

    Returns:
        States of rows x segments, row by row; those of absent pairs are any of their row's.
    """
    numbers = jnp.arange(1, segments + 1, dtype=segment_ids.dtype)
    first = jnp.argmax(segment_ids[:, None, :] == numbers[None, :, None], axis=-1)
    picked = jnp.take_along_axis(states, first[:, :, None], axis=1)
    return picked.reshape(-1, states.shape[-1])
