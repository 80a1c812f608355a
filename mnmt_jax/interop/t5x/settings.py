"""Values of the project's configuration where t5x wants them: one fact, bound once, read by both.

The gin files of `gin_configs/t5x/` bind t5x's arguments to these functions, so `Data.rows`,
`Train.steps` and so on mean there what they mean in `mnmt train`. Paths become absolute,
which t5x's checkpoints need, and are looked at before anything is computed. Needs no t5x.
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

register_methods()  # before t5x's gin reads their sections

# Mesh axis -> axis of t5x's mesh. t5x has no axis of its own for parameters split like the batch.
_MESH_AXES = {"data": "data", "fsdp": "data", "tensor": "model"}


def output_folder(path: str) -> str:
    """Returns the absolute path of a folder that t5x writes to, and makes it.

    Args:
        path: a folder, or the address of one in a bucket, which is returned as it is.

    Raises:
        UserError: if the folder cannot be made.
    """
    if "://" in path:
        return path
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; choose another folder") from error
    return str(Path(path).absolute())


def checkpoint(path: str) -> str:
    """Returns the absolute path of a checkpoint that t5x reads.

    Args:
        path: `MODEL_DIR/checkpoint_N`, or the address of one in a bucket, which is returned as it
            is.

    Raises:
        UserError: if there is none.
    """
    folder = Path(path)
    # `state` is a folder of Orbax; a file `checkpoint` is the form that t5x wrote before.
    if "://" in path or (folder / "state").is_dir() or (folder / "checkpoint").is_file():
        return path if "://" in path else str(folder.absolute())
    there = [found for near in (folder, folder.parent) for found in near.glob("checkpoint_*")]
    remedy = f"give {join_names(sorted(map(str, there)))}" if there else "train one first"
    raise UserError(f"{path}: no checkpoint of t5x there; {remedy}")


def not_restored() -> tuple[tuple[str, None], ...]:
    """Returns t5x's `assignment_map` of a start from parameters alone.

    Step and optimizer start anew, as does LoRA; t5x refuses a pattern that matches nothing.
    """
    drawn = ("state/.*", ".*/lora_[ab]") if parsed_config().model.lora_rank else ("state/.*",)
    return tuple((pattern, None) for pattern in drawn)


def steps() -> int:
    """Returns the updates of the run."""
    return parsed_config().train.steps


def seed() -> int:
    """Returns the seed of parameters, dropout and data.

    Raises:
        UserError: if a method takes parameters of other runs, and t5x would draw them.
    """
    config = parsed_config()
    if not _is_bound("%INITIAL_CHECKPOINT_PATH") and (moves := all_param_mappings(config)):
        raise UserError(
            f"{moves[0]}: t5x starts from one checkpoint; make the run with 'mnmt train "
            "--gin.Train.steps=0', then 'mnmt export --format t5x', and add "
            "gin_configs/t5x/start_from.gin"
        )
    return config.train.seed


def log_every() -> int:
    """Returns the updates between two summaries."""
    return parsed_config().train.log_every


def eval_every() -> int:
    """Returns the updates between two validations.

    Raises:
        UserError: if training is to end when validation stops improving, which t5x does not.
    """
    train = parsed_config().train
    if train.patience:
        raise UserError(
            f"Train.patience={train.patience}: t5x trains to Train.steps; set Train.patience=0"
        )
    return train.eval_every


def save_every() -> int:
    """Returns the updates between two checkpoints."""
    return parsed_config().train.save_every


def keep_last() -> int:
    """Returns the number of newest checkpoints kept.

    Raises:
        UserError: if others are to be kept, which t5x does not.
    """
    train = parsed_config().train
    if train.keep_every:
        raise UserError(
            f"Train.keep_every={train.keep_every}: t5x keeps the newest checkpoints alone; raise "
            "Train.keep_last and set Train.keep_every=0"
        )
    return train.keep_last


def rows() -> int:
    """Returns the rows that t5x reads for one update: those of all micro-batches."""
    config = parsed_config()
    return config.data.rows * config.optimizer.accumulate


def validation_batches() -> int:
    """Returns how many batches hold the validation examples of a task, were they not packed."""
    config = parsed_config()
    return -(-config.data.validation_examples // rows())


def micro_batches() -> int:
    """Returns the parts that t5x divides the rows of an update into."""
    return parsed_config().optimizer.accumulate


def learning_rate() -> Callable[[Any], Any]:
    """Returns the optimizer's own schedule, for t5x to write down."""
    config = parsed_config()
    return make_schedule(config.optimizer, config.train.steps)


def training_lengths() -> dict[str, int]:
    """Returns t5x's task feature lengths while training: those of a row's spans."""
    data = parsed_config().data
    return _lengths(data.source_length, data.target_length)


def inference_lengths() -> dict[str, int]:
    """Returns t5x's task feature lengths while decoding: the largest bucket for both spans.

    t5x compiles one shape for all sentences.
    """
    largest = max(parsed_config().decode.buckets)
    return _lengths(largest, largest)


def inference_rows() -> int:
    """Returns the sentences decoded together."""
    return parsed_config().decode.batch


def partitions() -> int:
    """Returns the size of t5x's `model` axis; its `data` axis takes the other devices."""
    return parsed_config().mesh.tensor


def axis_rules() -> list[tuple[str, str | None]]:
    """Returns the rows of `mnmt_jax.distributed.sharding.RULES` in t5x's form.

    With `Mesh.fsdp` of 1 what would be split over `fsdp` alone stays whole; otherwise t5x splits it
    over its whole `data` axis.
    """
    return logical_axis_rules(parsed_config())


def logical_axis_rules(config: Config) -> list[tuple[str, str | None]]:
    """Returns t5x's axis rules for a configuration; see `axis_rules`."""
    whole = ("fsdp",) if config.mesh.fsdp == 1 else ()
    axes = {
        name: [_MESH_AXES[axis] for axis in split if axis not in whole]
        for name, split in RULES.items()
    }
    return [(name, found[0] if found else None) for name, found in axes.items()]


def _is_bound(name: str) -> bool:
    """Returns whether t5x's gin files or flags give something a value."""
    try:
        gin.query_parameter(name)
    except ValueError:
        return False
    return True


def _lengths(source: int, target: int) -> dict[str, int]:
    return {"inputs": source, "targets": target, "source_lang": 1, "target_lang": 1}
