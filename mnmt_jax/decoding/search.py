"""Greedy, beam and sampling search over a step function. Pure, static shapes, no text.

`step(tokens [batch, beam], cache) -> (logits [batch, beam, vocab], cache)` is all that a search
knows of a model; of a request with contrasts (`mnmt_jax.decoding.contrastive_decoding`) the logits are
[batch, inputs, beam, vocab], the sentence's own input first. A search is a small object with three
methods: `start` feeds the prefix, `advance` takes steps until so many sentences have ended (so that
a caller may put others in their place), `finish` returns hypotheses. `beam_search`, `greedy` and
`sample` call the three in turn.

Everything about a sentence depends on that sentence alone: its steps, its limit, its random stream
and when it stops. A sentence that has ended rides along unchanged.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, runtime_checkable

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from mnmt_jax.decoding.contrastive_decoding import EXCLUDED_PROB_SCALE, Contrast, contrast_scores
from mnmt_jax.distributed.per_device import top_of_rows
from mnmt_jax.vocabulary.special_ids import EOS_ID, PAD_ID, UNK_ID

Step = Callable[[Array, Any], tuple[Array, Any]]
AnyArray = Array | np.ndarray  # the host passes and receives NumPy
Reorder = Callable[[Any, Array], Any]
_State = TypeVar("_State")
StopCount = int | Int[AnyArray, ""] | None  # sentences that have ended; None is all


@flax.struct.dataclass
class Request:
    """What is asked for each sentence.

    Attributes:
        prefix: int32 [batch, prefix], the first decoder input and then any forced tokens, which are
            neither scored nor counted.
        prefix_length: int32, of all prefixes; what stands behind is not read. None is all of it.
        max_length: int32 [batch], generated tokens at most, without eos.
        active: bool [batch], False for rows that only fill the batch.
        rngs: [batch] keys, read by `Sample` alone.
        contrast: further inputs that scores are contrasted with; None is plain search.
        max_steps: generated tokens that there is room for, with eos; a sentence that may be longer
            is not `done` where they did not suffice.
        allow_unk: unk may be generated; otherwise its probability counts and it is never chosen.
    """

    prefix: Int[AnyArray, "batch prefix"]
    max_length: Int[AnyArray, " batch"]
    active: Bool[AnyArray, " batch"]
    prefix_length: Int[AnyArray, ""] | None = None
    rngs: Array | None = None
    contrast: Contrast | None = None
    max_steps: int = flax.struct.field(pytree_node=False, default=201)
    allow_unk: bool = flax.struct.field(pytree_node=False, default=True)

    def cache_steps(self) -> int:
        """Returns the cache positions that prefix and generated tokens need."""
        return self.max_steps + self.prefix.shape[1] - 1


@flax.struct.dataclass
class Hypotheses:
    """What a search found, best first.

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
    """A way to search: how it starts, goes on and ends."""

    @property
    def beam(self) -> int:
        """Hypotheses per sentence."""

    def start(self, step: Step, cache: Any, request: Request) -> Any:
        """Feeds the prefix but its last token and returns the state before the first free step."""

    def advance(self, step: Step, state: Any, request: Request, enough: StopCount = None) -> Any:
        """Takes steps until so many sentences are done or have no room left; None is all."""

    def done(self, state: Any) -> Bool[Array, " batch"]:
        """Returns which sentences have all of their hypotheses."""

    def finish(self, state: Any) -> Hypotheses:
        """Returns the hypotheses, best first."""


def has_stopped(search: Search, state: Any, request: Request) -> Bool[Array, " batch"]:
    """Returns which sentences take no further step: they are done, or have no room left."""
    return search.done(state) | (state.step >= request.max_steps)


def log_normalizer(logits: Float[Array, "*rows vocab"]) -> Float[Array, "*rows"]:
    """Returns float32 log(sum(exp(logits))): what search and scoring both subtract."""
    return jax.nn.logsumexp(logits.astype(jnp.float32), axis=-1)


def sentence_rngs(seed: int, sentence_ids: Int[Array, " batch"]) -> Array:
    """Returns one key per sentence that depends on the seed and the sentence's id alone."""
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
    """Searches with `BeamSearch` from start to end."""
    search = BeamSearch(beam=beam, length_penalty=length_penalty, reorder=reorder)
    return _whole(search, step, cache, request)


def greedy(step: Step, cache: Any, *, request: Request) -> Hypotheses:
    """Takes the most probable token at each step."""
    return _whole(Greedy(), step, cache, request)


def sample(step: Step, cache: Any, *, request: Request, **options: Any) -> Hypotheses:
    """Draws hypotheses; `options` are the fields of `Sample`."""
    return _whole(Sample(**options), step, cache, request)


