"""t5x decode function that runs the project's search. Needs t5x."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array
from t5x import decoding

from mnmt_jax.config.sections import Decode
from mnmt_jax.decoding.search import Request
from mnmt_jax.decoding.search_settings import make_search
from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.special_ids import EOS_ID


class TokensToLogits(Protocol):
    """One decoder step for all hypotheses: t5x's `TokensIdsToLogitsCallable`."""

    def __call__(self, state: decoding.DecodingState) -> tuple[Array, Any]:
        """Return logits [batch * beam, vocab] and the cache after the step."""


@dataclasses.dataclass(frozen=True)
class SearchDecode:
    """Decode function configured by `Decode`: greedy, beam search by fairseq's rules, or sampling.

    The cache is passed on unchanged. Only keys and values that grow have a beam axis; static ones
    are not tiled over the hypotheses, unlike in t5x's decode functions.

    Attributes:
        decode: method and its settings; `num_decodes` of the call replaces `beam_size`.
        prefix: number of leading prompt tokens in `inputs`: the trigger and any forced tag.
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
        """Translate a batch.

        Args:
            inputs: int32 [batch, steps], starting with the prompt; `steps` bounds the generated
                tokens.
            cache: from `Translator.prefill` with a beam of `num_decodes`.
            tokens_to_logits: one step of the model.
            num_decodes: hypotheses per sentence.
            eos_id: must be the id of the vocabulary.
            decode_rng: key for sampling; not used otherwise.
            cache_offset: must be 0, because layers are not scanned.
            max_length: int32 [batch], maximum number of generated tokens, without eos.

        Returns:
            Generated ids without the prompt, int32 [batch, num_decodes, steps], and scores
            [batch, num_decodes]; best last.

        Raises:
            UserError: if sampling has no rng, or the settings ask for contrast (t5x passes the
                model one input per sentence), copied characters or quantized weights.
            ValueError: if `eos_id` or `cache_offset` has another value.
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
        result = search.finish(state)
        return jnp.asarray(result.tokens)[:, ::-1], jnp.asarray(result.scores)[:, ::-1]

    def _check_supported(self) -> None:
        """Refuse settings that t5x cannot support.

        Raises:
            UserError: if the configuration has such a setting.
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
        if self.decode.ensemble:
            raise UserError("Decode.ensemble must be () for t5x, which loads one model")
        if self.decode.utility:
            raise UserError(
                f"Decode.utility='{self.decode.utility}' must be '' for t5x, which takes the "
                "hypotheses by the model's score; import the checkpoint and use 'mnmt translate'"
            )
        if self.decode.weights != "stored":
            raise UserError(
                f"Decode.weights='{self.decode.weights}' must be 'stored' for t5x, which loads the "
                "weights itself; import the checkpoint and use 'mnmt translate'"
            )

    def _rngs(self, rng: Array | None, rows: int) -> Array | None:
        """Return one random key per row of the batch; None without sampling."""
        if self.decode.method != "sample":
            return None
        if rng is None:
            raise UserError(
                f"Decode.temperature={self.decode.temperature} samples, but there is no rng; give "
                "predict_batch one, or set Decode.temperature=0"
            )
        return jax.vmap(lambda row: jax.random.fold_in(rng, row))(jnp.arange(rows))
