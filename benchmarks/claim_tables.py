"""The experiments behind docs/results.md: each tests claims of one paper on one corpus."""

from __future__ import annotations

from typing import Any

from experiments import PLAIN, Arm, Cache, Experiment

_PUBLISHED_VOCABULARY = ("--no-byte_fallback", "--text_normalization=none")
_RATES = tuple((f"Optimizer.learning_rate={rate}",) for rate in (1e-3, 2e-3, 4e-3))

# Papers 002 and 004, scaled: post-norm, the tag in the source alone, three layers a side (so that
# layer 2 is in the middle), inverse square root, dropout and label smoothing.
_SCALED = (
    "Model.stage_layers=(3,3)",
    "Model.norm='post'",
    "Model.dropout=0.1",
    "Data.instruction='1'",
    "Data.validation_examples=500",
    "Optimizer.schedule='inverse_sqrt'",
    "Optimizer.warmup_steps=400",
    "Optimizer.label_smoothing=0.1",
    "Optimizer.weight_decay=1e-4",
    "Train.log_every=250",
    "Train.keep_last=1",
)
_BRANCHES = ("LanguageLayers.mlp=256", "LanguageLayers.dropout=0.1")
_OMITTED = {PLAIN: (), "omitted": ("--gin.Data.instruction='none'",)}


def _language_layers(title: str, directions: str, pieces: int, **more: Arm) -> Experiment:
    """Paper 002 without a centre: every language has branches."""
    fcll = ("Model.methods=('language_layers',)", *_BRANCHES)
    sd = (
        "Model.methods=('language_layers','cut_residual')",
        *_BRANCHES,
        "LanguageLayers.layers=(5,)",
        "CutResidual.sublayer='mlp'",
    )
    model = "encoder_decoder_tiny"
    named = f"--mixture=cldr_quickstart --directions={directions}".split()
    return Experiment(
        title=title,
        task="cldr_quickstart",
        run="cldr_quickstart",
        vocabularies={"vocabulary": (*named, f"--vocab_size={pieces}", *_PUBLISHED_VOCABULARY)},
        caches={"cache": Cache(tuple(named))},
        bindings=_SCALED,
        grid=_RATES,
        steps=2000,
        every=250,
        seeds=(1, 2, 3, 4, 5),
        limit=200,
        arms={
            "baseline": Arm(model),
            "residual_attention": Arm(model, ("Model.methods=('cut_residual',)",)),
            "residual_mlp": Arm(
                model, ("Model.methods=('cut_residual',)", "CutResidual.sublayer='mlp'")
            ),
            "cll": Arm(model, (*fcll, "LanguageLayers.layers=(5,)")),
            "fcll": Arm(model, fcll),
            "sd": Arm(model, sd),
            **more,
        },
    )


_TPDM = ("Model.methods=('tpdm',)", "TPDM.layer=2")
_MENDED = ("TPDM.clip=True", "TPDM.head_start=400", "TPDM.ramp=400", "TPDM.critic_steps=2")


def _tpdm(information: float, *more: str, **fields: Any) -> Arm:
    bindings = (*_TPDM, f"TPDM.information={information}", *more)
    return Arm("encoder_decoder_tiny", bindings, **{"tuned_as": "tpdm_0.1_mended", **fields})


_POSITIONS = {
    "baseline": Arm("encoder_decoder_tiny"),
    "residual_attention": Arm("encoder_decoder_tiny", ("Model.methods=('cut_residual',)",)),
    "tpdm_0.1_mended": _tpdm(0.1, *_MENDED, tuned_as=""),
    "tpdm_0": _tpdm(0),
    "tpdm_0.1": _tpdm(0.1),
    "tpdm_0.4": _tpdm(0.4),
    "tpdm_1": _tpdm(1),
    "tpdm_0_mended": _tpdm(0, *_MENDED),
    "tpdm_0.4_mended": _tpdm(0.4, *_MENDED),
    "tpdm_1_mended": _tpdm(1, *_MENDED),
    "tpdm_1_mean": _tpdm(1, "TPDM.reduction='mean'"),
    "tpdm_1_mean_mended": _tpdm(1, "TPDM.reduction='mean'", *_MENDED),
    "tpdm_0.1_mended_without_alignment": _tpdm(0.1, *_MENDED, "TPDM.alignment=0.0"),
    "gtpdm_1": _tpdm(1, "TPDM.gated=True"),
    "gtpdm_1_mended": _tpdm(1, "TPDM.gated=True", *_MENDED),
    "gtpdm_0.25_mended": _tpdm(0.25, "TPDM.gated=True", *_MENDED),
    "gtpdm_1_mended_prior_0.1": _tpdm(1, "TPDM.gated=True", "TPDM.prior=0.1", *_MENDED),
}

EXPERIMENTS = {
    "positions": Experiment(
        title="Position disentangling on phrases",
        task="cldr_quickstart",
        run="cldr_quickstart",
        vocabularies={
            "vocabulary": ("--mixture=cldr_quickstart", "--vocab_size=1500", *_PUBLISHED_VOCABULARY)
        },
        caches={"cache": Cache(("--mixture=cldr_quickstart",))},
        bindings=_SCALED,
        grid=_RATES,
        steps=4000,
        every=250,
        seeds=(1, 2, 3),
        limit=200,
        arms=_POSITIONS,
        levels=(0.3, 0.25, 0.2, 0.18),
    ),
    "triangle": _language_layers(
        "Language-specific layers, Triangle (strict dependence)", "de-fr,fr-cs,cs-de", 1000
    ),
    "square": _language_layers(
        "Language-specific layers, Square (two partners a language)",
        "en-de,de-en,de-cs,cs-de,cs-fr,fr-cs,fr-en,en-fr",
        1500,
    ),
}
