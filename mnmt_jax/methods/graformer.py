"""Graformer: a masked and a causal language model grafted into a translation model.

    source  the masked model's layers, then new ones; with the norm at their end: E
    target  g6 = the causal model's layers, which do not see the source
            g12 = new layers over g6, without a norm, that also read E
    logits = LN(g12) W2^T + LN_lm(g6) W1^T

W1 is `target_embedding`, which also embeds the target; W2 is `output_embedding`, which embeds no
role; the source has a separate table, `embedding`. Logits are added before a single softmax.

A new run copies parameters from two source runs, once (`--initialize_from=mlm=RUN
--initialize_from=lm=RUN`): from `mlm` table, positions and layers; from `lm` the same, and its
table again as the initial W2. The final norm of each model initialises the norm that the first new
layer's attention reads through, and the final norm of its stack; that of the causal model also
initialises LN_lm. As in the paper the causal model stays unchanged, and the first new layer has a
copy of its norm.

Source: Sun, Wang, Li 2021 ("Multilingual Translation via Grafting Pre-trained Language Models"),
section 3.3 and figure 3. Only their code shows that W2 is a separate matrix initialised as W1,
which norms are copied where, and where g6 is read. Their released script freezes both models and
W1; that is `encoder = 'freeze'`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Literal

from mnmt_jax.config.sections import Model
from mnmt_jax.design.fields import Count
from mnmt_jax.design.layouts import SOURCE
from mnmt_jax.design.method import Method
from mnmt_jax.design.param_mapping import ParamMapping, RequiredSource
from mnmt_jax.design.plan import Head, Plan, Sublayer
from mnmt_jax.errors import UserError
from mnmt_jax.methods.tables import OUTPUT_TABLE, TARGET_TABLE, Tables
from mnmt_jax.model.sublayers import StageNorm

_TABLE, _LM_NORM = "embedding", "lm_norm"


@dataclasses.dataclass(frozen=True)
class Graformer(Method, name="graformer"):
    """Tables, heads, source parameters and frozen parameters of a grafted model.

    Attributes:
        fusion: whether the causal model's head is used; without it, its table still embeds the
            target (row 7 of the paper's Table 3).
        encoder: use of the masked model: trained further, frozen, or absent.
        decoder: use of the causal model.
        encoder_layers: number of the source's first layers that come from the masked model; the
            causal model fills the target's whole first stage.
    """

    fusion: bool = True
    encoder: Literal["tune", "freeze", "none"] = "tune"
    decoder: Literal["freeze", "tune", "none"] = "freeze"
    encoder_layers: Count = 6

    def edit(self, plan: Plan, config: Model) -> Plan:
        """Return the plan with the tables and heads, and g6 without a norm.

        Raises:
            UserError: if the target has no layers before those that read the source, or the source
                has too few layers.
        """
        generated = plan.layout.generated
        is_target_only = [s.stage.roles == (generated,) and not s.stage.memory for s in plan.stages]
        if is_target_only != [False, True, False]:
            raise UserError(
                f"graformer: layout '{plan.layout.name}' has no layers of the target alone before "
                "those that read the source; set Model.layout='grafted'"
            )
        source, language_model, grafted = plan.stages
        if self.encoder != "none" and self.encoder_layers > source.stage.layers:
            raise UserError(
                f"Graformer.encoder_layers={self.encoder_layers}, but the {SOURCE} passes "
                f"{source.stage.layers} layers (Model.stage_layers={config.stage_layers}); "
                "use at most as many"
            )
        norm = Sublayer(_LM_NORM, StageNorm(config), residual=False)
        fused = Head(
            TARGET_TABLE, plan.layout.last_layers[-2], (norm,) if config.norm == "pre" else ()
        )
        separate = Tables(target=True, output=True).edit(plan, config)
        without_norm = dataclasses.replace(language_model, after=())
        heads = (*((fused,) if self.fusion else ()), *separate.heads)
        return dataclasses.replace(separate, stages=(source, without_norm, grafted), heads=heads)

    def param_mappings(self, config: Model) -> tuple[ParamMapping, ...]:
        """Return the parameters that a new run copies from `mlm` and `lm`."""
        mappings = []
        if self.encoder != "none":
            mappings += [ParamMapping("mlm", *pair) for pair in self._encoder_mappings(config)]
        if self.decoder != "none":
            mappings += [ParamMapping("lm", *pair) for pair in self._decoder_mappings(config)]
        return tuple(mappings)

    def required_sources(self, config: Model) -> tuple[RequiredSource, ...]:
        """Return the required kind and depth of the source runs `mlm` and `lm`."""
        required = []
        if self.encoder != "none":
            field = f"Graformer.encoder_layers={self.encoder_layers}"
            required.append(RequiredSource("mlm", "masked_lm", self.encoder_layers, field))
        if self.decoder != "none":
            field = f"Model.stage_layers={config.stage_layers} in the middle"
            required.append(RequiredSource("lm", "causal_lm", config.stage_layers[1], field))
        return tuple(required)

    def frozen_patterns(self, config: Model) -> tuple[str, ...]:
        """Return the copied parameters that stay frozen: all but the norms that are copies."""
        copies = (OUTPUT_TABLE, _LM_NORM)
        frozen = []
        if self.encoder == "freeze":
            frozen += [
                target
                for _, target in self._encoder_mappings(config)
                if not target.startswith("stage")
            ]
        if self.decoder == "freeze":
            pairs = self._decoder_mappings(config)
            frozen += [target for _, target in pairs if not target.startswith(("stage", *copies))]
        return tuple(frozen)

    def _encoder_mappings(self, config: Model) -> Iterator[tuple[str, str]]:
        """Yield (source path, target path) for the masked model."""
        source_layers, encoder_layers = config.stage_layers[0], self.encoder_layers
        yield from _table_mappings(config, _TABLE)
        yield from ((f"layer_{n}", f"layer_{n}") for n in range(encoder_layers))
        if config.norm == "pre":
            yield "stage_0_norm", "stage_0_norm"
            if encoder_layers < source_layers:
                yield "stage_0_norm", f"layer_{encoder_layers}/attention_norm"

    def _decoder_mappings(self, config: Model) -> Iterator[tuple[str, str]]:
        """Yield (source path, target path) for the causal model."""
        offset, decoder_layers, _ = config.stage_layers
        yield from _table_mappings(config, TARGET_TABLE)
        yield _TABLE, OUTPUT_TABLE
        yield from ((f"layer_{n}", f"layer_{offset + n}") for n in range(decoder_layers))
        if config.norm == "pre":
            yield "stage_0_norm", f"layer_{offset + decoder_layers}/attention_norm"
            yield "stage_0_norm", "stage_2_norm"
            if self.fusion:
                yield "stage_0_norm", _LM_NORM


def _table_mappings(config: Model, table: str) -> Iterator[tuple[str, str]]:
    yield _TABLE, table
    if "learned" in config.positions:
        yield f"{_TABLE}_positions", f"{table}_positions"
