"""fairseq's virtual epoch: how much of each direction one epoch of temperature sampling holds.

Training here has no epochs: `mnmt_jax.data.schedule` mixes an endless stream with the same rates.
These functions turn a published number of epochs into sentence pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mnmt_jax.data.schedule import temperature_rates

_MAX_SCALE_UP = 1.5


def virtual_epoch_size(sizes: Sequence[int], temperature: float) -> int:
    """Returns the sentence pairs of a virtual epoch.

    The largest direction is seen whole and the others in proportion to their rates, but never more
    than 1.5 times all there is.

    Args:
        sizes: pairs of each direction; both directions of a language pair count.
        temperature: T of the rates p_i ~ (n_i / N)^(1/T).

    Source: registers.md 6.4 (fairseq's `sampled_multi_dataset`).
    """
    if not sizes or min(sizes) < 1:
        raise ValueError(f"sizes={list(sizes)}: every direction needs at least one pair")
    rates = temperature_rates(sizes, temperature)
    largest = max(range(len(sizes)), key=sizes.__getitem__)
    scaled = math.fsum(rate / rates[largest] * sizes[largest] for rate in rates)
    return int(min(scaled, _MAX_SCALE_UP * sum(sizes)))


def virtual_epoch_counts(sizes: Sequence[int], temperature: float) -> list[int]:
    """Returns what a virtual epoch holds of each direction for certain: floor(p_i x size).

    fairseq draws the few pairs that rounding leaves from the rates.

    Args:
        sizes: pairs of each direction.
        temperature: T of the rates.
    """
    size = virtual_epoch_size(sizes, temperature)
    return [math.floor(rate * size) for rate in temperature_rates(sizes, temperature)]
