"""Masks other than the usual ones, for a model that fills masks.

A layout that fills masks (`Model.layout = 'masked_lm'`) has those of BERT without this method.
"""

from __future__ import annotations

import dataclasses

from mnmt_jax.config.sections import Config
from mnmt_jax.design.fields import Rate
from mnmt_jax.design.mask_shares import MaskShares
from mnmt_jax.design.method import Method
from mnmt_jax.design.plan import Plan
from mnmt_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Masking(Method, name="masking"):
    """Which tokens are asked for, and what stands in their place.

    Attributes:
        share: of a sentence's tokens, on average.
        random: of those, the share that another token stands for.
        kept: of those, the share that stays as it is; the rest is the mask.
    """

    share: Rate = MaskShares.share
    random: Rate = MaskShares.random
    kept: Rate = MaskShares.kept

    def __post_init__(self) -> None:
        """Check that the shares leave room for masks, and that there are any tokens to ask for."""
        super().__post_init__()
        if not self.share or self.random + self.kept > 1:
            raise UserError(
                f"Masking.share={self.share}, Masking.random={self.random}, Masking.kept="
                f"{self.kept}: the first must be above 0, the others together 1 at most"
            )

    def check(self, config: Config, plan: Plan) -> None:
        """Check that the layout fills masks.

        Raises:
            UserError: otherwise.
        """
        del config
        if plan.layout.grows:
            raise UserError(
                f"masking: layout '{plan.layout.name}' fills no masks; set "
                "Model.layout='masked_lm', or leave 'masking' out"
            )

    def mask_shares(self) -> MaskShares:
        """Return the shares."""
        return MaskShares(self.share, self.random, self.kept)
