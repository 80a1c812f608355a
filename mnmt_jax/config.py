"""Configuration: six frozen dataclasses, and one per method, that gin files fill.

The path of a value is `.gin` file -> dataclass -> module: two hops. Values that can be derived are
properties or are computed where they are used, never keys. Of gin this module takes the grammar
alone: a file is read as data, and nothing in it is imported or called. t5x, which reads the same
files, uses gin itself (`mnmt_jax.t5x_config`).
"""

from __future__ import annotations

import dataclasses
import importlib.util  # noqa: F401  gin reads this attribute without importing it
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import gin
from gin import config_parser

from mnmt_jax.bindings import Bindings
from mnmt_jax.config_checks import (
    Amount,
    Checked,
    Count,
    Number,
    Positive,
    Range,
    Rate,
    Seed,
    Weight,
)
from mnmt_jax.earlier import renewed
from mnmt_jax.errors import UserError
from mnmt_jax.gin_grammar import statements_of
from mnmt_jax.method import Method, check_once
from mnmt_jax.methods import get_method, get_section, section_titles
from mnmt_jax.partial import write_text


@gin.register
@dataclasses.dataclass(frozen=True)
class Data(Checked):
    """What a run reads and how rows are laid out.

    Attributes:
        cache: token cache directory (`scripts/cache_tasks.py` makes one).
        tasks: names of the training tasks; empty means every task with a `train` split.
        temperature: T of p_i ~ (n_i / N)^(1/T); 1 is proportional, larger is flatter.
        instruction: key of `mnmt_jax.data.instruction.INSTRUCTIONS`: where language tags stand.
        rows: rows of one global batch (of one micro-batch when accumulating).
        source_length: tokens of a row's source span.
        target_length: tokens of a row's target span.
        max_segments: sentence pairs packed into a row at most; 1 switches packing off.
        chunk_examples: examples planned (shuffled, packed) at a time.
        validation_examples: sentence pairs per validation task.
    """

    cache: str = ""
    tasks: tuple[str, ...] = ()
    temperature: Positive = 5.0
    instruction: str = "1"
    rows: Count = 64
    source_length: Count = 128
    target_length: Count = 128
    max_segments: Count = 8
    chunk_examples: Count = 16384
    validation_examples: Amount = 200