def _whole(search: Search, step: Step, cache: Any, request: Request) -> Hypotheses:
    state = search.start(step, cache, request)
    return search.finish(search.advance(step, state, request))


@flax.struct.dataclass
class BeamState:
    """Live and finished hypotheses between two steps of `BeamSearch`."""

    step: Int[Array, " batch"]  # tokens generated
    last: Int[Array, "batch beam"]
    live_tokens: Int[Array, "batch beam steps"]
    live_scores: Float[Array, "batch beam"]  # sums of log-probabilities
    finished: Hypotheses  # in the order of finishing
    finished_count: Int[Array, " batch"]
    done: Bool[Array, " batch"]
    cache: Any


@dataclasses.dataclass(frozen=True)
class BeamSearch:
    """Beam search by fairseq's rules.

    Each step ranks the 2 * beam best continuations by summed log-probability. An eos among the
    first `beam` of them finishes a hypothesis; an eos further down is dropped; the first `beam`
    others live on. The first step expands one beam and allows no eos. A sentence is done when
    `beam` hypotheses have finished, or at `max_length` tokens, where only eos is allowed.

    Attributes:
        beam: hypotheses per sentence.
        reorder: `(cache, beam_indices [batch, beam]) -> cache`.
        length_penalty: score = sum / (tokens with eos) ** length_penalty.

    Source: MITRE's decoding, fairseq `sequence_generator.py` and `search.py`. Ties go to the better
    parent and then to the larger logit, the lower id; fairseq leaves them open.
    """

    beam: int
    reorder: Reorder
    length_penalty: float = 1.0

    def start(self, step: Step, cache: Any, request: Request) -> BeamState:
        """Feeds the prefix and returns one live hypothesis of score 0 per sentence."""
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
        self, step: Step, state: BeamState, request: Request, enough: StopCount = None
    ) -> BeamState:
        """Takes steps until so many sentences are done or have no room left; None is all."""

        def body(state: BeamState) -> BeamState:
            goes_on = ~has_stopped(self, state, request)
            logits, cache = step(state.last, state.cache)
            values, normalizer = _values(logits, state.step, request)
            scores, parents, tokens = _ranked(values, normalizer, state)
            is_eos = (tokens == EOS_ID) & (scores > -jnp.inf)
            state = self._finalise(state, request, goes_on, (scores, parents, is_eos))
            # A stable sort of "is eos" puts the others first and keeps their ranks.
            chosen = jnp.argsort(is_eos, axis=1, stable=True)[:, : self.beam]
            parents, last = _pick(parents, chosen), _pick(tokens, chosen)
            return dataclasses.replace(
                state,
                step=jnp.where(goes_on, state.step + 1, state.step),
                last=last,
                live_tokens=_put(_pick(state.live_tokens, parents), state.step, last),
                live_scores=_pick(scores, chosen),
                cache=self.reorder(cache, parents),
            )

        return _until(enough, functools.partial(has_stopped, self, request=request), body, state)

    def done(self, state: BeamState) -> Bool[Array, " batch"]:
        """Returns which sentences have all of their hypotheses."""
        return state.done

    def finish(self, state: BeamState) -> Hypotheses:
        """Returns the finished hypotheses by descending score."""
        order = jnp.argsort(-state.finished.scores, axis=1, stable=True)
        return jax.tree.map(lambda array: _pick(array, order), state.finished)

    def _finalise(
        self,
        state: BeamState,
        request: Request,
        goes_on: Bool[Array, " batch"],
        ranked: tuple[Array, Array, Array],
    ) -> BeamState:
        """Appends the eos candidates among the first `beam` to the finished hypotheses."""
        scores, parents, is_eos = (array[:, : self.beam] for array in ranked)
        ends = is_eos & goes_on[:, None]
        slot = state.finished_count[:, None] + jnp.cumsum(ends, axis=1, dtype=jnp.int32) - 1
        into = ends[:, :, None] & (slot[:, :, None] == jnp.arange(self.beam)[None, None])
        filled, rank = jnp.any(into, axis=1), jnp.argmax(into, axis=1)  # [batch, slot]
        length = (state.step + 1)[:, None]
        penalty = length.astype(jnp.float32) ** self.length_penalty
        tokens = _put(_pick(state.live_tokens, _pick(parents, rank)), state.step, EOS_ID)
        old = state.finished
        finished = Hypotheses(
            tokens=jnp.where(filled[:, :, None], tokens, old.tokens),
            lengths=jnp.where(filled, length, old.lengths),
            scores=jnp.where(filled, _pick(scores, rank) / penalty, old.scores),
        )
        count = jnp.minimum(state.finished_count + jnp.sum(ends, axis=1), self.beam)
        done = state.done | (goes_on & ((count == self.beam) | (state.step >= request.max_length)))
        return dataclasses.replace(state, finished=finished, finished_count=count, done=done)


