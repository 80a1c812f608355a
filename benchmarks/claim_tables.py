"""The experiments behind docs/results.md: each tests claims of one paper on one corpus."""

from __future__ import annotations

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


EXPERIMENTS = {
    "triangle": _language_layers(
        "Language-specific layers, Triangle (strict dependence)", "de-fr,fr-cs,cs-de", 1000
    ),
    "square": _language_layers(
        "Language-specific layers, Square (two partners a language)",
        "en-de,de-en,de-cs,cs-de,cs-fr,fr-cs,fr-en,en-fr",
        1500,
    ),
}
