"""LoRA adapters: saving without the model, loading onto the model, and merging into its weights.

An adapter is a folder: `adapter.safetensors` holds the LoRA parameters under their paths, and
`adapter.json` describes them:

    lora_rank, lora      as `Model.lora_rank` and `Model.lora`
    model                the other values of `Model` that the meaning of a parameter depends on
    instruction, tasks   where the model expects language tags, and the training tasks of LoRA
    contexts             document contexts of these tasks; older adapters lack them
    base                 fingerprint and origin of the frozen parameters
    fingerprint, step    of the LoRA parameters
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flax import traverse_util

from mnmt_jax.config.legacy_configs import migrate_facts
from mnmt_jax.config.sections import Config, Model
from mnmt_jax.data.document_context import Context
from mnmt_jax.data.instruction import get_instruction
from mnmt_jax.design.method import as_facts
from mnmt_jax.design.method_registry import get_method
from mnmt_jax.errors import UserError
from mnmt_jax.files.atomic_write import check_output, new_folder
from mnmt_jax.files.json_objects import parse_json, read_object
from mnmt_jax.files.lazy_array import LazyArray
from mnmt_jax.files.storage_errors import one_line
from mnmt_jax.files.typed_fields import TypedFields, prefix_errors, short_repr
from mnmt_jax.interop.safetensors import read_safetensors, write_safetensors
from mnmt_jax.model.lora import is_lora, merge_lora, split_lora
from mnmt_jax.model.shapes import parameter_shapes
from mnmt_jax.model.trainable_params import Trainable
from mnmt_jax.runs.fingerprint import tree_fingerprint
from mnmt_jax.runs.new_run import write_run
from mnmt_jax.runs.parameters import check_parameters, load_params
from mnmt_jax.runs.run_directory import RunDirectory

_STEM = "adapter"
_REMEDY = "save the adapter again"
_LARGEST_FINGERPRINT = 2**64 - 1
_FACTS = {"lora_rank", "lora", "model", "instruction", "tasks", "base", "fingerprint"}
_STRUCTURE = (
    "layout",
    "stage_layers",
    "embed",
    "mlp",
    "stage_mlp",
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
    """Save the LoRA parameters of a run without the base model.

    Args:
        run_dir: the run, trained with `Model.lora_rank`.
        directory: folder to create; must not exist or be empty.
        step: as in `load_params`.

    Raises:
        UserError: if the run has no LoRA, or trained other parameters too.
    """
    directory = Path(directory)
    check_output(directory)
    run, config = _open_lora_run(run_dir)
    if config.optimizer.frozen:
        reason = f"Optimizer.frozen={config.optimizer.frozen!r}"
    else:
        reason = ", ".join(Trainable.from_config(config.model, config.optimizer).player_patterns)
    if reason:
        raise UserError(
            f"{run.location}: more than its LoRA was trained ({reason}), so LoRA alone is not the "
            "model; use merge"
        )
    params, restored_step = load_params(run, step)
    check_parameters(run, config.model, run.load_vocabulary().size, params)
    lora_params, base = split_lora(params)
    facts = {
        "lora_rank": config.model.lora_rank,
        "lora": config.model.lora,
        "model": _structure(config.model),
        "instruction": config.data.instruction,
        "tasks": run.trained_tasks(),
        "contexts": {
            name: dataclasses.asdict(context) for name, context in run.trained_contexts().items()
        },
        "base": {"fingerprint": tree_fingerprint(base), "origin": _base_origin(run)},
        "fingerprint": tree_fingerprint(lora_params),
        "step": restored_step,
    }
    flat = traverse_util.flatten_dict(lora_params, sep="/")
    with new_folder(directory) as partial:
        arrays = [(name, LazyArray.of(array)) for name, array in flat.items()]
        write_safetensors(partial, arrays, stem=_STEM)
        text = json.dumps(facts, indent=1) + "\n"
        (partial / f"{_STEM}.json").write_text(text, encoding="utf-8")


def load_adapter(
    run_dir: str | Path, directory: str | Path, output: str | Path, *, step: Step = None
) -> None:
    """Add a saved adapter to the run that it was trained on.

    Args:
        run_dir: the run without LoRA.
        directory: folder from `save_adapter`.
        output: run directory to create; must not exist or be empty.
        step: step of `run_dir`, as in `load_params`.

    Raises:
        UserError: if the folder holds no adapter, it is damaged, or it belongs to another run.
    """
    output, directory = Path(output), Path(directory)
    check_output(output)
    run, facts = RunDirectory.open(run_dir), _read_facts(directory)
    config = run.config()
    _check_structure(run, config, facts)
    vocabulary = run.load_vocabulary()
    model = _model_with_lora(config.model, facts, directory)
    lora_params = _read_lora_params(directory, parameter_shapes(model, vocabulary.size), facts)
    base, restored_step = load_params(run, step)
    check_parameters(run, config.model, vocabulary.size, base)
    if tree_fingerprint(base) != facts["base"]["fingerprint"]:
        raise UserError(
            f"{run.location}, step {restored_step}: not the parameters that {directory} was "
            f"trained on; those are of {facts['base']['origin'] or 'an unnamed run'}"
        )
    data = dataclasses.replace(config.data, instruction=facts["instruction"])
    optimizer = dataclasses.replace(config.optimizer, frozen=())  # LoRA alone was trained
    config = dataclasses.replace(config, model=model, data=data, optimizer=optimizer)
    flat = traverse_util.flatten_dict(base, sep="/") | lora_params
    params = traverse_util.unflatten_dict(
        {name: LazyArray.of(array) for name, array in flat.items()}, sep="/"
    )
    origin = str(run.location), f"step {restored_step} with the LoRA of {directory}"
    write_run(
        output,
        config,
        vocabulary,
        params,
        origin=origin,
        tasks=facts["tasks"],
        contexts=facts["contexts"],
    )


def merge_adapter(run_dir: str | Path, output: str | Path, *, step: Step = None) -> None:
    """Merge LoRA into the weights of a run: each weight W becomes W + A B.

    Args:
        run_dir: the run, trained with `Model.lora_rank`.
        output: run directory to create; must not exist or be empty.
        step: as in `load_params`.

    Raises:
        UserError: if the run has no LoRA.
    """
    output = Path(output)
    check_output(output)
    run, config = _open_lora_run(run_dir)
    params, restored_step = load_params(run, step)
    vocabulary = run.load_vocabulary()
    check_parameters(run, config.model, vocabulary.size, params)
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, lora_rank=0))
    origin = str(run.location), f"step {restored_step} with its LoRA merged"
    write_run(
        output,
        config,
        vocabulary,
        merge_lora(params),
        origin=origin,
        tasks=run.trained_tasks(),
        contexts=run.trained_contexts(),
    )


def _open_lora_run(run_dir: str | Path) -> tuple[RunDirectory, Config]:
    run = RunDirectory.open(run_dir)
    config = run.config()
    if not config.model.lora_rank:
        raise UserError(f"{run.location}: has no LoRA; name a run trained with Model.lora_rank")
    return run, config


def _structure(model: Model) -> dict[str, Any]:
    facts = as_facts(model)
    return {name: facts[name] for name in _STRUCTURE}


def _base_origin(run: RunDirectory) -> str:
    """Return a description of the run that the base came from; empty if not recorded."""
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
    missing = _FACTS - fields.values.keys() | {"fingerprint", "origin"} - base.values.keys()
    if missing:
        raise UserError(f"{path}: lacks {', '.join(sorted(missing))}; {_REMEDY}")
    with prefix_errors(path):
        for section in (base, fields):
            section.integer("fingerprint", high=_LARGEST_FINGERPRINT)
        fields.object("model")
        get_instruction(fields.text("instruction"))
        tasks = fields.object("tasks", {})
        directions = {name: tasks.texts(name) for name in tasks.values}
        if invalid := [name for name, languages in directions.items() if len(languages) != 2]:
            raise UserError(f"tasks: {short_repr(invalid[0])} must be two languages; {_REMEDY}")
        contexts = _read_contexts(fields.object("contexts", {}), directions)
    return {**fields.values, "contexts": contexts}


def _read_contexts(contexts: TypedFields, tasks: Collection[str]) -> dict[str, Context]:
    """Return the document contexts by task.

    Raises:
        UserError: if one is invalid, or its task is unknown.
    """
    if unknown := contexts.values.keys() - tasks:
        name = short_repr(min(unknown))
        raise UserError(f"contexts: {name} is not one of the tasks; {_REMEDY}")
    facts = {name: contexts.object(name) for name in contexts.values}
    return {
        name: Context(context.integer("pieces", low=1), context.text("separator"))
        for name, context in facts.items()
    }


def _check_structure(run: RunDirectory, config: Config, facts: Mapping[str, Any]) -> None:
    if config.model.lora_rank:
        raise UserError(f"{run.location}: has LoRA already; name the run it started from")
    structure = json.loads(json.dumps(_structure(config.model)))
    settings = _settings(structure)
    differing = [
        f"{name} is {settings.get(name)!r}, the adapter's {short_repr(value)}"
        for name, value in _settings(migrate_facts(facts["model"], structure)).items()
        if settings.get(name) != value
    ]
    if differing:
        raise UserError(f"{run.location}: another model: {'; '.join(differing)}")


def _settings(structure: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a model and its methods by gin key, without inert ones of methods."""
    settings = {f"Model.{name}": value for name, value in structure.items()}
    methods = structure["methods"]
    if not isinstance(methods, list) or not all(map(_is_method, methods)):
        return settings
    settings["Model.methods"] = [method["name"] for method in methods]
    for method in methods:
        kind = get_method(method["name"])
        settings |= {
            f"{kind.__name__}.{field}": value
            for field, value in method.items()
            if field not in ("name", *kind.inert_fields)
        }
    return settings


