"""Mean ablation and steering of attention heads, and their effect on translations.

The output of an attention sublayer is a bias plus the sum of head @ kernel[head] over its heads. A
head with a constant output is therefore the same model with kernel[head] = 0 and another bias, and
a vector added to a head's output is another bias.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from mnmt_jax.analysis.translation_heads import Head, HeadMeans, other_target
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.benchmark import Benchmark
from mnmt_jax.evaluation.result import DirectionResult
from mnmt_jax.evaluation.scoring import score_direction
from mnmt_jax.evaluation.translations import TranslatedSentence
from mnmt_jax.vocabulary.language_codes import Direction

Heads = tuple[Head, ...]
Selections = Mapping[str, Sequence[Heads]]  # name -> selections of heads whose results are averaged
ParamsOf = Callable[[Heads, Direction], Any]
Measures = Mapping[str, float | None]


def edit_heads(params: Any, vectors: Mapping[Head, np.ndarray], *, ablate: bool) -> Any:
    """Return parameters with other outputs of heads, at all positions of all roles.

    Args:
        params: parameters of the model.
        vectors: head -> a vector, [head_dim].
        ablate: the vector replaces the output of the head; otherwise it is added.

    Raises:
        UserError: if an output projection has more than a kernel and a bias.
    """
    for head, vector in vectors.items():
        layer = f"layer_{head.layer - 1}"
        attention = params[layer][head.attention]
        if set(attention["out"]) != {"kernel", "bias"}:
            raise UserError(
                f"{layer}/{head.attention}/out: has LoRA; merge it first with mnmt adapters merge"
            )
        kernel, bias = (jnp.asarray(attention["out"][name]) for name in ("kernel", "bias"))
        index = head.number - 1
        bias += jnp.asarray(vector, bias.dtype) @ kernel[index]
        kernel = kernel.at[index].set(0) if ablate else kernel
        attention = {**attention, "out": {"kernel": kernel, "bias": bias}}
        params = {**params, layer: {**params[layer], head.attention: attention}}
    return params


def draw_heads(heads: Sequence[Head], count: int, draws: int, seed: int) -> list[Heads]:
    """Draw random selections of `count` heads."""
    rng = np.random.default_rng(seed)
    indices = (rng.choice(len(heads), count, replace=False) for _ in range(draws))
    return [tuple(heads[index] for index in sorted(drawn)) for drawn in indices]


@dataclasses.dataclass(frozen=True)
class HeadEvaluation:
    """Translations of a test set by a model with edited heads.

    Attributes:
        translator: the model.
        benchmark: test sentences.
        directions: directions to translate.
        means: mean outputs of the heads.
        beam_size: beam size, as in `Translator.translate`.
    """

    translator: Translator
    benchmark: Benchmark
    directions: tuple[Direction, ...]
    means: HeadMeans
    beam_size: int | None = None

    def undetected(self) -> list[Direction]:
        """Return the directions without an off-target ratio: their target has no label."""
        return [pair for pair in self.directions if self._label(pair[1]) is None]

    def steered(self) -> dict[Direction, str]:
        """Return the directions to steer, with the language to steer to.

        A direction is left out if it has no other target language, or if the detector cannot tell
        that language from the target.
        """
        targets = [direction[1] for direction in self.directions]
        steered = {}
        for direction in self.directions:
            other = other_target(direction, targets)
            labels = {self._label(code) for code in (direction[1], other) if code}
            if other and len(labels - {None}) == 2:
                steered[direction] = other
        return steered

    def ablation(self, selections: Selections) -> list[dict[str, Any]]:
        """Return chrF++ and the off-target ratio with mean ablation of each selection of heads.

        The ratio is a mean over directions that have one; None without any.
        """

        def params(heads: Heads, direction: Direction) -> Any:
            del direction
            outputs = {head: self.means.mean(head) for head in heads}
            return edit_heads(self.translator.inference_model.params, outputs, ablate=True)

        def measures(results: Sequence[DirectionResult]) -> Measures:
            return {
                "chrf": _mean(result.chrf for result in results),
                "off_target": _mean(map(_off_target, results)),
            }

        return [
            {
                "heads": name,
                "chosen": [list(heads) for heads in sets],
                **_means(measures(self._results(heads, params, self.directions)) for heads in sets),
            }
            for name, sets in selections.items()
        ]

    def steering(self, selections: Selections, strength: float) -> list[dict[str, Any]]:
        """Return the languages of translations steered from the target to another language.

        The vector of a head is `strength` times the difference of its mean outputs for the other
        language and for the target. Measures are None if no direction is in `steered`.
        """
        steered = self.steered()

        def params(heads: Heads, direction: Direction) -> Any:
            vectors = {
                head: strength
                * (self.means.mean(head, steered[direction]) - self.means.mean(head, direction[1]))
                for head in heads
            }
            return edit_heads(self.translator.inference_model.params, vectors, ablate=False)

        def measures(results: Sequence[DirectionResult]) -> Measures:
            ratios = [
                (_off_target(result), self._other_ratio(result, steered)) for result in results
            ]
            return {
                "target": _mean(100 - ratio for ratio, _ in ratios if ratio is not None),
                "other": _mean(ratio for _, ratio in ratios),
            }

        return [
            {
                "heads": name,
                **_means(measures(self._results(heads, params, [*steered])) for heads in sets),
            }
            for name, sets in selections.items()
        ]

    def _label(self, language: str) -> str | None:
        """Return the name of a language in `DirectionResult.detected`; None if it has none."""
        if self.benchmark.nearest:
            return language
        return self.benchmark.detector.expected(language)

    def _other_ratio(self, result: DirectionResult, steered: Mapping[Direction, str]) -> float:
        """Return the share of hypotheses in the language that is steered to, in percent."""
        label = self._label(steered[result.direction])
        return 100 * result.detected.get(str(label), 0) / result.sentences

    def _results(
        self, heads: Heads, params: ParamsOf, directions: Sequence[Direction]
    ) -> list[DirectionResult]:
        """Score the translations of all directions with edited heads."""
        return [self._score(params(heads, direction), direction) for direction in directions]

    def _score(self, params: Any, direction: Direction) -> DirectionResult:
        source, target = direction
        texts = self.benchmark.texts(direction)
        model = Translator(self.translator.config, self.translator.vocabulary, params)
        outputs = model.translate(
            list(texts.sources), source=source, target=target, beam_size=self.beam_size
        )
        return score_direction(
            direction,
            texts,
            outputs=[TranslatedSentence(text) for text in outputs],
            benchmark=self.benchmark,
            supervised=None,
        ).result


def _off_target(result: DirectionResult) -> float | None:
    """Return the off-target ratio by the detector of `detected`, in percent."""
    nearest = result.off_target_nearest
    return result.off_target_lid if nearest is None else nearest


def _means(draws: Iterable[Measures]) -> dict[str, Any]:
    """Return the means of measures over selections of heads, and the measures of several."""
    rows = list(draws)
    means = {name: _mean(row[name] for row in rows) for name in rows[0]}
    return {**means, "draws": rows} if len(rows) > 1 else means


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the defined values; None if there are none."""
    defined = [value for value in values if value is not None]
    return float(np.mean(defined)) if defined else None
