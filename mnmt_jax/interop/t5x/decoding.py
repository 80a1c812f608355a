"""The project's search behind t5x's decode-function interface. Needs t5x."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array
from t5x import decoding

from mnmt_jax.config.sections import Decode
from mnmt_jax.decoding.generate import make_search
from mnmt_jax.decoding.search import Request
from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.special_ids import EOS_ID


class TokensToLogits(Protocol):
    """Feeds one token to every hypothesis: t5x's `TokensIdsToLogitsCallable`."""

    def __call__(self, state: decoding.DecodingState) -> tuple[Array, Any]:
        """Returns logits [batch * beam, vocab] and the cache after the step."""


@dataclasses.dataclass(frozen=True)
class SearchDecode:
    """Searches as `Decode` says: greedily, with a beam by fairseq's rules, or by sampling.

    The cache is passed on as the model made it. Only what grows has a beam axis, so static keys and
    values are not tiled over the hypotheses, as t5x's own decode functions would.

    Attributes:
        decode: method and its settings; `num_decodes` of the call takes the place of `beam_size`.
        prefix: leading tokens of `inputs` that are given: the trigger and any forced tag.
    """

    decode: Decode
    prefix: int

    def __call__(
        self,
        *,
        inputs: Array,
        cache: Any,
        tokens_to_logits: TokensToLogits,
        num_decodes: int,
        eos_id: int = EOS_ID,
        decode_rng: Array | None = None,
        cache_offset: int = 0,
        max_length: Array | None = None,
    ) -> tuple[Array, Array]:
        """Searches the translations of a batch.

        Args:
            inputs: int32 [batch, steps], the given tokens first; `steps` bounds the generated ones.
            cache: from `Translator.prefill` with a beam of `num_decodes`.
            tokens_to_logits: one step of the model.
            num_decodes: hypotheses per sentence.
            eos_id: must be the vocabulary's.
            decode_rng: of sampling; needed for it alone.
            cache_offset: must be 0: layers are not scanned.
            max_length: int32 [batch], generated tokens at most, without eos.

        Returns:
            Generated ids without the given ones, int32 [batch, num_decodes, steps], and scores
            [batch, num_decodes]; best last.

        Raises:
            UserError: if sampling has no rng, or scores are to be contrasted (t5x gives the model
                one input for each sentence), characters copied or weights rounded.
            ValueError: if `eos_id` or `cache_offset` is another.
        """
        if eos_id != EOS_ID or cache_offset:
            raise ValueError(
                f"eos_id={eos_id}, cache_offset={cache_offset}: must be {EOS_ID} and 0"
            )
        self._check_supported()
        rows, steps = inputs.shape
        limits = jnp.full((rows,), steps - 1, jnp.int32) if max_length is None else max_length
        search = make_search(dataclasses.replace(self.decode, beam_size=num_decodes))
        prefix = inputs[:, : self.prefix]
        request = Request(
            prefix=prefix,
            max_length=limits,
            active=jnp.ones((rows,), bool),
            rngs=self._rngs(decode_rng, rows),
            max_steps=steps,
            allow_unk=self.decode.allow_unk,
        )

        def step(tokens: Array, cache: Any) -> tuple[Array, Any]:
            flat = tokens.reshape(-1, 1)
            state = decoding.DecodingState(cache.index, flat, flat, cache)
            logits, cache = tokens_to_logits(state)
            return logits.reshape(*tokens.shape, -1), cache

        state = search.advance(step, search.start(step, cache, request), request)
        found = search.finish(state)
        return jnp.asarray(found.tokens)[:, ::-1], jnp.asarray(found.scores)[:, ::-1]

    def _check_supported(self) -> None:
        """Refuse what needs more than t5x gives.

        Raises:
            UserError: if the configuration asks for it.
        """
        if self.decode.source_contrast or self.decode.language_contrast:
            raise UserError(
                "Decode.source_contrast and Decode.language_contrast must be 0 for t5x, which "
                "searches without contrast; import the checkpoint and use 'mnmt translate'"
            )
        if self.decode.copy_unknown:
            raise UserError(
                "Decode.copy_unknown must be False for t5x, which reads and writes text itself; "
                "import the checkpoint and use 'mnmt translate'"
            )
        if self.decode.weights != "stored":
            raise UserError(
                f"Decode.weights='{self.decode.weights}' must be 'stored' for t5x, which loads the "
                "weights itself; import the checkpoint and use 'mnmt translate'"
            )

    def _rngs(self, rng: Array | None, rows: int) -> Array | None:
        """Returns a stream per row of the batch."""
        if self.decode.method != "sample":
            return None
        if rng is None:
            raise UserError(
                f"Decode.temperature={self.decode.temperature} samples, but there is no rng; give "
                "predict_batch one, or set Decode.temperature=0"
            )
        return jax.vmap(lambda row: jax.random.fold_in(rng, row))(jnp.arange(rows))
