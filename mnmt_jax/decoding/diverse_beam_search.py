"""Diverse beam search: groups of beams, of which later ones avoid the tokens of earlier ones.

Each group is a beam search of its own. In every step the groups take turns: a group ranks its
continuations by their summed log-probability minus `penalty` times the number of hypotheses of
earlier groups that continue with the same token in this step (Hamming diversity). The penalty only
ranks the continuations of one step; scores are log-probabilities without it.

Source: Vijayakumar et al., "Diverse Beam Search for Improved Description of Complex Scenes", AAAI
2018 (arXiv 1610.02424), algorithm 1 and section "Hamming Diversity". As there, penalties do not
accumulate; fairseq and Hugging Face add them to the scores. Ours: hypotheses that end in this step,
and groups that are done, penalise nothing.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from mnmt_jax.decoding.search import BeamSearch, BeamState, Request, Step
from mnmt_jax.decoding.search_arrays import pick, rank_continuations
from mnmt_jax.vocabulary.special_ids import EOS_ID


@dataclasses.dataclass(frozen=True)
class DiverseBeamSearch(BeamSearch):
    """Beam search in groups; with one group it is `BeamSearch`.

    In its state `done` and `finished_count` are [batch, groups].

    Attributes:
        groups: number of groups, which divides `beam`; a group has beam / groups hypotheses.
        penalty: nats that each equal token of an earlier group costs.
    """

    groups: int = 1
    penalty: float = 0.5

    @property
    def _width(self) -> int:
        """Hypotheses of a group."""
        return self.beam // self.groups

    def start(self, step: Step, cache: Any, request: Request) -> BeamState:
        """Feed the prefix, and return one live hypothesis of score 0 per group."""
        state = super().start(step, cache, request)
        shape = (*state.done.shape, self.groups)
        is_first = jnp.arange(self.beam)[None] % self._width == 0
        return dataclasses.replace(
            state,
            live_scores=jnp.where(is_first, 0.0, -jnp.inf)
            + jnp.zeros_like(state.live_scores[:, :1]),
            finished_count=jnp.zeros(shape, jnp.int32),
            done=jnp.broadcast_to(state.done[:, None], shape),
        )

    def done(self, state: BeamState) -> Bool[Array, " batch"]:
        """Return which sentences have all their hypotheses."""
        return jnp.all(state.done, axis=1)

    def ranked(
        self,
        values: Float[Array, "batch beam vocab"],
        normalizer: Float[Array, "batch beam"],
        state: BeamState,
        request: Request,
    ) -> tuple[Array, Array, Array]:
        """Return the best continuations of each group, group by group."""
        rows = jnp.arange(values.shape[0])[:, None]
        counts = jnp.zeros((values.shape[0], values.shape[2]), jnp.float32)
        results = []
        for group in range(self.groups):
            members = slice(group * self._width, (group + 1) * self._width)
            scores, parents, tokens = rank_continuations(
                values[:, members],
                normalizer[:, members],
                state.live_scores[:, members],
                self.penalty * counts[:, None],
            )
            is_eos = (tokens == EOS_ID) & (scores > -jnp.inf)
            chosen = jnp.argsort(is_eos, axis=1, stable=True)[:, : self._width]
            counted = (pick(scores, chosen) > -jnp.inf) & ~state.done[:, group, None]
            counts = counts.at[rows, pick(tokens, chosen)].add(counted.astype(jnp.float32))
            results.append((scores, parents + group * self._width, tokens))
        scores, parents, tokens = (
            jnp.concatenate(part, axis=1) for part in zip(*results, strict=True)
        )
        return scores, parents, tokens

    def chosen(self, is_eos: Bool[Array, "batch ranked"]) -> Int[Array, "batch beam"]:
        """Return the ranks of the continuations that stay live, `width` of each group."""
        by_group = is_eos.reshape(-1, 2 * self._width)
        ranks = jnp.argsort(by_group, axis=1, stable=True)[:, : self._width]
        ranks = ranks.reshape(-1, self.groups, self._width)
        starts = 2 * self._width * jnp.arange(self.groups)[None, :, None]
        return (ranks + starts).reshape(-1, self.beam)

    def _finalise(
        self,
        state: BeamState,
        request: Request,
        is_running: Bool[Array, " batch"],
        ranked: tuple[Array, Array, Array],
    ) -> BeamState:
        """Append the finished hypotheses of each group, as a beam search with a row per group."""

        def fold(array: Array) -> Array:
            return array.reshape(-1, array.shape[1] // self.groups, *array.shape[2:])

        def unfold(array: Array) -> Array:
            return array.reshape(-1, self.beam, *array.shape[2:])

        by_group = functools.partial(jnp.repeat, repeats=self.groups, axis=0)
        group_request = Request(
            prefix=by_group(request.prefix),
            max_length=by_group(request.max_length),
            active=by_group(request.active),
        )
        scores, parents, is_eos = map(fold, ranked)
        folded = dataclasses.replace(
            state,
            step=by_group(state.step),
            last=fold(state.last),
            live_tokens=fold(state.live_tokens),
            live_scores=fold(state.live_scores),
            finished=jax.tree.map(fold, state.finished),
            finished_count=state.finished_count.reshape(-1),
            done=state.done.reshape(-1),
        )
        group_search = BeamSearch(self._width, self.reorder, self.length_penalty)
        folded = group_search._finalise(
            folded,
            group_request,
            (is_running[:, None] & ~state.done).reshape(-1),
            (scores, parents % self._width, is_eos),
        )
        return dataclasses.replace(
            state,
            finished=jax.tree.map(unfold, folded.finished),
            finished_count=folded.finished_count.reshape(state.finished_count.shape),
            done=folded.done.reshape(state.done.shape),
        )
