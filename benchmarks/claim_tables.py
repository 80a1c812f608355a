"""Experiments of docs/results_claims.md: one paper's claims on one corpus each."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from experiments import PLAIN, Arm, Cache, Experiment

_PUBLISHED_VOCABULARY = ("--no-byte_fallback", "--text_normalization=none")
_RATES = tuple((f"Optimizer.learning_rate={rate}",) for rate in (1e-3, 2e-3, 4e-3))

# Scaled-down settings of Qu and Watanabe (2022) and TPDM: post-norm, the tag in the source only, 3
# encoder and 3 decoder layers (layer 2 is in the middle), inverse square root schedule, dropout and
# label smoothing.
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
_NO_TAGS = "Data.instruction='none'"
# Decodings of models trained with tags: plain, without tags, without branches (Table 9).
_OMITTED = {
    PLAIN: (),
    "tags omitted": (f"--gin.{_NO_TAGS}",),
    "branches off": ("--gin.LanguageLayers.off=True",),
}


def _language_layers(title: str, directions: str, pieces: int, **extra_arms: Arm) -> Experiment:
    """Return an experiment of Qu and Watanabe (2022) where every language has branches."""
    fcll = ("Model.methods=('language_layers',)", *_BRANCHES)
    sd = (
        "Model.methods=('language_layers','cut_residual')",
        *_BRANCHES,
        "LanguageLayers.layers=(5,)",
        "CutResidual.sublayer='mlp'",
    )
    model = "encoder_decoder_tiny"
    mixture_flags = f"--mixture=cldr_quickstart --directions={directions}".split()
    return Experiment(
        title=title,
        task="cldr_quickstart",
        run="cldr_quickstart",
        vocabularies={
            "vocabulary": (*mixture_flags, f"--vocab_size={pieces}", *_PUBLISHED_VOCABULARY)
        },
        caches={"cache": Cache(tuple(mixture_flags))},
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
            "fcll": Arm(model, fcll, decodings=_OMITTED),
            "sd": Arm(model, sd, decodings=_OMITTED),
            "fcll_without_tags": Arm(model, (*fcll, _NO_TAGS), tuned_as="fcll"),
            "sd_without_tags": Arm(model, (*sd, _NO_TAGS), tuned_as="sd"),
            "residual_without_tags": Arm(
                model,
                ("Model.methods=('cut_residual',)", _NO_TAGS),
                tuned_as="residual_attention",
            ),
            **extra_arms,
        },
    )


_SQUARE = _language_layers(
    "Language-specific layers, Square (two partners a language)",
    "en-de,de-en,de-cs,cs-de,cs-fr,fr-cs,fr-en,en-fr",
    1500,
)
# Table 6: pairs between the other languages added to pairs with English, each one a bridge between
# two languages that had only English in common. `mnmt corpus` writes the files of BRIDGE_TEXT.
_BRIDGES = Cache(
    (
        f"--parallel={os.environ.get('BRIDGE_TEXT', 'bridge_text')}",
        "--languages=de,fr,cs",
        "--splits=train=train",
        "--name=bridges",
        "--directions=de-fr,fr-cs,cs-de",
        "--share=0.2",
    )
)
_TO_AND_FROM_ENGLISH = "en-de,de-en,en-fr,fr-en,en-cs,cs-en"
_REVERSED_BRIDGES = "fr-de,cs-fr,de-cs"


def _bridges(square: Experiment) -> Experiment:
    """Return the experiment of Qu and Watanabe (2022), Table 6, with the settings of Square."""
    arms = square.arms
    decodings = {PLAIN: (f"--directions={_TO_AND_FROM_ENGLISH},{_REVERSED_BRIDGES}",)}
    baseline = dataclasses.replace(arms["baseline"], decodings=decodings)
    tuned = dataclasses.replace(baseline, tuned_as="baseline")
    pairs = "--mixture=cldr_quickstart"
    return dataclasses.replace(
        square,
        title="Language-specific layers, bridges between languages other than English",
        vocabularies={"vocabulary": (pairs, "--vocab_size=1500", *_PUBLISHED_VOCABULARY)},
        caches={
            "cache": Cache((pairs,)),
            "bridge_pairs": _BRIDGES,
            "with_bridges": Cache((pairs,), also=("bridge_pairs",)),
            "less_with_bridges": Cache((pairs, "--share=0.62"), also=("bridge_pairs",)),
        },
        arms={
            "baseline": baseline,
            "bridges": dataclasses.replace(tuned, cache="with_bridges"),
            "bridges_less_data": dataclasses.replace(tuned, cache="less_with_bridges"),
            "sd": dataclasses.replace(tuned, bindings=arms["sd"].bindings),
        },
    )


_TPDM = ("Model.methods=('tpdm',)", "TPDM.layer=2")
_STABLE_CRITIC = ("TPDM.clip=True", "TPDM.head_start=400", "TPDM.ramp=400", "TPDM.critic_steps=2")
_PLAIN_CRITIC = ("TPDM.clip=False", "TPDM.head_start=0", "TPDM.ramp=0", "TPDM.critic_steps=1")


def _tpdm(
    information: float,
    *extra_bindings: str,
    critic: tuple[str, ...] = _PLAIN_CRITIC,
    **fields: Any,
) -> Arm:
    bindings = (*_TPDM, f"TPDM.information={information}", *critic, *extra_bindings)
    return Arm("encoder_decoder_tiny", bindings, **{"tuned_as": "tpdm_0.1_mended", **fields})


_POSITIONS = {
    "baseline": Arm("encoder_decoder_tiny"),
    "residual_attention": Arm("encoder_decoder_tiny", ("Model.methods=('cut_residual',)",)),
    "tpdm_0.1_mended": _tpdm(0.1, critic=_STABLE_CRITIC, tuned_as=""),
    "tpdm_0": _tpdm(0),
    "tpdm_0.1": _tpdm(0.1),
    "tpdm_0.4": _tpdm(0.4),
    "tpdm_1": _tpdm(1),
    "tpdm_0_mended": _tpdm(0, critic=_STABLE_CRITIC),
    "tpdm_0.4_mended": _tpdm(0.4, critic=_STABLE_CRITIC),
    "tpdm_1_mended": _tpdm(1, critic=_STABLE_CRITIC),
    "tpdm_1_mean": _tpdm(1, "TPDM.reduction='mean'"),
    "tpdm_1_mean_mended": _tpdm(1, "TPDM.reduction='mean'", critic=_STABLE_CRITIC),
    "tpdm_0.1_mended_without_alignment": _tpdm(0.1, "TPDM.alignment=0.0", critic=_STABLE_CRITIC),
    "gtpdm_1": _tpdm(1, "TPDM.gated=True"),
    "gtpdm_1_mended": _tpdm(1, "TPDM.gated=True", critic=_STABLE_CRITIC),
    "gtpdm_0.25_mended": _tpdm(0.25, "TPDM.gated=True", critic=_STABLE_CRITIC),
    "gtpdm_1_mended_prior_0.1": _tpdm(
        1, "TPDM.gated=True", "TPDM.prior=0.1", critic=_STABLE_CRITIC
    ),
}

_PROSE: dict[str, Any] = {
    "task": "libreoffice_help",
    "run": "libreoffice_help",
    "vocabularies": {
        "vocabulary": ("--mixture=libreoffice_help", "--vocab_size=8000", *_PUBLISHED_VOCABULARY)
    },
}
_POSITIONS_ON_PROSE = Experiment(
    **_PROSE,
    title="Position disentangling on a manual's prose",
    caches={"cache": Cache(("--mixture=libreoffice_help",))},
    bindings=(
        *_SCALED,
        "Model.positions=('sinusoidal',10000.0)",
        "Data.rows=4",
        "Data.validation_examples=200",
        "Optimizer.learning_rate=2e-3",  # chosen on phrases by all
        "Decode.beam_size=1",
    ),
    grid=(),
    steps=6000,
    every=500,
    seeds=(1,),
    limit=100,
    arms={
        "baseline": _POSITIONS["baseline"],
        "tpdm_0.4": _tpdm(0.4, tuned_as=""),
        "tpdm_1_mended": _tpdm(1, critic=_STABLE_CRITIC, tuned_as=""),
    },
    levels=(5.0, 4.5, 4.25, 4.0, 3.5),
)

_DROPOUTS = tuple((f"Model.dropout={rate}",) for rate in (0.1, 0.3))
_BOTH_SOURCES = {"mlm": "mlm", "lm": "lm"}
_GRAFT_PARTS = (
    "('mlm','embedding','embedding'),('mlm','layer_{0-1}','layer_{0-1}'),"
    "('mlm','stage_0_norm','stage_0_norm'),('lm','embedding','target_embedding'),"
    "('lm','layer_{0-1}','layer_{4-5}'),('lm','stage_0_norm','stage_1_norm')"
)
_FROZEN = (
    "'embedding','layer_[0-1]/attention*','layer_[0-1]/mlp*',"
    "'target_embedding','layer_[4-5]/attention*','layer_[4-5]/mlp*'"
)


def _few_pairs(share: int, steps: int) -> dict[str, Arm]:
    """Return the arms of Graformer with a share of the pairs, in per cent."""
    shared: dict[str, Any] = {
        "cache": f"cache_{share}",
        "steps": steps,
        "grid": _DROPOUTS,
        "compared_with": f"encoder_decoder_{share}",
    }
    deep = "Model.stage_layers=(4,4)"
    arms = {
        "encoder_decoder": Arm(
            "encoder_decoder_tiny", (deep, "Model.methods=('tables',)"), **shared
        ),
        "drawn": Arm(
            "grafted_tiny", ("Graformer.encoder='none'", "Graformer.decoder='none'"), **shared
        ),
        "graft": Arm("grafted_tiny", sources=_BOTH_SOURCES, **shared),
        "without_fusion": Arm(
            "grafted_tiny", ("Graformer.fusion=False",), sources=_BOTH_SOURCES, **shared
        ),
        "decoder_alone": Arm(
            "grafted_tiny", ("Graformer.encoder='none'",), sources={"lm": "lm"}, **shared
        ),
        "encoder_alone": Arm(
            "grafted_tiny", ("Graformer.decoder='none'",), sources={"mlm": "mlm"}, **shared
        ),
        "direct": Arm(
            "encoder_decoder_tiny",
            (
                deep,
                "Model.methods=('tables',)",
                "Train.methods=('graft',)",
                f"Graft.parts=({_GRAFT_PARTS})",
            ),
            sources=_BOTH_SOURCES,
            **shared,
        ),
        "adapter": Arm(
            "encoder_decoder_tiny",
            (
                deep,
                "Model.methods=('tuning_layers','tables')",
                "TuningLayers.mlp=512",
                "Tables.output=True",
                "Train.methods=('graft',)",
                f"Graft.parts=({_GRAFT_PARTS},('lm','embedding','output_embedding'))",
                f"Optimizer.frozen=({_FROZEN})",
            ),
            sources=_BOTH_SOURCES,
            **shared,
        ),
    }
    return {f"{name}_{share}": arm for name, arm in arms.items()}


def _transfer() -> dict[str, Arm]:
    """Return the arms of Graformer's Tables 7 and 8: de-en training, de-en and fr-en tests."""
    shared: dict[str, Any] = {
        "cache": "cache_transfer",
        "grid": _DROPOUTS,
        "decodings": {PLAIN: ("--directions=de-en,fr-en",)},
        "compared_with": "encoder_decoder_transfer",
    }
    return {
        "encoder_decoder_transfer": Arm(
            "encoder_decoder_tiny",
            ("Model.stage_layers=(4,4)", "Model.methods=('tables',)"),
            **shared,
        ),
        "graft_transfer": Arm("grafted_tiny", sources=_BOTH_SOURCES, **shared),
        "graft_transfer_frozen": Arm(
            "grafted_tiny", ("Graformer.encoder='freeze'",), sources=_BOTH_SOURCES, **shared
        ),
    }


