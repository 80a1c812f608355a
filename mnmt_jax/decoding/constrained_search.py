"""Lexically constrained beam search: required terms with alternatives, and forbidden terms.

A term is met where the tokens of one of its alternatives occur in a hypothesis. Occurrences of
different terms may overlap. Eos is not allowed before all terms are met, except at the maximum
length, or if nothing else is possible; a hypothesis that ends without all terms ranks behind those
with all of them. The last token of a forbidden term is masked where the others precede it.

The beam is divided into banks by the number of tokens that are missing: the best continuation of
each bank stays, then the second best, and so on (dynamic beam allocation); in the last step banks
with fewer missing tokens take precedence. Besides the best continuations of a hypothesis, those
that continue a term are considered, so that the hypothesis with the fewest missing tokens gets
closer in each step.

Source: Post, Vilar, "Fast Lexically Constrained Decoding with Dynamic Beam Allocation for Neural
Machine Translation", NAACL 2018 (arXiv 1804.06609); Hu et al., "Improved Lexically Constrained
Decoding for Translation and Monolingual Rewriting", NAACL 2019, for the vectorised allocation;
disjunctive terms as in fairseq and transformers. Positions in terms are tracked by the bits of
shift-and matching (Baeza-Yates, Gonnet, 1992) instead of a trie.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from mnmt_jax.decoding.search import BeamSearch, BeamState, Hypotheses, Request, Step
from mnmt_jax.decoding.search_arrays import AnyArray, pick
from mnmt_jax.decoding.search_terms import SearchTerms
from mnmt_jax.distributed.per_device import sharded_top_k
from mnmt_jax.vocabulary.special_ids import EOS_ID, PAD_ID

_UNUSED = 1 << 20  # length of an alternative that is not used, missing tokens of no hypothesis


@flax.struct.dataclass
class TermProgress:
    """Positions of hypotheses in terms. All arrays have the axes of the hypotheses first.

    Attributes:
        matched: bool [*hypotheses, sequences * length], whether the last tokens of the hypothesis
            are the first tokens of a sequence, for each number of tokens.
        counts: int32 [*hypotheses, terms], occurrences so far, at most the required ones.
    """

    matched: Bool[Array, "*hypotheses positions"]
    counts: Int[Array, "*hypotheses terms"]


@flax.struct.dataclass
class ConstrainedState(BeamState):
    """State of `ConstrainedBeamSearch` between two steps."""

    progress: TermProgress  # of live hypotheses
    is_complete: Bool[Array, "batch beam"]  # which finished hypotheses have all terms


@dataclasses.dataclass(frozen=True)
class ConstrainedBeamSearch(BeamSearch):
    """Beam search whose hypotheses contain the terms of `Request.terms`, by the rules above.

    With no terms it ranks as `BeamSearch`. Hypotheses with all terms come first in the result, each
    group by score.
    """

    def start(self, step: Step, cache: Any, request: Request) -> ConstrainedState:
        """Feed the prefix, and return one live hypothesis of score 0 per sentence."""
        state, terms = super().start(step, cache, request), _terms(request)
        batch, sequences, length = terms.tokens.shape
        progress = TermProgress(
            matched=jnp.zeros((batch, self.beam, sequences * length), bool),
            counts=jnp.zeros((batch, self.beam, terms.counts.shape[1]), jnp.int32),
        )
        is_complete = jnp.zeros((batch, self.beam), bool)
        return ConstrainedState(**vars(state), progress=progress, is_complete=is_complete)

    def ranked(
        self,
        values: Float[Array, "batch beam vocab"],
        normalizer: Float[Array, "batch beam"],
        state: Any,
        request: Request,
    ) -> tuple[Array, Array, Array]:
        """Return the 2 * beam continuations that the banks choose."""
        terms, progress = _terms(request), state.progress
        values = _mask_values(values, state, request)
        values, tokens = _candidates(values, _next_tokens(terms, progress), 2 * self.beam)
        scores = state.live_scores[:, :, None] + (values - normalizer[:, :, None])
        missing = _missing(terms, _extend(terms, progress, tokens))
        batch, beam, candidates = scores.shape
        flat = scores.reshape(batch, -1), missing.reshape(batch, -1)
        is_last = state.step >= request.max_length
        order = _by_banks(*flat, is_last)[:, : 2 * self.beam]
        return pick(flat[0], order), order // candidates, pick(tokens.reshape(batch, -1), order)

    def continued(
        self, state: Any, parents: Int[Array, "batch beam"], request: Request
    ) -> ConstrainedState:
        """Return the state with the progress of the chosen continuations, `state.last`."""
        progress = jax.tree.map(lambda array: pick(array, parents), state.progress)
        extended = _extend(_terms(request), progress, state.last[:, :, None])
        return dataclasses.replace(
            state, progress=jax.tree.map(lambda array: array[:, :, 0], extended)
        )

    def finish(self, state: Any) -> Hypotheses:
        """Return the finished hypotheses, those with all terms first, by descending score."""
        hypotheses = state.finished
        shape = state.is_complete.shape
        slots = jnp.broadcast_to(jnp.arange(self.beam, dtype=jnp.int32)[None], shape)
        keys = (~state.is_complete).astype(jnp.int32), -hypotheses.scores, slots
        *_, order = jax.lax.sort(keys, dimension=1, num_keys=2, is_stable=True)
        return jax.tree.map(lambda array: pick(array, order), hypotheses)

    def _finalise(
        self,
        state: Any,
        request: Request,
        is_running: Bool[Array, " batch"],
        ranked: tuple[Array, Array, Array],
    ) -> Any:
        """Append finished hypotheses, and note which have all terms."""
        _, parents, is_eos = (array[:, : self.beam] for array in ranked)
        is_finished = is_eos & is_running[:, None]
        has_all = pick(_missing(_terms(request), state.progress), parents) == 0
        has_all = pick(has_all, jnp.argsort(~is_finished, axis=1, stable=True))
        # Finished continuations take the next free slots in order.
        number = jnp.arange(self.beam)[None] - state.finished_count[:, None]
        is_new = (number >= 0) & (number < jnp.sum(is_finished, axis=1)[:, None])
        flags = pick(has_all, jnp.clip(number, 0, self.beam - 1))
        state = super()._finalise(state, request, is_running, ranked)
        is_complete = jnp.where(is_new, flags, state.is_complete)
        return dataclasses.replace(state, is_complete=is_complete)


def _terms(request: Request) -> SearchTerms:
    if request.terms is None:
        raise ValueError("Request.terms is missing; the search needs terms")
    return request.terms


def _mask_values(
    values: Float[Array, "batch beam vocab"], state: ConstrainedState, request: Request
) -> Float[Array, "batch beam vocab"]:
    """Set to -inf: eos before all terms are met, and tokens that complete a forbidden term.

    Eos stays if nothing else is possible, because contrasts exclude it.
    """
    terms, progress = _terms(request), state.progress
    batch, beam, vocab = values.shape
    is_missing = _missing(terms, progress)[:, :, None] > 0
    is_last = (state.step >= request.max_length)[:, None, None]
    is_eos = jnp.arange(vocab)[None, None] == EOS_ID
    without_eos = jnp.where(is_eos & is_missing & ~is_last, -jnp.inf, values)
    has_others = jnp.any(without_eos > -jnp.inf, axis=-1, keepdims=True)
    values = jnp.where(has_others, without_eos, values)
    forbidden = terms.tokens[:, terms.required :]
    if not forbidden.shape[1]:
        return values
    precedes = _prefixes(terms, progress)[:, :, terms.required :]
    is_final = _is_final(forbidden)[:, None]
    completes = jnp.any(precedes & is_final, axis=-1)  # [batch, beam, forbidden]
    last = jnp.sum(jnp.where(is_final, forbidden[:, None], 0), axis=-1)
    masked = jnp.where(completes, last, PAD_ID)  # pad is never allowed anyway
    rows, beams = jnp.arange(batch)[:, None, None], jnp.arange(beam)[None, :, None]
    return values.at[rows, beams, masked].set(-jnp.inf)


def _candidates(
    values: Float[Array, "batch beam vocab"], following: Int[Array, "batch beam terms"], best: int
) -> tuple[Float[Array, "batch beam candidates"], Int[Array, "batch beam candidates"]]:
    """Return values and tokens of the best continuations and of those that continue terms."""
    best_values, best_tokens = sharded_top_k(values, min(best, values.shape[-1]))
    tokens = jnp.concatenate([best_tokens.astype(jnp.int32), following], axis=2)
    term_values = jnp.take_along_axis(values, following, axis=2)
    candidate_values = jnp.concatenate([best_values, term_values], axis=2)
    is_earlier = jnp.tri(tokens.shape[2], k=-1, dtype=bool)[None, None]
    is_repeated = jnp.any(is_earlier & (tokens[..., :, None] == tokens[..., None, :]), axis=-1)
    return jnp.where(is_repeated, -jnp.inf, candidate_values), tokens


def _by_banks(
    scores: Float[Array, "batch candidates"],
    missing: Int[Array, "batch candidates"],
    is_last: Bool[Array, " batch"],
) -> Int[Array, "batch candidates"]:
    """Return the order of candidates: the best of each bank, the second best, and so on.

    Banks with fewer missing tokens come first; candidates of score -inf come last. In the last step
    of a sentence all of a bank precede the next bank.
    """
    count = scores.shape[1]
    bank = jnp.where(scores > -jnp.inf, missing, _UNUSED)
    position = jnp.broadcast_to(jnp.arange(count, dtype=jnp.int32)[None], scores.shape)
    bank, _, order = jax.lax.sort(
        (bank, -scores, position), dimension=1, num_keys=2, is_stable=True
    )
    is_first = jnp.concatenate([jnp.ones_like(bank[:, :1]), bank[:, 1:] - bank[:, :-1]], axis=1) > 0
    start = jax.lax.cummax(jnp.where(is_first, position, 0), axis=1)
    rank = jnp.where(is_last[:, None], 0, position - start)
    rank = jnp.where(bank == _UNUSED, count, rank)
    return jax.lax.sort((rank, bank, order), dimension=1, num_keys=2, is_stable=True)[2]


def _lengths(tokens: Int[AnyArray, "batch sequences length"]) -> Int[Array, "batch sequences"]:
    return jnp.sum(jnp.asarray(tokens) != PAD_ID, axis=-1, dtype=jnp.int32)


def _is_final(
    tokens: Int[AnyArray, "batch sequences length"],
) -> Bool[Array, "batch sequences length"]:
    """Return the position of the last token of each sequence."""
    return jnp.arange(tokens.shape[2])[None, None] == _lengths(tokens)[..., None] - 1


def _matched(
    terms: SearchTerms, progress: TermProgress
) -> Bool[Array, "*hypotheses sequences length"]:
    """Return `progress.matched` with an axis for the sequences."""
    return progress.matched.reshape(*progress.matched.shape[:-1], *terms.tokens.shape[1:])


def _prefixes(
    terms: SearchTerms, progress: TermProgress
) -> Bool[Array, "*hypotheses sequences length"]:
    """Return whether the hypothesis ends with the first n tokens of a sequence, n from 0."""
    matched = _matched(terms, progress)
    return jnp.concatenate([jnp.ones_like(matched[..., :1]), matched[..., :-1]], axis=-1)


def _extend(
    terms: SearchTerms, progress: TermProgress, tokens: Int[Array, "batch beam candidates"]
) -> TermProgress:
    """Return the progress of each hypothesis after each of its candidate tokens."""
    sequences = terms.tokens[:, None, None]  # [batch, 1, 1, sequences, length]
    is_token = (sequences == tokens[..., None, None]) & (sequences != PAD_ID)
    matched = _prefixes(terms, progress)[:, :, None] & is_token
    is_final = _is_final(terms.tokens)[:, None, None]
    occurs = jnp.any(matched & is_final, axis=-1)[..., : terms.required]
    by_term = occurs.reshape(*tokens.shape, -1, terms.alternatives)
    occurs = jnp.any(by_term, axis=-1)  # [batch, beam, candidates, terms]
    counts = progress.counts[:, :, None] + occurs.astype(jnp.int32)
    counts = jnp.minimum(counts, terms.counts[:, None, None])
    # Occurrences of one term do not overlap.
    restarts = jnp.repeat(occurs, terms.alternatives, axis=-1)
    forbidden = jnp.zeros((*tokens.shape, terms.tokens.shape[1] - terms.required), bool)
    restarts = jnp.concatenate([restarts, forbidden], axis=-1)
    matched = matched & ~restarts[..., None]
    return TermProgress(matched.reshape(*tokens.shape, -1), counts)


def _matched_lengths(
    terms: SearchTerms, progress: TermProgress
) -> Int[Array, "*hypotheses terms alternatives"]:
    """Return the number of matched tokens of each alternative."""
    matched = _matched(terms, progress)
    position = jnp.arange(1, matched.shape[-1] + 1).reshape((1,) * (matched.ndim - 1) + (-1,))
    longest = jnp.max(jnp.where(matched, position, 0), axis=-1)[..., : terms.required]
    return longest.reshape(*longest.shape[:-1], -1, terms.alternatives)


def _missing(terms: SearchTerms, progress: TermProgress) -> Int[Array, "*hypotheses"]:
    """Return the number of missing tokens: those of the shortest alternatives of unmet terms.

    Matched tokens count for one term alone, the one with the most, so that whatever continues it
    reduces the number.
    """
    batch, terms_count = terms.counts.shape
    middle = (1,) * (progress.counts.ndim - 2)
    lengths = _lengths(terms.tokens)[:, : terms.required].reshape(batch, terms_count, -1)
    lengths = jnp.where(lengths == 0, _UNUSED, lengths)
    shortest = jnp.min(lengths, axis=-1)
    lengths = lengths.reshape(batch, *middle, terms_count, -1)
    least = shortest.reshape(batch, *middle, terms_count)
    remaining = terms.counts.reshape(batch, *middle, terms_count) - progress.counts
    matched = jnp.max(least[..., None] - lengths + _matched_lengths(terms, progress), axis=-1)
    matched = jnp.max(jnp.where(remaining > 0, jnp.maximum(matched, 0), 0), axis=-1)
    return jnp.sum(jnp.where(remaining > 0, remaining * least, 0), axis=-1) - matched


def _next_tokens(
    terms: SearchTerms, progress: TermProgress
) -> Int[Array, "batch beam alternatives"]:
    """Return the token that continues each alternative of unmet terms; pad if there is none."""
    batch, beam = progress.counts.shape[:2]
    matched = _matched_lengths(terms, progress).reshape(batch, beam, -1)
    sequences = jnp.broadcast_to(
        terms.tokens[:, None, : terms.required],
        (batch, beam, terms.required, terms.tokens.shape[2]),
    )
    tokens = jnp.take_along_axis(sequences, matched[..., None], axis=-1)[..., 0]
    is_unmet = progress.counts < terms.counts[:, None]
    return jnp.where(jnp.repeat(is_unmet, terms.alternatives, axis=-1), tokens, PAD_ID)