def _is_method(facts: Any) -> bool:
    return isinstance(facts, dict) and isinstance(facts.get("name"), str)


def _model_with_lora(model: Model, facts: Mapping[str, Any], directory: Path) -> Model:
    try:
        return dataclasses.replace(model, lora_rank=facts["lora_rank"], lora=facts["lora"])
    except UserError as error:
        raise UserError(f"{directory / _STEM}.json: {error}") from error


def _read_lora_params(
    directory: Path, shapes: Any, facts: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Read the LoRA parameters by path; they must be exactly those of the model."""
    path = directory / f"{_STEM}.safetensors"
    stored = read_safetensors(path)
    flat = traverse_util.flatten_dict(shapes, sep="/")
    expected = {name: leaf.shape for name, leaf in flat.items() if is_lora(name)}
    for name in sorted(stored.keys() | expected.keys()):
        stored_shape = stored[name].shape if name in stored else "absent"
        if stored_shape != expected.get(name, "absent"):
            expected_shape = expected.get(name, "absent")
            raise UserError(f"{path}: '{name}' is {stored_shape}, the model's is {expected_shape}")
    arrays = {name: array.read().astype(np.float32, copy=False) for name, array in stored.items()}
    tree = traverse_util.unflatten_dict(arrays, sep="/")
    if tree_fingerprint(tree) != facts["fingerprint"]:
        raise UserError(f"{path}: differs from what was saved; save the adapter again")
    return arrays
