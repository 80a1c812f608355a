"""Translation jobs: a model, its search settings and a pivot, applied to numbered lines.

`Translator` runs a job from start to end; commands run it window by window and save the results.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Self

from mnmt_jax.config.sections import Decode
from mnmt_jax.decoding.alignment import compose, with_alignments
from mnmt_jax.decoding.encoded_lines import Line, number_lines, with_contrast_sources
from mnmt_jax.decoding.glossary import Glossary
from mnmt_jax.decoding.guards import TranslationChecker
from mnmt_jax.decoding.input_checks import check_is_list, match_line_codes, warn_same_language
from mnmt_jax.decoding.pretrained import PretrainedModel
from mnmt_jax.decoding.retry import CONTRAST, PIVOT, Attempt, Retry, with_language_contrast
from mnmt_jax.decoding.search_settings import (
    check_method_for_terms,
    describe_search,
    override_decode,
    with_beam_size,
    without_source_contrast,
)
from mnmt_jax.decoding.terms import NO_TERMS
from mnmt_jax.decoding.translate_lines import translate_lines
from mnmt_jax.decoding.translation import Translation
from mnmt_jax.design.method import as_facts
from mnmt_jax.distributed.sharding import platform
from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.detector_names import LID176
from mnmt_jax.vocabulary.language_codes import match_code
from mnmt_jax.vocabulary.language_detectors import LanguageDetector, find_detector
from mnmt_jax.vocabulary.languages import find_english

WINDOW_SIZE = 4096  # lines in memory at a time
SEARCHES_ON_CPU = 2  # at a time, by a server


@dataclasses.dataclass(frozen=True, eq=False)
class TranslationJob:
    """How numbered lines are translated; `create` checks its arguments.

    Attributes:
        pretrained: the model.
        decode: settings of the search.
        pivot: the model's code of the language to translate through; None translates directly.
        glossary: terms of the source language of lines and their translations.
        retry: checks and further searches of translations that fail them; None takes the first.
        pivot_prompt: whether the second search reads the source followed by its translation into
            the pivot (`mnmt_jax.data.parallel_prompts`), instead of that translation alone.
    """

    pretrained: PretrainedModel
    decode: Decode
    pivot: str | None = None
    glossary: Glossary | None = None
    retry: Retry[TranslationJob] | None = None
    pivot_prompt: bool = False

    @classmethod
    def create(
        cls,
        pretrained: PretrainedModel,
        options: Decode | None = None,
        *,
        pivot: str | None = None,
        pivot_prompt: bool = False,
        beam_size: int | None = None,
        glossary: Glossary | None = None,
        retry_off_target: bool = False,
        retry_pivot: str | None = None,
        lid: str = LID176,
        **overrides: Any,
    ) -> Self:
        """Return a job after checking its settings.

        Args:
            pretrained: the model.
            options: settings of the search; None takes those of the run's configuration.
            pivot: code of the language to translate through, in any form; None translates directly.
            pivot_prompt: as the attribute.
            beam_size: field of `Decode`; None leaves that of `options`.
            glossary: terms and their translations.
            retry_off_target: whether translations in the wrong language, copies, loops and empty
                ones are searched again (`mnmt_jax.decoding.retry`).
            retry_pivot: code of the pivot of the last search; None is English, if the model has it.
            lid: detector of their languages: `lid.176`, `langdetect` or a fastText model.
            overrides: other fields of `Decode` that replace those of `options`.

        Raises:
            UserError: if a setting is invalid, or the model does not have the pivot.
        """
        decode = pretrained.config.decode
        if options is not None:
            decode = override_decode(decode, **vars(options))
        decode = override_decode(with_beam_size(decode, beam_size), **overrides)
        if pivot is not None:
            if not isinstance(pivot, str):
                raise UserError(f"pivot={pivot!r}: must be a language code")
            pivot = match_code(pivot, pretrained.languages, "--pivot")
        elif pivot_prompt:
            raise UserError("pivot_prompt is for translations through a pivot; set pivot too")
        if retry_pivot is not None and not retry_off_target:
            raise UserError("retry_pivot is the pivot of retry_off_target; set that too")
        if glossary is not None:
            check_method_for_terms(decode)
        job = cls(pretrained, decode, pivot, glossary, pivot_prompt=pivot_prompt)
        return job.with_retry(find_detector(lid), retry_pivot) if retry_off_target else job

    def with_retry(self, detector: LanguageDetector, pivot: str | None = None) -> Self:
        """Return the job with further searches of translations that fail the checks.

        Args:
            detector: detector of the languages of translations.
            pivot: code of the pivot of the last search, in any form; None is English, if the model
                has one variety of it.

        Raises:
            UserError: if the model does not have the pivot.
        """
        languages = self.pretrained.languages
        if pivot is None:
            pivot = find_english(languages)
        else:
            pivot = match_code(pivot, languages, "--retry_pivot")
        contrast = with_language_contrast(self.decode, languages)
        attempts: list[Attempt[TranslationJob]]
        attempts = [Attempt(CONTRAST, dataclasses.replace(self, decode=contrast, retry=None))]
        if pivot is not None and pivot != self.pivot:
            attempts.append(Attempt(PIVOT, dataclasses.replace(self, pivot=pivot, retry=None)))
        retry = Retry(TranslationChecker(detector, languages), tuple(attempts))
        return dataclasses.replace(self, retry=retry)

    @property
    def searches(self) -> list[TranslationJob]:
        """This job and the further searches of its retry that have other settings."""
        attempts = self.retry.attempts if self.retry else ()
        return [self, *(one.job for one in attempts if one.job.decode != self.decode)]

    @property
    def replicas(self) -> list[Self]:
        """This job, and the same job with each replica of the model."""
        others = (dataclasses.replace(self, pretrained=model) for model in self.pretrained.replicas)
        return [self, *others]

    @property
    def compiling_job(self) -> TranslationJob:
        """The job that searches the lines of `may_compile` in a server, in threads of their own."""
        return self

    def may_compile(self, line: Line) -> bool:
        """Return whether a line may need a program that a server does not compile at its start.

        Terms have many shapes. Alignments are compiled at the start.
        """
        return bool(line.terms)

    @property
    def has_slots(self) -> bool:
        """Whether a server may search lines by continuous batching; else it does so in batches."""
        return not self.decode.utility

    @property
    def parallel_searches(self) -> int:
        """Number of batches that a server searches at a time.

        Several on a CPU, where the threads of one program often wait for each other; otherwise one,
        because batches that all devices share would wait for each other's transfers.
        """
        mesh = self.pretrained.inference_model.mesh
        shares_device = not self.pretrained.replicas and (mesh is None or mesh.size == 1)
        several = self.has_slots and shares_device and platform() == "cpu"
        return SEARCHES_ON_CPU if several else 1

    @property
    def contrasts_lines(self) -> bool:
        """Whether lines are contrasted with other lines."""
        return self.decode.source_contrast > 0

    def refuse_source_contrast(self, flag: str, user: str) -> None:
        """Check that sentences are not contrasted with others.

        Args:
            flag: the flag that named the run, with its value.
            user: what does not draw others, for the error.

        Raises:
            UserError: if they are.
        """
        if weight := self.decode.source_contrast:
            has_unused_seed = without_source_contrast(self.decode).seed != self.decode.seed
            raise UserError(
                f"{flag}: Decode.source_contrast={weight:g} contrasts sentences with others, which "
                f"{user} does not do; add --gin.Decode.source_contrast=0"
                + (" --gin.Decode.seed=0" if has_unused_seed else "")
            )

    @property
    def window_size(self) -> int:
        """Number of lines in memory at a time."""
        return WINDOW_SIZE

    def number_lines(
        self, lines: Iterable[str], *, source: str | Sequence[str], target: str | Sequence[str]
    ) -> Iterator[Line]:
        """Yield lines with their numbers, languages and contrast sources.

        If lines are contrasted, `WINDOW_SIZE` lines are read at a time, and contrast sources are
        drawn from the same window.

        Args:
            lines: one sentence each.
            source: language code of all lines, or one per line.
            target: target language code of all lines, or one per line.

        Raises:
            UserError: if the model does not have a language, or a line is not text.
        """
        languages = self.pretrained.languages
        check_is_list(lines, "lines")
        sources = match_line_codes(source, "source", languages)
        targets = match_line_codes(target, "target", languages)
        warn_same_language(source, target, languages)
        numbered = map(self._with_terms, number_lines(lines, sources, targets))
        return _contrasted(numbered, self.decode) if self.contrasts_lines else numbered

    def as_completed(
        self, lines: Sequence[Line], *, done: Collection[int] = ()
    ) -> Iterator[tuple[Line, Translation]]:
        """Yield each line with its translation as soon as its batch is done, blank ones first.

        With `retry`, lines that are searched again come last.

        Args:
            lines: one window, from `number_lines`.
            done: numbers of lines that need no translation.

        Raises:
            UserError: if the settings do not fit the model, or its output is not finite.
        """
        if self.retry is None:
            yield from self.search(lines, done=done)
            return
        failed = {}
        for line, translation in self.search(lines, done=done):
            if self.retry.passes(line.text, line.source_lang, translation, line.target_lang):
                yield line, translation
            else:
                failed[line.number] = translation
        yield from self.retry.search_again(lines, failed)

    def search(
        self, lines: Sequence[Line], *, done: Collection[int] = ()
    ) -> Iterator[tuple[Line, Translation]]:
        """Yield the first translations of lines; otherwise as `as_completed`."""
        if self.pivot is not None:
            yield from self._through_pivot(lines, self.pivot, done)
            return
        for index, translation in self._translate(lines, done):
            yield lines[index], translation

    def in_order(
        self, lines: Iterable[Line], *, report: Callable[[int], object] = lambda count: None
    ) -> Iterator[tuple[Line, Translation]]:
        """Yield each line with its translation in input order, window by window.

        Args:
            lines: from `number_lines`.
            report: called with the number of lines that were just completed; with 0 before each
                window.
        """
        remaining = iter(lines)
        while window := list(itertools.islice(remaining, self.window_size)):
            translations = {}
            report(0)
            for line, translation in self.as_completed(window):
                translations[line.number] = translation
                report(1)
            yield from ((line, translations[line.number]) for line in window)

    def provenance(self) -> dict[str, Any]:
        """Return everything translations depend on besides their sources and languages."""
        pivot: dict[str, Any] = {} if self.pivot is None else {"pivot": self.pivot}
        pivot |= {"pivot_prompt": True} if self.pivot_prompt else {}
        retry = {} if self.retry is None else {"retry": self.retry.provenance()}
        model = as_facts(self.pretrained.config.model)
        glossary = {} if self.glossary is None else {"glossary": self.glossary.digest}
        search = describe_search(self.decode) | pivot | glossary | retry
        return {"model": model, **self.pretrained.identity, **search}

    def _with_terms(self, line: Line) -> Line:
        if self.glossary is None:
            return line
        terms = self.glossary.terms_of(line.text, line.source_lang)
        return dataclasses.replace(line, terms=terms)

    def _translate(
        self, lines: Sequence[Line], done: Collection[int], *, has_sources: bool = True
    ) -> Iterator[tuple[int, Translation]]:
        model, decode = self.pretrained.inference_model, self.decode
        translations = translate_lines(model, lines, decode, done, has_sources=has_sources)
        return with_alignments(model, lines, translations, decode)

    def _through_pivot(
        self, lines: Sequence[Line], pivot: str, done: Collection[int]
    ) -> Iterator[tuple[Line, Translation]]:
        """Translate a window into the pivot, then from there into the targets.

        Lines that have the pivot as source or target are translated directly. With source contrast
        the first step translates the whole window, since the second draws contrast sources from it.
        """
        indirect = [line for line in lines if pivot not in (line.source_lang, line.target_lang)]
        into_pivot = [
            dataclasses.replace(line, target_lang=pivot, terms=NO_TERMS) for line in indirect
        ]
        skipped = () if self.decode.source_contrast else done
        pivot_translations = {
            indirect[i].number: translation
            for i, translation in self._translate(into_pivot, skipped)
        }
        from_pivot = [
            self._from_pivot(line, pivot_translations[line.number].text, pivot)
            for line in indirect
            if line.number in pivot_translations
        ]
        contrasted = with_contrast_sources(from_pivot, self.decode)
        from_pivot_by_number = {line.number: line for line in contrasted}
        pivoted = [from_pivot_by_number.get(line.number, line) for line in lines]
        # Lines that are done, or that another process translates, have no text in the pivot.
        for index, translation in self._translate(pivoted, done, has_sources=False):
            line = lines[index]
            if line.number in pivot_translations:
                translation = _join(pivot_translations[line.number], translation)
            yield line, translation

    def _from_pivot(self, line: Line, text: str, pivot: str) -> Line:
        """Return the line of the second step; one that is aligned gets no prompt."""
        if self.pivot_prompt and not line.aligned:
            return dataclasses.replace(line, auxiliary=(text, pivot), contrast_sources=())
        return dataclasses.replace(line, text=text, source_lang=pivot, contrast_sources=())


def _join(into_pivot: Translation, from_pivot: Translation) -> Translation:
    """Return a translation through a pivot from its two steps; a blank line has no pivot."""
    first, second = into_pivot.alignment, from_pivot.alignment
    return dataclasses.replace(
        from_pivot,
        alignment=compose(first, second) if first and second else None,
        truncated=into_pivot.truncated or from_pivot.truncated,
        limited=into_pivot.limited or from_pivot.limited,
        pivot=into_pivot.text if into_pivot.hypotheses else None,
        unknown_characters=into_pivot.unknown_characters,
    )


def _contrasted(lines: Iterator[Line], decode: Decode) -> Iterator[Line]:
    """Yield lines with contrast sources that are drawn from their window."""
    while window := list(itertools.islice(lines, WINDOW_SIZE)):
        yield from with_contrast_sources(window, decode)
