"""Offsets that separate the random draws of a micro-batch."""

import enum


@enum.unique
class RngOffset(enum.IntEnum):
    """Offsets folded into the rng of a micro-batch, one per purpose.

    A purpose with several draws adds their index, e.g. `RngOffset.GENERATED_BATCH + 1`. The passes
    over views use the indices from 1 without an offset.
    """

    BATCH_CHANGE = 2**26  # `Learner.batch_changes`
    CHANGE_DRAW = 2**27  # draws of a function that changes a batch
    CHANGED_PASS = 2**28  # dropout of the pass over a changed batch
    GENERATED_BATCH = 2**29  # draws and dropout of a generated batch
    AUXILIARY = 2**30  # dropout of `Plan.auxiliary`