def _ranked(
    values: Float[Array, "batch beam vocab"],
    normalizer: Float[Array, "batch beam"],
    state: BeamState,
) -> tuple[Array, Array, Array]:
    """Returns the 2 * beam best continuations: scores, parents and tokens, [batch, 2 * beam].

    The best of each beam are taken first, on what `_values` gives: the normaliser is one number per
    beam, so log-probabilities of the whole vocabulary are never written down.
    """
    batch, beam, vocab = values.shape
    each = min(2 * beam, vocab)
    values, tokens = top_of_rows(values, each)
    log_probs = values - normalizer[:, :, None]
    totals = (state.live_scores[:, :, None] + log_probs).reshape(batch, beam * each)
    scores, flat = top_of_rows(totals, 2 * beam)
    return scores, flat // each, _pick(tokens.reshape(batch, beam * each), flat)


def _values(
    logits: Float[Array, "batch *inputs beam vocab"], step: Int[Array, " batch"], request: Request
) -> tuple[Float[Array, "batch beam vocab"], Float[Array, "batch beam"]]:
    """Returns what continuations are ranked by, -inf where they may not follow.

    Returns:
        Logits, or scores that are contrasted; and what is subtracted to make log-probabilities of
        the former, zeros for the latter.
    """
    if request.contrast is None:
        return _mask_logits(logits, step, request), log_normalizer(logits)
    log_probs = logits.astype(jnp.float32) - log_normalizer(logits)[..., None]
    scores = contrast_scores(log_probs, request.contrast.weights)
    scores = _mask_logits(scores, step, request)
    spared = _mask_logits(log_probs[:, 0], step, request) + np.log(np.float32(EXCLUDED_PROB_SCALE))
    left = jnp.any(scores > -jnp.inf, axis=-1, keepdims=True)
    return jnp.where(left, scores, spared), jnp.zeros(scores.shape[:2], jnp.float32)


def _mask_logits(
    logits: Float[Array, "batch beam vocab"], step: Int[Array, " batch"], request: Request
) -> Float[Array, "batch beam vocab"]:
    """Set to -inf: pad, NaN, unk unless allowed, eos at the first step, all but eos at the last."""
    token = jnp.arange(logits.shape[-1])[None, None]
    first, last = (step == 0)[:, None, None], (step >= request.max_length)[:, None, None]
    allowed = (token != PAD_ID) & ~jnp.isnan(logits)
    if not request.allow_unk:
        allowed &= token != UNK_ID
    allowed &= jnp.where(token == EOS_ID, ~first | last, ~last)
    return jnp.where(allowed, logits.astype(jnp.float32), -jnp.inf)


def _feed_prefix(step: Step, cache: Any, request: Request, beam: int) -> tuple[Array, Any]:
    """Steps over all prefix tokens but the last; returns the last one per beam and the cache."""
    batch, length = request.prefix.shape
    tokens = jnp.broadcast_to(request.prefix[:, None], (batch, beam, length)).astype(jnp.int32)
    if request.prefix_length is None:
        for position in range(length - 1):
            _, cache = step(tokens[:, :, position], cache)
        return tokens[:, :, -1], cache

    def feed(position: Array, cache: Any) -> Any:
        return step(jnp.take(tokens, position, axis=2), cache)[1]

    last = jnp.asarray(request.prefix_length) - 1
    return jnp.take(tokens, last, axis=2), jax.lax.fori_loop(0, last, feed, cache)


def _pick(array: Array, indices: Int[Array, "batch chosen"]) -> Array:
    """Gathers `array[b, indices[b]]` along axis 1, whatever follows it."""
    indices = indices.reshape(indices.shape + (1,) * (array.ndim - 2))
    return jnp.take_along_axis(array, indices, axis=1)


def _put(
    array: Int[Array, "batch beam steps"],
    step: Int[Array, " batch"],
    tokens: Int[Array, "batch beam"] | int,
) -> Int[Array, "batch beam steps"]:
    """Writes tokens at each sentence's step, if there is room."""
    here = jnp.arange(array.shape[2])[None, None] == step[:, None, None]
    tokens = tokens if isinstance(tokens, int) else tokens[:, :, None]
    return jnp.where(here, tokens, array)


