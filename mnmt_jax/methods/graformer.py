"""Graformer: a masked and a causal language model, grafted to a model that translates.

    source  the masked model's layers, then new ones; with the norm at their end: E
    target  g6 = the causal model's layers, which know no source
            g12 = new layers over g6, as it is, that also read E
    logits = LN(g12) W2^T + LN_lm(g6) W1^T

W1 is `target_embedding`, which embeds the target too, W2 `output_embedding`, which embeds nobody;
the source has a table of its own, `embedding`. Logits are added, before the one softmax.

A new run takes from two others, once (`--initialize_from=mlm=RUN --initialize_from=lm=RUN`): of
`mlm` table, positions and layers; of `lm` the same, and its table once more as the first W2. The
norm at the end of each is what the first new layer's attention reads through; it is also the first
value of the norm at the end of the whole stack, and the causal model's of LN_lm. As in the paper
the causal model stays as it is, with that copy of its norm in the first new layer.

Source: Sun, Wang, Li 2021 ("Multilingual Translation via Grafting Pre-trained Language Models"),
section 3.3 and figure 3; that W2 is a matrix of its own and begins as W1, which norms are copied
where, and where g6 is taken, in their code alone. Their released script freezes both
models and W1; that is `encoder = 'freeze'`.
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
    """Tables, heads, what a new run takes, and what does not train.

    Attributes:
        fusion: whether the causal model's head is there; without it, its table still embeds the
            target (row 7 of the paper's Table 3).
        encoder: what becomes of the masked model: it trains on, stays as it is, or there is none.
        decoder: what becomes of the causal model.
        encoder_layers: the source's first layers, which are the masked model's; the causal model
            has all of the target's first stage.
    """

    fusion: bool = True
    encoder: Literal["tune", "freeze", "none"] = "tune"
    decoder: Literal["freeze", "tune", "none"] = "freeze"
    encoder_layers: Count = 6

    def edit(self, plan: Plan, config: Model) -> Plan:
        """Return the plan with the tables and heads, and g6 as it is.

        Raises:
            UserError: if the target has no layers of its own before those that read the source, or
                the source too few layers.
        """
        generated = plan.layout.generated
        alone = [s.stage.roles == (generated,) and not s.stage.memory for s in plan.stages]
        if alone != [False, True, False]:
            raise UserError(
                f"graformer: layout '{plan.layout.name}' has no layers of the target alone before "
                "those that read the source; set Model.layout='grafted'"
            )
        source, language_model, grafted = plan.stages
        if self.encoder != "none" and self.encoder_layers > source.stage.layers:
            raise UserError(
                f"Graformer.encoder_layers={self.encoder_layers}, but the {SOURCE} passes "
                f"{source.stage.layers} layers (Model.stage_layers={config.stage_layers}); "
                "name as many or fewer"
            )
        norm = Sublayer(_LM_NORM, StageNorm(), residual=False)
        fused = Head(TARGET_TABLE, plan.layout.ends[-2], (norm,) if config.norm == "pre" else ())
        apart = Tables(target=True, output=True).edit(plan, config)
        bare = dataclasses.replace(language_model, after=())
        heads = (*((fused,) if self.fusion else ()), *apart.heads)
        return dataclasses.replace(apart, stages=(source, bare, grafted), heads=heads)

    def param_mappings(self, config: Model) -> tuple[ParamMapping, ...]:
        """Return what a new run takes of `mlm` and `lm`."""
        taken = []
        if self.encoder != "none":
            taken += [ParamMapping("mlm", *pair) for pair in self._encoder_moves(config)]
        if self.decoder != "none":
            taken += [ParamMapping("lm", *pair) for pair in self._decoder_moves(config)]
        return tuple(taken)

    def required_sources(self, config: Model) -> tuple[RequiredSource, ...]:
        """Return that `mlm` is a masked and `lm` a causal language model, and how deep."""
        own, field = self.encoder_layers, f"Graformer.encoder_layers={self.encoder_layers}"
        mlm = RequiredSource("mlm", "masked_lm", own, field)
        layers = config.stage_layers
        lm = RequiredSource(
            "lm", "causal_lm", layers[1], f"Model.stage_layers={layers} in the middle"
        )
        return (*(self.encoder != "none") * (mlm,), *(self.decoder != "none") * (lm,))

    def frozen_patterns(self, config: Model) -> tuple[str, ...]:
        """Return what stays as it was taken: of each model, all but the norms that are copies."""
        copies = (OUTPUT_TABLE, _LM_NORM)
        frozen = []
        if self.encoder == "freeze":
            frozen += [put for _, put in self._encoder_moves(config) if not put.startswith("stage")]
        if self.decoder == "freeze":
            pairs = self._decoder_moves(config)
            frozen += [put for _, put in pairs if not put.startswith(("stage", *copies))]
        return tuple(frozen)

    def _encoder_moves(self, config: Model) -> Iterator[tuple[str, str]]:
        """Yield what is taken of the masked model, each with where it is put."""
        whole, own = config.stage_layers[0], self.encoder_layers
        yield from _table_moves(config, _TABLE)
        yield from ((f"layer_{n}", f"layer_{n}") for n in range(own))
        if config.norm == "pre":
            yield "stage_0_norm", "stage_0_norm"
            if own < whole:
                yield "stage_0_norm", f"layer_{own}/attention_norm"

    def _decoder_moves(self, config: Model) -> Iterator[tuple[str, str]]:
        """Yield what is taken of the causal model, each with where it is put."""
        first, own, _ = config.stage_layers
        yield from _table_moves(config, TARGET_TABLE)
        yield _TABLE, OUTPUT_TABLE
        yield from ((f"layer_{n}", f"layer_{first + n}") for n in range(own))
        if config.norm == "pre":
            yield "stage_0_norm", f"layer_{first + own}/attention_norm"
            yield "stage_0_norm", "stage_2_norm"
            if self.fusion:
                yield "stage_0_norm", _LM_NORM


def _table_moves(config: Model, table: str) -> Iterator[tuple[str, str]]:
    yield _TABLE, table
    if "learned" in config.positions:
        yield f"{_TABLE}_positions", f"{table}_positions"
