"""Retry of translations that fail the checks: with language contrast, then through a pivot.

A translation in the wrong language, a copy, a loop or an empty one is searched again with
language-contrastive decoding (`mnmt_jax.decoding.contrastive_decoding`), and if that fails, too,
through a pivot language. The first one that passes is used, and names its search in
`Translation.retried`; if none does, the first translation remains.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, MutableMapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from mnmt_jax.config.sections import Decode
from mnmt_jax.decoding.contrastive_decoding import language_contrast_weights
from mnmt_jax.decoding.encoded_lines import Line
from mnmt_jax.decoding.guards import TranslationChecker
from mnmt_jax.decoding.search_settings import without_source_contrast
from mnmt_jax.decoding.translation import Translation
from mnmt_jax.vocabulary.language_codes import find_code

CONTRAST, PIVOT = "contrast", "pivot"  # in the order of the searches, and of the alphabet
_LANGUAGE_CONTRAST = 0.4  # stronger than published: these lines have failed (docs/serving.md)
_MAX_CONTRAST = 0.9  # of all languages together


class LineSearch(Protocol):
    """A search of numbered lines, as `TranslationJob`."""

    @property
    def decode(self) -> Decode:
        """Settings of the search."""

    @property
    def pivot(self) -> str | None:
        """Code of the language to translate through; None translates directly."""

    def search(
        self, lines: Sequence[Line], *, done: Collection[int]
    ) -> Iterator[tuple[Line, Translation]]:
        """Translate the lines whose numbers are not in `done`."""


Job = TypeVar("Job", bound=LineSearch)


@dataclasses.dataclass(frozen=True, eq=False)
class Attempt(Generic[Job]):
    """A further search of lines that failed.

    Attributes:
        name: `contrast` or `pivot`.
        job: the search; it has no retry.
    """

    name: str
    job: Job

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
class Retry(Generic[Job]):
    """Checks of translations, and the further searches of those that fail.

    Attributes:
        checker: the checks.
        attempts: further searches, in order.
    """

    checker: TranslationChecker
    attempts: tuple[Attempt[Job], ...]

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


def with_language_contrast(decode: Decode, languages: Sequence[str]) -> Decode:
    """Return settings with language contrast, and without source contrast.

    Args:
        decode: settings of the first search.
        languages: codes of the model's languages.
    """
    names = tuple(
        name
        for name in dict.fromkeys((*decode.contrast_languages, "source"))
        if name == "source" or find_code(name, languages) is not None
    )
    weight = min(max(decode.language_contrast, _LANGUAGE_CONTRAST), _MAX_CONTRAST / len(names))
    return dataclasses.replace(
        without_source_contrast(decode), language_contrast=weight, contrast_languages=names
    )
