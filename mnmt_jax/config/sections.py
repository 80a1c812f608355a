"""Configuration sections: six frozen dataclasses, and one per method, bound by gin.

A value passes from `.gin` file to dataclass to module, in two steps. Values that can be derived are
properties or are computed where they are used; they are never keys.
"""

from __future__ import annotations

import dataclasses
import importlib.util  # noqa: F401  gin reads this attribute without importing it
import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import gin

from mnmt_jax.design.fields import (
    AboveZero,
    Amount,
    CheckedFields,
    Count,
    Layers,
    Length,
    NoiseShares,
    Positions,
    Range,
    Rate,
    Remat,
    Seed,
    TaskWeights,
    Weight,
    Width,
    check_once,
)
from mnmt_jax.design.method import Method
from mnmt_jax.design.method_hooks import FindCode
from mnmt_jax.errors import UserError


@gin.register
@dataclasses.dataclass(frozen=True)
class Data(CheckedFields):
    """Training data of a run and the layout of its rows.

    Attributes:
        cache: token cache directory (`mnmt cache` makes one), or `gs://bucket/folder`.
        tasks: names of the training tasks; empty means every task with a `train` split.
        temperature: T of p_i ~ w_i (n_i / N)^(1/T); 1 is proportional, larger is flatter.
        min_pairs: tasks with fewer training pairs are drawn as if they had so many.
        weights: weights w_i of tasks by patterns of their names or directions, 1 if none matches,
            the product if several match; 0 leaves tasks out. A third value is the number of drawn
            pairs from which the weight replaces the one of the same pattern.
        noise: shares of training pairs that get noise when they are read (`mnmt_jax.data.noise`):
            `lower` and `typos` change the source, `upper`, `title` and `tags` both sentences.
        instruction: key of `mnmt_jax.data.instruction.INSTRUCTIONS`: position of the language tags.
        rows: rows of one global batch (of one micro-batch when accumulating).
        source_length: tokens of a row's source span; causal language models have none.
        target_length: tokens of a row's target span; masked language models have none.
        max_segments: maximum number of sentence pairs packed into a row; 1 disables packing.
        chunk_examples: examples planned (shuffled, packed) at a time.
        workers: processes that build training batches, per process of the run; 0 builds them in a
            thread. The batches are the same.
        validation_examples: number of sentence pairs per task used for validation, the first ones;
            a larger number than available uses all.
    """

    cache: str = ""
    tasks: tuple[str, ...] = ()
    temperature: Annotated[float, Range(low=0.1, high=1e9)] = 5.0
    min_pairs: Amount = 0
    weights: TaskWeights = ()
    noise: NoiseShares = ()
    instruction: str = "1"
    rows: Width = 64
    source_length: Length = 128
    target_length: Length = 128
    max_segments: Length = 8
    chunk_examples: Count = 16384
    workers: Annotated[int, Range(low=0, high=2**10)] = 0
    validation_examples: Amount = 200

    def __post_init__(self) -> None:
        """Check every field, and that each kind of noise is listed once and their shares fit."""
        super().__post_init__()
        check_once("Data.noise", [kind for kind, _ in self.noise])
        if math.fsum(share for _, share in self.noise) > 1:
            raise UserError(f"Data.noise={self.noise!r} must have shares of at most 1 in all")


