"""Service behind the routes of all protocols: languages, detection and translation of texts."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

from mnmt_jax.decoding.glossary import Glossary
from mnmt_jax.decoding.guards import TranslationChecker
from mnmt_jax.decoding.search_settings import check_method_for_terms
from mnmt_jax.decoding.text.markup_runs import text_of
from mnmt_jax.decoding.text.markup_tokens import Markup, MarkupReader, TagRules
from mnmt_jax.decoding.text.sentence_job import SentenceJob
from mnmt_jax.decoding.text.text_checks import with_checks
from mnmt_jax.decoding.text.text_parts import SentenceEnds
from mnmt_jax.decoding.text.translated_text import TextToTranslate, TextTranslation
from mnmt_jax.decoding.translation_job import TranslationJob
from mnmt_jax.decoding.written_script import sort_by_script
from mnmt_jax.errors import UserError, join_names, say
from mnmt_jax.serving.database import Database
from mnmt_jax.serving.document_store import DocumentStore
from mnmt_jax.serving.glossary_store import GlossaryStore
from mnmt_jax.serving.job_batcher import JobBatcher
from mnmt_jax.serving.line_engines import JobEngine, LineEngine
from mnmt_jax.serving.live_batcher import LiveBatcher, QueueFull, Stopped
from mnmt_jax.serving.refused_error import RefusedError
from mnmt_jax.serving.served_models import ServedModel, ServedModels
from mnmt_jax.serving.settings import Settings
from mnmt_jax.serving.text_run import SHORT_CHARACTERS, TextRun, check_limit
from mnmt_jax.serving.users import User, Users
from mnmt_jax.vocabulary.language_codes import parse_code
from mnmt_jax.vocabulary.language_detectors import LanguageDetector
from mnmt_jax.vocabulary.normalization import has_letters

_FEW_TEXTS = 8  # texts whose languages are detected in less time than a thread takes


@dataclasses.dataclass(frozen=True)
class TranslationResult:
    """The translation of a text.

    Attributes:
        translation: the translated text and its sentences.
        source: the model's code of the source language.
        confidence: probability of a detected source language; None if it was given.
    """

    translation: TextTranslation
    source: str
    confidence: float | None


@dataclasses.dataclass(frozen=True)
class TranslationOptions:
    """What a request asks for, with the server's codes of languages.

    Attributes:
        target: code of the target language.
        source: code of the source language; None detects it for each text.
        model: name of the model; None takes the first that has both languages.
        checks: whether answers have the results of checks (`mnmt_jax.decoding.guards`).
        glossary: terms and their translations.
        sentence_ends: where sentences end.
        markup: kind of markup of the texts.
        tag_rules: what is done with tags.
    """

    target: str
    source: str | None = None
    model: str | None = None
    checks: bool = False
    glossary: Glossary | None = None
    sentence_ends: SentenceEnds = "all"
    markup: Markup = ""
    tag_rules: TagRules = TagRules()


class TranslationService:
    """Models behind the routes.

    Args:
        jobs: each model with settings of the search, by its name in requests.
        settings: limits.
        detector: detects source languages.
        database: API keys, usage and glossaries; None keeps them in memory.
        make_engine: makes what translates the lines of a job; called for each replica, once for
            each parallel search and once more for lines that may wait for the compiler; also for
            further searches. None makes a `JobEngine`.
    """

    def __init__(
        self,
        jobs: Mapping[str, SentenceJob],
        settings: Settings,
        detector: LanguageDetector,
        database: Database | None = None,
        make_engine: Callable[[TranslationJob], LineEngine] | None = None,
    ) -> None:
        self.settings = settings
        self.database = database or Database()
        self.glossaries = GlossaryStore(self.database)
        self.documents = DocumentStore(
            settings.document_lifetime,
            settings.max_documents,
            settings.max_kept_bytes,
            settings.log_text,
        )
        self.users = Users(self.database, require_keys=settings.require_keys)

        make_engine = make_engine or functools.partial(JobEngine, log_text=settings.log_text)

        def make_batcher(job: TranslationJob) -> JobBatcher:
            count = settings.parallel_searches or job.parallel_searches
            plain = [make_engine(one) for one in job.replicas for _ in range(count)]
            compiling = [make_engine(one) for one in job.compiling_job.replicas]
            batchers = (_make_batcher(engines, settings) for engines in (plain, compiling))
            return JobBatcher(job, *batchers)

        self._models = ServedModels(
            [
                ServedModel(
                    name,
                    job,
                    make_batcher(job),
                    [
                        (attempt, make_batcher(attempt.job))
                        for attempt in (job.retry.attempts if job.retry else ())
                    ],
                )
                for name, job in jobs.items()
            ]
        )
        self._checker = TranslationChecker(detector, self.languages)

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of the languages of all models."""
        return self._models.languages

    @property
    def waiting(self) -> int:
        """Number of lines that wait."""
        return sum(batcher.waiting for model in self._models for batcher in model.batchers)

    def stop(self) -> None:
        """Translate what waits, accept no more, and close the database."""
        for model in self._models:
            for batcher in model.batchers:
                batcher.stop()
        self.users.stop()
        self.database.close()

    def models(self, name: str | None = None) -> ServedModels:
        """Return the model of a name, or all models if it is None.

        Raises:
            RefusedError: with status 400, if there is no such model.
        """
        models = self._models.named(name)
        if not models:
            names = join_names([model.name for model in self._models])
            raise RefusedError(400, f"model: {name} is not served; the models are {names}")
        return models

    def matches(self, code: str, field: str = "", model: str | None = None) -> list[str]:
        """Return the server's codes that a code of any form may denote, several if without region.

        Args:
            code: code in any form.
            field: name of the field, for the message; empty leaves it out.
            model: name of the model; if it has some of several languages, these are returned.

        Raises:
            RefusedError: with status 400, if no model of the server has the language.
        """
        matches = self._models.matches(code)
        if not matches:
            names = join_names(self.languages, shown=20)
            message = f"{field and f'{field}: '}{code} is not supported"
            raise RefusedError(400, message, hint=f"the languages are {names}")
        models = self.models(model)
        return [one for one in matches if any(served.has(one) for served in models)] or matches

    def language(self, code: str, field: str = "", model: str | None = None) -> str:
        """Return the server's code of a language, with the arguments of `matches`.

        Raises:
            RefusedError: with status 400, as by `matches`, or if the code is ambiguous.
        """
        known, *others = self.matches(code, field, model)
        if others:
            names = " or ".join([known, *others])
            prefix = field and f"{field}: "
            raise RefusedError(400, f"{prefix}language {code!r} is ambiguous: name {names}")
        return known

    def source_language(
        self, code: str, target: str, field: str = "", model: str | None = None
    ) -> str:
        """Return the server's code of a source language.

        A code without region means the first region from which a model translates.

        Args:
            code: code in any form.
            target: the server's code of the target language.
            field: name of the field, as in `matches`.
            model: name of the model, as in `matches`.

        Raises:
            RefusedError: with status 400, as by `matches`.
        """
        matches = self.matches(code, field, model)
        return (self.models(model).sources(matches, target) or matches)[0]

    def detect(
        self, text: str, target: str | None = None, models: ServedModels | None = None
    ) -> tuple[str, float] | None:
        """Return the server's code of the language of a text and its probability.

        Of codes that differ in script, that of the text's letters is returned; of codes that
        differ in region, the target, so that text in the target language is not translated.

        Args:
            text: the text.
            target: code of the target language; codes that are translated into it are preferred,
                and it is preferred to other codes of its script.
            models: models that may translate; None is all.

        Returns:
            The code, and its probability among the languages of all models. None if the text has no
            letters, or is in none of these languages.
        """
        label, probability = self._checker.detect(text)
        codes = self._checker.codes(label)
        if target is not None:
            codes = (models or self._models).sources(codes, target) or codes
        if not codes:
            return None
        best = sort_by_script(text, codes)[0]
        script = parse_code(best).written_script
        if target and target in codes and parse_code(target).written_script == script:
            best = target
        return best, probability

    async def translate(
        self, texts: Sequence[str], options: TranslationOptions, user: User
    ) -> list[TranslationResult]:
        """Translate texts, and count their characters.

        Args:
            texts: texts of any number of sentences.
            options: their languages.
            user: whose texts they are, for fairness and quotas.

        Raises:
            RefusedError: if a limit is exceeded, no model translates from a text's language, too
                much is waiting, or the time is over.
            QuotaExceeded: if the user's key has too few characters left.
        """
        count, limit = sum(map(len, texts)), self.settings.max_characters
        check_limit(count, "characters", "max_characters", limit)
        with self.users.charge(user, count):
            answers = await self._translate(texts, options, user.name)
        if self.settings.log_text:
            for text, answer in zip(texts, answers, strict=True):
                translated = answer.translation.text
                say(f"{answer.source} {text!r} -> {options.target} {translated!r}")
        return answers

    async def _translate(
        self, texts: Sequence[str], options: TranslationOptions, user: str
    ) -> list[TranslationResult]:
        models = self.models(options.model)
        try:
            async with asyncio.timeout(self.settings.timeout):
                sources = await self._sources(texts, options, models)
                to_translate = [
                    TextToTranslate(
                        text,
                        code,
                        options.target,
                        options.sentence_ends,
                        glossary=options.glossary,
                        markup=options.markup,
                        tag_rules=options.tag_rules,
                    )
                    for text, (code, _) in zip(texts, sources, strict=True)
                ]
                results = await self._translate_texts(to_translate, models, user)
                if options.checks:
                    results = await asyncio.to_thread(self._checked, to_translate, results, models)
        except TimeoutError:
            raise RefusedError(503, "the translation took too long; send less text") from None
        except QueueFull:
            raise RefusedError(429, "too much text is waiting; try again later") from None
        except Stopped:
            raise RefusedError(503, "the server is stopping") from None
        return [
            TranslationResult(result, code, confidence)
            for result, (code, confidence) in zip(results, sources, strict=True)
        ]

    async def translate_document(
        self,
        texts: Sequence[TextToTranslate],
        options: TranslationOptions,
        user: User,
        *,
        characters: int,
    ) -> list[TextTranslation]:
        """Translate the texts of a document, some lines at a time, without limits of a request.

        Args:
            texts: its texts, all in one direction.
            options: what the request asks for.
            user: whose texts they are.
            characters: number of characters charged to the user's quota.

        Raises:
            RefusedError: if no model has the direction, the time is over, or the server stops.
            QuotaExceeded: if the user's key has too few characters left.
        """
        model = _choose(self.models(options.model), texts[0])
        run = TextRun(texts, model, user.name, self.settings)
        try:
            with self.users.charge(user, characters):
                async with asyncio.timeout(self.settings.document_timeout):
                    await run.start()
                    results = await run.finish(in_parts=True)
        except TimeoutError:
            raise RefusedError(503, "the translation took too long; divide the document") from None
        except Stopped:
            raise RefusedError(503, "the server is stopping") from None
        return results

    async def _translate_texts(
        self, texts: Sequence[TextToTranslate], models: ServedModels, user: str
    ) -> list[TextTranslation]:
        """Translate texts with the model of each direction; not into their own language."""
        by_model: dict[ServedModel, dict[int, TextToTranslate]] = {}
        results: dict[int, TextTranslation] = {}
        for index, text in enumerate(texts):
            model = _choose(models, text)
            if text.source == text.target:
                results[index] = TextTranslation(text.text, (), text.markup, is_translated=False)
            else:
                by_model.setdefault(model, {})[index] = text
        runs = [
            TextRun([*members.values()], model, user, self.settings)
            for model, members in by_model.items()
        ]
        count = sum([await run.start() for run in runs])
        check_limit(count, "sentences", "max_sentences", self.settings.max_sentences)
        for run, members in zip(runs, by_model.values(), strict=True):
            results |= zip(members, await run.finish(), strict=True)
        return [results[index] for index in range(len(texts))]

    def _checked(
        self,
        texts: Sequence[TextToTranslate],
        results: Sequence[TextTranslation],
        models: ServedModels,
    ) -> list[TextTranslation]:
        """Return translated texts with their checks."""
        return [
            with_checks(result, text, self._checker, _choose(models, text).length_penalty)
            for text, result in zip(texts, results, strict=True)
        ]

    async def _sources(
        self, texts: Sequence[str], options: TranslationOptions, models: ServedModels
    ) -> Sequence[tuple[str, float | None]]:
        """Return the source language of each text, and its probability if it is detected.

        Raises:
            RefusedError: with status 413, if the language of more texts than the limit of sentences
                would have to be detected.
        """
        if options.source:
            return [(options.source, None)] * len(texts)
        count = sum(map(has_letters, texts))
        check_limit(count, "texts", "max_sentences", self.settings.max_sentences)

        def detect() -> list[tuple[str, float]]:
            plain = (plain_text(text, options.markup, options.tag_rules) for text in texts)
            return [self._detected(text, options.target, models) for text in plain]

        is_short = len(texts) <= _FEW_TEXTS and sum(map(len, texts)) <= SHORT_CHARACTERS
        return detect() if is_short else await asyncio.to_thread(detect)

    def _detected(self, text: str, target: str, models: ServedModels) -> tuple[str, float]:
        """Return the source language of a text; the first one if no model translates from it."""
        detected = self.detect(text, target, models)
        if detected and models.choose(detected[0], target):
            return detected
        sources = (code for code in models.languages if models.choose(code, target))
        return next(sources, models.languages[0]), 0.0


