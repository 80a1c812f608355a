"""Small checkpoints in the formats of other toolkits, with random weights."""

from __future__ import annotations

import argparse
import functools
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from mnmt_jax.config.sections import Model
from mnmt_jax.design.method import Method
from mnmt_jax.files.lazy_array import LazyArray
from mnmt_jax.interop.names import FAIRSEQ, MITRE
from mnmt_jax.interop.random_checkpoint import (
    random_tensors,
    write_fairseq,
    write_json,
    write_m2m100,
)
from mnmt_jax.interop.safetensors import write_safetensors
from mnmt_jax.interop.tags import M2M100_LANGUAGES, NLLB_TAGS
from mnmt_jax.interop.token_table import SPECIAL_NAMES
from mnmt_jax.methods.adaption import Adaption
from mnmt_jax.methods.cut_residual import CutResidual
from mnmt_jax.methods.graformer import Graformer
from mnmt_jax.methods.language_layers import LanguageLayers
from mnmt_jax.methods.tables import Tables
from mnmt_jax.methods.tuning_layers import TuningLayers
from tests.unit.made_text import LANGUAGES, sentences

EXTRA, DROPPED = "▁extra", 3  # a piece the model lacks, and how many of its pieces are not in use
FILLERS = 8
SIZES = {"embed": 16, "mlp": 24, "heads": 2}


@functools.cache
def spm_model(model_type: str = "unigram") -> bytes:
    """Return a model with SentencePiece's default ids: unk 0, <s> 1, </s> 2, no pad."""
    model = io.BytesIO()
    text = [line for language in LANGUAGES for line in sentences(language, 200)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text),
        model_writer=model,
        vocab_size=60,
        model_type=model_type,
        minloglevel=2,
    )
    return model.getvalue()


def spm_pieces() -> list[str]:
    """Return the model's pieces without special tokens."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=spm_model())
    return [processor.id_to_piece(i) for i in range(3, processor.get_piece_size())]


def m2m100_pieces() -> list[str]:
    """Return the pieces in another order, without some of them and with an additional one."""
    pieces = spm_pieces()
    order = np.random.default_rng(0).permutation(len(pieces))
    return [*(pieces[i] for i in order[DROPPED:]), EXTRA]


def write_tensors(folder: Path, tensors: dict, **options: Any) -> None:
    write_safetensors(folder, [(n, LazyArray.of(v)) for n, v in tensors.items()], **options)


def m2m100_directory(folder: Path, seed: int = 0, **options: Any) -> dict:
    """Write a directory in the format of `transformers`; return its tensors."""
    tokens = [*SPECIAL_NAMES, *m2m100_pieces()]
    size = len(tokens) + len(M2M100_LANGUAGES) + FILLERS
    model = Model(layout="encoder_decoder", stage_layers=(1, 2), **SIZES)
    tensors = write_m2m100(
        folder, model, sentencepiece_model=spm_model(), size=size, seed=seed, **options
    )
    path = folder / "config.json"
    write_json(path, json.loads(path.read_text()) | {"dropout": 0.1, "num_beams": 3})
    write_json(folder / "vocab.json", {token: i for i, token in enumerate(tokens)})
    tags = [f"__{code}__" for code in M2M100_LANGUAGES]
    write_json(folder / "special_tokens_map.json", {"additional_special_tokens": tags})
    return tensors


def nllb_directory(folder: Path, model_type: str = "unigram") -> None:
    """Write an NLLB directory of `transformers`: no list of tokens, one feed-forward width."""
    size = len(SPECIAL_NAMES) + len(spm_pieces()) + len(NLLB_TAGS) + 1
    model = Model(layout="encoder_decoder", stage_layers=(1, 1), **SIZES)
    write_m2m100(folder, model, sentencepiece_model=spm_model(model_type), size=size)


def mitre_directory(folder: Path, prefix: str = "model.decoder.") -> dict:
    """Write a directory in the format of the released MITRE, as far as it is known."""
    folder.mkdir(parents=True)
    tokens = [*SPECIAL_NAMES, *spm_pieces()]
    size = len(tokens) + 24
    model = Model(layout="register", stage_layers=(2,), **SIZES)
    tensors = {
        prefix + name.removeprefix("model.decoder."): value
        for name, value in random_tensors(model, MITRE, size).items()
    }
    write_tensors(folder, tensors)
    values = {"model_type": "mitre", "d_model": 16, "decoder_layers": 2, "decoder_ffn_dim": 24}
    values |= {"decoder_attention_heads": 2, "vocab_size": size, "pad_token_id": 1}
    values |= {"eos_token_id": 2, "decoder_start_token_id": 2, "scale_embedding": True}
    write_json(folder / "config.json", values)
    (folder / "mitre_spm.model").write_bytes(spm_model())
    write_json(folder / "vocab.json", {token: i for i, token in enumerate(tokens)})
    return tensors


def _branched(*methods: Method) -> Model:
    """Return a post-norm encoder-decoder like all models of AdapNonCenter."""
    return Model("encoder_decoder", (2, 2), norm="post", methods=methods, **SIZES)


_GRAFT = (Graformer(fusion=True, encoder="none", decoder="none"),)


def _graformers(layout: str, *layers: int, methods: tuple[Method, ...] = ()) -> Model:
    """Return a model of Graformer's authors: pre-norm, GELU, learned positions, unscaled tables."""
    ends = {"norm": "pre", "activation": "gelu", "embedding_scale": False}
    return Model(layout, layers, positions=("learned", 40), methods=methods, **ends, **SIZES)


