"""Translations of lines: hypotheses, and how they are aligned to their sources."""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Float

from mnmt_jax.vocabulary.piece_offsets import Span

AlignmentWeights = Float[np.ndarray, "target source"]


@dataclasses.dataclass(frozen=True, eq=False)
class Alignment:
    """How the pieces of a translation are aligned to those of its source.

    Attributes:
        source: characters of each piece of the source.
        target: characters of each piece of the translation.
        weights: weight of each source piece for each target piece; rows sum to 1.
    """

    source: tuple[Span, ...]
    target: tuple[Span, ...]
    weights: AlignmentWeights


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """A translation hypothesis.

    Attributes:
        text: text without line breaks.
        score: nats / length ** length_penalty, eos included; contrasted if the search was.
        tokens: generated ids with eos, without forced ones.
        utility: by which hypotheses are ranked; None if they are ranked by their scores.
    """

    text: str
    score: float
    tokens: tuple[int, ...]
    utility: float | None = None


@dataclasses.dataclass(frozen=True)
class Translation:
    """The translation of a line.

    Attributes:
        hypotheses: hypotheses, best first; empty for a blank line.
        truncated: whether the line exceeded the largest bucket, so its end was not translated.
        unknown_characters: characters of the line that no piece of the vocabulary covers, with
            repetitions; the model read `<unk>` or bytes for them.
        limited: whether the best hypothesis has the maximum length, so its end may be missing.
        pivot: the intermediate text, if the line was translated through another language; then
            `truncated` and `limited` cover both translations.
        retried: search that made it after the first one failed (`mnmt_jax.decoding.retry`):
            "contrast" or "pivot"; None for the first one.
        alignment: of the best hypothesis with the line; None unless asked for, and for copied text.
        missing_terms: required terms of the line, by their sources, that the best hypothesis lacks.
        forbidden_terms: forbidden texts that it has.
        without_context: whether it was translated alone by `mnmt_jax.decoding.context_job`.
    """

    hypotheses: tuple[Hypothesis, ...] = ()
    truncated: bool = False
    limited: bool = False
    pivot: str | None = None
    unknown_characters: str = ""
    retried: str | None = None
    alignment: Alignment | None = None
    missing_terms: tuple[str, ...] = ()
    forbidden_terms: tuple[str, ...] = ()
    without_context: bool = False

    @property
    def text(self) -> str:
        """The best translation; empty for a blank line."""
        return self.hypotheses[0].text if self.hypotheses else ""

    @property
    def score(self) -> float | None:
        """The best translation's score; None for a blank line."""
        return self.hypotheses[0].score if self.hypotheses else None
