"""The one table of variants. Adding a variant is one row here, one drawn mask, one gin file.

Letters: `f` sees all, `c` sees its own past and itself, `.` sees nothing. A row reads "this role,
as a query, sees of (each role in order)". Nothing outside this file compares a layout's name.

The `trigger` role is the first input token of the target once more, as a static role of length one:
PhasedDecoder's published runs let the source see it (`--attention-position-bias 1`). Its state
equals that of target position 0 in every layer, because both see the source and themselves, so the
copy gives the source what the reference gives it while no static role depends on what is generated.
"""

from __future__ import annotations

from mnmt_jax.design.layout import Layout, Stage
from mnmt_jax.errors import UserError

SOURCE, REGISTER, TRIGGER, TARGET = "source", "register", "trigger", "target"
LANGUAGES = ("source_lang", "target_lang")  # arrays of a batch: of each sentence pair of a row

_ROWS = (
    # Plain decoder-only, lower triangle over source and target (Gao et al. 2022; TDO paper, App.
    # D).
    Layout("causal", (Stage((SOURCE, TARGET), ("c.", "fc")),)),
    # Prefix decoder-only (TDO paper, App. D, Figure 9).
    Layout("prefix", (Stage((SOURCE, TARGET), ("f.", "fc")),)),
    # The same with the trigger seen by the source (PhasedDecoder, attention position bias 1).
    Layout("prefix_trigger", (Stage((SOURCE, TRIGGER, TARGET), ("ff.", "ff.", "f.c")),)),
    # Registers (MITRE paper, section 3.2): the target reads the registers, never the source.
    Layout("register", (Stage((SOURCE, REGISTER, TARGET), ("f..", "ff.", ".fc")),)),
    # Ablation "register yes, mask no" (MITRE paper, Table 5; that the source sees registers is
    # ours).
    Layout("register_open", (Stage((SOURCE, REGISTER, TARGET), ("ff.", "ff.", "ffc")),)),
    # Two-stage decoder-only (TDO paper, section 4.1, App. D).
    Layout("two_stage", (Stage((SOURCE,), ("f",)), Stage((SOURCE, TARGET), ("f.", "fc")))),
    # The published TED-19 and OPUS-100 runs: the source sees the trigger in stage 2.
    Layout(
        "two_stage_trigger",
        (
            Stage((SOURCE,), ("f",)),
            Stage((SOURCE, TRIGGER, TARGET), ("ff.", "ff.", "f.c")),
        ),
    ),
    # Causal two-stage (TDO paper, Table 1, rows without "Pref."; our reading of section 4.1).
    Layout("two_stage_causal", (Stage((SOURCE,), ("c",)), Stage((SOURCE, TARGET), ("c.", "fc")))),
    # Vaswani et al. (2017).
    Layout(
        "encoder_decoder",
        (Stage((SOURCE,), ("f",)), Stage((TARGET,), ("c",), memory=((TARGET, SOURCE),))),
    ),
    # Registers in the encoder (MITRE paper, App. J): cross-attention reads registers alone. Our
    # reading.
    Layout(
        "encoder_decoder_register",
        (
            Stage((SOURCE, REGISTER), ("f.", "ff")),
            Stage((TARGET,), ("c",), memory=((TARGET, REGISTER),)),
        ),
    ),
    # Grafting: the target's first layers know no source, as a language model (Graformer, section
    # 3.3).
    Layout(
        "grafted",
        (
            Stage((SOURCE,), ("f",)),
            Stage((TARGET,), ("c",)),
            Stage((TARGET,), ("c",), memory=((TARGET, SOURCE),)),
        ),
    ),
)
_LANGUAGE_MODELS = (
    # Text continued from its language's tag (Graformer, section 3.2: mGPT).
    Layout("causal_lm", (Stage((TARGET,), ("c",)),)),
    # Masked tokens told from all others (Graformer, section 3.1: mBERT).
    Layout("masked_lm", (Stage((SOURCE,), ("f",)),), generated=SOURCE),
)

LAYOUTS = {row.name: row for row in _ROWS}
LANGUAGE_MODELS = {row.name: row for row in _LANGUAGE_MODELS}


def check_translates(layout: Layout) -> None:
    """Checks that a model turns sources into targets.

    Raises:
        UserError: if it is a language model.
    """
    if layout.name in LANGUAGE_MODELS:
        raise UserError(
            f"Model.layout='{layout.name}' is a language model: it has no source and target to "
            f"translate; score and sample by --language, graft it (method 'graformer'), or choose "
            f"one of {', '.join(LAYOUTS)}"
        )


def check_language_model(layout: Layout) -> None:
    """Checks that a model knows text of single languages, without sources.

    Raises:
        UserError: if it translates.
    """
    if layout.name not in LANGUAGE_MODELS:
        raise UserError(
            f"Model.layout='{layout.name}' translates and is no language model; score with "
            "--source, --target and --reference, or name a run with one of "
            f"{', '.join(LANGUAGE_MODELS)}"
        )


def get_layout(name: str, stage_layers: tuple[int, ...]) -> Layout:
    """Returns a row of the table with its layer counts set.

    Args:
        name: a key of `LAYOUTS` or `LANGUAGE_MODELS`.
        stage_layers: number of layers of each stage.

    Raises:
        UserError: if the name is unknown or `stage_layers` does not fit the row.
    """
    known = LAYOUTS | LANGUAGE_MODELS
    if name not in known:
        raise UserError(f"Model.layout='{name}' is unknown; choose one of {', '.join(known)}")
    return known[name].with_layers(stage_layers)
