"""Terms of a search: token sequences that hypotheses must or must not contain, as arrays."""

from __future__ import annotations

import flax.struct
from jaxtyping import Int

from mnmt_jax.decoding.search_arrays import AnyArray


@flax.struct.dataclass
class SearchTerms:
    """Required and forbidden terms of each sentence of a batch.

    Attributes:
        tokens: int32 [batch, sequences, length], padded. First the alternatives of all required
            terms, `alternatives` for each term, then the forbidden sequences. Sequences without
            tokens are not used.
        counts: int32 [batch, terms], how often each term is required; 0 where there is none.
        alternatives: number of alternatives of each term.
    """

    tokens: Int[AnyArray, "batch sequences length"]
    counts: Int[AnyArray, "batch terms"]
    alternatives: int = flax.struct.field(pytree_node=False, default=1)

    @property
    def required(self) -> int:
        """Number of sequences that are alternatives of required terms."""
        return self.counts.shape[1] * self.alternatives