def _until(
    enough: StopCount,
    ended: Callable[[_State], Array],
    body: Callable[[_State], _State],
    state: _State,
) -> _State:
    """Runs a step until so many sentences have ended."""

    def goes_on(state: _State) -> Array:
        rows = ended(state)
        return jnp.sum(rows) < (rows.size if enough is None else enough)

    return jax.lax.while_loop(goes_on, body, state)


@flax.struct.dataclass
class ChainState:
    """Independent hypotheses between two steps of `Greedy` or `Sample`."""

    step: Int[Array, " batch"]  # tokens generated
    last: Int[Array, "batch beam"]
    tokens: Int[Array, "batch beam steps"]
    log_prob: Float[Array, "batch beam"]
    lengths: Int[Array, "batch beam"]
    done: Bool[Array, "batch beam"]
    cache: Any


class _Chains:
    """Searches whose hypotheses never exchange places; a subclass chooses the next tokens."""

    beam: int
    length_penalty: float

    def choose(
        self,
        logits: Float[Array, "batch beam vocab"],
        step: Int[Array, " batch"],
        request: Request,
    ) -> Int[Array, "batch beam"]:
        """Returns the next token of each hypothesis."""
        raise NotImplementedError

    def start(self, step: Step, cache: Any, request: Request) -> ChainState:
        """Feeds the prefix and returns empty hypotheses."""
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
        self, step: Step, state: ChainState, request: Request, enough: StopCount = None
    ) -> ChainState:
        """Takes steps until so many sentences are done or have no room left; None is all."""

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
                tokens=_put(state.tokens, state.step, tokens),
                log_prob=state.log_prob + log_prob,
                lengths=state.lengths + jnp.where(state.done, 0, 1),
                done=state.done | (tokens == EOS_ID),
                cache=cache,
            )

        return _until(enough, functools.partial(has_stopped, self, request=request), body, state)

    def done(self, state: ChainState) -> Bool[Array, " batch"]:
        """Returns which sentences have all of their hypotheses."""
        return jnp.all(state.done, axis=1)

    def finish(self, state: ChainState) -> Hypotheses:
        """Returns the hypotheses by descending score."""
        length = jnp.maximum(state.lengths, 1).astype(jnp.float32)
        scores = state.log_prob / length**self.length_penalty
        scores = jnp.where(state.lengths > 0, scores, -jnp.inf)
        order = jnp.argsort(-scores, axis=1, stable=True)
        found = Hypotheses(state.tokens, state.lengths, scores)
        return jax.tree.map(lambda array: _pick(array, order), found)


@dataclasses.dataclass(frozen=True)
class Greedy(_Chains):
    """Takes the most probable token; the lower id on a tie."""

    beam: int = 1
    length_penalty: float = 1.0

    def choose(self, logits: Array, step: Array, request: Request) -> Array:
        """Returns the most probable tokens."""
        # As jnp.argmax, which XLA does not vectorise on CPU.
        vocab = logits.shape[-1]
        best = logits == jnp.max(logits, axis=-1, keepdims=True)
        return jnp.min(jnp.where(best, jnp.arange(vocab)[None, None], vocab - 1), axis=-1)


@dataclasses.dataclass(frozen=True)
class Sample(_Chains):
    """Draws each token; scores are the model's own, without temperature and truncation.

    Attributes:
        beam: draws per sentence.
        temperature: logits are divided by it; > 0.
        top_k: draws among the k most probable; 0 is all.
        top_p: then among the smallest set of the most probable that holds this mass; 1 is all.
        length_penalty: as in `BeamSearch`.
    """

    beam: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    length_penalty: float = 1.0

    def choose(self, logits: Array, step: Array, request: Request) -> Array:
        """Draws from each sentence's own random stream, which batch mates do not touch."""
        if request.rngs is None:
            raise ValueError("Request.rngs is missing; sampling needs a key for each sentence")
        vocab = logits.shape[-1]
        logits = logits / self.temperature
        tokens = None
        if self.top_k or self.top_p < 1.0:
            logits, tokens = top_of_rows(logits, min(self.top_k or vocab, vocab))
            mass = jax.nn.softmax(logits, axis=-1)
            before = jnp.cumsum(mass, axis=-1) - mass
            first = jnp.arange(logits.shape[-1])[None, None] == 0
            logits = jnp.where((before < self.top_p) | first, logits, -jnp.inf)

        def draw(rng: Array, step: Array, rows: Array) -> Array:
            rngs = jax.random.split(jax.random.fold_in(rng, step), self.beam)
            return jax.vmap(jax.random.categorical)(rngs, rows)

        drawn = jax.vmap(draw)(request.rngs, step, logits)
        if tokens is None:
            return drawn
        return jnp.take_along_axis(tokens, drawn[:, :, None], axis=2)[:, :, 0]
