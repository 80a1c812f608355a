"""Translation of lines sentence by sentence, for lines that may hold several."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from mnmt_jax.decoding.encoded_lines import Line, with_contrast_sources
from mnmt_jax.decoding.text.markup_tokens import Markup
from mnmt_jax.decoding.text.text_checks import join_pieces
from mnmt_jax.decoding.text.text_translation import Steps, translation_steps
from mnmt_jax.decoding.text.translated_text import LineOfText, TextToTranslate, TextTranslation
from mnmt_jax.decoding.translate_lines import LINE_BREAKS
from mnmt_jax.decoding.translation import Translation
from mnmt_jax.decoding.translation_job import TranslationJob

_WINDOW_SIZE = 512
_TEXT_STRIDE = 1_327_385_765  # modulo 2**31, two million multiples are 1,073 or more apart


@dataclasses.dataclass(frozen=True, eq=False)
class SentenceJob(TranslationJob):
    """A job that splits each line into sentences, and joins their translations.

    Attributes:
        markup: kind of markup of the lines.
    """

    markup: Markup = ""

    @property
    def contrasts_lines(self) -> bool:
        """False: with source contrast, sentences are contrasted with sentences of their window."""
        return False

    @property
    def window_size(self) -> int:
        """Number of lines in memory at a time, whose translations are complete together."""
        return _WINDOW_SIZE

    def as_completed(
        self, lines: Sequence[Line], *, done: Collection[int] = ()
    ) -> Iterator[tuple[Line, Translation]]:
        """Yield each line with its translation when all lines are done; see `TranslationJob`.

        All lines are translated, also those that are done, so that their batches are the same.
        """
        texts = [
            TextToTranslate(
                line.text,
                line.source_lang,
                line.target_lang,
                glossary=self.glossary,
                markup=self.markup,
            )
            for line in lines
        ]
        results = self.translate_texts(texts, first_number=lines[0].number if lines else 0)
        for line, result in zip(lines, results, strict=True):
            if line.number not in done:
                yield line, self._joined(result)

    def translate_texts(
        self, texts: Sequence[TextToTranslate], *, first_number: int = 0
    ) -> list[TextTranslation]:
        """Translate texts of any number of lines and sentences.

        Args:
            texts: the texts.
            first_number: number of the first text; seeds sampling.
        """

        def translate(lines: Sequence[LineOfText]) -> list[Translation]:
            numbered = [
                line.numbered(
                    first_number + n,
                    sampling_index=_sampling_index(first_number + line.text_index, line.index),
                )
                for n, line in enumerate(lines)
            ]
            contrasted = list(with_contrast_sources(numbered, self.decode))
            completed = super(SentenceJob, self).as_completed(contrasted)
            translations = {line.number: translation for line, translation in completed}
            return [translations[line.number] for line in numbered]

        return run_steps(translation_steps(texts, self.fits), translate)

    def fits(self, text: str, language: str) -> bool:
        """Return whether a line is translated whole: whether it fits the largest bucket."""
        pieces = len(self.pretrained.vocabulary.encode(text, language))
        extra = self.pretrained.inference_model.instruction.source_extra
        return pieces + extra <= max(self.decode.buckets)

    def provenance(self) -> dict[str, Any]:
        """Return what `TranslationJob.provenance` does, and what splits sentences."""
        markup = {"markup": self.markup} if self.markup else {}
        return super().provenance() | {"sentences": f"sentencex {_version()}"} | markup

    def _joined(self, result: TextTranslation) -> Translation:
        """Return the translations of a text's sentences as one."""
        if not result.text.strip():
            return Translation()
        text = LINE_BREAKS.sub(" ", result.text)
        joined = join_pieces(text, result.pieces, self.decode.length_penalty)
        return dataclasses.replace(
            joined, missing_terms=result.missing_terms, forbidden_terms=result.forbidden_terms
        )


def _sampling_index(number: int, index: int) -> int:
    """Return what seeds the sampling of a sentence, from the numbers of its text and in the text.

    Sentences of two million texts of up to 1,000 sentences have different ones.
    """
    return (number * _TEXT_STRIDE + index) % 2**31


def run_steps(
    steps: Steps, translate: Callable[[Sequence[LineOfText]], Sequence[Translation]]
) -> list[TextTranslation]:
    """Run the steps of `translation_steps` with a function that translates lines."""
    try:
        lines = next(steps)
        while True:
            lines = steps.send(translate(lines))
    except StopIteration as end:
        results: list[TextTranslation] = end.value
        return results


def _version() -> str:
    return importlib.metadata.version("sentencex")
