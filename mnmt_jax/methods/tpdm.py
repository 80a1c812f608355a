"""Position disentangling: TPDM and, with gates, GTPDM.

In one encoder layer two heads read the output of attention: one computes the content, which
replaces the states, the other the position, which is used only by losses.

    a = LN(x + SA(x)),  h = M_h(a),  p = M_p(a),  the layer continues with h + FFN(h)

A critic G, one transformer layer over a sentence's contents, predicts positions from contents. In
each update it is trained on this task first. Then the model is trained with the updated critic, to
make its predictions worse (the information bound of `mnmt_jax.model.position_losses`) and to give
the same position in all sentences the same vector (alignment). With gates, a learnt share of the
tokens is exempt from the bound. In translation only M_h is used.

Source: Chen, Zhang, Fu 2023 (TPDM), sections 3 and 5.1. No code of the authors is public; what the
paper leaves open is decided in docs/methods.md: among others the norms of the heads, which its
Table 8 counts, and that the feed-forward's residual is h.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array

from mnmt_jax.config.sections import Config, Model
from mnmt_jax.design.fields import Amount, Count, Positive, Range, Weight
from mnmt_jax.design.layout import Stage
from mnmt_jax.design.layouts import SOURCE, TARGET, translates
from mnmt_jax.design.method import Method
from mnmt_jax.design.objective import Forward, Intermediate, Objective, Player
from mnmt_jax.design.plan import Kind, Layer, Lengths, Maps, Plan, Sublayer
from mnmt_jax.distributed.processes import is_first
from mnmt_jax.errors import UserError, warn
from mnmt_jax.model.attention import IMPLEMENTATIONS
from mnmt_jax.model.block import Block
from mnmt_jax.model.context import Context, PositionInfo, SpanAttention
from mnmt_jax.model.intermediates import is_requested, record
from mnmt_jax.model.modules import Projection, layer_norm, linear, sinusoid
from mnmt_jax.model.position_losses import (
    alignment,
    chance_loss,
    critic_loss,
    gate_divergence,
    information,
    mean_anchors,
    relaxed_gates,
)
from mnmt_jax.model.sublayers import FeedForward, SelfAttention

_HEADS, _CRITIC = "disentangle", "critic"
_CONTENT, _POSITION, _GATE, _LOGIT = "content", "position", "gate", "gate_logit"
_MINUS_CHANCE = "critic_minus_chance"
_WARNING_STEP = 500  # updates after which a critic should beat chance
_WARNING_MARGIN = 0.05  # nats below chance of such a critic
_NOISE_MARGIN = 1e-3  # minimum distance of the gates' noise from 0 and 1
_AXES: Mapping[str, tuple[str, ...]] = {
    "gate_first/kernel": ("embed", "mlp"),
    "gate_first/bias": ("mlp",),
    "gate_last/kernel": ("mlp", "channel"),
    "gate_last/bias": ("channel",),
}
_Share = Annotated[float, Range(low=0, high=1, exclude_low=True, exclude_high=True)]


def _linear(config: Model, features: int) -> Projection:
    return linear(config, features, config.embed, extra_axes=tuple(_AXES.items()))


class _Head(nn.Module):
    """wo(relu(LN(wi(x)))), all [embed, embed], with an optional norm."""

    config: Model
    normed: bool

    def setup(self) -> None:
        """Create the two layers and the norm."""
        self.wi, self.wo = (_linear(self.config, self.config.embed) for _ in range(2))
        if self.normed:
            self.norm = layer_norm(self.config)

    def __call__(self, states: Array) -> Array:
        """Apply the head at each position."""
        inner = self.wi(states)
        return self.wo(nn.relu(self.norm(inner) if self.normed else inner))


class _Heads(nn.Module, Kind):
    """Heads for content, position and gate on the output of attention; content replaces the states.

    Attributes:
        config: sizes of the model.
        norms: as `TPDM.norms`.
        gate_temperature: as `TPDM.gate_temperature`; 0 means no gates.
    """

    config: Model
    norms: int
    gate_temperature: float

    has_dropout = True  # it has no dropout
    component = _HEADS
    axes = _AXES

    def setup(self) -> None:
        """Create the heads, a norm of the content and the layers of the gates."""
        config = self.config
        self.content, self.position = (_Head(config, self.norms > 0) for _ in range(2))
        if self.norms > 2:
            self.content_norm = layer_norm(config)
        if self.gate_temperature:
            self.gate_first, self.gate_last = _linear(config, config.embed), _linear(config, 1)

    def change(self, states: Array, info: PositionInfo) -> Array:
        """Return the content, and record the values that losses read."""
        content = self.content(states)
        content = self.content_norm(content) if self.norms > 2 else content
        if is_requested(self):
            record(self, info, _CONTENT, content)
            record(self, info, _POSITION, self.position(states))
            if self.gate_temperature:
                self._gate(states, info)
        return content

    def matmuls(self, stage: Stage, roles: Sequence[str], lengths: Lengths) -> Maps:
        """Yield the content's layers; the others run only in training."""
        del stage
        positions = sum(lengths[role] for role in roles)
        for name in ("wi", "wo"):
            yield f"{_CONTENT}/{name}", positions, (self.config.embed, self.config.embed)

    def _gate(self, states: Array, info: PositionInfo) -> None:
        logits = self.gate_last(nn.relu(self.gate_first(states)))[..., 0].astype(jnp.float32)
        record(self, info, _LOGIT, logits)
        if info.deterministic:
            return
        rng = self.make_rng("dropout")
        noise = jax.random.uniform(
            rng, logits.shape, minval=_NOISE_MARGIN, maxval=1 - _NOISE_MARGIN
        )
        record(self, info, _GATE, relaxed_gates(logits, noise, self.gate_temperature))