_TEXT: dict[str, Any] = {"cache": "cache_text", "steps": 4000, "grid": (("Model.dropout=0.1",),)}
_GRAFT = Experiment(
    **_PROSE,
    title="Grafting on a manual's prose",
    caches={
        "cache_text": Cache(("--mixture=libreoffice_help", "--monolingual")),
        "cache_1": Cache(("--mixture=libreoffice_help", "--share=0.01")),
        "cache_10": Cache(("--mixture=libreoffice_help", "--share=0.1")),
        "cache_transfer": Cache(("--mixture=libreoffice_help", "--directions=de-en")),
    },
    bindings=(
        "Model.positions=('sinusoidal',10000.0)",
        "Data.instruction='3'",
        "Data.rows=4",
        "Optimizer.learning_rate=3e-3",
        "Optimizer.schedule='inverse_sqrt'",
        "Optimizer.warmup_steps=200",
        "Train.log_every=100",
        "Train.keep_last=1",
        "Decode.beam_size=1",
    ),
    grid=(),
    steps=3000,
    every=100,
    seeds=(1,),
    limit=50,
    arms={
        "mlm": Arm("masked_lm_tiny", evaluated=False, **_TEXT),
        "lm": Arm("causal_lm_tiny", evaluated=False, **_TEXT),
        **_few_pairs(1, 1500),
        **_few_pairs(10, 3000),
        **_transfer(),
    },
)

