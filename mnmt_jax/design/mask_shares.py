"""Masking rates of masked language models."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class MaskShares:
    """The tokens to predict, and their replacements.

    In a sentence of n tokens, including eos, floor(share * n + u) tokens are predicted, with u
    uniform in [0, 1) and all choices equally likely.

    Attributes:
        share: fraction of tokens to predict.
        random: fraction of these replaced by another token, uniform over all but special tokens.
        kept: fraction of these left unchanged; all others are replaced by the mask.

    Source: Devlin et al. 2019, section 3.1; count, eos and tags as in Graformer's code
    (Sun et al. 2021).
    """

    share: float = 0.15
    random: float = 0.1
    kept: float = 0.1
