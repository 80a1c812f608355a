"""Retry of translations that fail the checks: with language contrast, then through a pivot.

A translation in the wrong language, a copy, a loop or an empty one is searched again with
language-contrastive decoding (`mnmt_jax.decoding.contrastive_decoding`), and if that fails, too,
through a pivot language. The first one that passes is used, and names its search in
`Translation.retried`; if none does, the first translation remains.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from mnmt_jax.decoding.contrastive_decoding import language_contrast_weights
from mnmt_jax.decoding.encoded_lines import Line
from mnmt_jax.decoding.guards import TranslationChecker
from mnmt_jax.decoding.search_settings import without_source_contrast
from mnmt_jax.decoding.translate_lines import Translation
from mnmt_jax.vocabulary.language_codes import find_code, match_code
from mnmt_jax.vocabulary.language_detectors import LanguageDetector

if TYPE_CHECKING:
    from mnmt_jax.decoding.translation_job import TranslationJob

CONTRAST, PIVOT = "contrast", "pivot"  # in the order of the searches, and of the alphabet
_DEFAULT_PIVOT = "en"
_LANGUAGE_CONTRAST = 0.4  # stronger than published: these lines have failed (docs/serving.md)
_MAX_CONTRAST = 0.9  # of all languages together


@dataclasses.dataclass(frozen=True, eq=False)
class Attempt:
    """A further search of lines that failed.

    Attributes:
        name: `contrast` or `pivot`.
        job: the search; it has no retry.
    """

    name: str
    job: TranslationJob

    def applies(self, source_language: str, target_language: str) -> bool:
        """Return whether the search of a direction differs from the first one."""
        if self.name == PIVOT:
            return self.job.pivot not in (source_language, target_language)
        decode = self.job.decode
        weights = language_contrast_weights(
            decode.contrast_languages,
            decode.language_contrast,
            source_lang=source_language,
            target_lang=target_language,
        )
        return any(weight for _, weight in weights)


@dataclasses.dataclass(frozen=True, eq=False)
class Retry:
    """Checks of translations, and the further searches of those that fail.

    Attributes:
        checker: the checks.
        attempts: further searches, in order.
    """

    checker: TranslationChecker
    attempts: tuple[Attempt, ...]

    @classmethod
    def create(
        cls, job: TranslationJob, detector: LanguageDetector, pivot: str | None = None
    ) -> Retry:
        """Return the retry of a job.

        Args:
            job: the first search.
            detector: detector of the languages of translations.
            pivot: code of the pivot language, in any form; None is English, if the model has it.

        Raises:
            UserError: if the model does not have the pivot.
        """
        languages = job.pretrained.languages
        if pivot is None:
            pivot = find_code(_DEFAULT_PIVOT, languages)
        else:
            pivot = match_code(pivot, languages, "--retry_pivot")
        attempts = [Attempt(CONTRAST, _with_language_contrast(job, languages))]
        if pivot is not None and pivot != job.pivot:
            attempts.append(Attempt(PIVOT, dataclasses.replace(job, pivot=pivot, retry=None)))
        return cls(TranslationChecker(detector, languages), tuple(attempts))

    def passes(
        self, source: str, source_language: str, translation: Translation, target_language: str
    ) -> bool:
        """Return whether a translation passes the checks; arguments as in `check`."""
        checks = self.checker.check(source, source_language, translation, target_language)
        return not checks.failed

    def search_again(
        self, lines: Sequence[Line], failed: MutableMapping[int, Translation]
    ) -> Iterator[tuple[Line, Translation]]:
        """Search lines again; yield each with its translation, better ones first.

        The shapes of batches are those of all lines, so that they do not depend on which ones
        failed, or on which are done already.

        Args:
            lines: all lines of a window.
            failed: first translations by number; emptied of those that a further search replaces.
        """
        for attempt in self.attempts:
            wanted = {
                line.number
                for line in lines
                if line.number in failed and attempt.applies(line.source_lang, line.target_lang)
            }
            if not wanted:
                continue
            others = {line.number for line in lines} - wanted
            for line, translation in attempt.job.search(lines, done=others):
                if self.passes(line.text, line.source_lang, translation, line.target_lang):
                    del failed[line.number]
                    yield line, dataclasses.replace(translation, retried=attempt.name)
        yield from ((line, failed[line.number]) for line in lines if line.number in failed)

    def provenance(self) -> dict[str, Any]:
        """Return everything that retries depend on besides the first search."""
        contrast, *others = (attempt.job for attempt in self.attempts)
        return {
            "detector": self.checker.detector.signature,
            "language_contrast": contrast.decode.language_contrast,
            "contrast_languages": list(contrast.decode.contrast_languages),
            "pivot": others[0].pivot if others else None,
        }


def _with_language_contrast(job: TranslationJob, languages: Sequence[str]) -> TranslationJob:
    """Return a job with language contrast, and without source contrast."""
    decode = job.decode
    names = tuple(
        name
        for name in dict.fromkeys((*decode.contrast_languages, "source"))
        if name == "source" or find_code(name, languages) is not None
    )
    weight = min(max(decode.language_contrast, _LANGUAGE_CONTRAST), _MAX_CONTRAST / len(names))
    changed = dataclasses.replace(
        without_source_contrast(decode), language_contrast=weight, contrast_languages=names
    )
    return dataclasses.replace(job, decode=changed, retry=None)
