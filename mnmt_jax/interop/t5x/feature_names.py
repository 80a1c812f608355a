"""Mapping between this project's and t5x's names of batch arrays.

t5x and its tools expect `encoder_*` and `decoder_*`. Other roles of a layout (registers, the
trigger) have no counterpart in t5x and keep their names. Needs neither t5x nor TensorFlow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mnmt_jax.design.layouts import SOURCE, TARGET

KINDS = ("tokens", "positions", "segment_ids")  # the arrays of a role
_T5X = {
    f"{SOURCE}_tokens": "encoder_input_tokens",
    f"{SOURCE}_positions": "encoder_positions",
    f"{SOURCE}_segment_ids": "encoder_segment_ids",
    f"{TARGET}_tokens": "decoder_input_tokens",
    f"{TARGET}_positions": "decoder_positions",
    f"{TARGET}_segment_ids": "decoder_segment_ids",
    f"{TARGET}_labels": "decoder_target_tokens",
}
_OURS = {t5x_key: our_key for our_key, t5x_key in _T5X.items()}
LOSS_WEIGHTS = "decoder_loss_weights"  # t5x's name of `target_segment_ids != 0`


def t5x_name(name: str) -> str:
    """Return t5x's name of one of our arrays."""
    return _T5X.get(name, name)


def our_batch(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch with our array names.

    Args:
        batch: batch as t5x passes it to a model; its loss weights are dropped, because segment ids
            hold the same information.
    """
    return {_OURS.get(name, name): array for name, array in batch.items() if name != LOSS_WEIGHTS}
