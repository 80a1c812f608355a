"""Greedy, beam and sampling search over a step function. Pure, static shapes, no text.

A search uses a model only through `step(tokens [batch, beam], cache) -> (logits [batch, beam,
vocab], cache)`. For a request with contrasts (`mnmt_jax.decoding.contrastive_decoding`) the logits
are [batch, inputs, beam, vocab], the sentence's own input first. A `Search` has four methods:
`start` feeds the prefix, `advance` takes steps until a number of sentences have ended (so that a
caller may replace them), `done` tells which have, `finish` returns hypotheses. `beam_search`,
`greedy` and `sample` run a search from start to end.

Steps, limit, random stream and end of a sentence depend on that sentence alone. A sentence that has
ended stays unchanged while others go on.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from mnmt_jax.decoding.contrastive_decoding import EXCLUDED_PROB_SCALE, Contrast, contrast_scores
from mnmt_jax.decoding.search_arrays import (
    AnyArray,
    StopCount,
    pick,
    put_tokens,
    rank_continuations,
    repeat_until,
)
from mnmt_jax.decoding.search_terms import SearchTerms
from mnmt_jax.decoding.truncation import truncate
from mnmt_jax.vocabulary.special_ids import EOS_ID, PAD_ID, UNK_ID

Step = Callable[[Array, Any], tuple[Array, Any]]
Reorder = Callable[[Any, Array], Any]


@flax.struct.dataclass
class Request:
    """Search parameters of each sentence of a batch.

    Attributes:
        prefix: int32 [batch, prefix], the first decoder input and then any forced tokens, which are
            neither scored nor counted.
        prefix_length: int32, of all prefixes; positions after it are ignored. None is the full
            width.
        max_length: int32 [batch], maximum number of generated tokens, without eos.
        active: bool [batch], False for rows that only fill the batch.
        rngs: [batch] keys, used by `Sample` only.
        contrast: further inputs that scores are contrasted with; None is plain search.
        terms: required and forbidden terms, for `ConstrainedBeamSearch` only.
        max_steps: maximum number of generated tokens, with eos, of the arrays; a sentence that may
            be longer is not `done` if they did not suffice.
        allow_unk: whether unk may be generated. Otherwise its probability counts in the
            normalisation, but it is never chosen.
    """

    prefix: Int[AnyArray, "batch prefix"]
    max_length: Int[AnyArray, " batch"]
    active: Bool[AnyArray, " batch"]
    prefix_length: Int[AnyArray, ""] | None = None
    rngs: Array | None = None
    contrast: Contrast | None = None
    terms: SearchTerms | None = None
    max_steps: int = flax.struct.field(pytree_node=False, default=201)
    allow_unk: bool = flax.struct.field(pytree_node=False, default=True)

    def cache_steps(self) -> int:
        """Return the cache positions that prefix and generated tokens need."""
        return self.max_steps + self.prefix.shape[1] - 1


@flax.struct.dataclass
class Hypotheses:
    """Hypotheses of a search, best first.

    Attributes:
        tokens: int32 [batch, beam, max_steps], ending in eos, then pad.
        lengths: int32 [batch, beam], tokens with eos; 0 where there is no hypothesis.
        scores: float32 [batch, beam], nats / length ** length_penalty; -inf where there is none.
    """

    tokens: Int[AnyArray, "batch beam steps"]
    lengths: Int[AnyArray, "batch beam"]
    scores: Float[AnyArray, "batch beam"]


@runtime_checkable
class Search(Protocol):
    """A search algorithm: its start, steps and end."""

    @property
    def beam(self) -> int:
        """Hypotheses per sentence."""

    def start(self, step: Step, cache: Any, request: Request) -> Any:
        """Feed the prefix but its last token, and return the state before the first free step."""

    def advance(
        self, step: Step, state: Any, request: Request, stop_count: StopCount = None
    ) -> Any:
        """Take steps until `stop_count` sentences are done or have no room left; None is all."""

    def done(self, state: Any) -> Bool[Array, " batch"]:
        """Return which sentences have all their hypotheses."""

    def finish(self, state: Any) -> Hypotheses:
        """Return the hypotheses, best first."""


def has_stopped(search: Search, state: Any, request: Request) -> Bool[Array, " batch"]:
    """Return which sentences take no further step: they are done, or have no room left."""
    return search.done(state) | (state.step >= request.max_steps)


def log_normalizer(logits: Float[Array, "*rows vocab"]) -> Float[Array, "*rows"]:
    """Return float32 log(sum(exp(logits))), which search and scoring both subtract."""
    return jax.nn.logsumexp(logits.astype(jnp.float32), axis=-1)


def sentence_rngs(seed: int, sentence_ids: Int[Array, " batch"]) -> Array:
    """Return one key per sentence that depends on the seed and the sentence's id alone."""
    return jax.vmap(lambda i: jax.random.fold_in(jax.random.key(seed), i))(sentence_ids)


