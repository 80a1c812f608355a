"""The one table of variants. Adding a variant is one row here, one drawn mask, one gin file.

Letters: `f` sees all, `c` sees its own past and itself, `.` sees nothing. A row reads "this role,
as a query, sees of (each role in order)". Nothing outside this file compares a layout's name.

The `trigger` role is the first input token of the target once more, as a static role of length one:
PhasedDecoder's published runs let the source see it (`--attention-position-bias 1`). Its state
equals that of target position 0 in every layer, because both see the source and themselves, so the
copy gives the source what the reference gives it while no static role depends on what is generated.
"""

from __future__ import annotations

from collections.abc import Mapping

from mnmt_jax.design.layout import Layout, Stage
from mnmt_jax.errors import UserError, docs_page

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


def translates(layout: Layout) -> bool:
    """Returns whether a model turns sources into targets; otherwise it is a language model."""
    return layout.name not in LANGUAGE_MODELS


def check_translates(layout: Layout) -> None:
    """Checks that a model turns sources into targets.

    Raises:
        UserError: if it is a language model.
    """
    if not translates(layout):
        raise UserError(
            f"Model.layout='{layout.name}' is a language model and does not translate; "
            f"{_uses(layout)}, graft it ({docs_page('graft.md')}), or name a run of a translator"
        )


def check_language_model(layout: Layout) -> None:
    """Checks that a model knows text of single languages, without sources.

    Raises:
        UserError: if it translates.
    """
    if translates(layout):
        raise UserError(
            f"Model.layout='{layout.name}' translates and is no language model; translate with "
            "'mnmt translate --source --target', score with 'mnmt score --source --target "
            f"--reference', or name a run with one of {', '.join(LANGUAGE_MODELS)}"
        )


def check_continues(layout: Layout) -> None:
    """Checks that a language model continues text.

    Raises:
        UserError: if it fills masks.
    """
    if not layout.grows:
        raise UserError(
            f"Model.layout='{layout.name}' fills masks and continues no text; {_uses(layout)}, or "
            "name a run of 'causal_lm'"
        )


def _uses(layout: Layout) -> str:
    """Says which commands there are for a language model."""
    sample = ", continue text with 'mnmt sample --language'" if layout.grows else ""
    return f"score text with 'mnmt score --language'{sample}"


def check_tasks(layout: Layout, tasks: Mapping[str, tuple[str, str]], cache: str) -> None:
    """Checks that a model can learn of what a cache has.

    Args:
        layout: of the model.
        tasks: source and target language of each task trained on, twice the same of text of one.
        cache: that has them.

    Raises:
        UserError: if it is a language model and a task has pairs, or translates and none has.
    """
    pairs = [name for name, (source, target) in tasks.items() if source != target]
    if pairs and not translates(layout):
        raise UserError(
            f"Data.cache='{cache}': task '{pairs[0]}' is of pairs, and Model.layout='{layout.name}'"
            " learns of text of single languages; make a cache with 'mnmt cache --text' or "
            "--monolingual, or name tasks of single languages in Data.tasks"
        )
    if tasks and not pairs and translates(layout):
        raise UserError(
            f"Data.cache='{cache}': task '{next(iter(tasks))}' and all others are text of single "
            f"languages, and Model.layout='{layout.name}' translates; make a cache of pairs, such "
            f"as with 'mnmt cache --parallel', or choose one of {', '.join(LANGUAGE_MODELS)}"
        )


def check_taken_of(name: str, needed: str, flag: str) -> None:
    """Checks that a run is of the kind that parameters are taken of.

    Args:
        name: of its layout.
        needed: name of the layout that it must have.
        flag: what names the run.

    Raises:
        UserError: otherwise.
    """
    if name != needed:
        raise UserError(
            f"{flag}: its Model.layout is '{name}', and what is taken there are layers of a "
            f"'{needed}'; name such a run"
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
