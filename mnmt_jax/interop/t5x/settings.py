"""Functions that supply t5x's arguments from the project's configuration.

The gin files of `gin_configs/t5x/` bind t5x's arguments to these functions, so `Data.rows`,
`Train.steps` and so on have the same meaning as in `mnmt train`. Paths become absolute, which t5x's
checkpoints require, and are checked before anything is computed. Needs no t5x.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gin

from mnmt_jax.config.sections import Config
from mnmt_jax.design.method import all_param_mappings
from mnmt_jax.distributed.sharding import RULES
from mnmt_jax.errors import UserError, join_names
from mnmt_jax.interop.t5x.parsed import parsed_config, register_methods
from mnmt_jax.training.optimizer import make_schedule

register_methods()  # before gin reads their sections for t5x

# Mesh axis -> axis of t5x's mesh. t5x has no separate axis for parameters sharded like the batch.
_MESH_AXES = {"data": "data", "fsdp": "data", "tensor": "model"}


def output_folder(path: str) -> str:
    """Create a folder that t5x writes to, and return its absolute path.

    Args:
        path: a folder, or a bucket URL, which is returned unchanged.

    Raises:
        UserError: if the folder cannot be created.
    """
    if "://" in path:
        return path
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; choose another folder") from error
    return str(Path(path).absolute())


def checkpoint(path: str) -> str:
    """Return the absolute path of a checkpoint that t5x reads.

    Args:
        path: `MODEL_DIR/checkpoint_N`, or a bucket URL, which is returned unchanged.

    Raises:
        UserError: if the folder is not a checkpoint.
    """
    folder = Path(path)
    # `state` is a folder of Orbax; a file `checkpoint` is t5x's older format.
    if "://" in path or (folder / "state").is_dir() or (folder / "checkpoint").is_file():
        return path if "://" in path else str(folder.absolute())
    checkpoints = [
        candidate for parent in (folder, folder.parent) for candidate in parent.glob("checkpoint_*")
    ]
    remedy = (
        f"give {join_names(sorted(map(str, checkpoints)))}" if checkpoints else "train one first"
    )
    raise UserError(f"{path}: no checkpoint of t5x there; {remedy}")


def not_restored() -> tuple[tuple[str, None], ...]:
    """Return t5x's `assignment_map` for a start from parameters alone.

    Step, optimizer and LoRA are newly initialised. t5x refuses a pattern that matches nothing.
    """
    patterns = ("state/.*", ".*/lora_[ab]") if parsed_config().model.lora_rank else ("state/.*",)
    return tuple((pattern, None) for pattern in patterns)


def steps() -> int:
    """Return the number of updates of the run.

    Raises:
        UserError: if the length is set in epochs, which t5x does not count.
    """
    train = parsed_config().train
    if train.epochs:
        raise UserError(
            f"Train.epochs={train.epochs:g}: t5x trains to Train.steps; set Train.epochs=0 and "
            "Train.steps"
        )
    return train.steps


def seed() -> int:
    """Return the seed of parameters, dropout and data.

    Raises:
        UserError: if a method copies parameters from other runs, but t5x would initialise them.
    """
    config = parsed_config()
    if not _is_bound("%INITIAL_CHECKPOINT_PATH") and (mappings := all_param_mappings(config)):
        raise UserError(
            f"{mappings[0]}: t5x starts from one checkpoint; make the run with 'mnmt train "
            "--gin.Train.steps=0', then 'mnmt export --format t5x', and add "
            "gin_configs/t5x/start_from.gin"
        )
    return config.train.seed


def log_every() -> int:
    """Return the number of updates between summaries.

    Raises:
        UserError: if trackers other than TensorBoard are named, which t5x does not write.
    """
    train = parsed_config().train
    if others := [name for name in train.trackers if name != "tensorboard"]:
        raise UserError(
            f"Train.trackers={train.trackers!r}: t5x writes TensorBoard's events and not to "
            f"{join_names(others)}; set Train.trackers=('tensorboard',)"
        )
    return train.log_every


def eval_every() -> int:
    """Return the number of updates between validations.

    Raises:
        UserError: if early stopping or translations at validations are configured, which t5x does
            not support.
    """
    train = parsed_config().train
    if train.translate_pairs:
        raise UserError(
            f"Train.translate_pairs={train.translate_pairs}: t5x translates at no validation; set "
            "Train.translate_pairs=0 and Train.best_by='supervised', and score checkpoints with "
            "t5x.eval"
        )
    if train.patience:
        raise UserError(
            f"Train.patience={train.patience}: t5x trains to Train.steps; set Train.patience=0"
        )
    return train.eval_every


def save_every() -> int:
    """Return the number of updates between checkpoints."""
    return parsed_config().train.save_every


def keep_last() -> int:
    """Return the number of newest checkpoints to keep.

    Raises:
        UserError: if older checkpoints are to be kept too, which t5x does not support.
    """
    train = parsed_config().train
    if train.keep_every:
        raise UserError(
            f"Train.keep_every={train.keep_every}: t5x keeps the newest checkpoints alone; raise "
            "Train.keep_last and set Train.keep_every=0"
        )
    return train.keep_last


def rows() -> int:
    """Return the rows per update, over all micro-batches."""
    config = parsed_config()
    return config.data.rows * config.optimizer.accumulate


def validation_batches() -> int:
    """Return the number of batches for the validation examples of a task without packing."""
    config = parsed_config()
    return -(-config.data.validation_examples // rows())


def micro_batches() -> int:
    """Return the number of micro-batches per update."""
    return parsed_config().optimizer.accumulate


def learning_rate() -> Callable[[Any], Any]:
    """Return the optimizer's learning-rate schedule, which t5x only logs.

    Raises:
        UserError: if the optimizer is not Adam, or parameters are to be averaged, which t5x's
            trainer does not do.
    """
    config = parsed_config()
    if config.optimizer.ema_decay:
        raise UserError(
            f"Optimizer.ema_decay={config.optimizer.ema_decay:g}: t5x keeps no average of the "
            "parameters; set Optimizer.ema_decay=0"
        )
    if config.optimizer.name != "adam":
        raise UserError(
            f"Optimizer.name='{config.optimizer.name}': t5x trains with 'adam' here; set it"
        )
    return make_schedule(config.optimizer, config.train.steps)


def training_lengths() -> dict[str, int]:
    """Return t5x's task feature lengths for training: the span lengths of a row.

    Raises:
        UserError: if weights of tasks or noise are set, which this project's pipeline applies.
    """
    data = parsed_config().data
    for field in ("weights", "noise"):
        if value := getattr(data, field):
            raise UserError(
                f"Data.{field}={value!r}: t5x reads the mixture's text in the mixture's order; set "
                f"Data.{field}=()"
            )
    return _feature_lengths(data.source_length, data.target_length)


def inference_lengths() -> dict[str, int]:
    """Return t5x's task feature lengths for decoding: the largest bucket for both spans.

    t5x compiles a single shape for all sentences.
    """
    largest = max(parsed_config().decode.buckets)
    return _feature_lengths(largest, largest)


def inference_rows() -> int:
    """Return the number of sentences per decoding batch."""
    return parsed_config().decode.batch


def partitions() -> int:
    """Return the size of t5x's `model` axis; the `data` axis takes the other devices."""
    return parsed_config().mesh.tensor


def axis_rules() -> list[tuple[str, str | None]]:
    """Return the rules of `mnmt_jax.distributed.sharding.RULES` in t5x's form.

    With `Mesh.fsdp` of 1, axes sharded over `fsdp` alone are replicated. Otherwise t5x shards them
    over its entire `data` axis.
    """
    return logical_axis_rules(parsed_config())


def logical_axis_rules(config: Config) -> list[tuple[str, str | None]]:
    """Return t5x's axis rules for a configuration; see `axis_rules`."""
    unsharded = ("fsdp",) if config.mesh.fsdp == 1 else ()
    axes = {
        name: [_MESH_AXES[axis] for axis in mesh_axes if axis not in unsharded]
        for name, mesh_axes in RULES.items()
    }
    return [(name, t5x_axes[0] if t5x_axes else None) for name, t5x_axes in axes.items()]


def _is_bound(name: str) -> bool:
    """Return whether t5x's gin files or flags bind a name."""
    try:
        gin.query_parameter(name)
    except ValueError:
        return False
    return True


def _feature_lengths(source: int, target: int) -> dict[str, int]:
    return {"inputs": source, "targets": target, "source_lang": 1, "target_lang": 1}