def beam_search(
    step: Step,
    cache: Any,
    *,
    request: Request,
    reorder: Reorder,
    beam: int,
    length_penalty: float = 1.0,
) -> Hypotheses:
    """Run `BeamSearch` from start to end."""
    search = BeamSearch(beam=beam, length_penalty=length_penalty, reorder=reorder)
    return _run(search, step, cache, request)


def greedy(step: Step, cache: Any, *, request: Request) -> Hypotheses:
    """Run `Greedy` from start to end."""
    return _run(Greedy(), step, cache, request)


def sample(step: Step, cache: Any, *, request: Request, **options: Any) -> Hypotheses:
    """Run `Sample` from start to end; `options` are its fields."""
    return _run(Sample(**options), step, cache, request)


def _run(search: Search, step: Step, cache: Any, request: Request) -> Hypotheses:
    state = search.start(step, cache, request)
    return search.finish(search.advance(step, state, request))


@flax.struct.dataclass
class BeamState:
    """State of live and finished hypotheses between two steps of `BeamSearch`."""

    step: Int[Array, " batch"]  # tokens generated
    last: Int[Array, "batch beam"]
    live_tokens: Int[Array, "batch beam steps"]
    live_scores: Float[Array, "batch beam"]  # sums of log-probabilities
    finished: Hypotheses  # in the order of finishing
    finished_count: Int[Array, " batch *groups"]
    done: Bool[Array, " batch *groups"]
    cache: Any


