"""Starts a training from the parameters of another run, of the same structure or not.

A run of the same structure gives all its parameters; LoRA that it does not have is drawn. Otherwise
layers are taken in order: layer k of the new model, counted through its stages, starts as what
layer k of the old one was. Of an encoder-decoder that is its decoder: the encoder is not used, and
cross-attention only where the new model has it. The last norm is the last norm; a norm between
stages that the old model did not have starts as a copy of it. What else the old model does not have
(adaption modules) stays as drawn.

Source: two-stage paper, 5.2 and 5.4 ("initialize our model's parameters from the decoder"). The
mapping itself is ours: the authors' code for it was not released, and their parameter counts allow
no other number of layers.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from mnmt_jax.config.sections import Config
from mnmt_jax.design.layout import Layout
from mnmt_jax.design.layouts import get_layout
from mnmt_jax.errors import UserError
from mnmt_jax.model.lora import is_lora
from mnmt_jax.runs.fingerprint import path_name
from mnmt_jax.runs.parameters import load_params
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.vocabulary.pieces import Vocabulary

_SIZES = ("embed", "mlp", "activation", "heads", "norm", "positions", "embedding_scale")


@dataclasses.dataclass(frozen=True)
class Origin:
    """Whose parameters a training starts from.

    Attributes:
        run: a run directory, trained or imported.
        step: as in `restore_params`; None is the newest.
    """

    run: str | Path
    step: int | str | None = None


def start_from(
    origin: Origin, params: Any, config: Config, vocabulary: Vocabulary
) -> tuple[Any, str]:
    """Replaces freshly drawn parameters by those of a run.

    Args:
        origin: the run.
        params: of the new model, freshly drawn.
        config: of the new model.
        vocabulary: of the new model.

    Returns:
        The parameters, each placed as the one it replaces, and a line about what was taken.

    Raises:
        UserError: if the vocabulary, a size or the number of layers does not fit, or if the run has
            LoRA that the new model has no place for.
    """
    run = RunDirectory.open(origin.run)
    old = run.config()
    _check(run, old, config, vocabulary)
    before = get_layout(old.model.layout, old.model.stage_layers)
    after = get_layout(config.model.layout, config.model.stage_layers)
    names = source_names(before, after)
    loaded, step = load_params(run, origin.step)
    stored = {path_name(p): leaf for p, leaf in jax.tree_util.tree_leaves_with_path(loaded)}
    used: set[str] = set()
    fresh: list[str] = []

    def replace(path: Any, drawn: Any) -> Any:
        name = path_name(path)
        theirs = _translate(name, names)
        if theirs not in stored:
            fresh.append(name)
            return drawn
        used.add(theirs)
        return _placed_like(stored[theirs], drawn, name)

    replaced = jax.tree_util.tree_map_with_path(replace, params)
    left = sorted(stored.keys() - used)
    if any(map(is_lora, left)):
        raise _no_place_for_lora(run, old)
    parts = [f"started from {run.place}, step {step}: {len(used)} arrays"]
    parts += [f"freshly drawn {_summary(fresh)}"] if fresh else []
    parts += [f"not used {_summary(left)}"] if left else []
    return replaced, "; ".join(parts)


def source_names(before: Layout, after: Layout) -> dict[str, str]:
    """Maps each layer and norm of a new structure to the one of the old that it starts as.

    Args:
        before: structure of the run that gives.
        after: structure of the new model.

    Returns:
        E.g. `layer_0` to `layer_12`, `stage_1_norm` to `stage_0_norm`.

    Raises:
        UserError: if no choice of layers has the number needed.
    """
    chosen = _layers(before, after)
    names = {f"layer_{k}": f"layer_{layer}" for k, layer in enumerate(chosen)}
    last = len(before.stages) - 1
    same = [stage.layers for stage in before.stages] == [stage.layers for stage in after.stages]
    for number in range(len(after.stages)):
        kept = number if same and chosen == list(range(len(chosen))) else last
        names[f"stage_{number}_norm"] = f"stage_{kept}_norm"
    return names


def _layers(before: Layout, after: Layout) -> list[int]:
    count = sum(stage.layers for stage in after.stages)
    every = [stage for stage in before.stages for _ in range(stage.layers)]
    decoder = [n for n, stage in enumerate(every) if before.generated in stage.roles]
    shape = [(stage.layers, bool(stage.memory)) for stage in before.stages]
    same = shape == [(stage.layers, bool(stage.memory)) for stage in after.stages]
    if same or (len(every) == count and not any(stage.memory for stage in before.stages)):
        return list(range(count))
    if len(decoder) == count:
        return decoder
    raise UserError(
        f"layers do not fit: '{after.name}' has {count}, the run's '{before.name}' has "
        f"{len(decoder)} with a target of {len(every)}; set Model.stage_layers to {len(decoder)} "
        "layers in all"
    )


def _check(run: RunDirectory, old: Config, new: Config, vocabulary: Vocabulary) -> None:
    if Vocabulary.load(run.vocabulary).fingerprint != vocabulary.fingerprint:
        raise UserError(
            f"--initialize_from={run.place}: its vocabulary is not that of Data.cache="
            f"'{new.data.cache}'; make the cache with --vocabulary={run.place / 'vocabulary'}"
        )
    differing = [
        f"Model.{name} is {getattr(old.model, name)!r} there, {getattr(new.model, name)!r} here"
        for name in _SIZES
        if getattr(old.model, name) != getattr(new.model, name)
    ]
    if differing:
        raise UserError(f"--initialize_from={run.place}: {'; '.join(differing)}; make them equal")


def _no_place_for_lora(run: RunDirectory, old: Config) -> UserError:
    return UserError(
        f"--initialize_from={run.place}: the new model has no place for its LoRA; merge it with "
        f"'mnmt adapters' first, or set Model.lora_rank={old.model.lora_rank} and "
        f"Model.lora={old.model.lora!r} as there"
    )


def _translate(name: str, names: Mapping[str, str]) -> str:
    head, _, rest = name.partition("/")
    return "/".join(part for part in (names.get(head, head), rest) if part)


def _placed_like(array: np.ndarray, drawn: Any, name: str) -> Any:
    if array.shape != drawn.shape:
        raise UserError(f"--initialize_from: '{name}' is {array.shape} there, {drawn.shape} here")
    return jax.device_put(array.astype(drawn.dtype, copy=False), drawn.sharding)


def _summary(names: list[str]) -> str:
    """Returns parameter names without layer numbers and without what is inside a module."""
    general = [(re.sub(r"_\d+", "_*", name).split("/"), is_lora(name)) for name in names]
    short = {"LoRA of " * lora + "/".join(parts[:2]) for parts, lora in general}
    return ", ".join(sorted(short))
