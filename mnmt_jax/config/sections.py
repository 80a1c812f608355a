"""Configuration: six frozen dataclasses, and one per method, that gin files fill.

The path of a value is `.gin` file -> dataclass -> module: two hops. Values that can be derived are
properties or are computed where they are used, never keys.
"""

from __future__ import annotations

import dataclasses
import importlib.util  # noqa: F401  gin reads this attribute without importing it
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import gin

from mnmt_jax.design.fields import (
    Amount,
    Checked,
    Count,
    Layers,
    Length,
    Positions,
    Range,
    Rate,
    Seed,
    Weight,
    Width,
)
from mnmt_jax.design.method import FindCode, Method, check_once
from mnmt_jax.errors import UserError


@gin.register
@dataclasses.dataclass(frozen=True)
class Data(Checked):
    """What a run reads and how rows are laid out.

    Attributes:
        cache: token cache directory (`mnmt cache` makes one).
        tasks: names of the training tasks; empty means every task with a `train` split.
        temperature: T of p_i ~ (n_i / N)^(1/T); 1 is proportional, larger is flatter.
        instruction: key of `mnmt_jax.data.instruction.INSTRUCTIONS`: where language tags stand.
        rows: rows of one global batch (of one micro-batch when accumulating).
        source_length: tokens of a row's source span.
        target_length: tokens of a row's target span.
        max_segments: sentence pairs packed into a row at most; 1 switches packing off.
        chunk_examples: examples planned (shuffled, packed) at a time.
        validation_examples: sentence pairs validated on of each task, its first ones; more than
            there are takes all.
    """

    cache: str = ""
    tasks: tuple[str, ...] = ()
    temperature: Annotated[float, Range(low=0.1, high=1e9)] = 5.0
    instruction: str = "1"
    rows: Width = 64
    source_length: Length = 128
    target_length: Length = 128
    max_segments: Length = 8
    chunk_examples: Count = 16384
    validation_examples: Amount = 200


@gin.register
@dataclasses.dataclass(frozen=True)
class Model(Checked):
    """Sizes and structure of a model. Dimensions live here and nowhere else.

    Attributes:
        layout: row of `mnmt_jax.design.layouts.LAYOUTS`.
        stage_layers: layers of each stage.
        embed: residual width.
        mlp: hidden width of the feed-forward layers.
        activation: between their two maps: `relu` or `gelu`, the exact one, x * Phi(x).
        heads: attention heads; `embed` must be a multiple.
        vocab_size: entries the vocabulary must have; 0 accepts any. Never sets a size by itself.
        norm: `pre` (with a norm at the end of each stage) or `post` (without).
        register_factor: source tokens per register; r = ceil(n / register_factor).
        dropout: rate on embeddings, attention outputs and feed-forward outputs.
        attention_dropout: rate on attention weights.
        positions: how a position is told: `('sinusoidal', base)` of the wavelengths, 10000 as
            published, `('learned', rows)`, a vector for each of so many positions, or `()`.
        embedding_scale: multiply a token's vector by sqrt(embed) before its position is added.
        methods: what makes it another model (`mnmt_jax.methods`), in the order in which they edit
            the plan; gin names them, e.g. `('adaption',)`, and has a section for each.
        lora_rank: rank of the trained change (LoRA, `mnmt_jax.model.lora`) that projections carry
            beside their weights; 0 is without.
        lora: patterns (`mnmt_jax.model.param_patterns`) of the projections that carry it.
        dtype: compute type, `float32` or `bfloat16`; parameters are float32.
        attention: `split` (each role meets only the keys it may see), `fused` (the same by a kernel
            of its own where one fits, on TPU and GPU) or `dense` (the slow oracle).
        remat: recompute each layer in the backward pass instead of keeping its activations.
    """

    layout: str = "register"
    stage_layers: tuple[Layers, ...] = (12,)
    embed: Annotated[int, Range(low=2, high=2**17)] = 1024
    mlp: Width = 4096
    activation: Literal["relu", "gelu"] = "relu"
    heads: Annotated[int, Range(low=1, high=2**12)] = 16
    vocab_size: Annotated[int, Range(low=0, high=2**24)] = 0
    norm: Literal["pre", "post"] = "pre"
    register_factor: Annotated[float, Range(low=0.01, high=1e6)] = 1.0
    dropout: Rate = 0.1
    attention_dropout: Rate = 0.0
    positions: Positions = ("sinusoidal", 10000.0)
    embedding_scale: bool = True
    methods: tuple[Method, ...] = ()
    lora_rank: Annotated[int, Range(low=0, high=2**16)] = 0
    lora: tuple[str, ...] = ("query", "value")
    dtype: Literal["float32", "bfloat16"] = "float32"
    attention: Literal["split", "dense", "fused"] = "split"
    remat: bool = False

    def __post_init__(self) -> None:
        """Checks every field, and that the widths fit each other."""
        super().__post_init__()
        check_once("Model", self.methods)
        if self.embed % self.heads:
            raise UserError(
                f"Model.embed={self.embed} must be a multiple of Model.heads={self.heads}"
            )
        if self.embed % 2 and "sinusoidal" in self.positions:
            raise UserError(
                f"Model.embed={self.embed} must be even: positions are sines and cosines"
            )
        if self.lora_rank and not self.lora:
            raise UserError(
                f"Model.lora=() with Model.lora_rank={self.lora_rank} must name projections, such "
                "as ('query', 'value')"
            )

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.embed // self.heads