@dataclasses.dataclass(frozen=True)
class BeamSearch:
    """Beam search by fairseq's rules.

    Each step ranks the 2 * beam best continuations by summed log-probability. An eos among the
    first `beam` of them finishes a hypothesis; an eos further down is dropped; the first `beam`
    continuations without eos stay live. The first step expands one beam and allows no eos. A
    sentence is done when `beam` hypotheses have finished, or at `max_length` tokens, where only eos
    is allowed.

    Attributes:
        beam: hypotheses per sentence.
        reorder: `(cache, beam_indices [batch, beam]) -> cache`.
        length_penalty: score = sum / (tokens with eos) ** length_penalty.

    Source: MITRE's decoding, fairseq `sequence_generator.py` and `search.py`. Ties go to the better
    parent and then to the larger logit, the lower id; fairseq does not specify them.
    """

    beam: int
    reorder: Reorder
    length_penalty: float = 1.0

    def start(self, step: Step, cache: Any, request: Request) -> BeamState:
        """Feed the prefix, and return one live hypothesis of score 0 per sentence."""
        batch, beam, steps = request.prefix.shape[0], self.beam, request.max_steps
        last, cache = _feed_prefix(step, cache, request, beam)
        empty = jnp.full((batch, beam), -jnp.inf, jnp.float32)
        tokens = jnp.full((batch, beam, steps), PAD_ID, jnp.int32)
        return BeamState(
            step=jnp.zeros((batch,), jnp.int32),
            last=last,
            live_tokens=tokens,
            live_scores=empty.at[:, 0].set(0.0),
            finished=Hypotheses(tokens, jnp.zeros((batch, beam), jnp.int32), empty),
            finished_count=jnp.zeros((batch,), jnp.int32),
            done=jnp.asarray(~request.active),
            cache=cache,
        )

    def advance(
        self, step: Step, state: BeamState, request: Request, stop_count: StopCount = None
    ) -> BeamState:
        """Take steps until `stop_count` sentences are done or have no room left; None is all."""

        def body(state: BeamState) -> BeamState:
            is_running = ~has_stopped(self, state, request)
            logits, cache = step(state.last, state.cache)
            values, normalizer = _values(logits, state.step, request)
            scores, parents, tokens = self.ranked(values, normalizer, state, request)
            is_eos = (tokens == EOS_ID) & (scores > -jnp.inf)
            state = self._finalise(state, request, is_running, (scores, parents, is_eos))
            chosen = self.chosen(is_eos)
            parents, last = pick(parents, chosen), pick(tokens, chosen)
            state = dataclasses.replace(
                state,
                step=jnp.where(is_running, state.step + 1, state.step),
                last=last,
                live_tokens=put_tokens(pick(state.live_tokens, parents), state.step, last),
                live_scores=pick(scores, chosen),
                cache=self.reorder(cache, parents),
            )
            return self.continued(state, parents, request)

        return repeat_until(
            stop_count, functools.partial(has_stopped, self, request=request), body, state
        )

    def ranked(
        self,
        values: Float[Array, "batch beam vocab"],
        normalizer: Float[Array, "batch beam"],
        state: BeamState,
        request: Request,
    ) -> tuple[Array, Array, Array]:
        """Return the 2 * beam best continuations: scores, parents and tokens, [batch, 2 * beam]."""
        return rank_continuations(values, normalizer, state.live_scores)

    def chosen(self, is_eos: Bool[Array, "batch ranked"]) -> Int[Array, "batch beam"]:
        """Return the ranks of the continuations that stay live: the first without eos."""
        return jnp.argsort(is_eos, axis=1, stable=True)[:, : self.beam]

    def continued(
        self, state: BeamState, parents: Int[Array, "batch beam"], request: Request
    ) -> BeamState:
        """Return the state after a step; a subclass updates its fields, by the chosen parents."""
        return state

    def done(self, state: BeamState) -> Bool[Array, " batch"]:
        """Return which sentences have all their hypotheses."""
        return state.done

    def finish(self, state: BeamState) -> Hypotheses:
        """Return the finished hypotheses by descending score."""
        order = jnp.argsort(-state.finished.scores, axis=1, stable=True)
        return jax.tree.map(lambda array: pick(array, order), state.finished)

    def _finalise(
        self,
        state: BeamState,
        request: Request,
        is_running: Bool[Array, " batch"],
        ranked: tuple[Array, Array, Array],
    ) -> BeamState:
        """Append the eos candidates among the first `beam` to the finished hypotheses."""
        scores, parents, is_eos = (array[:, : self.beam] for array in ranked)
        is_finished = is_eos & is_running[:, None]
        slot = state.finished_count[:, None] + jnp.cumsum(is_finished, axis=1, dtype=jnp.int32) - 1
        slot_mask = is_finished[:, :, None] & (
            slot[:, :, None] == jnp.arange(self.beam)[None, None]
        )
        filled, rank = jnp.any(slot_mask, axis=1), jnp.argmax(slot_mask, axis=1)  # [batch, slot]
        length = (state.step + 1)[:, None]
        penalty = length.astype(jnp.float32) ** self.length_penalty
        tokens = put_tokens(pick(state.live_tokens, pick(parents, rank)), state.step, EOS_ID)
        old = state.finished
        finished = Hypotheses(
            tokens=jnp.where(filled[:, :, None], tokens, old.tokens),
            lengths=jnp.where(filled, length, old.lengths),
            scores=jnp.where(filled, pick(scores, rank) / penalty, old.scores),
        )
        count = jnp.minimum(state.finished_count + jnp.sum(is_finished, axis=1), self.beam)
        done = state.done | (
            is_running & ((count == self.beam) | (state.step >= request.max_length))
        )
        return dataclasses.replace(state, finished=finished, finished_count=count, done=done)


