"""LoRA apart from its model: saved alone, put onto the model again, or merged into its weights.

An adapter is a folder: `adapter.safetensors` holds LoRA's own parameters under their paths, and
`adapter.json` says what they belong to:

    lora_rank, lora      as `Model.lora_rank` and `Model.lora`
    model                the other values of `Model` that the meaning of a parameter depends on
    instruction, tasks   where the model expected language tags, and what LoRA was trained on
    base                 fingerprint of the parameters that were frozen, and where they came from
    fingerprint, step    of LoRA's own parameters
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flax import traverse_util

from mnmt_jax.config.legacy_configs import migrate_facts
from mnmt_jax.config.sections import Config, Model
from mnmt_jax.data.instruction import get_instruction
from mnmt_jax.design.method import as_facts
from mnmt_jax.errors import UserError
from mnmt_jax.files.atomic_write import check_output, new_folder
from mnmt_jax.files.json_objects import parse_json, read_object
from mnmt_jax.files.lazy_array import LazyArray
from mnmt_jax.files.storage_errors import one_line
from mnmt_jax.files.typed_fields import TypedFields, prefix_errors, short_repr
from mnmt_jax.interop.safetensors import read_safetensors, write_safetensors
from mnmt_jax.model.lora import is_lora, merge_lora, split_lora
from mnmt_jax.model.shapes import parameter_shapes
from mnmt_jax.runs.fingerprint import tree_fingerprint
from mnmt_jax.runs.new_run import write_run
from mnmt_jax.runs.parameters import check_parameters, load_params
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.vocabulary.vocabulary import Vocabulary

_STEM = "adapter"
_REMEDY = "save the adapter again"
_LARGEST_FINGERPRINT = 2**64 - 1
_FACTS = {"lora_rank", "lora", "model", "instruction", "tasks", "base", "fingerprint"}
_STRUCTURE = (
    "layout",
    "stage_layers",
    "embed",
    "mlp",
    "activation",
    "heads",
    "norm",
    "register_factor",
    "methods",
    "positions",
    "embedding_scale",
)

Step = int | str | None


def save_adapter(run_dir: str | Path, directory: str | Path, *, step: Step = None) -> None:
    """Saves the LoRA of a run without the model it changes.

    Args:
        run_dir: the run, trained with `Model.lora_rank`.
        directory: to make; must not exist or be empty.
        step: as in `restore_params`.

    Raises:
        UserError: if the run has no LoRA, or trained more than it.
    """
    directory = Path(directory)
    check_output(directory)
    run, config = _with_lora(run_dir)
    if config.optimizer.frozen:
        raise UserError(
            f"{run.place}: more than its LoRA was trained (Optimizer.frozen="
            f"{config.optimizer.frozen!r}), so LoRA alone is not the model; use merge"
        )
    params, found = load_params(run, step)
    check_parameters(run, config.model, Vocabulary.load(run.vocabulary).size, params)
    own, base = split_lora(params)
    facts = {
        "lora_rank": config.model.lora_rank,
        "lora": config.model.lora,
        "model": _structure(config.model),
        "instruction": config.data.instruction,
        "tasks": run.trained_tasks(),
        "base": {"fingerprint": tree_fingerprint(base), "origin": _origin(run)},
        "fingerprint": tree_fingerprint(own),
        "step": found,
    }
    flat = traverse_util.flatten_dict(own, sep="/")
    with new_folder(directory) as partial:
        arrays = [(name, LazyArray.of(array)) for name, array in flat.items()]
        write_safetensors(partial, arrays, stem=_STEM)
        text = json.dumps(facts, indent=1) + "\n"
        (partial / f"{_STEM}.json").write_text(text, encoding="utf-8")


def load_adapter(
    run_dir: str | Path, directory: str | Path, output: str | Path, *, step: Step = None
) -> None:
    """Puts a saved LoRA onto the run whose parameters it was trained on.

    Args:
        run_dir: the run without LoRA.
        directory: from `save_adapter`.
        output: run directory to make; must not exist or be empty.
        step: of `run_dir`, as in `restore_params`.

    Raises:
        UserError: if the folder holds no adapter, it is damaged, or the run is another one.
    """
    output, directory = Path(output), Path(directory)
    check_output(output)
    run, facts = RunDirectory.open(run_dir), _read_facts(directory)
    config = run.config()
    _check_structure(run, config, facts)
    vocabulary = Vocabulary.load(run.vocabulary)
    model = _model(config.model, facts, directory)
    own = _read_arrays(directory, parameter_shapes(model, vocabulary.size), facts)
    base, found = load_params(run, step)
    check_parameters(run, config.model, vocabulary.size, base)
    if tree_fingerprint(base) != facts["base"]["fingerprint"]:
        raise UserError(
            f"{run.place}, step {found}: not the parameters that {directory} was trained on; those "
            f"are of {facts['base']['origin'] or 'an unnamed run'}"
        )
    data = dataclasses.replace(config.data, instruction=facts["instruction"])
    config = dataclasses.replace(config, model=model, data=data)
    flat = traverse_util.flatten_dict(base, sep="/") | own
    params = traverse_util.unflatten_dict({n: LazyArray.of(a) for n, a in flat.items()}, sep="/")
    origin = str(run.place), f"step {found} with the LoRA of {directory}"
    write_run(output, config, vocabulary, params, origin=origin, tasks=facts["tasks"])


def merge_adapter(run_dir: str | Path, output: str | Path, *, step: Step = None) -> None:
    """Makes an ordinary run of one with LoRA: each weight W becomes W + A B.

    Args:
        run_dir: the run, trained with `Model.lora_rank`.
        output: run directory to make; must not exist or be empty.
        step: as in `restore_params`.

    Raises:
        UserError: if the run has no LoRA.
    """
    output = Path(output)
    check_output(output)
    run, config = _with_lora(run_dir)
    params, found = load_params(run, step)
    vocabulary = Vocabulary.load(run.vocabulary)
    check_parameters(run, config.model, vocabulary.size, params)
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, lora_rank=0))
    origin = str(run.place), f"step {found} with its LoRA merged"
    tasks = run.trained_tasks()
    write_run(output, config, vocabulary, merge_lora(params), origin=origin, tasks=tasks)


def _with_lora(run_dir: str | Path) -> tuple[RunDirectory, Config]:
    run = RunDirectory.open(run_dir)
    config = run.config()
    if not config.model.lora_rank:
        raise UserError(f"{run.place}: has no LoRA; name a run trained with Model.lora_rank")
    return run, config


def _structure(model: Model) -> dict[str, Any]:
    facts = as_facts(model)
    return {name: facts[name] for name in _STRUCTURE}


def _origin(run: RunDirectory) -> str:
    """Returns which run the base came from, in words, if the run says so."""
    if not run.origin_file.is_file():
        return ""
    return str(read_object(run.origin_file, "origin", remedy="remove it")["origin"])


def _read_facts(directory: Path) -> dict[str, Any]:
    path = directory / f"{_STEM}.json"
    if not path.is_file():
        raise UserError(f"{path}: no such file; --adapter must name what 'mnmt adapters' saved")
    try:
        fields = TypedFields(path.name, parse_json(path.read_bytes()))
        base = fields.object("base")
    except ValueError as error:
        raise UserError(f"{path}: cannot be read ({one_line(error)}); {_REMEDY}") from error
    absent = _FACTS - fields.values.keys() | {"fingerprint", "origin"} - base.values.keys()
    if absent:
        raise UserError(f"{path}: lacks {', '.join(sorted(absent))}; {_REMEDY}")
    with prefix_errors(path):
        for part in (base, fields):
            part.integer("fingerprint", high=_LARGEST_FINGERPRINT)
        fields.object("model")
        get_instruction(fields.text("instruction"))
        tasks = fields.object("tasks", {})
        directions = {name: tasks.texts(name) for name in tasks.values}
        if strange := [name for name, pair in directions.items() if len(pair) != 2]:
            raise UserError(f"tasks: {short_repr(strange[0])} must be two languages; {_REMEDY}")
    return dict(fields.values)


def _check_structure(run: RunDirectory, config: Config, facts: Mapping[str, Any]) -> None:
    if config.model.lora_rank:
        raise UserError(f"{run.place}: has LoRA already; name the run it started from")
    here = json.loads(json.dumps(_structure(config.model)))
    differing = [
        f"Model.{name} is {here.get(name)!r}, the adapter's {short_repr(value)}"
        for name, value in migrate_facts(facts["model"], here).items()
        if here.get(name) != value
    ]
    if differing:
        raise UserError(f"{run.place}: another model: {'; '.join(differing)}")


def _model(model: Model, facts: Mapping[str, Any], directory: Path) -> Model:
    try:
        return dataclasses.replace(model, lora_rank=facts["lora_rank"], lora=facts["lora"])
    except UserError as error:
        raise UserError(f"{directory / _STEM}.json: {error}") from error


def _read_arrays(directory: Path, shapes: Any, facts: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Reads LoRA's parameters by path, if they are all that the model has and nothing else."""
    path = directory / f"{_STEM}.safetensors"
    found = read_safetensors(path)
    flat = traverse_util.flatten_dict(shapes, sep="/")
    wanted = {name: leaf.shape for name, leaf in flat.items() if is_lora(name)}
    for name in sorted(found.keys() | wanted.keys()):
        there = found[name].shape if name in found else "absent"
        if there != wanted.get(name, "absent"):
            needed = wanted.get(name, "absent")
            raise UserError(f"{path}: '{name}' is {there}, the model's is {needed}")
    arrays = {name: array.read().astype(np.float32, copy=False) for name, array in found.items()}
    tree = traverse_util.unflatten_dict(arrays, sep="/")
    if tree_fingerprint(tree) != facts["fingerprint"]:
        raise UserError(f"{path}: differs from what was saved; save the adapter again")
    return arrays