@gin.register
@dataclasses.dataclass(frozen=True)
class Model(CheckedFields):
    """Sizes and structure of a model. Dimensions are defined only here.

    Attributes:
        layout: row of `mnmt_jax.design.layouts.LAYOUTS`.
        stage_layers: layers of each stage.
        embed: residual width.
        mlp: hidden width of the feed-forward layers.
        stage_mlp: hidden width of the feed-forward layers of each stage, e.g. of encoder and
            decoder; () uses `mlp` in all stages.
        activation: activation of the feed-forward layers: `relu` or the exact `gelu`, x * Phi(x).
        heads: attention heads; must divide `embed`.
        vocab_size: size that the vocabulary must have; 0 accepts any. It sets no size.
        norm: `pre` (with a norm at the end of each stage) or `post` (without).
        register_factor: source tokens per register, if the layout has any; r = ceil(n / factor).
        dropout: rate on embeddings, attention outputs and feed-forward outputs.
        attention_dropout: rate on attention weights.
        positions: position encoding: `('sinusoidal', base)` with the base of the wavelengths, 10000
            as published; `('learned', rows)` with a vector for each of `rows` positions; or `()`
            for none.
        embedding_scale: whether to multiply token embeddings by sqrt(embed) before positions are
            added.
        methods: methods that change the model (`mnmt_jax.methods`), in the order in which they edit
            the plan; gin lists their names, e.g. `('adaption',)`, and has a section for each.
        lora_rank: rank of the LoRA update of projections (`mnmt_jax.model.lora`); 0 disables LoRA.
        lora: patterns (`mnmt_jax.model.param_patterns`) of the projections with LoRA.
        dtype: compute type, `float32` or `bfloat16`; parameters are float32.
        attention: `split` (each role computes only visible keys), `fused` (the same with a fused
            kernel where one fits, on TPU and GPU) or `dense` (the slow reference).
        remat: what the backward pass recomputes instead of reading it from memory: nothing
            (`False`); `elementwise`, all but matrix products: norms, dropout, activations and
            attention scores; `mlp`, these and the feed-forward layers; whole layers (`True`).
    """

    layout: str = "register"
    stage_layers: tuple[Layers, ...] = (12,)
    embed: Annotated[int, Range(low=2, high=2**17)] = 1024
    mlp: Width = 4096
    stage_mlp: tuple[Width, ...] = ()
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
    remat: Remat = False

    def __post_init__(self) -> None:
        """Check every field, and that the widths are compatible."""
        super().__post_init__()
        check_once("Model.methods", _names(self.methods))
        if self.embed % self.heads:
            raise UserError(
                f"Model.embed={self.embed} must be a multiple of Model.heads={self.heads}"
            )
        if self.embed % 2 and "sinusoidal" in self.positions:
            raise UserError(
                f"Model.embed={self.embed} must be even: positions are sines and cosines"
            )
        if self.stage_mlp and len(self.stage_mlp) != len(self.stage_layers):
            raise UserError(
                f"Model.stage_mlp={self.stage_mlp} must have one width per stage, as "
                f"Model.stage_layers={self.stage_layers}, or be ()"
            )
        if self.lora_rank and not self.lora:
            raise UserError(
                f"Model.lora=() with Model.lora_rank={self.lora_rank} must name projections, such "
                "as ('query', 'value')"
            )

    def mlp_width(self, stage: int) -> int:
        """Return the hidden width of the feed-forward layers of a stage, counted from 0."""
        return self.stage_mlp[stage] if self.stage_mlp else self.mlp

    @property
    def mlp_widths(self) -> tuple[int, ...]:
        """Hidden width of the feed-forward layers of each stage."""
        return tuple(map(self.mlp_width, range(len(self.stage_layers))))

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.embed // self.heads