def _values(
    logits: Float[Array, "batch *inputs beam vocab"], step: Int[Array, " batch"], request: Request
) -> tuple[Float[Array, "batch beam vocab"], Float[Array, "batch beam"]]:
    """Return the values by which continuations are ranked, -inf where not allowed.

    Returns:
        Logits, or contrasted scores; and the number to subtract for log-probabilities, zeros for
        contrasted scores.
    """
    if request.contrast is None:
        return _mask_logits(logits, step, request), log_normalizer(logits)
    log_probs = logits.astype(jnp.float32) - log_normalizer(logits)[..., None]
    scores = contrast_scores(log_probs, request.contrast.weights)
    scores = _mask_logits(scores, step, request)
    fallback = _mask_logits(log_probs[:, 0], step, request) + np.log(
        np.float32(EXCLUDED_PROB_SCALE)
    )
    has_allowed = jnp.any(scores > -jnp.inf, axis=-1, keepdims=True)
    return jnp.where(has_allowed, scores, fallback), jnp.zeros(scores.shape[:2], jnp.float32)


def _mask_logits(
    logits: Float[Array, "batch beam vocab"], step: Int[Array, " batch"], request: Request
) -> Float[Array, "batch beam vocab"]:
    """Set to -inf: pad, NaN, unk unless allowed, eos at the first step, all but eos at the last."""
    token = jnp.arange(logits.shape[-1])[None, None]
    is_first, is_last = (step == 0)[:, None, None], (step >= request.max_length)[:, None, None]
    allowed = (token != PAD_ID) & ~jnp.isnan(logits)
    if not request.allow_unk:
        allowed &= token != UNK_ID
    allowed &= jnp.where(token == EOS_ID, ~is_first | is_last, ~is_last)
    return jnp.where(allowed, logits.astype(jnp.float32), -jnp.inf)


def _feed_prefix(step: Step, cache: Any, request: Request, beam: int) -> tuple[Array, Any]:
    """Step over all prefix tokens but the last; return the last one per beam, and the cache."""
    batch, length = request.prefix.shape
    tokens = jnp.broadcast_to(request.prefix[:, None], (batch, beam, length)).astype(jnp.int32)
    if request.prefix_length is None:
        for position in range(length - 1):
            _, cache = step(tokens[:, :, position], cache)
        return tokens[:, :, -1], cache

    def feed(position: Array, cache: Any) -> Any:
        return step(jnp.take(tokens, position, axis=2), cache)[1]

    last_position = jnp.asarray(request.prefix_length) - 1
    return jnp.take(tokens, last_position, axis=2), jax.lax.fori_loop(0, last_position, feed, cache)


@flax.struct.dataclass
class ChainState:
    """State of independent hypotheses between two steps of `Greedy` or `Sample`."""

    step: Int[Array, " batch"]  # tokens generated
    last: Int[Array, "batch beam"]
    tokens: Int[Array, "batch beam steps"]
    log_prob: Float[Array, "batch beam"]
    lengths: Int[Array, "batch beam"]
    done: Bool[Array, "batch beam"]
    cache: Any