_SOURCE_TAG = ("Data.instruction='1'",)
_ENCODER_DECODER = ("Model.stage_layers=(3,3)", *_SOURCE_TAG)
_MULTI30K_BINDINGS = (
    "Model.dropout=0.3",
    "Model.positions=('sinusoidal',10000.0)",
    "Data.source_length=64",
    "Data.target_length=64",
    "Data.temperature=1.0",
    "Data.validation_examples=1014",
    "Optimizer.learning_rate=3e-3",
    "Optimizer.warmup_steps=1000",
    "Train.log_every=250",
    "Train.keep_last=1",
    "Decode.max_length=100",
)
_MULTI30K = Experiment(
    title="Multi30k, English with German, French and Czech",
    task="multi30k",
    run="own_text",
    vocabularies={
        "vocabulary": ("--mixture=multi30k", "--vocab_size=8000", *_PUBLISHED_VOCABULARY)
    },
    caches={"cache": Cache(("--mixture=multi30k",))},
    bindings=(*_MULTI30K_BINDINGS, "Data.rows=64", "Optimizer.schedule='cosine'"),
    grid=(),
    steps=24_000,
    every=500,
    seeds=(1, 2, 3),
    limit=0,
    arms={
        "encoder_decoder": Arm(
            "encoder_decoder_tiny",
            _ENCODER_DECODER,
            decodings={PLAIN: (), "pivot": ("--pivot=en",)},
        ),
        "quarter_updates": Arm("encoder_decoder_tiny", _ENCODER_DECODER, steps=6_000, seeds=(1,)),
        "half_updates": Arm("encoder_decoder_tiny", _ENCODER_DECODER, steps=12_000, seeds=(1,)),
        "sd": Arm(
            "encoder_decoder_tiny",
            (
                *_ENCODER_DECODER,
                "Model.methods=('language_layers','cut_residual')",
                "LanguageLayers.without=('en',)",
                "LanguageLayers.mlp=256",
                "LanguageLayers.dropout=0.3",
                "LanguageLayers.layers=(5,)",
                "CutResidual.sublayer='mlp'",
            ),
            seeds=(1,),
        ),
        "prefix": Arm("prefix_tiny", ("Model.stage_layers=(6,)",), seeds=(1,)),
        "register": Arm("register_tiny", ("Model.stage_layers=(6,)",), seeds=(1,)),
        "gtpdm": Arm(
            "encoder_decoder_tiny",
            (
                *_ENCODER_DECODER,
                *_TPDM,
                "TPDM.gated=True",
                "TPDM.information=0.25",
                *_STABLE_CRITIC,
            ),
        ),
        "mrasp2": Arm(
            "encoder_decoder_tiny",
            (
                *_ENCODER_DECODER,
                "Train.methods=('mrasp2',)",
                "MRASP2.layer=3",
            ),
        ),
        "two_stage": Arm(
            "two_stage_trigger_tiny",
            (
                "Model.stage_layers=(3,3)",
                "Model.methods=('adaption',)",
                "Adaption.mlp=512",
                "Adaption.dropout=0.3",
                "Train.methods=('instructcl',)",
                "InstruCL.layer=4",
            ),
        ),
    },
)
# Wu et al. (2021), "Transformer-Tiny": lower-cased Moses tokens from the folder ANCHOR_TEXT.
_ANCHOR_TEXT = os.environ.get("ANCHOR_TEXT", "anchor_text")
_ANCHOR_FILES = (
    f"--parallel={_ANCHOR_TEXT}",
    "--languages=en,de",
    "--splits=train=train,validation=val,test=test2016",
)
_ANCHOR = Experiment(
    title="Multi30k, English to German in lower case",
    task="anchor",
    run="own_text",
    vocabularies={"vocabulary": (*_ANCHOR_FILES, "--vocab_size=8000", *_PUBLISHED_VOCABULARY)},
    caches={"cache": Cache((*_ANCHOR_FILES, "--name=anchor", "--directions=en-de"))},
    bindings=(
        *_MULTI30K_BINDINGS,
        *_SOURCE_TAG,
        "Model.stage_layers=(4,4)",
        "Model.mlp=256",
        "Optimizer.learning_rate=5e-3",
        "Data.rows=8",  # 8 micro-batches of 8 rows: a CPU takes 0.8 of the time of 64 rows
        "Optimizer.accumulate=8",
        "Train.keep_last=10",
        "Train.patience=2000",
    ),
    grid=(),
    steps=12_000,
    every=250,
    seeds=(1,),
    limit=0,
    arms={"encoder_decoder": Arm("encoder_decoder_tiny")},
    evaluate=(*_ANCHOR_FILES,),
)

EXPERIMENTS = {
    "anchor": _ANCHOR,
    "multi30k": _MULTI30K,
    "graft": _GRAFT,
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
    "positions_prose": _POSITIONS_ON_PROSE,
    "triangle": _language_layers(
        "Language-specific layers, Triangle (strict dependence)", "de-fr,fr-cs,cs-de", 1000
    ),
    "square": _SQUARE,
    "bridges": _bridges(_SQUARE),
}