@gin.register
@dataclasses.dataclass(frozen=True)
class Model(Checked):
    """Sizes and structure of a model. Dimensions live here and nowhere else.

    Attributes:
        layout: row of `mnmt_jax.layouts.LAYOUTS`.
        stage_layers: layers of each stage.
        embed: residual width.
        mlp: hidden width of the feed-forward layers.
        heads: attention heads; `embed` must be a multiple.
        vocab_size: entries the vocabulary must have; 0 accepts any. Never sets a size by itself.
        norm: `pre` (with a norm at the end of each stage) or `post` (without).
        register_factor: source tokens per register; r = ceil(n / register_factor).
        dropout: rate on embeddings, attention outputs and feed-forward outputs.
        attention_dropout: rate on attention weights.
        position_base: base of the sinusoids' wavelengths; 10000 as published.
        methods: what makes it another model (`mnmt_jax.methods`), in the order in which they edit
            the plan; gin names them, e.g. `('adaption',)`, and has a section for each.
        lora_rank: rank of the trained change (LoRA, `mnmt_jax.lora`) that projections carry beside
            their weights; 0 is without.
        lora: patterns (`mnmt_jax.patterns`) of the projections that carry it.
        dtype: compute type, `float32` or `bfloat16`; parameters are float32.
        attention: `split` (each role meets only the keys it may see) or `dense` (the slow oracle).
        remat: recompute each layer in the backward pass instead of keeping its activations.
    """

    layout: str = "register"
    stage_layers: tuple[Count, ...] = (12,)
    embed: Annotated[int, Range(low=2)] = 1024
    mlp: Count = 4096
    heads: Count = 16
    vocab_size: Amount = 0
    norm: Literal["pre", "post"] = "pre"
    register_factor: Positive = 1.0
    dropout: Rate = 0.1
    attention_dropout: Rate = 0.0
    position_base: Positive = 10000.0
    methods: tuple[Method, ...] = ()
    lora_rank: Amount = 0
    lora: tuple[str, ...] = ("query", "value")
    dtype: Literal["float32", "bfloat16"] = "float32"
    attention: Literal["split", "dense"] = "split"
    remat: bool = False

    def __post_init__(self) -> None:
        """Checks every field, and that the widths fit each other."""
        super().__post_init__()
        check_once("Model", self.methods)
        if self.embed % self.heads:
            raise UserError(
                f"Model.embed={self.embed} must be a multiple of Model.heads={self.heads}"
            )
        if self.embed % 2:
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
        frozen: patterns (`mnmt_jax.patterns`) of parameters that do not train. LoRA's own always
            do; with `Model.lora_rank` and no pattern they alone do.
    """

    learning_rate: Weight = 5e-4
    schedule: Literal["inverse_sqrt", "cosine", "constant"] = "inverse_sqrt"
    warmup_steps: Amount = 4000
    initial_learning_rate: Weight = 0.0
    eps: Weight = 1e-6
    weight_decay: Weight = 0.0
    clip_norm: Weight = 0.0
    label_smoothing: Rate = 0.1
    accumulate: Count = 1
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
        keep_best: checkpoints kept besides, the best by supervised validation loss among those
            validated at their step; 0 keeps none.
        loss_chunk: tokens whose logits exist at one time, per shard of the batch.
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
    loss_chunk: Count = 4096
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
        unaligned = self.save_every % self.eval_every and self.eval_every % self.save_every
        if self.keep_best and unaligned:
            raise UserError(
                f"Train.eval_every={self.eval_every} and Train.save_every={self.save_every}: one "
                "must be a multiple of the other, or few checkpoints have a loss to be best by; "
                "change one, or set Train.keep_best=0"
            )


@gin.register
@dataclasses.dataclass(frozen=True)
class Decode(Checked):
    """How translations are searched.

    Attributes:
        beam_size: hypotheses per sentence: 1 is greedy search, more are a beam, or so many samples.
        length_penalty: score = sum of log-probabilities / length ** length_penalty.
        max_length: generated tokens at most, without eos.
        max_length_per_source: if > 0 the limit is min(max_length, this x source tokens + 10).
        batch: sentences translated together.
        buckets: source lengths (with tag and eos) that inputs are padded to; longer input is cut
            to the largest and marked.
        temperature: of sampling; 0 searches.
        top_k: sample among the k best; 0 is all.
        top_p: sample among the smallest set of this probability mass; 1 is all.
        seed: of sampling.
    """

    beam_size: Count = 5
    length_penalty: Number = 1.0
    max_length: Count = 200
    max_length_per_source: Weight = 0.0
    batch: Count = 32
    buckets: tuple[Count, ...] = (16, 32, 64, 128, 256)
    temperature: Weight = 0.0
    top_k: Amount = 0
    top_p: Annotated[float, Range(low=0, high=1, above=True)] = 1.0
    seed: Seed = 0

    def __post_init__(self) -> None:
        """Checks every field, and that there is a bucket."""
        super().__post_init__()
        if not self.buckets:
            raise UserError("Decode.buckets=() must name at least one length, such as (64,)")

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

    fsdp: Annotated[int, Range(low=-1)] = 1
    tensor: Count = 1


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


class Source(Protocol):
    """Where the values of sections come from: `Bindings`, or gin itself."""

    def value(self, title: str, field: str, default: Any) -> Any:
        """Returns what a field is bound to."""

    def place(self, title: str, field: str) -> str:
        """Returns `FILE:LINE: ` of a binding, for errors."""

    def section(self, section: type, further: Mapping[str, Any]) -> Any:
        """Makes a section, with values that are not bound."""


_MARK = "# Written by mnmt-jax.\n"
SECTIONS = {"data": Data, "model": Model, "optimizer": Optimizer}
SECTIONS |= {"train": Train, "decode": Decode, "mesh": Mesh}
_ROOT = Path(__file__).resolve().parent.parent
gin.add_config_file_search_path(str(_ROOT))  # for t5x


def load_config(
    gin_files: Sequence[str], bindings: Sequence[str] = (), *, run: Path | None = None
) -> Config:
    """Reads gin files and bindings.

    Args:
        gin_files: paths, later ones win; includes are looked up from the working directory and the
            repository root. An `import` in them must name what has been imported already.
        bindings: `Section.field=value` in gin syntax, applied last.
        run: configuration of a run, read first; somebody else may have made it, so it may hold
            bindings alone: no `import` and no `include`.

    Raises:
        UserError: if a file is missing, does not parse, names an unknown field or macro, or binds
            something that nothing reads.
    """
    found = _bindings()
    if run is not None:
        _read_file(found, run, str(run), values_alone=True)
    for path in gin_files:
        if (file := _find(path)) is None:
            raise UserError(f"--gin_file={path}: no such file")
        _read_file(found, file, path)
    for binding in bindings:
        _read_binding(found, binding)
    config = assembled(found)
    read = (*SECTIONS.values(), *map(type, config.methods))
    found.check_read([section.__name__ for section in read])
    return config


def assembled(source: Source) -> Config:
    """Makes all sections, those of the methods that `Model` and `Train` name first."""
    made = {}
    for name, section in SECTIONS.items():
        further: dict[str, Any] = {}
        if section in (Model, Train):
            title = section.__name__
            try:
                chosen = _chosen(title, source.value(title, "methods", ()))
            except UserError as error:
                raise UserError(f"{source.place(title, 'methods')}{error}") from error
            further["methods"] = [source.section(each, {}) for each in chosen]
        made[name] = source.section(section, further)
    return Config(**made)


def _chosen(title: str, names: Any) -> list[type[Method]]:
    if not isinstance(names, tuple | list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{title}.methods={names!r} must be a tuple, such as ('adaption',)")
    return [get_method(name, f"{title}.methods") for name in names]


def no_such_field(title: str, field: str) -> str:
    """Returns what to say of a field that a section does not have; nothing if neither is ours.

    Args:
        title: of the section, such as `Model`.
        field: its name.
    """
    return _bindings().no_such_field(title, field)


def _bindings() -> Bindings:
    return Bindings(SECTIONS.values(), get_section, section_titles)


def _find(path: str) -> Path | None:
    """Returns a file below the working directory or else the repository root."""
    return next((file for file in (Path(path), _ROOT / path) if file.is_file()), None)


def _read_file(
    found: Bindings,
    path: Path,
    named: str,
    *,
    values_alone: bool = False,
    within: tuple[Path, ...] = (),
) -> None:
    """Reads a file and those that it includes.

    Args:
        found: takes the bindings.
        path: where it is.
        named: how messages name it.
        values_alone: refuse `import` and `include`.
        within: the files that led here by including.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{named}: not UTF-8 text; give a gin file") from error
    within = (*within, path.resolve())
    statements = statements_of(text, named)
    for statement in renewed(statements) if values_alone else statements:
        place = f"{named}:{statement.location.line_num}: "
        includes = isinstance(statement, config_parser.IncludeStatement)
        if not includes and not isinstance(statement, config_parser.ImportStatement):
            found.bind(statement, place, place)
        elif values_alone:
            told = f"include '{statement.filename}'" if includes else statement.format()
            raise UserError(
                f"{place}{told}: the configuration of a run holds values alone; remove the line"
            )
        elif includes:
            _include(found, statement.filename, place, within)
        else:
            _check_imported(statement, place)


