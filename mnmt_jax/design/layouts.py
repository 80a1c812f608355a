"""The table of layouts. A new variant is one row here, one drawn mask and one gin file.

Letters: `f` full, `c` causal (past and present), `.` none. A row reads "this role, as a query, sees
(each role in order)". No code outside this file compares layout names.

The `trigger` role is a copy of the first target input token, as a static role of length one:
PhasedDecoder's published runs let the source see it (`--attention-position-bias 1`). Without
dropout its state equals that of target position 0 in every layer, because both see the source and
themselves; roles draw separate dropout masks. The source thus gets the same information as in the
reference, and no static role depends on generated tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from mnmt_jax.design.layout import Layout, Sees, Stage
from mnmt_jax.errors import UserError, docs_page

SOURCE, REGISTER, TRIGGER, TARGET = "source", "register", "trigger", "target"
LANGUAGES = ("source_lang", "target_lang")
"""Arrays of a batch: language of each sentence pair in a row."""

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
    # Ablation "register yes, mask no" (MITRE paper, Table 5; that the source sees registers is our
    # choice).
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
    # A pre-trained encoder, an adaptor's layers, and a decoder that reads these (LaMaTE, figure 3).
    Layout(
        "encoder_adaptor_decoder",
        (
            Stage((SOURCE,), ("f",)),
            Stage((SOURCE,), ("f",)),
            Stage((TARGET,), ("c",), memory=((TARGET, SOURCE),)),
        ),
    ),
    # The same with a causal language model as the encoder, as published.
    Layout(
        "lm_adaptor_decoder",
        (
            Stage((SOURCE,), ("c",)),
            Stage((SOURCE,), ("f",)),
            Stage((TARGET,), ("c",), memory=((TARGET, SOURCE),)),
        ),
    ),
    # Grafting: the target's first layers do not see the source, as in a language model (Graformer,
    # section 3.3).
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
    # Text continuation from the tag of its language (Graformer, section 3.2: mGPT).
    Layout("causal_lm", (Stage((TARGET,), ("c",)),)),
    # Prediction of masked tokens from all others (Graformer, section 3.1: mBERT).
    Layout("masked_lm", (Stage((SOURCE,), ("f",)),), generated=SOURCE),
)

LAYOUTS = {row.name: row for row in _ROWS}
LANGUAGE_MODELS = {row.name: row for row in _LANGUAGE_MODELS}


def translates(layout: Layout) -> bool:
    """Return whether a model translates; otherwise it is a language model."""
    return layout.name not in LANGUAGE_MODELS


def check_translates(layout: Layout, run: str = "") -> None:
    """Check that a model translates.

    Args:
        layout: layout of the model.
        run: path of its run, for the error; empty if it has none.

    Raises:
        UserError: if it is a language model.
    """
    if not translates(layout):
        raise UserError(
            f"{_prefix(run)}Model.layout='{layout.name}' is a language model and does not "
            f"translate; {_uses(layout)}, graft it ({docs_page('graft.md')}), or name a run of a "
            "translator"
        )


def check_method_translates(name: str, layout: Layout) -> None:
    """Check that a method of `Train.methods` that needs a translator has one.

    Args:
        name: name of the method.
        layout: layout of the model.

    Raises:
        UserError: if the model is a language model.
    """
    if not translates(layout):
        raise UserError(
            f"{name}: layout '{layout.name}' does not translate; leave '{name}' out of "
            "Train.methods"
        )


def check_language_model(layout: Layout, run: str = "") -> None:
    """Check that a model is a language model.

    Args:
        layout: layout of the model.
        run: path of its run, for the error; empty if it has none.

    Raises:
        UserError: if it translates.
    """
    if translates(layout):
        raise UserError(
            f"{_prefix(run)}Model.layout='{layout.name}' translates and is no language model; "
            "translate with 'mnmt translate --source --target', score with 'mnmt score --source "
            f"--target --reference', or name a run with one of {', '.join(LANGUAGE_MODELS)}"
        )


def check_continues(layout: Layout) -> None:
    """Check that a language model can continue text.

    Raises:
        UserError: if it is a masked language model.
    """
    if not layout.is_autoregressive:
        raise UserError(
            f"Model.layout='{layout.name}' fills masks and cannot continue text; {_uses(layout)}, "
            "or name a run of 'causal_lm'"
        )


def _prefix(run: str) -> str:
    return f"{run}: " if run else ""


def _uses(layout: Layout) -> str:
    """Return the hint that lists the commands for a language model."""
    sample = ", continue text with 'mnmt sample --language'" if layout.is_autoregressive else ""
    return f"score text with 'mnmt score --language'{sample}"


def check_tasks(layout: Layout, tasks: Mapping[str, tuple[str, str]], cache: str) -> None:
    """Check that a model can be trained on the tasks of a cache.

    Args:
        layout: layout of the model.
        tasks: task name -> source and target language; both are equal for monolingual text.
        cache: path of the cache.

    Raises:
        UserError: if a language model gets a task with pairs, or a translation model gets none.
    """
    pairs = [name for name, (source, target) in tasks.items() if source != target]
    if pairs and not translates(layout):
        raise UserError(
            f"Data.cache='{cache}': task '{pairs[0]}' has sentence pairs, but "
            f"Model.layout='{layout.name}' is trained on monolingual text; make a cache with 'mnmt "
            "cache --text' or --monolingual, or choose monolingual tasks in Data.tasks"
        )
    if tasks and not pairs and translates(layout):
        raise UserError(
            f"Data.cache='{cache}': task '{next(iter(tasks))}' and all others are monolingual, but "
            f"Model.layout='{layout.name}' is trained on pairs; make a cache of pairs, such as "
            f"with 'mnmt cache --parallel', or choose one of {', '.join(LANGUAGE_MODELS)}"
        )


def encoder_layers(layout: Layout) -> int:
    """Return the number of first layers in which the source sees itself in full, and nothing else.

    They compute the same states in every layout.
    """
    is_encoder = (
        SOURCE in stage.roles
        and stage.key_roles(SOURCE) == (SOURCE,)
        and stage.visibility(SOURCE, SOURCE) is Sees.FULL
        for stage in layout.stages
    )
    stages = zip(layout.stages, itertools.takewhile(bool, is_encoder), strict=False)
    return sum(stage.layers for stage, _ in stages)


def check_source_layout(name: str, required: str, flag: str) -> None:
    """Check that a source run has the layout that its parameters are copied from.

    Args:
        name: name of its layout.
        required: name of the required layout.
        flag: flag that names the run.

    Raises:
        UserError: if the layouts differ.
    """
    if name != required:
        raise UserError(
            f"{flag}: its Model.layout is '{name}', but layers of a '{required}' are copied from "
            "it; choose such a run"
        )


def get_layout(name: str, stage_layers: tuple[int, ...]) -> Layout:
    """Return a row of the table with its layer counts set.

    Args:
        name: a key of `LAYOUTS` or `LANGUAGE_MODELS`.
        stage_layers: number of layers per stage.

    Raises:
        UserError: if the name is unknown or `stage_layers` does not fit the row.
    """
    layouts = LAYOUTS | LANGUAGE_MODELS
    if name not in layouts:
        raise UserError(f"Model.layout='{name}' is unknown; choose one of {', '.join(layouts)}")
    return layouts[name].with_layers(stage_layers)
