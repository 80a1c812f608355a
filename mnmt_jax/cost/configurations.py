"""Table of the shipped configurations: model sizes and run settings."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from pathlib import Path

from mnmt_jax.config.loading import GIN_ROOT, load_config
from mnmt_jax.config.sections import Config, Model
from mnmt_jax.cost.describe import count_parameters
from mnmt_jax.design.layouts import get_layout
from mnmt_jax.methods.instructcl import InstruCL
from mnmt_jax.model.shapes import parameter_shapes
from mnmt_jax.model.sublayers import make_plan
from mnmt_jax.model.trainable_params import Trainable

GIN_CONFIGS = GIN_ROOT / "gin_configs"

_INTRODUCTION = """# Configurations

Made by `python scripts/make_configuration_table.py > docs/configurations.md`; a test keeps it so.

A model file and a run file together are a configuration:

```
mnmt train --gin_file=gin_configs/models/two_stage_adaption_ted19.gin \\
    --gin_file=gin_configs/runs/ted19.gin --gin.Data.cache="'CACHE'" --workdir=RUN
```

Files in `models/sizes`, `models/vocabularies`, `models/families` and `runs/settings` hold what
several share. Where paper and code differ, the file follows what the released models need, and its
comment names the binding for the other reading.
"""

_LORA = GIN_CONFIGS / "runs" / "settings" / "lora.gin"
_LORA_MODELS = ("register_mitre_466m", "register_mitre_913m")

_MODELS = """
## Models

Parameters, counted from the shapes of the model's own initialisation
(`mnmt describe --gin_file=FILE` gives them by component). Where embeddings are frozen
(the models that start from M2M-100 and NLLB) the column "rest" is what is trained. The runs
`*_lora` train what LoRA adds: {lora}.
What stands beside a model in training alone, as TPDM's critic does, is not in its row; its position
head and gates, of training alone too, are.
"""

_RUNS = """
## Runs

Tokens per update are rows x length x accumulated micro-batches, padding included; beam is that of
translation. "Trains" is what the run file says: a method of the model may freeze more, as
`graformer` does its causal model. What does not train has no gradient, no optimizer state and no
weight decay.
"""

_CONTRASTIVE = """
## InstruCL

A third file adds the two-stage paper's contrastive term to a model and a run:
`--gin_file=gin_configs/runs/settings/instructcl_9.gin`. The paper's main results have it after
layer 1.5N of decoder-only and two-stage models, counted through both stages; its Table 3 adds
layer N, the only one for encoder-decoder models. N is 6 for TED-19, OPUS-100 wide, M2M-100 418M and
NLLB, and 12 for OPUS-100 deep and M2M-100 1.2B. `--gin.InstruCL.layer=K` names any layer.

The authors compare the pairs of one GPU's micro-batch. `InstruCL.groups` cuts the rows of a
micro-batch into as many parts, 8 in these files; two runs need another number:

| run | binding | tokens of a part | published, of a GPU |
| --- | --- | --- | --- |
| `ted19`, `ted19_from_m2m100_418m` | | 4,000 | 4,000 |
| `ted19_from_nllb_600m` | | 2,000 | 2,000 |
| `ted19_from_m2m100_1.2b` | `--gin.InstruCL.groups=4` | 4,000 | 4,000 |
| `opus100_deep` | | 3,200 | 4,000 |
| `opus100_wide` | `--gin.InstruCL.groups=10` | 2,048 | 2,000 |
"""


def model_files(folder: Path = GIN_CONFIGS) -> tuple[Path, ...]:
    """Return the model files of published models, which expect a vocabulary."""
    files = sorted((folder / "models").glob("*.gin"))
    return tuple(path for path in files if load_config([str(path)]).model.vocab_size)


def run_files(folder: Path = GIN_CONFIGS) -> tuple[Path, ...]:
    """Return the run files of published models, without our benchmarks and user text."""
    files = sorted((folder / "runs").glob("*.gin"))
    return tuple(path for path in files if not path.stem.startswith(("cldr", "own", "libreoffice")))


def contrastive_files(folder: Path = GIN_CONFIGS) -> tuple[Path, ...]:
    """List the files that add the contrastive term after a layer, by layer."""
    files = (folder / "runs" / "settings").glob("instructcl_*.gin")
    return tuple(sorted(files, key=lambda path: instructcl(path).layer))


def instructcl(path: Path) -> InstruCL:
    """Return the contrastive term that a file adds."""
    (method,) = load_config([str(path)]).train.methods
    if not isinstance(method, InstruCL):
        raise TypeError(f"{path}: {method}")
    return method


@functools.cache
def parameter_counts(model: Model) -> dict[str, int]:
    """Count a model's parameters by component and in `total`, with the vocabulary it expects."""
    plan = make_plan(model, get_layout(model.layout, model.stage_layers))
    return count_parameters(parameter_shapes(model, model.vocab_size), plan)


