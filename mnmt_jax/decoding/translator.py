"""Python interface to a trained translator: load a run, translate, score."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any

from tqdm import tqdm

from mnmt_jax.config.sections import Decode
from mnmt_jax.data.document_context import WITHOUT_CONTEXT
from mnmt_jax.decoding.context_job import create_job
from mnmt_jax.decoding.encoded_lines import Line
from mnmt_jax.decoding.glossary import GlossaryLike, as_glossary
from mnmt_jax.decoding.guards import TranslationChecker
from mnmt_jax.decoding.input_checks import check_is_list, check_text, warn_same_language
from mnmt_jax.decoding.pretrained import PretrainedModel
from mnmt_jax.decoding.scoring import Score
from mnmt_jax.decoding.signatures import with_parameters_of
from mnmt_jax.decoding.text.markup_tokens import MARKUPS, Markup
from mnmt_jax.decoding.text.sentence_job import SentenceJob
from mnmt_jax.decoding.text.text_checks import with_checks
from mnmt_jax.decoding.text.translated_text import TextToTranslate, TextTranslation
from mnmt_jax.decoding.translate_lines import score_lines
from mnmt_jax.decoding.translation import Translation
from mnmt_jax.decoding.translation_job import TranslationJob
from mnmt_jax.design.layouts import check_translates
from mnmt_jax.errors import UserError, join_names, pluralize, warn_caller
from mnmt_jax.vocabulary.detector_names import LID176
from mnmt_jax.vocabulary.language_codes import match_code
from mnmt_jax.vocabulary.language_detectors import find_detector
from mnmt_jax.vocabulary.unknown_characters import describe_unknown


class Translator(PretrainedModel):
    """A translation model of a run.

    Example:
        >>> translator = Translator.load("runs/register")
        >>> translator.translate(["two days ago"], source="en", target="de")
        ['vor zwei Tagen']
    """

    check_layout = staticmethod(check_translates)

    def _start(
        self,
        lines: Iterable[str],
        *,
        source: str | Sequence[str],
        target: str | Sequence[str],
        options: Decode | None = None,
        pivot: str | None = None,
        retry_off_target: bool = False,
        glossary: GlossaryLike | None = None,
        context: int | None = None,
        progress: bool = False,
        **overrides: Any,
    ) -> tuple[TranslationJob, Iterator[Translation]]:
        """Check the parameters of `translate`, and return the job and its lazy translations."""
        terms = None if glossary is None else as_glossary(glossary)
        if isinstance(context, bool):
            context = 0 if context else None
        job = create_job(
            self,
            options,
            context=context,
            pivot=pivot,
            glossary=terms,
            retry_off_target=retry_off_target,
            **overrides,
        )
        numbered = job.number_lines(lines, source=source, target=target)
        total = len(lines) if isinstance(lines, Sized) else None
        bar = tqdm(total=total, unit=" lines", file=sys.stderr, disable=not progress)
        return job, _translations(job.in_order(numbered, report=bar.update), bar)

    @with_parameters_of(_start)
    def translate(self, *args: Any, **kwargs: Any) -> list[str]:  # noqa: D417
        """Translate lines; blank lines stay blank.

        Args:
            lines: one sentence each.
            source: language code of all lines, or one per line, in any form ("deu_Latn" is "de").
            target: target language code of all lines, or one per line.
            options: settings of the search; None takes those of the run's configuration.
            pivot: code of a language to translate into first, and from there into `target`; lines
                that have it as source or target are translated directly. None translates directly.
                With `pivot_prompt=True` the second step reads the line followed by its translation,
                for models trained with prompts (`mnmt_jax.data.parallel_prompts`).
            glossary: terms of the source language and their translations: `{"file": "Datei"}`, with
                alternatives `{"file": ["Datei", "Akte"]}`, or the path of a file
                (`mnmt_jax.decoding.glossary`).
            retry_off_target: whether translations in the wrong language, copies, loops and empty
                ones are searched again (`mnmt_jax.decoding.retry`); its further arguments are
                `retry_pivot` and `lid`.
            context: translate lines together with the others of their document, in chunks of at
                most so many pieces, with which the model was trained; 0 and True are the most of
                the training. A blank line ends a document (`mnmt_jax.decoding.context_job`).
            progress: show a progress bar on standard error.
            overrides: fields of `Decode` that replace those of `options`, e.g. `beam_size=1` or
                `source_contrast=0.7`; `beam_size=None` changes nothing.

        Returns:
            One translation per line, in order. Without source contrast a line's translation does
            not depend on the other lines. Warns of lines that are longer than the largest bucket
            and were cut, of characters that the vocabulary does not have, of translations without
            a required term, and of lines that are in the target language already.

        Raises:
            UserError: if the model does not have a language, a line is not text, or a setting is
                invalid.
        """
        job, stream = self._start(*args, **kwargs)
        translations = list(stream)
        if cut := sum(translation.truncated for translation in translations):
            longest = max(job.decode.buckets)
            warn_caller(
                f"{pluralize(cut, 'line')} of more than {longest} tokens with tags truncated; "
                "split them, as translate_text does, or load the model with larger "
                "bindings=['Decode.buckets=(...)']",
            )
        if alone := sum(translation.without_context for translation in translations):
            warn_caller(f"{pluralize(alone, 'line')} {WITHOUT_CONTEXT}; `stream` marks them")
        _warn_unknown(translations, copied=job.decode.copy_unknown)
        _warn_terms(translations)
        return [translation.text for translation in translations]

    @with_parameters_of(_start)
    def stream(self, *args: Any, **kwargs: Any) -> Iterator[Translation]:
        """Translate as `translate` does; yield all hypotheses, scores and marks of each line.

        `translation_job.WINDOW_SIZE` lines are in memory at a time.
        """
        return self._start(*args, **kwargs)[1]

    @with_parameters_of(_start)
    def translate_nbest(self, *args: Any, **kwargs: Any) -> list[Translation]:
        """Return what `stream` yields as a list."""
        return list(self._start(*args, **kwargs)[1])

    def translate_text(
        self,
        text: str,
        *,
        source: str,
        target: str,
        markup: Markup = "",
        options: Decode | None = None,
        pivot: str | None = None,
        glossary: GlossaryLike | None = None,
        retry_off_target: bool = False,
        checks: bool = False,
        lid: str = LID176,
        **overrides: Any,
    ) -> TextTranslation:
        """Translate a text of any number of paragraphs and sentences.

        It is split into sentences by sentencex. Spaces, line breaks, list marks, placeholders and
        text without letters are kept (`mnmt_jax.decoding.text.text_translation`).
        A sentence that is longer than the largest bucket is split instead of being cut.

        Args:
            text: the text.
            source: language code of the text, in any form.
            target: target language code.
            markup: "html" or "xml" to keep tags (`mnmt_jax.decoding.text.markup_text`); "" is plain
                text.
            options: as in `translate`.
            pivot: as in `translate`.
            glossary: as in `translate`.
            retry_off_target: as in `translate`.
            checks: whether the text and its sentences have the results of checks
                (`mnmt_jax.decoding.guards`).
            lid: detector of the languages of translations.
            overrides: as in `translate`.

        Returns:
            The translated text, and the translation of each sentence.

        Raises:
            UserError: as `translate`.
        """
        if not isinstance(text, str):
            raise UserError("translate_text takes one text; `translate` takes a list of lines")
        if markup not in MARKUPS:
            raise UserError(f"markup={markup!r}: must be 'html', 'xml' or '' for plain text")
        terms = None if glossary is None else as_glossary(glossary)
        job = SentenceJob.create(
            self,
            options,
            pivot=pivot,
            glossary=terms,
            retry_off_target=retry_off_target,
            lid=lid,
            **overrides,
        )
        checker = TranslationChecker(find_detector(lid, "lid="), self.languages) if checks else None
        source = match_code(source, self.languages, "source")
        target = match_code(target, self.languages, "target")
        warn_same_language(source, target, self.languages)
        to_translate = TextToTranslate(text, source, target, glossary=terms, markup=markup)
        (translation,) = job.translate_texts([to_translate])
        if checker is None:
            return translation
        return with_checks(translation, to_translate, checker, job.decode.length_penalty)

    def score(
        self,
        lines: Sequence[str],
        references: Sequence[str],
        *,
        source: str | Sequence[str],
        target: str | Sequence[str],
    ) -> list[float]:
        """Score reference translations as the search scores its hypotheses.

        Args:
            lines: one sentence each.
            references: the translation of each line.
            source: as in `translate`.
            target: as in `translate`.

        Returns:
            Log-probability in nats with eos, divided by length ** `Decode.length_penalty`.

        Raises:
            UserError: if the counts differ or a pair is longer than the largest bucket.
        """
        scores = self.log_probs(lines, references, source=source, target=target)
        return [score.normalized(self.config.decode.length_penalty) for score in scores]

    def log_probs(
        self,
        lines: Sequence[str],
        references: Sequence[str],
        *,
        source: str | Sequence[str],
        target: str | Sequence[str],
    ) -> list[Score]:
        """Score as `score` does, without length normalisation: sums and numbers of tokens."""
        check_is_list(lines, "lines")
        check_is_list(references, "references")
        for number, text in enumerate(references, start=1):
            check_text(text, f"reference {number}")
        if len(lines) != len(references):
            raise UserError(f"{len(lines)} lines but {len(references)} references; give one each")
        job = TranslationJob.create(self)
        numbered = list(job.number_lines(lines, source=source, target=target))
        return score_lines(self._inference_model, numbered, references, self.config.decode)


def _warn_unknown(translations: Iterable[Translation], *, copied: bool) -> None:
    """Warn of characters that no piece of the vocabulary covers, unless they were copied."""
    unknown = [translation.unknown_characters for translation in translations]
    if copied or not any(unknown):
        return
    characters = describe_unknown(Counter("".join(unknown)))
    warn_caller(
        f"{pluralize(sum(map(bool, unknown)), 'line')} with characters unknown to the vocabulary, "
        f"encoded as <unk> or bytes ({characters}); copy them with copy_unknown=True",
    )


def _warn_terms(translations: Iterable[Translation]) -> None:
    """Warn of translations without a required term, or with a forbidden one."""
    lines = [one for one in translations if one.missing_terms or one.forbidden_terms]
    if lines:
        terms = dict.fromkeys(
            term for one in lines for term in (*one.missing_terms, *one.forbidden_terms)
        )
        warn_caller(
            f"{pluralize(len(lines), 'line')} not translated as the glossary demands "
            f"({join_names(list(terms))}); `stream` says which",
        )


def _translations(pairs: Iterator[tuple[Line, Translation]], bar: tqdm) -> Iterator[Translation]:
    """Yield the translations, and close the bar at the end."""
    with bar:
        yield from (translation for _, translation in pairs)