def _make_batcher(engines: Sequence[LineEngine], settings: Settings) -> LiveBatcher:
    return LiveBatcher(
        engines,
        wait_seconds=settings.wait_milliseconds / 1000,
        max_waiting=settings.max_waiting,
        window=settings.window,
        log_text=settings.log_text,
    )


def _choose(models: ServedModels, text: TextToTranslate) -> ServedModel:
    """Return the model of a text's direction.

    Raises:
        RefusedError: with status 400, if there is none.
    """
    model = models.choose(text.source, text.target)
    if model is not None and text.glossary is not None:
        _check_terms(model.job)
    if model is None:
        names = join_names([model.name for model in models])
        raise RefusedError(400, f"no translation from {text.source} to {text.target} by {names}")
    return model


def plain_text(text: str, markup: Markup, tag_rules: TagRules = TagRules()) -> str:  # noqa: B008 - frozen
    """Return a text without tags."""
    return text_of(MarkupReader(markup, tag_rules), text) if markup else text


def _check_terms(job: SentenceJob) -> None:
    """Check that the search can have a glossary.

    Raises:
        RefusedError: with status 400, if it samples.
    """
    try:
        check_method_for_terms(job.decode)
    except UserError:
        raise RefusedError(400, "glossary: not supported, because the server samples") from None
