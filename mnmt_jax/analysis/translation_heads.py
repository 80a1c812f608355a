"""Translation heads: attention heads and states that carry the target language or the meaning.

Two passes over one target differ in the tag of the target language only, or in the source sentence
only. Activations of the first are copied into the second (`activation_patching`); the share of an
activation is how much of the difference of the first target token's log-probability it restores.

Source: Lasnier et al. 2026, "Translation Heads: Disentangling meaning from language in LLM-based
machine translation" (arXiv 2602.04613), for the two subtasks, their heads, steering and ablation.
The paper analyses prompted language models; contrasts and measures for translation models are ours.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from mnmt_jax.analysis.activation_patching import (
    AttentionSublayer,
    HeadOutputs,
    Patch,
    StateSite,
    attention_sublayers,
    patched_log_probs,
    state_sites,
)
from mnmt_jax.analysis.teacher_forcing import ForcedBatch, ForcedSentences, iterate_batches
from mnmt_jax.decoding.inference_model import InferenceModel
from mnmt_jax.errors import UserError
from mnmt_jax.model.network import Network
from mnmt_jax.vocabulary.language_codes import Direction

LANGUAGE, MEANING = "language", "meaning"


class Contrast(NamedTuple):
    """Sentences of two passes with the same targets.

    Attributes:
        source: the sentences whose activations are copied.
        base: the sentences with another target language or other source texts.
    """

    source: ForcedSentences
    base: ForcedSentences


class Head(NamedTuple):
    """An attention head; `number` is counted from 1."""

    layer: int
    attention: str
    number: int


@dataclasses.dataclass(frozen=True)
class Effects:
    """Effects of activations on the first target token.

    Attributes:
        sentences: number of sentence pairs.
        gap: mean difference of the log-probability between the two passes, in nats.
        heads: head -> share of the gap.
        states: states after a layer -> share of the gap.
        roles: role -> share of its states after all layers together; without the target's.
        all_heads: share of all heads together.
    """

    sentences: int
    gap: float
    heads: dict[Head, float]
    states: dict[StateSite, float]
    roles: dict[str, float]
    all_heads: float

    def top(self, count: int) -> tuple[Head, ...]:
        """Return the heads with the largest shares, largest first."""
        return tuple(sorted(self.heads, key=lambda head: -self.heads[head])[:count])

    def as_json(self) -> dict[str, Any]:
        """Return the effects as a JSON-ready dict."""
        by_attention: dict[AttentionSublayer, list[float]] = defaultdict(list)
        for head, share in self.heads.items():
            by_attention[AttentionSublayer(head.layer, head.attention)].append(share)
        return {
            "sentences": self.sentences,
            "gap": self.gap,
            "heads": [
                {**sublayer._asdict(), "shares": shares}
                for sublayer, shares in by_attention.items()
            ],
            "states": [{**site._asdict(), "share": share} for site, share in self.states.items()],
            "roles": self.roles,
            "all_heads": self.all_heads,
        }


class HeadMeans:
    """Mean outputs of heads over positions, by target language.

    Attributes:
        languages: the languages that have been added.
    """

    def __init__(self) -> None:
        self._sums: dict[str, dict[AttentionSublayer, np.ndarray]] = {}
        self._counts: dict[str, dict[AttentionSublayer, int]] = {}

    @property
    def languages(self) -> tuple[str, ...]:
        """Languages that have been added."""
        return tuple(self._sums)

    def add(self, rows: ForcedBatch, outputs: Mapping[HeadOutputs, Any]) -> None:
        """Add the outputs of a batch, without padding."""
        language = rows.forced.direction[1]
        sums = self._sums.setdefault(language, defaultdict(lambda: np.zeros(())))
        counts = self._counts.setdefault(language, defaultdict(int))
        for site, output in outputs.items():
            valid = rows.batch[f"{site.role}_segment_ids"] != 0
            sums[site.attention] = sums[site.attention] + np.asarray(output)[valid].sum(axis=0)
            counts[site.attention] += int(valid.sum())

    def mean(self, head: Head, language: str | None = None) -> np.ndarray:
        """Return the mean output [head_dim] of a head, for one target language or for all."""
        sublayer = AttentionSublayer(head.layer, head.attention)
        languages = self.languages if language is None else (language,)
        total = np.sum([self._sums[code][sublayer] for code in languages], axis=0)
        count = sum(self._counts[code][sublayer] for code in languages)
        mean: np.ndarray = total[head.number - 1] / count
        return mean


def other_target(direction: Direction, targets: Sequence[str]) -> str | None:
    """Return the target language to contrast a direction with: the next one, in a circle.

    Args:
        direction: source and target.
        targets: the target languages of all directions; repetitions are ignored.

    Returns:
        A language that is neither source nor target; None if there is none.
    """
    languages = list(dict.fromkeys(targets))
    start = languages.index(direction[1])
    circle = languages[start:] + languages[:start]
    return next((code for code in circle if code not in direction), None)


def language_contrasts(
    inference_model: InferenceModel, sentence_sets: Sequence[ForcedSentences]
) -> list[Contrast]:
    """Pair the sentences of each direction with themselves under the tag of `other_target`.

    Raises:
        UserError: if no direction has another target language.
    """
    targets = [forced.direction[1] for forced in sentence_sets]
    contrasts = [
        Contrast(forced, _into(inference_model, forced, other))
        for forced in sentence_sets
        if (other := other_target(forced.direction, targets))
    ]
    if not contrasts:
        raise UserError(
            "--directions: heads for language need a direction with another target language, "
            "e.g. en-de,en-fr"
        )
    return contrasts


def _into(inference_model: InferenceModel, forced: ForcedSentences, target: str) -> ForcedSentences:
    language = inference_model.vocabulary.language_index(target)
    examples = tuple(
        dataclasses.replace(example, target_lang=language) for example in forced.examples
    )
    direction = (forced.direction[0], target)
    return dataclasses.replace(forced, direction=direction, examples=examples)


def meaning_contrasts(sentence_sets: Sequence[ForcedSentences]) -> list[Contrast]:
    """Pair sentences with other sources of as many tokens; sentences without one are left out."""
    contrasts = []
    for forced in sentence_sets:
        others = _other_sources(forced)
        rows = list(others)
        if not rows:
            continue
        base_examples = tuple(
            dataclasses.replace(forced.examples[row], source=forced.examples[other].source)
            for row, other in others.items()
        )
        base_sources = tuple(forced.sources[other] for other in others.values())
        source = ForcedSentences(
            forced.direction,
            tuple(forced.sources[row] for row in rows),
            tuple(forced.targets[row] for row in rows),
            tuple(forced.examples[row] for row in rows),
        )
        base = dataclasses.replace(source, sources=base_sources, examples=base_examples)
        contrasts.append(Contrast(source, base))
    return contrasts


def _other_sources(forced: ForcedSentences) -> dict[int, int]:
    """Return, by sentence, the next sentence of the same length with another source and target."""
    by_length = defaultdict(list)
    for number, example in enumerate(forced.examples):
        by_length[len(example.source)].append(number)
    others = {}
    for numbers in by_length.values():
        for place, number in enumerate(numbers):
            for other in (*numbers[place + 1 :], *numbers[:place]):
                differs = forced.sources[other] != forced.sources[number]
                if differs and forced.targets[other] != forced.targets[number]:
                    others[number] = other
                    break
    return dict(sorted(others.items()))


def measure_effects(
    inference_model: InferenceModel,
    contrasts: Sequence[Contrast],
    max_length: int,
    means: HeadMeans | None = None,
) -> Effects:
    """Measure the share of every head, of the states after every layer, and of every role.

    Args:
        inference_model: the model, in float32.
        contrasts: the sentences.
        max_length: as in `iterate_batches`.
        means: collects the outputs of heads; None for none.

    Raises:
        UserError: if the log-probabilities of both passes are equal.
    """
    patches = _Patches(inference_model.model)
    position = int(inference_model.instruction.target_tag)
    gap, sentences, restored = 0.0, 0, np.zeros(len(patches))
    for source, base in _batches(inference_model, contrasts, max_length):
        log_probs, outputs = patched_log_probs(
            inference_model.params,
            source.batch,
            base.batch,
            patches.arrays,
            model=inference_model.model,
            position=position,
        )
        rows = slice(source.size)
        base_log_probs = np.asarray(log_probs.base, np.float64)[rows]
        gap += float((np.asarray(log_probs.source, np.float64)[rows] - base_log_probs).sum())
        restored += (np.asarray(log_probs.patched, np.float64)[:, rows] - base_log_probs).sum(1)
        sentences += source.size
        if means is not None:
            means.add(source, outputs)
    if gap <= 0:
        raise UserError(
            "the model does not distinguish the sentences: it predicts the first token of the "
            "reference no better with its own input than with another one"
        )
    return patches.effects(sentences, gap, restored / gap)


def _batches(
    inference_model: InferenceModel, contrasts: Sequence[Contrast], max_length: int
) -> Iterable[tuple[ForcedBatch, ForcedBatch]]:
    sides = ([contrast.source for contrast in contrasts], [contrast.base for contrast in contrasts])
    batches: tuple[Iterator[ForcedBatch], ...] = tuple(
        iterate_batches(inference_model, side, max_length) for side in sides
    )
    return zip(*batches, strict=True)


def list_heads(model: Network) -> list[Head]:
    """Return the attention heads of a model, layer by layer."""
    numbers = range(1, model.config.heads + 1)
    return [
        Head(*sublayer, number)
        for sublayer in attention_sublayers(model.plan)
        for number in numbers
    ]


class _Patches:
    """All patches of a model: heads, states, states of a role after all layers, and all heads."""

    def __init__(self, model: Network) -> None:
        self.heads = list_heads(model)
        self.states = state_sites(model.layout)
        self.roles = model.layout.static_roles()
        selections: list[tuple[Head | StateSite, ...]] = [
            *((head,) for head in self.heads),
            *((site,) for site in self.states),
            *(tuple(site for site in self.states if site.role == role) for role in self.roles),
            tuple(self.heads),
        ]
        self._size = len(selections)
        numbers = range(1, model.config.heads + 1)
        self.arrays = Patch(
            {
                sublayer: jnp.asarray(
                    [[Head(*sublayer, n) in chosen for n in numbers] for chosen in selections]
                )
                for sublayer in attention_sublayers(model.plan)
            },
            {site: jnp.asarray([site in chosen for chosen in selections]) for site in self.states},
        )

    def __len__(self) -> int:
        return self._size

    def effects(self, sentences: int, gap: float, shares: np.ndarray) -> Effects:
        """Return the shares by what was patched."""
        values = iter(shares.tolist())
        return Effects(
            sentences,
            gap / sentences,
            {head: next(values) for head in self.heads},
            {site: next(values) for site in self.states},
            {role: next(values) for role in self.roles},
            next(values),
        )