def _include(found: Bindings, filename: str, place: str, within: tuple[Path, ...]) -> None:
    file = _find(filename)
    if file is None:
        raise UserError(f"{place}include '{filename}': no such file")
    if file.resolve() in within:
        raise UserError(
            f"{place}include '{filename}': files include each other in a circle; remove the line"
        )
    _read_file(found, file, filename, within=within)


def _check_imported(statement: config_parser.ImportStatement, place: str) -> None:
    """Checks that a module was imported already: a gin file imports nothing itself."""
    told = f"{place}{statement.format()}"
    if statement.module.startswith("__gin__"):
        raise UserError(f"{told}: the file is for t5x; docs/t5x.md says how to run it")
    if statement.module not in sys.modules:
        raise UserError(
            f"{told}: a gin file imports nothing by itself; if you trust the module, pass "
            f"--module_import={statement.module}"
        )


def _read_binding(found: Bindings, text: str) -> None:
    for statement in statements_of(text, ""):
        if not isinstance(statement, config_parser.BindingStatement):
            raise UserError(f"{text}: must be NAME=VALUE")
        found.bind(statement, f"{text}: ", "")


def save_config(config: Config, path: str | Path) -> None:
    """Writes every field, defaults included, as a gin file that `load_config` reads back."""
    lines = [_MARK]
    for section in (*(getattr(config, name) for name in SECTIONS), *config.methods):
        for field in dataclasses.fields(section):
            value = getattr(section, field.name)
            value = tuple(each.name for each in value) if field.name == "methods" else value
            lines.append(f"{type(section).__name__}.{field.name} = {value!r}")
        lines.append("")
    write_text(Path(path), "\n".join(lines))


def is_saved_config(text: str) -> bool:
    """Returns whether `save_config` wrote a text, of this version or of one without the mark."""
    if text.startswith(_MARK):
        return True
    lines = [line for line in text.splitlines() if line]
    sections = [line.partition(".")[0] for line in lines if re.match(r"\w+\.\w+ = ", line)]
    wanted = [section.__name__ for section in SECTIONS.values()]
    return len(sections) == len(lines) and list(dict.fromkeys(sections)) == wanted
