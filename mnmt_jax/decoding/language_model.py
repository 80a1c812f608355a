"""Python interface to a trained language model: load a run, score texts, continue them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from mnmt_jax.config.sections import Decode
from mnmt_jax.decoding.continuations import Continuation, draw_continuations
from mnmt_jax.decoding.encoded_lines import Line, number_lines
from mnmt_jax.decoding.input_checks import check_is_list, match_line_codes
from mnmt_jax.decoding.pretrained import PretrainedModel
from mnmt_jax.decoding.pseudo_log_likelihood import pseudo_log_likelihoods
from mnmt_jax.decoding.scoring import Score, perplexity
from mnmt_jax.decoding.search_settings import override_decode
from mnmt_jax.decoding.translate_lines import score_lines
from mnmt_jax.decoding.translation_job import WINDOW_SIZE
from mnmt_jax.design.layouts import check_continues, check_language_model
from mnmt_jax.errors import UserError


class LanguageModel(PretrainedModel):
    """A language model of a run, not grafted, which scores and continues text.

    Example:
        >>> model = LanguageModel.load("runs/graft/lm")
        >>> model.perplexity(["vor zwei Tagen"], language="de")
        3.18
        >>> model.sample(["vor zwei"], language="de", temperature=0.7)
        ['vor zwei Jahren']
    """

    check_layout = staticmethod(check_language_model)

    def score(self, lines: Sequence[str], *, language: str | Sequence[str]) -> list[Score]:
        """Score texts.

        The score of a causal model is the text's log-probability by the chain rule. The score of a
        masked model is the pseudo-log-likelihood, with one pass per token
        (`mnmt_jax.decoding.pseudo_log_likelihood`).

        Args:
            lines: texts; a blank one has eos alone.
            language: language code of all lines, or one per line.

        Returns:
            Sum in nats and number of tokens of each line, eos included; the language's tag is not
            scored. A line's score does not depend on the others; in a batch of fewer rows it
            differs by rounding (docs/performance.md).

        Raises:
            UserError: if the model does not have a language, a line is not text, or one is longer
                than the largest bucket.
        """
        decode, numbered = self.config.decode, list(self._numbered(lines, language))
        if not self.inference_model.model.layout.is_autoregressive:
            return pseudo_log_likelihoods(self.inference_model, numbered, decode)
        without_source = [dataclasses.replace(line, text="") for line in numbered]
        return score_lines(
            self.inference_model, without_source, [line.text for line in numbered], decode
        )

    def perplexity(self, lines: Sequence[str], *, language: str | Sequence[str]) -> float:
        """Compute exp(-(mean log-probability per token)) of texts; see `score`."""
        return perplexity(self.score(lines, language=language))

    def sample(
        self,
        prompts: Iterable[str] = ("",),
        *,
        language: str | Sequence[str],
        count: int = 1,
        **settings: Any,
    ) -> list[str]:
        """Sample texts that continue prompts.

        Args:
            prompts: beginnings of the texts; an empty one is the language's tag alone.
            language: language code of all prompts, or one per prompt.
            count: texts per prompt.
            settings: fields of `Decode` that replace those of the configuration: `temperature` (1
                if the configuration has 0, which searches), `top_k`, `top_p`, `epsilon_cutoff`,
                `max_length`, `seed`, `batch`, `buckets`.

        Returns:
            `count` texts for each prompt, in order, including the prompt. A draw depends on the
            seed, the prompt's number and its own, not on other prompts and draws.

        Raises:
            UserError: if the model fills masks, does not have a language, or a prompt is longer
                than the largest bucket.
        """
        continuations = self.continuations(prompts, language=language, count=count, **settings)
        return [continuation.text for continuation in continuations]

    def continuations(
        self,
        prompts: Iterable[str] = ("",),
        *,
        language: str | Sequence[str],
        count: int = 1,
        **settings: Any,
    ) -> Iterator[Continuation]:
        """Sample as `sample` does, with log-probabilities, in windows of `WINDOW_SIZE` texts."""
        check_continues(self.inference_model.model.layout)
        if not isinstance(count, int) or count < 1:
            raise UserError(f"count={count!r} must be a whole number, at least 1")
        decode = self._sampling_settings(settings)
        lines = self._numbered(prompts, language)
        draws = ((line, draw) for line in lines for draw in range(count))
        windows = iter(lambda: list(itertools.islice(draws, WINDOW_SIZE)), [])
        return itertools.chain.from_iterable(
            draw_continuations(self.inference_model, window, decode) for window in windows
        )

    def _sampling_settings(self, settings: dict[str, Any]) -> Decode:
        """Return the configuration's settings with replacements, checked for sampling."""
        configured = self.config.decode
        decode = override_decode(
            configured, **{"temperature": configured.temperature or 1.0, **settings}
        )
        if not decode.temperature:
            raise UserError(
                "Decode.temperature=0 searches instead of sampling; set it above 0, or set top_k=1 "
                "for the most probable token each time"
            )
        if decode.source_contrast or decode.language_contrast:
            raise UserError(
                f"Decode.source_contrast={decode.source_contrast:g}, language_contrast="
                f"{decode.language_contrast:g}: a language model has no source; set both to 0"
            )
        if decode.max_length_per_source:
            raise UserError(
                f"Decode.max_length_per_source={decode.max_length_per_source:g}: a language model "
                "has no source; set it to 0, and limit the length with Decode.max_length"
            )
        if decode.copy_unknown:
            raise UserError("Decode.copy_unknown=True: a language model has no source to copy from")
        if decode.utility:
            raise UserError(
                f"Decode.utility={decode.utility!r}: texts are drawn, not ranked; leave it out"
            )
        return decode

    def _numbered(self, lines: Iterable[str], language: str | Sequence[str]) -> Iterator[Line]:
        """Check texts, and yield them as lines with numbers and languages."""
        check_is_list(lines, "lines")
        codes = (match_line_codes(language, "language", self.languages) for _ in range(2))
        return number_lines(lines, *codes)
