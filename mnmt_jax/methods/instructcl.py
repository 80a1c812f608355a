"""InstruCL: instruction-level contrastive learning.

An anchor is the state of a source's target-language tag after some layer; its positive is the same
state of the identity pair, which translates the target into itself; the other anchors of the batch
are its negatives.

Source: two-stage decoder-only paper, section 4.2, equations 8 and 9; PhasedDecoder's
`label_smoothed_cross_entropy_instruction`. Where they differ, `contrastive_loss` implements both.
The authors compare the pairs of one GPU. Here a batch is one of `InstruCL.groups` equal parts of a
micro-batch's rows, on any device, so that a value does not depend on the mesh.
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
from mnmt_jax.design.layouts import SOURCE, check_method_translates
from mnmt_jax.design.method import Method
from mnmt_jax.design.objective import Forward, Objective, States
from mnmt_jax.design.plan import Plan
from mnmt_jax.design.views import View
from mnmt_jax.errors import UserError
from mnmt_jax.methods._row_checks import check_row_groups
from mnmt_jax.model.vectors import unit_vectors

_IDENTITY = View("identity")  # the target as a source in its own language

# Form -> (whether languages are weighted, whether the sum is scaled by source tokens).
_FORMS = {"code": (True, True), "unweighted": (False, True), "paper": (False, False)}


@dataclasses.dataclass(frozen=True)
class InstruCL(Method, name="instructcl"):
    """The contrastive loss term.

    Attributes:
        layer: layer whose output states of the source's tags are compared, counted from 1 across
            stages; the two-stage paper uses the last of stage 1 and deeper ones.
        form: `code` (as the authors train), `unweighted` (the same without the weights of the
            languages) or `paper` (the plain sum of its equations 8 and 9).
        groups: number of groups of a micro-batch's rows with separate negatives, weights and scale;
            the authors have one per GPU.
    """

    layer: Count = 6
    form: Literal["code", "unweighted", "paper"] = "code"
    groups: Count = 1

    def check(self, config: Config, plan: Plan) -> None:
        """Check that the model translates, layer and tags exist, and groups have equal size.

        Raises:
            UserError: if not; the message lists the layers or instructions to choose from.
        """
        check_method_translates(self.name, plan.layout)
        plan.layout.check_layer("InstruCL.layer", self.layer, SOURCE)
        if get_instruction(config.data.instruction).source_tag != "target":
            fitting = [key for key, row in INSTRUCTIONS.items() if row.source_tag == "target"]
            raise UserError(
                "instructcl compares the target's tags in the source, where "
                f"Data.instruction='{config.data.instruction}' has none; choose one of "
                f"{', '.join(fitting)}, or leave 'instructcl' out of Train.methods"
            )
        check_row_groups("InstruCL", self.groups, config.data)

    def row_groups(self) -> int:
        """Return the number of groups."""
        return self.groups

    def objectives(self) -> tuple[Objective, ...]:
        """Return the term."""
        inputs = States(self.layer), States(self.layer, view=_IDENTITY)
        return (Objective("contrastive", inputs, self._term),)

    def _term(self, forward: Forward) -> Array:
        """Return the loss of each group's source tags against those of its identity pairs."""
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
        at_tags = tag_states(states, segment_ids, segments)
        return at_tags.reshape(self.groups, -1, states.shape[-1])


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
    number of source tokens: 0 if all tags are equal. `unweighted` has w_i = 1. `paper` is the plain
    sum of l_i. The temperature is 1 in all forms.

    Args:
        anchors: states of the tags, of any float type; cosines and softmax are float32.
        positives: states of the identity pairs' tags.
        tags: target language of each instance; only equality matters.
        valid: whether the instance exists.
        source_tokens: N, of the anchors' batch, tags and eos included.
        form: `code`, `unweighted` or `paper`.

    Returns:
        The term in nats, to be added to a loss summed over target tokens.

    Source: two-stage paper, equations 8 and 9; weights and scale are in the code alone (two-stage
    spec 5.5, 5.6).
    """
    anchors, positives = unit_vectors(anchors), unit_vectors(positives)
    positive_cosines = (anchors * positives).sum(axis=-1)
    cosines = jnp.einsum("im,jm->ij", anchors, anchors, precision="highest")
    # An anchor is not a negative of itself: the diagonal holds the positive instead.
    is_self = jnp.eye(len(tags), dtype=bool)
    logits = jnp.where(valid[None, :], cosines, -jnp.inf)
    logits = jnp.where(is_self, positive_cosines[:, None], logits)
    losses = jax.nn.logsumexp(logits, axis=-1) - positive_cosines
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
    """Return the state of each packed pair's first source token.

    Args:
        states: of the source span.
        segment_ids: of the source span.
        segments: maximum number of pairs per row.

    Returns:
        States of rows x segments, row by row; those of absent pairs are arbitrary states of their
        row.
    """
    numbers = jnp.arange(1, segments + 1, dtype=segment_ids.dtype)
    first_tokens = jnp.argmax(segment_ids[:, None, :] == numbers[None, :, None], axis=-1)
    selected = jnp.take_along_axis(states, first_tokens[:, :, None], axis=1)
    return selected.reshape(-1, states.shape[-1])
