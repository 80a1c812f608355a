"""Position disentangling: TPDM and, with gates, GTPDM.

In one encoder layer two heads read what attention leaves: one makes the content, which goes on in
its place, the other the position, which losses alone read.

    a = LN(x + SA(x)),  h = M_h(a),  p = M_p(a),  the layer goes on with h + FFN(h)

A critic G, one transformer layer over a sentence's contents, guesses positions from contents: first
it learns to, then the model learns with it as it has become, to tell it less (the information bound
of `mnmt_jax.model.position_losses`) and to give a place of all sentences one position (alignment).
With gates a learnt share of the tokens is exempt from the bound. In translating nothing of it but
M_h is there.

Source: Chen, Zhang, Fu 2023 (TPDM), sections 3 and 5.1. No code of the authors is public; what the
paper leaves open is decided in docs/methods.md: the norms of the heads, which its Table 8 counts,
and that the feed-forward's residual is h, among others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array

from mnmt_jax.config.sections import Model
from mnmt_jax.design.fields import Amount, Count, Positive, Range, Weight
from mnmt_jax.design.layout import Stage
from mnmt_jax.design.layouts import SOURCE, TARGET, translates
from mnmt_jax.design.method import Method
from mnmt_jax.design.objective import Forward, Intermediate, Objective, Player
from mnmt_jax.design.plan import Kind, Layer, Lengths, Maps, Plan, Sublayer
from mnmt_jax.errors import UserError
from mnmt_jax.model.attention import IMPLEMENTATIONS
from mnmt_jax.model.block import Block
from mnmt_jax.model.context import Context, PositionInfo, SpanReader
from mnmt_jax.model.intermediates import is_requested, record
from mnmt_jax.model.modules import Projection, layer_norm, sinusoid, uniform_fan_in
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
_SETTLED = 500  # updates after which a critic should know something
_KNOWS = 0.05  # nats below chance of a critic that does
_EDGE = 1e-3  # how near to 0 and 1 the noise of gates may be
_AXES: Mapping[str, tuple[str, ...]] = {
    "gate_first/kernel": ("embed", "mlp"),
    "gate_first/bias": ("mlp",),
    "gate_last/kernel": ("mlp", "channel"),
    "gate_last/bias": ("channel",),
}
_Share = Annotated[float, Range(low=0, high=1, above=True, below=True)]


def _linear(config: Model, features: int) -> Projection:
    init, dtype = uniform_fan_in(config.embed), jnp.dtype(config.dtype)
    return Projection(
        features,
        config=config,
        extra_axes=tuple(_AXES.items()),
        kernel_init=init,
        bias_init=init,
        dtype=dtype,
    )


class _Head(nn.Module):
    """wo(relu(LN(wi(x)))), all [embed, embed], with a norm or without."""

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


class _Heads(nn.Module):
    """Content, position and gate of what attention leaves."""

    config: Model
    norms: int
    gate_temperature: float  # 0 is without gates

    def setup(self) -> None:
        """Create the heads, a norm of the content and, with gates, theirs."""
        config = self.config
        self.content, self.position = (_Head(config, self.norms > 0) for _ in range(2))
        if self.norms > 2:
            self.content_norm = layer_norm(config)
        if self.gate_temperature:
            self.gate_first, self.gate_last = _linear(config, config.embed), _linear(config, 1)

    def __call__(self, states: Array, place: PositionInfo) -> Array:
        """Return the content, and hands out all that losses read."""
        content = self.content(states)
        content = self.content_norm(content) if self.norms > 2 else content
        if is_requested(self):
            record(self, place, _CONTENT, content)
            record(self, place, _POSITION, self.position(states))
            if self.gate_temperature:
                self._gate(states, place)
        return content

    def _gate(self, states: Array, place: PositionInfo) -> None:
        logits = self.gate_last(nn.relu(self.gate_first(states)))[..., 0].astype(jnp.float32)
        record(self, place, _LOGIT, logits)
        if place.deterministic:
            return
        rng = self.make_rng("dropout")
        noise = jax.random.uniform(rng, logits.shape, minval=_EDGE, maxval=1 - _EDGE)
        record(self, place, _GATE, relaxed_gates(logits, noise, self.gate_temperature))


@dataclasses.dataclass(frozen=True)
class _Disentangle(Kind):
    """The heads, of which the content goes on.

    Attributes:
        norms: as `TPDM.norms`.
        gate_temperature: as `TPDM.gate_temperature`; 0 is without gates.
    """

    norms: int
    gate_temperature: float = 0.0

    has_dropout = True  # it has no dropout
    component = _HEADS
    axes = _AXES

    def module(self, config: Model) -> _Heads:
        """Return the heads."""
        return _Heads(config, self.norms, self.gate_temperature)

    def change(self, module: Any, states: Array, place: PositionInfo) -> Array:
        """Return the content."""
        return module(states, place)

    def matmuls(self, config: Model, stage: Stage, roles: Sequence[str], lengths: Lengths) -> Maps:
        """Yield the content's layers: in training alone there are others."""
        del stage
        positions = sum(lengths[role] for role in roles)
        for name in ("wi", "wo"):
            yield f"{_CONTENT}/{name}", positions, (config.embed, config.embed)