@gin.register
@dataclasses.dataclass(frozen=True)
class Optimizer(CheckedFields):
    """The optimizer, its schedule, and the loss.

    Attributes:
        name: `adam` as in fairseq; `muon` for kernels, with Adam for the other parameters; or
            `schedule_free`, AdamW that needs no decay and translates with an average.
        learning_rate: peak.
        schedule: `inverse_sqrt`, `cosine` (to zero at `Train.steps`) or `constant`.
        warmup_steps: updates of linear warm-up.
        initial_learning_rate: rate of the first update of a warm-up; without one it has no effect.
        eps: added to the root of the raw second moment (not bias-corrected, as in fairseq; the
            others than `adam` correct it).
        weight_decay: decoupled, on all trained parameters.
        clip_norm: global gradient norm above which gradients are scaled down; 0 disables clipping.
        label_smoothing: epsilon; every other class gets epsilon / (V - 1).
        ema_decay: decay of an exponential moving average of the parameters, which validation and
            translation then use; 0 keeps none.
        accumulate: micro-batches per update.
        frozen: patterns (`mnmt_jax.model.param_patterns`) of parameters that are not trained. LoRA
            parameters are always trained; with `Model.lora_rank` and no pattern only they are
            trained.
    """

    name: Literal["adam", "muon", "schedule_free"] = "adam"
    learning_rate: Weight = 5e-4
    schedule: Literal["inverse_sqrt", "cosine", "constant"] = "inverse_sqrt"
    warmup_steps: Amount = 4000
    initial_learning_rate: Weight = 0.0
    eps: AboveZero = 1e-6
    weight_decay: Weight = 0.0
    clip_norm: Weight = 0.0
    label_smoothing: Rate = 0.1
    ema_decay: Rate = 0.0
    accumulate: Length = 1
    frozen: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check every field, and that the schedule has its required warm-up."""
        super().__post_init__()
        if self.schedule == "inverse_sqrt" and not self.warmup_steps:
            raise UserError(
                "Optimizer.warmup_steps=0: schedule 'inverse_sqrt' needs at least 1 step; raise "
                "it, or set Optimizer.schedule='constant'"
            )
        if self.name == "schedule_free" and self.schedule != "constant":
            raise UserError(
                f"Optimizer.schedule='{self.schedule}' must be 'constant' with Optimizer.name="
                "'schedule_free', whose average replaces the decay"
            )
        if self.name == "schedule_free" and self.ema_decay:
            raise UserError(
                f"Optimizer.ema_decay={self.ema_decay:g} must be 0 with Optimizer.name="
                "'schedule_free', which averages the parameters itself"
            )


TASK_GROUPS = ("supervised", "zero_shot", "from_english", "to_english", "all")
LOSS_MEASURES = ("loss", "nll", "perplexity")
TRANSLATION_MEASURES = ("bleu", "chrf", "off_target")
TrackerName = Literal["tensorboard", "mlflow", "wandb"]


@gin.register
@dataclasses.dataclass(frozen=True)
class Train(CheckedFields):
    """Length of a run, and its logging, validation and checkpoints.

    Attributes:
        steps: updates.
        epochs: passes over the data, a length instead of `steps`; 0 uses `steps`. An epoch shows
            each pair of the largest task once (`mnmt_jax.training.epochs`).
        seed: seed of parameters, dropout, and the order and mixing of the data.
        log_every: updates between lines of `metrics.jsonl`.
        eval_every: updates between validations.
        save_every: updates between checkpoints.
        keep_last: newest checkpoints kept.
        keep_best: additional checkpoints kept: the best by `best_by` among those validated at
            their step; 0 keeps none.
        keep_every: additional checkpoints kept permanently: those whose step is a multiple of this,
            for curves over training; 0 keeps none. Must be a multiple of `save_every`.
        translate_pairs: pairs of each validation task, the first ones, that are translated greedily
            at each validation and scored by BLEU, chrF++ and off-target ratio; 0 translates none.
        best_by: what ranks checkpoints, a group of tasks, or `group/measure`. Groups are
            `supervised`, `zero_shot`, `from_english`, `to_english`, and `all` with validation text;
            measures are `loss`, the default, `nll`, `perplexity`, and with `translate_pairs` also
            `bleu`, `chrf` (chrF++) and `off_target`. The mean over the tasks counts.
        patience: updates without a better validation by `best_by` after which the run stops early;
            0 disables early stopping.
        trackers: experiment trackers that receive the metrics: `tensorboard`, `mlflow` (extra
            `mlflow`) and `wandb` (Weights & Biases, extra `wandb`). `metrics.jsonl` is always
            written.
        methods: methods that only affect training (`mnmt_jax.methods`), e.g. `('instructcl',)` in
            gin; methods that change the model are listed in `Model.methods`.
    """

    steps: Amount = 100_000
    epochs: Annotated[float, Range(low=0, high=1e6)] = 0.0
    seed: Seed = 1
    log_every: Count = 100
    eval_every: Count = 1000
    save_every: Count = 1000
    keep_last: Count = 5
    keep_best: Amount = 1
    keep_every: Amount = 0
    translate_pairs: Amount = 0
    best_by: str = "supervised"
    patience: Amount = 0
    trackers: tuple[TrackerName, ...] = ("tensorboard",)
    methods: tuple[Method, ...] = ()

    def __post_init__(self) -> None:
        """Check every field, and that the best checkpoint can be determined."""
        super().__post_init__()
        check_once("Train.methods", _names(self.methods))
        check_once("Train.trackers", self.trackers)
        for method in self.methods:
            if method.edits() or method.players():
                raise UserError(
                    f"Train.methods=('{method.name}',) changes the model; name it in Model.methods"
                )
        self._check_best_by()
        if self.patience % self.eval_every:
            raise UserError(
                f"Train.patience={self.patience} must be a multiple of "
                f"Train.eval_every={self.eval_every}, because it is checked at validations; change "
                "one, or set Train.patience=0"
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
                "must be a multiple of the other, or few checkpoints have a validation loss; "
                "change one, or set Train.keep_best=0"
            )

    def _check_best_by(self) -> None:
        group, slash, measure = self.best_by.partition("/")
        measures = (*LOSS_MEASURES, *TRANSLATION_MEASURES)
        if group not in TASK_GROUPS or (slash and measure not in measures):
            raise UserError(
                f"Train.best_by='{self.best_by}' must be one of {', '.join(TASK_GROUPS)}, and may "
                f"end in /{', /'.join(measures)}"
            )
        if measure in TRANSLATION_MEASURES and not self.translate_pairs:
            raise UserError(
                f"Train.best_by='{self.best_by}' scores translations; set Train.translate_pairs, "
                "for example to 100"
            )


_LEAST_TEMPERATURE = 1e-3  # logits divided by it stay finite in float32


@gin.register
@dataclasses.dataclass(frozen=True)
class Decode(CheckedFields):
    """Search settings of translation.

    Attributes:
        beam_size: hypotheses per sentence: 1 is greedy search, more is a beam, or the number of
            samples.
        length_penalty: score = sum of log-probabilities / length ** length_penalty; from -5 to 5,
            so that scores of all lengths stay finite and nonzero.
        max_length: maximum number of generated tokens, without eos.
        max_length_per_source: if > 0 the limit is min(max_length, this x source tokens + 10).
        batch: sentences translated together.
        buckets: source lengths (with tag and eos) that inputs are padded to; longer inputs are
            truncated to the largest and marked.
        beam_groups: groups of diverse beam search, which divide the beam; 1 is plain beam search.
        diversity_penalty: nats by which a group avoids a token of an earlier group.
        temperature: sampling temperature; 0 searches instead.
        top_k: sample among the k best tokens; 0 means all.
        top_p: sample among the smallest set with this probability mass; 1 means all.
        epsilon_cutoff: sample among the tokens of at least this probability; 0 means all.
        utility: utility that ranks hypotheses (`mnmt_jax.decoding.utilities`): `chrf`, `chrf++` or
            `bleu` for minimum Bayes risk, `backward` for reranking, '' for the model's score.
        seed: seed of sampling, and of the choice of contrast lines.
        source_contrast: weight of the subtracted probabilities given another line
            (`mnmt_jax.decoding.contrastive_decoding`; published with 0.7); 0 disables it.
        language_contrast: weight of the subtracted probabilities given each of `contrast_languages`
            as target language (published with 0.1); 0 disables it.
        contrast_languages: language codes, and `source` for the source language of the line.
        allow_unk: whether `<unk>` may be generated, as some published searches allow.
        copy_unknown: whether source characters that no piece of the vocabulary covers are copied
            into the translation instead of encoded (`mnmt_jax.decoding.copy_unknown`).
        weights: precision of the loaded weights (`mnmt_jax.decoding.weight_precision`): as
            `stored`, or rounded to `bfloat16` or `int8`.
        ensemble: further runs, `RUN` or `RUN@STEP`, whose probabilities are averaged with those of
            the loaded one (`mnmt_jax.decoding.ensemble`).
        averaged: whether runs with `Optimizer.ema_decay` or `schedule_free` translate with the
            average of their parameters instead of the last ones.
    """

    beam_size: Annotated[int, Range(low=1, high=4096)] = 5
    length_penalty: Annotated[float, Range(low=-5, high=5)] = 1.0
    max_length: Length = 200
    max_length_per_source: Annotated[float, Range(low=0, high=1000)] = 0.0
    batch: Length = 32
    buckets: tuple[Length, ...] = (16, 32, 64, 128, 256)
    beam_groups: Annotated[int, Range(low=1, high=4096)] = 1
    diversity_penalty: Weight = 0.5
    temperature: Weight = 0.0
    top_k: Amount = 0
    top_p: Annotated[float, Range(low=0, high=1, exclude_low=True)] = 1.0
    epsilon_cutoff: Rate = 0.0
    utility: str = ""
    seed: Seed = 0
    source_contrast: Weight = 0.0
    language_contrast: Weight = 0.0
    contrast_languages: tuple[str, ...] = ("en", "source")
    allow_unk: bool = False
    copy_unknown: bool = False
    weights: Literal["stored", "bfloat16", "int8"] = "stored"
    ensemble: tuple[str, ...] = ()
    averaged: bool = True

    def __post_init__(self) -> None:
        """Check every field, that there is a bucket, and that contrasts sum to less than 1."""
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
        """The resulting search method: `sample`, `beam` or `greedy`."""
        return "sample" if self.temperature else "beam" if self.beam_size > 1 else "greedy"


@gin.register
@dataclasses.dataclass(frozen=True)
class Mesh(CheckedFields):
    """Shape of the device mesh; its third axis, `data`, uses the remaining devices.

    Attributes:
        fsdp: batch shards with sharded parameters; -1 uses all devices, or with several TPU slices
            those of one.
        tensor: shards of heads, feed-forward width and vocabulary.
    """

    fsdp: Annotated[int, Range(low=-1, high=2**20)] = 1
    tensor: Width = 1


@dataclasses.dataclass(frozen=True)
class Config:
    """The complete configuration of a run."""

    data: Data
    model: Model
    optimizer: Optimizer
    train: Train
    decode: Decode
    mesh: Mesh

    def __post_init__(self) -> None:
        """Check that no method is listed in both `Model` and `Train`."""
        check_once("Model.methods and Train.methods", _names(self.methods))

    @property
    def methods(self) -> tuple[Method, ...]:
        """The methods of the model and of training."""
        return (*self.model.methods, *self.train.methods)

    def bind_languages(self, languages: Sequence[str], find_code: FindCode) -> Config:
        """Return the configuration with its methods bound to a vocabulary's languages.

        Args:
            languages: codes, in the order of their tags.
            find_code: looks up a code of another form among them
                (`mnmt_jax.vocabulary.language_codes.find_code`).

        Raises:
            UserError: if a method is bound to another vocabulary.
        """

        def bound(section: Any) -> Any:
            methods = tuple(
                method.bind_languages(languages, find_code) for method in section.methods
            )
            return dataclasses.replace(section, methods=methods)

        return dataclasses.replace(self, model=bound(self.model), train=bound(self.train))


SECTIONS = {"data": Data, "model": Model, "optimizer": Optimizer}
SECTIONS |= {"train": Train, "decode": Decode, "mesh": Mesh}


def _names(methods: Sequence[Method]) -> list[str]:
    return [method.name for method in methods]
