"""How tokens are hidden from a model that fills masks."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class MaskShares:
    """Which tokens are asked for, and what stands in their place.

    Of a sentence of n tokens, eos included, floor(share * n + u) are asked for, u uniform in [0, 1)
    and all choices equally likely.

    Attributes:
        share: of the tokens that are asked for.
        random: of those, the share that another token stands for, uniform over all but specials.
        kept: of those, the share that stays as it is; the rest is the mask.

    Source: Devlin et al. 2019, section 3.1; count, eos and tags as in Graformer's code
    (Sun et al. 2021).
    """

    share: float = 0.15
    random: float = 0.1
    kept: float = 0.1
