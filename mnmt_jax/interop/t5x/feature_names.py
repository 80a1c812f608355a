"""What t5x calls the arrays of a batch: its own names for source and target, ours for other roles.

t5x and the tools around it look for `encoder_*` and `decoder_*`; a layout's other roles (registers,
the trigger) have no counterpart there. Needs neither t5x nor TensorFlow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mnmt_jax.design.layouts import SOURCE, TARGET

KINDS = ("tokens", "positions", "segment_ids")  # of a role's arrays
_T5X = {
    f"{SOURCE}_tokens": "encoder_input_tokens",
    f"{SOURCE}_positions": "encoder_positions",
    f"{SOURCE}_segment_ids": "encoder_segment_ids",
    f"{TARGET}_tokens": "decoder_input_tokens",
    f"{TARGET}_positions": "decoder_positions",
    f"{TARGET}_segment_ids": "decoder_segment_ids",
    f"{TARGET}_labels": "decoder_target_tokens",
}
_OURS = {theirs: ours for ours, theirs in _T5X.items()}
LOSS_WEIGHTS = "decoder_loss_weights"  # t5x's word for `target_segment_ids != 0`


def t5x_name(name: str) -> str:
    """Returns t5x's name of one of our arrays."""
    return _T5X.get(name, name)


def our_batch(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a batch under our names.

    Args:
        batch: as t5x gives it to a model; the loss weights are left out, segment ids say the same.
    """
    return {_OURS.get(name, name): array for name, array in batch.items() if name != LOSS_WEIGHTS}
