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
from mnmt_jax.vocabulary.languages import Direction

Heads = tuple[Head, ...]
Selections = Mapping[str, Sequence[Heads]]  # name -> selections of heads whose results are averaged
ParamsOf = Callable[[Heads, Direction], Any]


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

    def ablation(self, selections: Selections) -> list[dict[str, Any]]:
        """Return chrF++ and the off-target ratio with mean ablation of each selection of heads."""

        def params(heads: Heads, direction: Direction) -> Any:
            del direction
            outputs = {head: self.means.mean(head) for head in heads}
            return edit_heads(self.translator.inference_model.params, outputs, ablate=True)

        def measures(results: Sequence[DirectionResult]) -> dict[str, float]:
            off_target = _mean(100 - _detected(result, result.target) for result in results)
            return {"chrf": _mean(result.chrf for result in results), "off_target": off_target}

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
        language and for the target.
        """
        targets = [direction[1] for direction in self.directions]
        others = {pair: other_target(pair, targets) for pair in self.directions}

        def params(heads: Heads, direction: Direction) -> Any:
            vectors = {
                head: strength
                * (self.means.mean(head, others[direction]) - self.means.mean(head, direction[1]))
                for head in heads
            }
            return edit_heads(self.translator.inference_model.params, vectors, ablate=False)

        def measures(results: Sequence[DirectionResult]) -> dict[str, float]:
            pairs = [(result, others[result.source, result.target]) for result in results]
            return {
                "target": _mean(_detected(result, result.target) for result in results),
                "other": _mean(_detected(result, str(code)) for result, code in pairs),
            }

        directions = tuple(direction for direction, other in others.items() if other)
        return [
            {
                "heads": name,
                **_means(measures(self._results(heads, params, directions)) for heads in sets),
            }
            for name, sets in selections.items()
        ]

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


def _detected(result: DirectionResult, language: str) -> float:
    """Return the share of hypotheses in a language, in percent; no letters count as the target."""
    codes = (language, "") if language == result.target else (language,)
    return 100 * sum(result.detected.get(code, 0) for code in codes) / result.sentences


def _means(draws: Iterable[dict[str, float]]) -> dict[str, Any]:
    """Return the means of measures over selections of heads, and the measures of several."""
    rows = list(draws)
    means = {name: _mean(row[name] for row in rows) for name in rows[0]}
    return {**means, "draws": rows} if len(rows) > 1 else means


def _mean(values: Any) -> float:
    return float(np.mean(list(values)))