class _Chains:
    """Base of searches with independent hypotheses; a subclass chooses the next tokens."""

    beam: int
    length_penalty: float

    def choose(
        self,
        logits: Float[Array, "batch beam vocab"],
        step: Int[Array, " batch"],
        request: Request,
    ) -> Int[Array, "batch beam"]:
        """Return the next token of each hypothesis."""
        raise NotImplementedError

    def start(self, step: Step, cache: Any, request: Request) -> ChainState:
        """Feed the prefix, and return empty hypotheses."""
        batch, beam = request.prefix.shape[0], self.beam
        last, cache = _feed_prefix(step, cache, request, beam)
        return ChainState(
            step=jnp.zeros((batch,), jnp.int32),
            last=last,
            tokens=jnp.full((batch, beam, request.max_steps), PAD_ID, jnp.int32),
            log_prob=jnp.zeros((batch, beam), jnp.float32),
            lengths=jnp.zeros((batch, beam), jnp.int32),
            done=jnp.broadcast_to(~request.active[:, None], (batch, beam)),
            cache=cache,
        )

    def advance(
        self, step: Step, state: ChainState, request: Request, stop_count: StopCount = None
    ) -> ChainState:
        """Take steps until `stop_count` sentences are done or have no room left; None is all."""

        def body(state: ChainState) -> ChainState:
            logits, cache = step(state.last, state.cache)
            values, normalizer = _values(logits, state.step, request)
            tokens = self.choose(values, state.step, request)
            tokens = jnp.where(state.done, PAD_ID, tokens).astype(jnp.int32)
            value = jnp.take_along_axis(values, tokens[:, :, None], axis=2)[:, :, 0]
            log_prob = jnp.where(state.done, 0.0, value - normalizer)
            return ChainState(
                step=jnp.where(has_stopped(self, state, request), state.step, state.step + 1),
                last=tokens,
                tokens=put_tokens(state.tokens, state.step, tokens),
                log_prob=state.log_prob + log_prob,
                lengths=state.lengths + jnp.where(state.done, 0, 1),
                done=state.done | (tokens == EOS_ID),
                cache=cache,
            )

        return repeat_until(
            stop_count, functools.partial(has_stopped, self, request=request), body, state
        )

    def done(self, state: ChainState) -> Bool[Array, " batch"]:
        """Return which sentences have all their hypotheses."""
        return jnp.all(state.done, axis=1)

    def finish(self, state: ChainState) -> Hypotheses:
        """Return the hypotheses by descending score."""
        length = jnp.maximum(state.lengths, 1).astype(jnp.float32)
        scores = state.log_prob / length**self.length_penalty
        scores = jnp.where(state.lengths > 0, scores, -jnp.inf)
        order = jnp.argsort(-scores, axis=1, stable=True)
        hypotheses = Hypotheses(state.tokens, state.lengths, scores)
        return jax.tree.map(lambda array: pick(array, order), hypotheses)


@dataclasses.dataclass(frozen=True)
class Greedy(_Chains):
    """Greedy search: the most probable token, and the lower id in a tie."""

    beam: int = 1
    length_penalty: float = 1.0

    def choose(self, logits: Array, step: Array, request: Request) -> Array:
        """Return the most probable tokens."""
        # Equals jnp.argmax. XLA vectorises neither it nor a minimum of integers on CPU.
        vocab = logits.shape[-1]
        best = logits == jnp.max(logits, axis=-1, keepdims=True)
        rank = jnp.arange(vocab, 0, -1, dtype=jnp.float32)[None, None]  # exact below 2**24
        return vocab - jnp.max(jnp.where(best, rank, 1), axis=-1).astype(jnp.int32)


@dataclasses.dataclass(frozen=True)
class Sample(_Chains):
    """Sampling; scores are the model's own, without temperature and truncation.

    Attributes:
        beam: draws per sentence.
        temperature: divisor of logits, > 0.
        top_k: number of the most probable tokens to draw from; 0 is all.
        top_p: probability mass of the smallest set of most probable tokens to draw from (nucleus
            sampling), applied after `top_k`; 1 is all.
        length_penalty: as in `BeamSearch`.
        epsilon_cutoff: least probability of a token to draw, after temperature and before `top_k`;
            the most probable token always remains.
    """

    beam: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    length_penalty: float = 1.0
    epsilon_cutoff: float = 0.0

    def choose(self, logits: Array, step: Array, request: Request) -> Array:
        """Draw from the random stream of each sentence, independent of other sentences."""
        if request.rngs is None:
            raise ValueError("Request.rngs is missing; sampling needs a key for each sentence")
        vocab = logits.shape[-1]
        logits, tokens = truncate(
            logits / self.temperature,
            self.epsilon_cutoff,
            min(self.top_k or vocab, vocab),
            self.top_p,
        )

        def draw(rng: Array, step: Array, rows: Array) -> Array:
            rngs = jax.random.split(jax.random.fold_in(rng, step), self.beam)
            return jax.vmap(jax.random.categorical)(rngs, rows)

        drawn = jax.vmap(draw)(request.rngs, step, logits)
        if tokens is None:
            return drawn
        return jnp.take_along_axis(tokens, drawn[:, :, None], axis=2)[:, :, 0]
