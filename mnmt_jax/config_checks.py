"""What a value of the configuration may be: types from the dataclasses, ranges from one table."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Mapping
from typing import Any

from mnmt_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Range:
    """The numbers that a field, or each entry of a tuple, may hold.

    Attributes:
        low: smallest value.
        high: largest value.
        above: whether `low` itself is too small.
        below: whether `high` itself is too large.
    """

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    below: bool = False

    def __contains__(self, value: float) -> bool:
        too_small = value <= self.low if self.above else value < self.low
        too_large = value >= self.high if self.below else value > self.high
        return math.isfinite(value) and not too_small and not too_large

    def __str__(self) -> str:
        parts = []
        if self.low > -math.inf:
            parts.append(f"{'above' if self.above else 'at least'} {self.low:g}")
        if self.high < math.inf:
            parts.append(f"{'below' if self.below else 'at most'} {self.high:g}")
        return " and ".join(parts) or "finite"


COUNT = Range(low=1)
AMOUNT = Range(low=0)
POSITIVE = Range(low=0, above=True)
RATE = Range(low=0, high=1, below=True)  # a dropout rate, a decay, a label's share
SEED = Range(low=0, high=2**32 - 1)
ANY = Range()

# Every number of the configuration has a row; a test checks that none is missing.
RANGES: Mapping[str, Range] = {
    "Data.temperature": POSITIVE,
    "Data.rows": COUNT,
    "Data.source_length": COUNT,
    "Data.target_length": COUNT,
    "Data.max_segments": COUNT,
    "Data.chunk_examples": COUNT,
    "Data.validation_examples": AMOUNT,
    "Model.stage_layers": COUNT,
    "Model.embed": Range(low=2),
    "Model.mlp": COUNT,
    "Model.heads": COUNT,
    "Model.vocab_size": AMOUNT,
    "Model.register_factor": POSITIVE,
    "Model.adaption_mlp": AMOUNT,
    "Model.adaption_dropout": RATE,
    "Model.dropout": RATE,
    "Model.attention_dropout": RATE,
    "Model.position_base": POSITIVE,
    "Model.lora_rank": AMOUNT,
    "Optimizer.learning_rate": AMOUNT,
    "Optimizer.warmup_steps": AMOUNT,
    "Optimizer.initial_learning_rate": AMOUNT,
    "Optimizer.eps": AMOUNT,
    "Optimizer.weight_decay": AMOUNT,
    "Optimizer.clip_norm": AMOUNT,
    "Optimizer.label_smoothing": RATE,
    "Optimizer.accumulate": COUNT,
    "Train.steps": AMOUNT,
    "Train.seed": SEED,
    "Train.log_every": COUNT,
    "Train.eval_every": COUNT,
    "Train.save_every": COUNT,
    "Train.keep_last": COUNT,
    "Train.keep_best": AMOUNT,
    "Train.loss_chunk": COUNT,
    "Train.contrastive_layer": AMOUNT,
    "Decode.beam_size": COUNT,
    "Decode.length_penalty": ANY,
    "Decode.max_length": COUNT,
    "Decode.max_length_per_source": AMOUNT,
    "Decode.batch": COUNT,
    "Decode.buckets": COUNT,
    "Decode.temperature": AMOUNT,
    "Decode.top_k": AMOUNT,
    "Decode.top_p": Range(low=0, high=1, above=True),
    "Decode.seed": SEED,
    "Mesh.fsdp": Range(low=-1),
    "Mesh.tensor": COUNT,
}

CHOICES: Mapping[str, tuple[str, ...]] = {
    "Model.norm": ("pre", "post"),
    "Model.dtype": ("float32", "bfloat16"),
    "Model.attention": ("split", "dense"),
    "Optimizer.schedule": ("inverse_sqrt", "cosine", "constant"),
    "Train.contrastive_form": ("code", "unweighted", "paper"),
}

_KINDS: Mapping[type, str] = {int: "an integer", float: "a number", str: "a string in quotes"}


class Checked:
    """Base of a configuration dataclass: checks every field, and gives each its declared type."""

    def __post_init__(self) -> None:
        """Checks all fields.

        Raises:
            UserError: if a value has the wrong type or is out of its range.
        """
        for name, kind in typing.get_type_hints(type(self)).items():
            field = f"{type(self).__name__}.{name}"
            value = _typed(field, getattr(self, name), kind)
            object.__setattr__(self, name, value)
            for part in value if isinstance(value, tuple) else (value,):
                _check_value(field, value, part)


def _typed(field: str, value: Any, kind: Any) -> Any:
    """Returns the value as its declared type: lists become tuples, integers become floats."""
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, tuple | list):
            raise UserError(f"{field}={value!r} must be a tuple, such as ({value!r},)")
        element = typing.get_args(kind)[0]
        return tuple(_typed(field, part, element) for part in value)
    if kind is bool:
        if not isinstance(value, bool):
            raise UserError(f"{field}={value!r} must be True or False")
        return value
    accepted = (int, float) if kind is float else kind
    if isinstance(value, bool) or not isinstance(value, accepted):
        raise UserError(f"{field}={value!r} must be {_KINDS[kind]}")
    return kind(value)


def _check_value(field: str, value: Any, part: Any) -> None:
    if field in CHOICES and part not in CHOICES[field]:
        raise UserError(f"{field}={value!r} must be one of {', '.join(CHOICES[field])}")
    if field in RANGES and part not in RANGES[field]:
        raise UserError(f"{field}={value!r} must be {RANGES[field]}")
