"""mRASP2: contrastive loss that pulls the representations of translations together.

The representation is the mean over the states of a sentence's tokens at the end of the encoder. The
anchor is the source. The target with its own tag passes the encoder too and is the positive; the
other targets of the batch are the negatives.

Source: Pan et al. 2021 ("Contrastive Learning for Many-to-many Multilingual Neural Machine
Translation"), section 3.1; scale, tokens and batch as in their code (position-disentangle spec
3.7). Their fairseq version smooths labels by epsilon / V over all V entries of the vocabulary,
including the correct one: `Optimizer.label_smoothing = epsilon (V - 1) / V` here.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from mnmt_jax.config.sections import Config
from mnmt_jax.design.fields import Count, Positive, Weight
from mnmt_jax.design.layouts import SOURCE, TARGET, check_method_translates
from mnmt_jax.design.method import Method
from mnmt_jax.design.objective import Forward, Objective, States
from mnmt_jax.design.plan import Plan
from mnmt_jax.design.views import View
from mnmt_jax.errors import UserError, join_names
from mnmt_jax.methods._row_checks import check_row_groups
from mnmt_jax.model.vectors import unit_vectors

_ANCHOR = View("anchor", SOURCE, keep_tag=True)
_POSITIVE = View("positive", TARGET, keep_tag=True)


@dataclasses.dataclass(frozen=True)
class MRASP2(Method, name="mrasp2"):
    """The contrastive loss.

    Attributes:
        layer: layer whose states are averaged over the sentence, counted from 1 across stages; in
            an encoder-decoder the encoder's last.
        ended: whether to include the sublayers at the end of the stage: with pre-norm, the final
            norm. False allows any layer with the source.
        temperature: temperature of the softmax over cosines.
        weight: weight of the mean over a group's sentences, relative to its cross entropy per
            token.
        groups: number of groups of a micro-batch's rows with separate negatives and scale; the
            authors have one per GPU.
        anchor: `own`, a separate encoder pass with separate dropout as in the authors' code, or
            `shared`, the states of the translation's pass.
    """

    layer: Count = 6
    ended: bool = True
    temperature: Positive = 0.1
    weight: Weight = 1.0
    groups: Count = 1
    anchor: Literal["own", "shared"] = "own"

    def check(self, config: Config, plan: Plan) -> None:
        """Check that the model translates, the layer exists and groups have equal numbers of rows.

        Raises:
            UserError: if not.
        """
        check_method_translates(self.name, plan.layout)
        plan.layout.check_layer("MRASP2.layer", self.layer, SOURCE)
        ends = [
            layer for layer in plan.layout.last_layers if layer in plan.layout.layers_with(SOURCE)
        ]
        if self.ended and self.layer not in ends:
            raise UserError(
                f"MRASP2.layer={self.layer}: stages of layout '{plan.layout.name}' that have the "
                f"source end with {join_names([f'layer {layer}' for layer in ends])}; choose one, "
                "or set MRASP2.ended=False"
            )
        check_row_groups("MRASP2", self.groups, config.data)

    def row_groups(self) -> int:
        """Return the number of groups."""
        return self.groups

    def objectives(self) -> tuple[Objective, ...]:
        """Return the loss."""
        return (Objective("sentence_contrast", (self._anchor, self._positive), self._term),)

    @property
    def _anchor(self) -> States:
        view = _ANCHOR if self.anchor == "own" else None
        return States(self.layer, view=view, ended=self.ended)

    @property
    def _positive(self) -> States:
        return States(self.layer, view=_POSITIVE, ended=self.ended)

    def _term(self, forward: Forward) -> Array:
        """Return the sum of the groups' weighted losses, each scaled to a mean per target token."""
        batch, view = forward.batch, forward.view(_POSITIVE)
        languages = batch["target_lang"]
        segments = languages.shape[1]
        sides = (
            (forward.read(self._anchor), batch[f"{SOURCE}_segment_ids"]),
            (forward.read(self._positive), view[f"{SOURCE}_segment_ids"]),
        )
        anchors, positives = (
            sentence_means(states, ids, segments).reshape(self.groups, -1, states.shape[-1])
            for states, ids in sides
        )
        valid = (languages >= 0).reshape(self.groups, -1)
        losses = jax.vmap(lambda a, p, v: sentence_contrast(a, p, v, self.temperature))(
            anchors, positives, valid
        )
        present = (batch[f"{TARGET}_segment_ids"] != 0).reshape(self.groups, -1)
        tokens = present.sum(axis=1, dtype=jnp.float32)
        sentences = jnp.maximum(valid.sum(axis=1, dtype=jnp.float32), 1.0)
        return (self.weight * losses * tokens / sentences).sum()


def sentence_means(
    states: Float[Array, "rows length embed"], segment_ids: Int[Array, "rows length"], segments: int
) -> Float[Array, "rows segments embed"]:
    """Return the float32 mean of each packed sentence's states; 0 for absent sentences.

    Args:
        states: of a span.
        segment_ids: of the span; 0 is padding.
        segments: maximum number of sentences per row.
    """
    numbers = jnp.arange(1, segments + 1, dtype=segment_ids.dtype)
    membership = (segment_ids[:, None, :] == numbers[None, :, None]).astype(jnp.float32)
    sums = jnp.einsum("rsl,rle->rse", membership, states.astype(jnp.float32), precision="highest")
    return sums / jnp.maximum(membership.sum(axis=-1), 1.0)[..., None]


def sentence_contrast(
    anchors: Float[Array, "sentences embed"],
    positives: Float[Array, "sentences embed"],
    valid: Bool[Array, " sentences"],
    temperature: float,
) -> Float[Array, ""]:
    """Compute -sum_s log(exp(cos(a_s, p_s) / t) / sum_s' exp(cos(a_s, p_s') / t)), in nats.

    Args:
        anchors: representations of the sources.
        positives: representations of the targets, in the same order.
        valid: whether the sentence exists.
        temperature: t.

    Source: mRASP2, section 3.1, equation 3; the softmax runs over positives only, not in the other
    direction.
    """
    cosines = jnp.einsum(
        "ae,pe->ap", unit_vectors(anchors), unit_vectors(positives), precision="highest"
    )
    logits = jnp.where(valid[None, :], cosines / temperature, -jnp.inf)
    logits = jnp.where(valid[:, None], logits, 0.0)  # rows without a sentence stay finite
    losses = jax.nn.logsumexp(logits, axis=-1) - jnp.diagonal(logits)
    return jnp.where(valid, losses, 0.0).sum()
