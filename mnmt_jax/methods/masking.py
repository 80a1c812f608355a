"""Masking rates other than the default ones, for a masked language model.

A masked layout (`Model.layout = 'masked_lm'`) uses BERT's rates without this method.
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
    """The tokens to predict, and their replacements.

    Attributes:
        share: mean fraction of a sentence's tokens to predict.
        random: fraction of these replaced by another token.
        kept: fraction of these left unchanged; all others are replaced by the mask.
    """

    share: Rate = MaskShares.share
    random: Rate = MaskShares.random
    kept: Rate = MaskShares.kept

    def __post_init__(self) -> None:
        """Check that some tokens are predicted and that the shares sum to at most 1."""
        super().__post_init__()
        if not self.share or self.random + self.kept > 1:
            raise UserError(
                f"Masking.share={self.share}, Masking.random={self.random}, Masking.kept="
                f"{self.kept}: the first must be above 0, the others together 1 at most"
            )

    def check(self, config: Config, plan: Plan) -> None:
        """Check that the layout is a masked language model.

        Raises:
            UserError: if it is not.
        """
        del config
        if plan.layout.is_autoregressive:
            raise UserError(
                f"masking: layout '{plan.layout.name}' is not a masked language model; set "
                "Model.layout='masked_lm', or leave 'masking' out"
            )

    def mask_shares(self) -> MaskShares:
        """Return the masking rates."""
        return MaskShares(self.share, self.random, self.kept)