class _Critic(Block, Kind):
    """A post-norm encoder layer over each sentence's contents."""

    component = _CRITIC

    def change(self, states: Array, info: PositionInfo) -> Array:
        """Return its predictions of the positions."""
        stage, ids = Stage((SOURCE,), ("f",), layers=1), {SOURCE: info.segment_ids}
        masks = IMPLEMENTATIONS[self.config.attention].make_masks(stage, ids)
        attention = SpanAttention(masks, {}, stage, self.config.attention)
        context = Context({SOURCE: info.positions}, ids, {}, attention)
        return self({SOURCE: states}, context)[0][SOURCE]


def _critic(config: Model, width: int) -> _Critic:
    """Return the critic of a model, without dropout and LoRA.

    Args:
        config: sizes of the model.
        width: hidden width of its feed-forward.
    """
    plain = dataclasses.replace(config, dropout=0.0, attention_dropout=0.0, methods=(), lora_rank=0)
    attention = Sublayer("attention", SelfAttention(plain), "post")
    return _Critic(plain, (attention, Sublayer("mlp", FeedForward(plain, width), "post")))


@dataclasses.dataclass(frozen=True)
class TPDM(Method, name="tpdm"):
    """Position disentangling: the heads, the critic and the loss terms.

    The paper's equations as they stand are `clip=False, head_start=0, ramp=0, critic_steps=1`. With
    them and its weight of 1 a model learns to mislead the critic and loses translation quality
    (docs/results_claims.md), which these defaults prevent.

    Attributes:
        layer: layer with the heads, counted from 1 across stages; it must contain the source. In
            the paper 4 of the encoder's 6 and 2 of 3. Layouts other than encoder-decoders are our
            extension; only the source's states are changed.
        temperature: temperature of all softmaxes over cosines.
        information: weight of the bound; 0 disables it, and the critic's loss then shows how much
            position information contents hold without the bound.
        reduction: reduction of the bound over the tokens of a sentence: their `sum`, weighted per
            token like the cross entropy, or their `mean`, which keeps the factor 1 / M of equation
            1.
        clip: whether the bound only counts as far as the critic's predictions are better than
            chance (`mnmt_jax.model.position_losses.information`).
        head_start: updates before the bound is applied; critic, cross entropy and alignment learn.
        ramp: updates after the head start in which the weight rises linearly to `information`.
        critic_steps: updates of the critic within one update of the model.
        critic_learning_rate: peak learning rate of the critic; 0 uses the run's.
        alignment: weight of the alignment; 0 disables it.
        anchors: targets of the alignment: the `mean` at each position over the micro-batch, the
            mean `held` constant, or the `sinusoidal` vectors (the paper's Table 2).
        norms: number of LayerNorms of the heads: one after the first layer of both (2), and one on
            the content (3); Table 8 counts three.
        gated: whether gates weigh the bound token by token (GTPDM).
        prior: prior share of open gates; the paper gives no value.
        gate: weight of the divergence from the prior; without it, gates close.
        gate_temperature: temperature of the gates.
    """

    layer: Count = 4
    temperature: Positive = 0.05
    information: Weight = 1.0
    reduction: Literal["sum", "mean"] = "sum"
    clip: bool = True
    head_start: Amount = 400
    ramp: Amount = 400
    critic_steps: Annotated[int, Range(low=1, high=64)] = 2
    critic_learning_rate: Weight = 0.0
    alignment: Weight = 1.0
    anchors: Literal["mean", "held", "sinusoidal"] = "mean"
    norms: Literal[0, 2, 3] = 3
    gated: bool = False
    prior: _Share = 0.4
    gate: Weight = 1.0
    gate_temperature: Positive = 0.7

    def __post_init__(self) -> None:
        """Check every field, and that gates have a bound and gate settings have gates.

        Raises:
            UserError: if they do not.
        """
        super().__post_init__()
        if self.gated and not self.information:
            raise UserError(
                "TPDM.gated=True with TPDM.information=0: gates weigh the bound; set one of them "
                "otherwise"
            )
        for name in ("prior", "gate", "gate_temperature"):
            value = getattr(self, name)
            if not self.gated and value != getattr(TPDM, name):
                raise UserError(
                    f"TPDM.{name}={value}: is of gates; set TPDM.gated=True, or leave it out"
                )

    def check(self, config: Config, plan: Plan) -> None:
        """Warn if a run ends before the bound has its whole weight."""
        del plan
        steps = config.train.steps
        is_short = 0 < steps < self.head_start + self.ramp  # 0: a copy of another run
        if self.information and is_short and is_first():
            share = float(self._weight(jnp.asarray(steps - 1)))
            warn(
                f"TPDM's bound has no effect in the first {self.head_start} updates and only "
                f"{share:.0%} of its weight at the end of a run of {steps}; set lower "
                "TPDM.head_start and TPDM.ramp"
            )

    def edit(self, plan: Plan, config: Model) -> Plan:
        """Return the plan with the heads after the layer's attention, and the critic as auxiliary.

        Raises:
            UserError: if the layer does not contain the source or has no attention, the model is a
                language model, or its width is odd with sinusoidal anchors.
        """
        if not translates(plan.layout):
            raise UserError(
                f"Model.methods=('tpdm',): layout '{plan.layout.name}' is a language model's; take "
                "a translator's, e.g. Model.layout='encoder_decoder'"
            )
        if self.alignment and self.anchors == "sinusoidal" and config.embed % 2:
            raise UserError(
                f"TPDM.anchors='sinusoidal' needs an even Model.embed, not {config.embed}; change "
                "one of them"
            )
        plan.layout.check_layer("TPDM.layer", self.layer, SOURCE)
        kind = _Heads(config, self.norms, self.gate_temperature if self.gated else 0.0)
        heads = Sublayer(_HEADS, kind, residual=False, roles=(SOURCE,))
        edited = plan.with_layers(
            lambda number, layer: _after_attention(layer, heads) if number == self.layer else layer
        )
        stage = bisect.bisect_left(plan.layout.last_layers, self.layer)
        critic = Sublayer(_CRITIC, _critic(config, config.mlp_width(stage)))
        return dataclasses.replace(edited, auxiliary=(*edited.auxiliary, critic))

    def players(self) -> tuple[Player, ...]:
        """Return the critic, which learns to predict positions from the current contents.

        Its batches are the run's own, without generated sentences, so metrics without gradient
        belong to it.
        """
        inputs = self._content, self._position
        objectives: tuple[Objective, ...] = (
            Objective(_CRITIC, inputs, self._critic_objective),
            Objective(_MINUS_CHANCE, inputs, self._minus_chance, warning=self._chance_warning),
        )
        if self.gated:
            gates = (self._intermediate(_LOGIT),)
            objectives += (Objective("mean_gate", gates, self._mean_gate),)
        rate = self.critic_learning_rate
        optimizer = (("learning_rate", rate),) if rate else ()
        return (Player(_CRITIC, (_CRITIC,), objectives, optimizer, self.critic_steps),)

    def objectives(self) -> tuple[Objective, ...]:
        """Return the loss terms."""
        content_and_position = self._content, self._position
        gates = self._intermediate(_GATE), self._intermediate(_LOGIT)
        objectives = []
        if self.information:
            inputs = (*content_and_position, *(gates if self.gated else ()))
            objectives.append(
                Objective("information", inputs, self._information_objective, self._weight)
            )
        if self.alignment:
            objectives.append(
                Objective("alignment", content_and_position[1:], self._alignment_objective)
            )
        if self.gated:
            objectives.append(Objective("gate_divergence", gates[1:], self._gate_objective))
        return tuple(objectives)

    def _intermediate(self, name: str) -> Intermediate:
        return Intermediate(f"layer_{self.layer - 1}/{_HEADS}/{name}")

    @property
    def _content(self) -> Intermediate:
        return self._intermediate(_CONTENT)

    @property
    def _position(self) -> Intermediate:
        return self._intermediate(_POSITION)

    def _critic_objective(self, forward: Forward) -> Array:
        """Return the critic's loss per source token; contents and positions get no gradient."""
        content, position = (
            jax.lax.stop_gradient(forward.read(intermediate))
            for intermediate in (self._content, self._position)
        )
        guesses, ids = forward.auxiliary(_CRITIC, content), _ids(forward)
        return _per_source(critic_loss(guesses, position, ids, self.temperature), forward)

    def _minus_chance(self, forward: Forward) -> Array:
        """Return the critic's loss minus that of a uniform guess; a metric without gradient."""
        chance = _per_source(chance_loss(_ids(forward)), forward)
        return jax.lax.stop_gradient(self._critic_objective(forward) - chance)

    def _chance_warning(self, step: int, value: float) -> str:
        """Return a warning if the critic knows nothing while the model minimises the bound."""
        is_active = self.information and step >= max(self.head_start + self.ramp, _WARNING_STEP)
        if self.clip or not is_active or value < -_WARNING_MARGIN:
            return ""  # a clipped bound has no gradient at chance: it cannot be exploited
        return (
            f"step {step}: TPDM's critic guesses positions no better than chance "
            f"({_MINUS_CHANCE} {value:.2f} nats): the model may exploit the bound rather than "
            "forget positions; 'mnmt analyse probe' shows which, and TPDM.clip=True prevents it"
        )

    def _weight(self, step: Array) -> Array:
        """Return the share of `information` applied after a number of updates."""
        past = step.astype(jnp.float32) - self.head_start
        rising = jnp.clip((past + 1) / self.ramp, 0.0, 1.0) if self.ramp else 1.0
        return jnp.where(past >= 0, rising, 0.0)

    def _information_objective(self, forward: Forward) -> Array:
        """Return the bound, computed with the updated critic."""
        guesses = forward.auxiliary(_CRITIC, forward.read(self._content))
        bound = information(
            guesses,
            forward.read(self._position),
            _ids(forward),
            self.temperature,
            clip=self.clip,
            reduction=self.reduction,
        )
        if self.gated:
            bound = forward.read(self._intermediate(_GATE)) * bound
        return self.information * bound.sum()

    def _alignment_objective(self, forward: Forward) -> Array:
        """Return the alignment of positions with anchors."""
        position, ids = forward.read(self._position), _ids(forward)
        position_ids = forward.batch[f"{SOURCE}_positions"]
        if self.anchors == "sinusoidal":
            anchors = sinusoid(jnp.arange(ids.shape[1]), position.shape[-1])
        else:
            anchors = mean_anchors(position, ids, position_ids)
        if self.anchors != "mean":
            anchors = jax.lax.stop_gradient(anchors)
        loss = alignment(position, ids, position_ids, self.temperature, anchors=anchors)
        return self.alignment * loss

    def _gate_objective(self, forward: Forward) -> Array:
        """Return the divergence of the gates from their prior."""
        divergence = gate_divergence(forward.read(self._intermediate(_LOGIT)), self.prior)
        return self.gate * jnp.where(_ids(forward) != 0, divergence, 0.0).sum()

    def _mean_gate(self, forward: Forward) -> Array:
        """Return the mean probability of a gate; a metric without gradient."""
        shares = jax.nn.sigmoid(jax.lax.stop_gradient(forward.read(self._intermediate(_LOGIT))))
        return _per_source(jnp.where(_ids(forward) != 0, shares, 0.0).sum(), forward)


def _after_attention(layer: Layer, heads: Sublayer) -> Layer:
    """Return a layer with the heads after its self-attention."""
    names = [sublayer.name for sublayer in layer]
    if "attention" not in names:
        raise UserError("tpdm: the layer has no 'attention'; leave out the method that removes it")
    index = names.index("attention") + 1
    return (*layer[:index], heads, *layer[index:])


def _ids(forward: Forward) -> Array:
    ids: Array = forward.batch[f"{SOURCE}_segment_ids"]
    return ids


def _per_source(total: Array, forward: Forward) -> Array:
    """Return a sum that, divided by target tokens, is the mean over source tokens."""
    counts = [(forward.batch[f"{r}_segment_ids"] != 0).sum() for r in (TARGET, SOURCE)]
    target, source = (jnp.maximum(count, 1).astype(jnp.float32) for count in counts)
    return total * target / source