FAIRSEQ_MODELS = {
    "mitre": Model(layout="register", stage_layers=(2,), register_factor=1.5, **SIZES),
    "two_stage": Model(
        layout="two_stage_trigger",
        stage_layers=(1, 2),
        norm="post",
        methods=(Adaption(12),),
        **SIZES,
    ),
    "prefix": Model(layout="prefix", stage_layers=(2,), **SIZES),
    "encoder_decoder": Model(layout="encoder_decoder", stage_layers=(2, 1), **SIZES),
    # AdapNonCenter's: with the first language as the centre, and with none.
    "transformer_cll": _branched(LanguageLayers(LANGUAGES, LANGUAGES[:1], (3, 4), 6)),
    "transformer_sd_merged": _branched(
        LanguageLayers(LANGUAGES, (), (4,), 6), CutResidual(2, "mlp", "pre")
    ),
    # Graformer's: two language models, the graft of them, its baseline and Guo's.
    "transformer_encoder_model": _graformers("masked_lm", 2),
    "transformer_lm_gpt": _graformers("causal_lm", 2),
    "bridge_transformer": _graformers("grafted", 2, 1, 1, methods=_GRAFT),
    "transformer": _graformers("encoder_decoder", 2, 1, methods=(Tables(),)),
    "ab_transformer": _graformers(
        "encoder_decoder", 1, 1, methods=(TuningLayers(), Tables(output=True))
    ),
}


GRAFORMERS = [kind for kind, model in FAIRSEQ_MODELS.items() if "learned" in model.positions]


def _graformers_settings(kind: str, model: Model) -> dict[str, Any]:
    """Return the settings in the scripts of Graformer's authors."""
    first, *rest = model.stage_layers
    own = {
        "transformer_encoder_model": {"encoder_layers": first, "decoder_layers": 6},
        "transformer_lm_gpt": {"encoder_layers": 6, "decoder_layers": first},
        "bridge_transformer": {"no_encoder_attn_layers": "0", "lm_fusion": True},
        "transformer": {"share_decoder_input_output_embed": True},
        "ab_transformer": {},
    }[kind]
    both = {"encoder_layers": first, "decoder_layers": sum(rest), "share_all_embeddings": False}
    for side in ("encoder", "decoder"):
        both |= {f"{side}_learned_pos": True, f"{side}_normalize_before": True}
    ends = {"activation_fn": "gelu", "no_scale_embedding": True, "encoder_langtok": None}
    tags = {"decoder_langtok": True, "lang_tok_replacing_bos_eos": True}
    return {"arch": kind} | both | ends | tags | own


def fairseq_settings(kind: str) -> dict[str, Any]:
    """Return the command line of a training as a checkpoint stores it."""
    model = FAIRSEQ_MODELS[kind]
    pre = model.norm == "pre"
    settings: dict[str, Any] = {
        "encoder_layers": (0, *model.stage_layers)[-2],
        "decoder_layers": model.stage_layers[-1],
        "encoder_normalize_before": pre and kind not in ("mitre", "prefix"),
        "decoder_normalize_before": pre,
        "share_all_embeddings": True,
        "dropout": 0.1,
        "encoder_langtok": "tgt",
        "decoder_langtok": False,
        "lr": [0.0005],
    }
    for side in ("encoder", "decoder"):
        settings |= {f"{side}_embed_dim": 16, f"{side}_ffn_embed_dim": 24}
        settings[f"{side}_attention_heads"] = 2
    if kind in GRAFORMERS:
        return settings | _graformers_settings(kind, model)
    if kind == "mitre":
        settings["register_factor"] = 1.5
    if kind == "transformer_cll":
        settings |= {"arch": kind, "language_num": len(LANGUAGES)}
    if kind == "transformer_sd_merged":  # its tags stand in the text
        settings |= {"arch": kind, "language_num": len(LANGUAGES) + 1, "encoder_langtok": None}
    if kind in ("two_stage", "prefix"):
        settings["attention_position_bias"] = int(kind == "two_stage")
        settings |= {"adaption_flag": str(kind == "two_stage"), "adaption_inner_size": 12}
        settings["adaption_dropout"] = 0.1
    return settings


def fairseq_checkpoint(folder: Path, kind: str) -> dict:
    """Write `checkpoint.pt` and the vocabulary files; return the state."""
    size = len(SPECIAL_NAMES) + len(spm_pieces()) + len(LANGUAGES)
    tensors = random_tensors(FAIRSEQ_MODELS[kind], FAIRSEQ, size)
    versions = {f"{side}.version": np.array([3], np.float32) for side in ("encoder", "decoder")}
    settings = argparse.Namespace(**fairseq_settings(kind))
    history = [{"num_updates": 100, "optimizer_name": "FairseqAdam"}]
    write_fairseq(
        folder / "checkpoint.pt",
        tensors | versions,
        {
            "args": None,
            "cfg": {"model": settings, "task": {"_name": "x"}},
            "optimizer_history": history,
        },
        pieces=spm_pieces(),
        languages=LANGUAGES,
        sentencepiece_model=spm_model(),
    )
    return tensors