@gin.register
@dataclasses.dataclass(frozen=True)
class Optimizer(Checked):
    """Adam as fairseq computes it, its schedule, and the loss it minimises.

    Attributes:
        learning_rate: peak.
        schedule: `inverse_sqrt`, `cosine` (to zero at `Train.steps`) or `constant`.
        warmup_steps: updates of linear warm-up.
        initial_learning_rate: rate of the first update.
        eps: added to the root of the raw second moment (not bias-corrected, as in fairseq).
        weight_decay: decoupled, on every parameter that trains.
        clip_norm: global gradient norm above which gradients are scaled down; 0 is off.
        label_smoothing: epsilon; every other class gets epsilon / (V - 1).
        accumulate: micro-batches per update.
        frozen: patterns (`mnmt_jax.model.param_patterns`) of parameters that do not train. LoRA's
            own always do; with `Model.lora_rank` and no pattern they alone do.
    """

    learning_rate: Weight = 5e-4
    schedule: Literal["inverse_sqrt", "cosine", "constant"] = "inverse_sqrt"
    warmup_steps: Amount = 4000
    initial_learning_rate: Weight = 0.0
    eps: Weight = 1e-6
    weight_decay: Weight = 0.0
    clip_norm: Weight = 0.0
    label_smoothing: Rate = 0.1
    accumulate: Length = 1
    frozen: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Checks every field, and that the schedule has the warm-up it needs."""
        super().__post_init__()
        if self.schedule == "inverse_sqrt" and not self.warmup_steps:
            raise UserError(
                "Optimizer.warmup_steps=0: schedule 'inverse_sqrt' needs at least 1; "
                "or set Optimizer.schedule='constant'"
            )


@gin.register
@dataclasses.dataclass(frozen=True)
class Train(Checked):
    """Length of a run and what happens on the way.

    Attributes:
        steps: updates.
        seed: the run's: of parameters, dropout, and the order and mixing of the data.
        log_every: updates between lines of `metrics.jsonl`.
        eval_every: updates between validations.
        save_every: updates between checkpoints.
        keep_last: newest checkpoints kept.
        keep_best: checkpoints kept besides, the best by validation loss among those validated at
            their step; 0 keeps none.
        keep_every: checkpoints whose step is a multiple of this are kept for good besides, for
            curves over training; 0 keeps none. A multiple of `save_every`.
        best_by: the tasks whose mean loss that is: those trained on, or all that have validation
            text, which chooses by directions that count as zero-shot.
        patience: updates without a better loss by `best_by` after which the run ends before
            `steps`; 0 is off.
        methods: what only training knows (`mnmt_jax.methods`), e.g. `('instructcl',)` in gin; what
            changes the model stands in `Model.methods`.
    """

    steps: Amount = 100_000
    seed: Seed = 1
    log_every: Count = 100
    eval_every: Count = 1000
    save_every: Count = 1000
    keep_last: Count = 5
    keep_best: Amount = 1
    keep_every: Amount = 0
    best_by: Literal["supervised", "all"] = "supervised"
    patience: Amount = 0
    methods: tuple[Method, ...] = ()

    def __post_init__(self) -> None:
        """Checks every field, and that the best checkpoint can be known."""
        super().__post_init__()
        check_once("Train", self.methods)
        for method in self.methods:
            if method.edits() or method.players():
                raise UserError(
                    f"Train.methods=('{method.name}',) changes the model; name it in Model.methods"
                )
        if self.patience % self.eval_every:
            raise UserError(
                f"Train.patience={self.patience} must be a multiple of Train.eval_every="
                f"{self.eval_every}, since only a validation can show that nothing improves; "
                "change one, or set Train.patience=0"
            )
        if self.keep_every % self.save_every:
            raise UserError(
                f"Train.keep_every={self.keep_every} must be a multiple of Train.save_every="
                f"{self.save_every}, or its steps are not saved; change one, or set "
                "Train.keep_every=0"
            )
        unaligned = self.save_every % self.eval_every and self.eval_every % self.save_every
        if self.keep_best and unaligned:
            raise UserError(
                f"Train.eval_every={self.eval_every} and Train.save_every={self.save_every}: one "
                "must be a multiple of the other, or few checkpoints have a loss to be best by; "
                "change one, or set Train.keep_best=0"
            )


_LEAST_TEMPERATURE = 1e-3  # logits divided by it stay finite in float32


@gin.register
@dataclasses.dataclass(frozen=True)
class Decode(Checked):
    """How translations are searched.

    Attributes:
        beam_size: hypotheses per sentence: 1 is greedy search, more are a beam, or so many samples.
        length_penalty: score = sum of log-probabilities / length ** length_penalty; from -5 to 5,
            where scores of every length stay finite and different from zero.
        max_length: generated tokens at most, without eos.
        max_length_per_source: if > 0 the limit is min(max_length, this x source tokens + 10).
        batch: sentences translated together.
        buckets: source lengths (with tag and eos) that inputs are padded to; longer input is cut
            to the largest and marked.
        temperature: of sampling; 0 searches.
        top_k: sample among the k best; 0 is all.
        top_p: sample among the smallest set of this probability mass; 1 is all.
        seed: of sampling, and of which lines are contrasted.
        source_contrast: weight of the probabilities given another line, which are subtracted
            (`mnmt_jax.decoding.contrastive_decoding`; published with 0.7); 0 is off.
        language_contrast: weight of the probabilities given each of `contrast_languages` as the
            language wanted, which are subtracted too (published with 0.1); 0 is off.
        contrast_languages: codes of languages, and `source` for that of the line.
        allow_unk: whether `<unk>` may be generated; a published search may have allowed it.
        copy_unknown: whether source characters that no piece of the vocabulary covers are copied
            into the translation, instead of being read (`mnmt_jax.decoding.copy_unknown`).
        weights: what a model that is loaded computes with (`mnmt_jax.decoding.weight_precision`): as they
            are `stored`, or rounded to `bfloat16` or `int8`.
    """

    beam_size: Annotated[int, Range(low=1, high=4096)] = 5
    length_penalty: Annotated[float, Range(low=-5, high=5)] = 1.0
    max_length: Length = 200
    max_length_per_source: Annotated[float, Range(low=0, high=1000)] = 0.0
    batch: Length = 32
    buckets: tuple[Length, ...] = (16, 32, 64, 128, 256)
    temperature: Weight = 0.0
    top_k: Amount = 0
    top_p: Annotated[float, Range(low=0, high=1, above=True)] = 1.0
    seed: Seed = 0
    source_contrast: Weight = 0.0
    language_contrast: Weight = 0.0
    contrast_languages: tuple[str, ...] = ("en", "source")
    allow_unk: bool = False
    copy_unknown: bool = False
    weights: Literal["stored", "bfloat16", "int8"] = "stored"

    def __post_init__(self) -> None:
        """Checks every field, that there is a bucket, and that contrasts leave something."""
        super().__post_init__()
        if 0 < self.temperature < _LEAST_TEMPERATURE:
            raise UserError(
                f"Decode.temperature={self.temperature:g} must be 0, which searches, or at least "
                f"{_LEAST_TEMPERATURE:g}"
            )
        if not self.buckets:
            raise UserError("Decode.buckets=() must name at least one length, such as (64,)")
        if self.language_contrast and not self.contrast_languages:
            raise UserError(
                "Decode.contrast_languages=() must name a language, such as ('source',), or set "
                "Decode.language_contrast=0"
            )
        weight = self.source_contrast + self.language_contrast * len(self.contrast_languages)
        if weight >= 1:
            raise UserError(
                f"Decode.source_contrast={self.source_contrast:g} and Decode.language_contrast="
                f"{self.language_contrast:g} of {len(self.contrast_languages)} languages subtract "
                f"{weight:g} of each probability; together they must be below 1"
            )

    @property
    def method(self) -> str:
        """What the values amount to: `sample`, `beam` or `greedy`."""
        return "sample" if self.temperature else "beam" if self.beam_size > 1 else "greedy"


@gin.register
@dataclasses.dataclass(frozen=True)
class Mesh(Checked):
    """Shape of the device mesh; its third axis, `data`, takes the devices that are left.

    Attributes:
        fsdp: batch shards with sharded parameters; -1 takes them all.
        tensor: shards of heads, feed-forward width and vocabulary.
    """

    fsdp: Annotated[int, Range(low=-1, high=2**20)] = 1
    tensor: Width = 1


@dataclasses.dataclass(frozen=True)
class Config:
    """All six together: a run's whole configuration."""

    data: Data
    model: Model
    optimizer: Optimizer
    train: Train
    decode: Decode
    mesh: Mesh

    def __post_init__(self) -> None:
        """Checks that no method stands both in `Model` and in `Train`."""
        check_once("Model.methods and Train", self.methods)

    @property
    def methods(self) -> tuple[Method, ...]:
        """Those of the model and of training."""
        return (*self.model.methods, *self.train.methods)

    def bind_languages(self, languages: Sequence[str], find_code: FindCode) -> Config:
        """Returns it with what methods must know of a vocabulary.

        Args:
            languages: codes, in the order of their tags.
            find_code: looks up a code of another form among them
                (`mnmt_jax.vocabulary.language_codes.find_code`).

        Raises:
            UserError: if a method is of another vocabulary.
        """

        def changed(section: Any) -> Any:
            methods = tuple(
                method.bind_languages(languages, find_code) for method in section.methods
            )
            return dataclasses.replace(section, methods=methods)

        return dataclasses.replace(self, model=changed(self.model), train=changed(self.train))


SECTIONS = {"data": Data, "model": Model, "optimizer": Optimizer}
SECTIONS |= {"train": Train, "decode": Decode, "mesh": Mesh}
