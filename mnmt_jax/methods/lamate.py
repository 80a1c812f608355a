"""LaMaTE: a pre-trained encoder, an adaptor and a new decoder.

    f = LN(1/K sum_k sigmoid(w_k) h_k)    h_k: states after the last layer of the k-th group
    m = EncStack(W2 GELU(W1 f))           what the decoder's cross-attention reads

The encoder is the first stage of the layout, the EncStack the second one, in which the source sees
all of itself. h_K has the norm at the end of the encoder, the other h_k have none. The decoder has
its own embedding, which also computes the logits. A new run copies the encoder, with its embedding
and the norm at its end, from a source run (`--initialize_from=encoder=RUN`): in the layout
`lm_adaptor_decoder` a causal language model, in `encoder_adaptor_decoder` the encoder of any run.

Training has two stages: adaptor and decoder with the encoder frozen (`encoder = 'freeze'`), then
all parameters, in a run that starts from the first one (`encoder = 'tune'`).

Source: Luo et al. 2025 ("Beyond Decoder-only: Large Language Models Can be Good Encoders for
Machine Translation", arXiv 2503.06594), section on the adaptor, and `GroupedEncoderFusion` and
`Connector` of their code. Their encoder is a causal language model of width 4,096 with groups of 4
layers, and W1 reduces the width to the decoder's 1,024. Here all stages have the width
`Model.embed`, W1 and W2 have biases, and LN is the model's norm where their code has RMSNorm.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array

from mnmt_jax.config.sections import Model
from mnmt_jax.design.fields import Count
from mnmt_jax.design.layout import Sees
from mnmt_jax.design.layouts import SOURCE, get_layout
from mnmt_jax.design.method import Method
from mnmt_jax.design.param_mapping import ParamMapping, RequiredSource
from mnmt_jax.design.plan import Kind, Plan, Sublayer
from mnmt_jax.errors import UserError
from mnmt_jax.methods.tables import Tables
from mnmt_jax.model.context import PositionInfo
from mnmt_jax.model.sublayers import FeedForward

_RUN_NAME = "encoder"


@dataclasses.dataclass(frozen=True)
class LaMaTE(Method, name="lamate"):
    """Adaptor, source parameters and frozen parameters of a model on a pre-trained encoder.

    Attributes:
        group: number of encoder layers in a group; it divides their number.
        encoder: whether the encoder is frozen, the first stage of training, or trained.
    """

    group: Count = 4
    encoder: Literal["freeze", "tune"] = "freeze"

    def edit(self, plan: Plan, config: Model) -> Plan:
        """Return the plan with the fusion, W1 and W2 before the EncStack, and the two tables.

        Raises:
            UserError: if the layout has no second stage for the source alone, or the groups do not
                fit the encoder.
        """
        if [s.stage.roles for s in plan.stages[:-1]] != [(SOURCE,), (SOURCE,)]:
            raise UserError(
                f"lamate: layout '{plan.layout.name}' has no encoder with an adaptor; set "
                "Model.layout='encoder_adaptor_decoder' or 'lm_adaptor_decoder'"
            )
        encoder, adaptor, decoder = plan.stages
        layers = encoder.stage.layers
        if layers % self.group:
            raise UserError(
                f"LaMaTE.group={self.group} does not divide the {layers} layers of the encoder "
                f"(Model.stage_layers={config.stage_layers}); choose a divisor"
            )
        kind = LayerFusion(layers // self.group)
        fusion = Sublayer("adaptor_fusion", kind, "post", residual=False)
        mlp = FeedForward(config, config.embed, "adaptor", activation="gelu", dropout=0.0)
        before = (*adaptor.before, fusion, Sublayer("adaptor_mlp", mlp, residual=False))
        stages = encoder, dataclasses.replace(adaptor, before=before), decoder
        return dataclasses.replace(Tables().edit(plan, config), stages=stages)

    def param_mappings(self, config: Model) -> tuple[ParamMapping, ...]:
        """Return the parameters of the encoder, at the same paths."""
        return tuple(ParamMapping(_RUN_NAME, path, path) for path in _encoder_paths(config))

    def required_sources(self, config: Model) -> tuple[RequiredSource, ...]:
        """Return the requirement of an encoder or a language model with as many layers."""
        layers = config.stage_layers
        encoder = get_layout(config.layout, layers).stages[0]
        causal = encoder.visibility(SOURCE, SOURCE) is Sees.CAUSAL
        field = f"Model.stage_layers={layers}"
        kind = "causal_lm" if causal else ""
        return (RequiredSource(_RUN_NAME, kind, layers[0], field, tagged=causal),)

    def frozen_patterns(self, config: Model) -> tuple[str, ...]:
        """Return the encoder's parameters in the first stage of training, none in the second."""
        return tuple(_encoder_paths(config)) if self.encoder == "freeze" else ()


class LayerFusion(nn.Module, Kind):
    """The mean of the states after each group of layers, times the sigmoid of a learnt weight.

    Attributes:
        groups: number of equal groups of the layers before; the input is the states of the last.
    """

    groups: int = 1

    has_dropout = True  # it has no dropout
    component = "adaptor"
    axes = {"adaptor_fusion/weight": ("channel",)}

    @nn.compact
    def change(self, states: Array, info: PositionInfo) -> Array:
        """Return the fused states."""
        layers = len(info.context.layers)
        earlier = (info.states_after(k * layers // self.groups) for k in range(1, self.groups))
        weight = self.param("weight", nn.initializers.normal(1.0), (self.groups,))
        gates = jax.nn.sigmoid(weight).astype(states.dtype)
        return jnp.einsum("k...,k->...", jnp.stack((*earlier, states)), gates) / self.groups


def _encoder_paths(config: Model) -> Iterator[str]:
    yield "embedding"
    if "learned" in config.positions:
        yield "embedding_positions"
    yield from (f"layer_{number}" for number in range(config.stage_layers[0]))
    if config.norm == "pre":
        yield "stage_0_norm"