@dataclasses.dataclass(frozen=True)
class _Critic(Kind):
    """A layer of an encoder with norms after, without dropout, over each sentence's contents."""

    component = _CRITIC

    def module(self, config: Model) -> Block:
        """Return the layer."""
        plain = dataclasses.replace(
            config, dropout=0.0, attention_dropout=0.0, methods=(), lora_rank=0
        )
        layer = (
            Sublayer("attention", SelfAttention(), "post"),
            Sublayer("mlp", FeedForward(config.mlp), "post"),
        )
        return Block(plain, layer)

    def change(self, module: Any, states: Array, place: PositionInfo) -> Array:
        """Return its guesses of the positions."""
        stage, ids = Stage((SOURCE,), ("f",), layers=1), {SOURCE: place.segment_ids}
        masks = IMPLEMENTATIONS[module.config.attention].make_masks(stage, ids)
        reader = SpanReader(masks, {}, stage, module.config.attention)
        context = Context({SOURCE: place.positions}, ids, {}, reader)
        return module({SOURCE: states}, context)[0][SOURCE]


@dataclasses.dataclass(frozen=True)
class TPDM(Method, name="tpdm"):
    """The heads, the critic and the terms.

    Attributes:
        layer: counted from 1 through all stages, which the source must pass; in the paper 4 of the
            encoder's 6 and 2 of 3. Of other layouts than encoder-decoders it is our extension, and
            the source's states alone are changed.
        temperature: of all softmaxes over cosines.
        information: weight of the bound; 0 is without, and the critic's loss tells what contents
            give away when nothing keeps them from it.
        reduction: of the bound over the tokens of a sentence: their `sum`, one nat a token as of
            the cross entropy, or their `mean`, which keeps the factor 1 / M of equation 1.
        clip: count the bound only as far as the critic's guesses are better than chance
            (`mnmt_jax.model.position_losses.information`).
        head_start: updates before the bound counts, in which the critic learns.
        ramp: updates after the head start in which the weight rises linearly to `information`.
        critic_steps: updates of the critic within one update of the model.
        critic_learning_rate: peak of the critic's; 0 is the run's.
        alignment: weight of the alignment; 0 is without.
        anchors: what positions are aligned with: the `mean` of each place over the micro-batch, the
            mean `held` constant, or the `sinusoidal` vectors (the paper's Table 2).
        norms: LayerNorms of the heads: after the first layer of each (2), and of the content (3);
            Table 8 counts three.
        gated: whether gates weigh the bound token by token (GTPDM).
        prior: share of the tokens that gates are drawn to; the paper gives none.
        gate: weight of the divergence from it; without, gates close.
        gate_temperature: of the gates.
    """

    layer: Count = 4
    temperature: Positive = 0.05
    information: Weight = 1.0
    reduction: Literal["sum", "mean"] = "sum"
    clip: bool = False
    head_start: Amount = 0
    ramp: Amount = 0
    critic_steps: Annotated[int, Range(low=1, high=64)] = 1
    critic_learning_rate: Weight = 0.0
    alignment: Weight = 1.0
    anchors: Literal["mean", "held", "sinusoidal"] = "mean"
    norms: Literal[0, 2, 3] = 3
    gated: bool = False
    prior: _Share = 0.4
    gate: Weight = 1.0
    gate_temperature: Positive = 0.7

    def __post_init__(self) -> None:
        """Check every field, and that gates have what they weigh, and what is said of them gates.

        Raises:
            UserError: otherwise.
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

    def edit(self, plan: Plan, config: Model) -> Plan:
        """Return the plan with the heads after the layer's attention, and the critic beside it.

        Raises:
            UserError: if the source does not pass such a layer, or it has no attention, or the
                model is a language model.
        """
        del config
        if not translates(plan.layout):
            raise UserError(
                f"Model.methods=('tpdm',): layout '{plan.layout.name}' is a language model's; take "
                "a translator's, e.g. Model.layout='encoder_decoder'"
            )
        plan.layout.check_passed("TPDM.layer", self.layer, SOURCE)
        kind = _Disentangle(self.norms, self.gate_temperature if self.gated else 0.0)
        heads = Sublayer(_HEADS, kind, residual=False, roles=(SOURCE,))
        edited = plan.with_layers(
            lambda number, layer: _after_attention(layer, heads) if number == self.layer else layer
        )
        return dataclasses.replace(
            edited, auxiliary=(*edited.auxiliary, Sublayer(_CRITIC, _Critic()))
        )

    def players(self) -> tuple[Player, ...]:
        """Return the critic, which learns to guess positions from contents as they are."""
        reads = self._content, self._position
        objectives = (
            Objective(_CRITIC, reads, self._guessing),
            Objective(_MINUS_CHANCE, reads, self._minus_chance, warning=self._exploited),
        )
        rate = self.critic_learning_rate
        optimizer = (("learning_rate", rate),) if rate else ()
        return (Player(_CRITIC, (_CRITIC,), objectives, optimizer, self.critic_steps),)

    def objectives(self) -> tuple[Objective, ...]:
        """Return the terms, and with gates how far they are open on average."""
        both, gates = (self._content, self._position), (self._tap(_GATE), self._tap(_LOGIT))
        found = []
        if self.information:
            reads = (*both, *(gates if self.gated else ()))
            found.append(Objective("information", reads, self._informing, self._weight))
        if self.alignment:
            found.append(Objective("alignment", both[1:], self._aligning))
        if self.gated:
            found.append(Objective("gate_divergence", gates[1:], self._diverging))
            found.append(Objective("mean_gate", gates[1:], self._opening))
        return tuple(found)

    def _tap(self, name: str) -> Intermediate:
        return Intermediate(f"layer_{self.layer - 1}/{_HEADS}/{name}")

    @property
    def _content(self) -> Intermediate:
        return self._tap(_CONTENT)

    @property
    def _position(self) -> Intermediate:
        return self._tap(_POSITION)

    def _guessing(self, forward: Forward) -> Array:
        """The critic's loss; contents and positions are given. Divided by source tokens."""
        content, position = (
            jax.lax.stop_gradient(forward.read(tap)) for tap in (self._content, self._position)
        )
        guesses, ids = forward.auxiliary(_CRITIC, content), _ids(forward)
        return _per_source(critic_loss(guesses, position, ids, self.temperature), forward)

    def _minus_chance(self, forward: Forward) -> Array:
        """The critic's loss less that of a uniform guess, for the record: it has no gradient."""
        chance = _per_source(chance_loss(_ids(forward)), forward)
        return jax.lax.stop_gradient(self._guessing(forward) - chance)

    def _exploited(self, step: int, value: float) -> str:
        """Warn of a critic that knows nothing while the model minimises the bound with it."""
        counts = self.information and step >= max(self.head_start + self.ramp, _SETTLED)
        if not counts or value < -_KNOWS:
            return ""
        return (
            f"step {step}: TPDM's critic guesses positions no better than chance "
            f"({_MINUS_CHANCE} {value:.2f} nats): the model may exploit the bound rather than "
            "forget positions; 'mnmt analyse probe' tells, and a lower TPDM.information, "
            "TPDM.clip=True, TPDM.head_start or more TPDM.critic_steps help"
        )

    def _weight(self, step: Array) -> Array:
        """The share of `information` that counts after so many updates."""
        past = step.astype(jnp.float32) - self.head_start
        rising = jnp.clip((past + 1) / self.ramp, 0.0, 1.0) if self.ramp else 1.0
        return jnp.where(past >= 0, rising, 0.0)

    def _informing(self, forward: Forward) -> Array:
        """The bound, by the critic as it has become."""
        guesses = forward.auxiliary(_CRITIC, forward.read(self._content))
        found = information(
            guesses,
            forward.read(self._position),
            _ids(forward),
            self.temperature,
            clip=self.clip,
            reduction=self.reduction,
        )
        if self.gated:
            found = forward.read(self._tap(_GATE)) * found
        return self.information * found.sum()

    def _aligning(self, forward: Forward) -> Array:
        """The alignment of positions with anchors."""
        position, ids = forward.read(self._position), _ids(forward)
        places = forward.batch[f"{SOURCE}_positions"]
        if self.anchors == "sinusoidal":
            anchors = sinusoid(jnp.arange(ids.shape[1]), position.shape[-1])
        else:
            anchors = mean_anchors(position, ids, places)
        if self.anchors != "mean":
            anchors = jax.lax.stop_gradient(anchors)
        found = alignment(position, ids, places, self.temperature, anchors=anchors)
        return self.alignment * found

    def _diverging(self, forward: Forward) -> Array:
        """The divergence of the gates from their prior."""
        found = gate_divergence(forward.read(self._tap(_LOGIT)), self.prior)
        return self.gate * jnp.where(_ids(forward) != 0, found, 0.0).sum()

    def _opening(self, forward: Forward) -> Array:
        """The mean probability of a gate, for the record: it has no gradient."""
        shares = jax.nn.sigmoid(jax.lax.stop_gradient(forward.read(self._tap(_LOGIT))))
        return _per_source(jnp.where(_ids(forward) != 0, shares, 0.0).sum(), forward)


def _after_attention(layer: Layer, heads: Sublayer) -> Layer:
    """Return a layer with the heads after its self-attention."""
    names = [each.name for each in layer]
    if "attention" not in names:
        raise UserError("tpdm: the layer has no 'attention'; leave out the method that took it")
    place = names.index("attention") + 1
    return (*layer[:place], heads, *layer[place:])


def _ids(forward: Forward) -> Array:
    ids: Array = forward.batch[f"{SOURCE}_segment_ids"]
    return ids


def _per_source(total: Array, forward: Forward) -> Array:
    """Return a sum that, divided by target tokens, is the mean over source tokens."""
    counts = [(forward.batch[f"{r}_segment_ids"] != 0).sum() for r in (TARGET, SOURCE)]
    target, source = (jnp.maximum(count, 1).astype(jnp.float32) for count in counts)
    return total * target / source