@functools.cache
def trainable_count(config: Config) -> int:
    """Count the trained parameters of a configuration, with the vocabulary the model expects."""
    shapes = parameter_shapes(config.model, config.model.vocab_size)
    return Trainable.from_config(config.model, config.optimizer).count(shapes)


def configuration_page() -> str:
    """Return the page of all published models' sizes and all runs' settings."""
    return (
        _INTRODUCTION
        + _MODELS.format(lora=", ".join(map(_lora_count, _LORA_MODELS)))
        + f"\n{_models()}{_RUNS}\n{_runs()}{_CONTRASTIVE}\n{_contrastive()}"
    )


def _lora_count(name: str) -> str:
    config = load_config([str(GIN_CONFIGS / "models" / f"{name}.gin"), str(_LORA)])
    return f"{trainable_count(config):,} for `{name}`"


def _models() -> str:
    header = ["file", "layout", "layers", "width", "vocabulary", "embedding", "rest", "total"]
    return _table(header, (_model_row(p.stem, load_config([str(p)])) for p in model_files()))


def _runs() -> str:
    header = ["file", "updates", "tokens/update", "peak rate", "warm-up", "dropout", "ε", "T"]
    rows = (_run_row(p.stem, load_config([str(p)])) for p in run_files())
    return _table([*header, "beam", "trains"], rows)


def _contrastive() -> str:
    header = ["file", "after layer", "form"]
    terms = [(path.stem, instructcl(path)) for path in contrastive_files()]
    return _table(header, ([f"`{n}`", str(term.layer), f"`{term.form}`"] for n, term in terms))


def _model_row(name: str, config: Config) -> list[str]:
    model, counts = config.model, parameter_counts(config.model)
    norm = "" if model.norm == "pre" else f", {model.norm}-norm"
    return [
        f"`{name}`",
        f"`{model.layout}`",
        "+".join(str(layers) for layers in model.stage_layers),
        f"{model.embed}/{model.mlp}/{model.heads}{norm}",
        f"{model.vocab_size:,}",
        f"{counts['embedding']:,}",
        f"{counts['total'] - counts['embedding']:,}",
        f"{counts['total']:,}",
    ]


def _run_row(name: str, config: Config) -> list[str]:
    data, optimizer = config.data, config.optimizer
    tokens = data.rows * data.source_length * optimizer.accumulate
    dropout = f"{config.model.dropout:g}/{config.model.attention_dropout:g}"
    return [
        f"`{name}`",
        f"{config.train.steps:,}",
        f"{tokens:,}",
        f"{optimizer.learning_rate:g}",
        f"{optimizer.warmup_steps:,}",
        dropout,
        f"{optimizer.label_smoothing:g}",
        f"{data.temperature:g}",
        str(config.decode.beam_size) if config.decode.method == "beam" else config.decode.method,
        _trained(config),
    ]


def _trained(config: Config) -> str:
    """Return a description of the parameters that a run trains."""
    if config.model.lora_rank and not config.optimizer.frozen:
        return f"LoRA: rank {config.model.lora_rank} on {', '.join(config.model.lora)}"
    return f"all but {', '.join(config.optimizer.frozen)}" if config.optimizer.frozen else "all"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
