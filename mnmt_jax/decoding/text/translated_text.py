"""Texts to translate, their lines and sentences, and their translations."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from mnmt_jax.decoding.encoded_lines import Line
from mnmt_jax.decoding.glossary import Glossary
from mnmt_jax.decoding.guards import TranslationChecks
from mnmt_jax.decoding.terms import NO_TERMS, LineTerms
from mnmt_jax.decoding.text.markup_tokens import Markup, TagRules
from mnmt_jax.decoding.text.sentence_spacing import SentenceSpacing
from mnmt_jax.decoding.text.text_parts import SentenceEnds
from mnmt_jax.decoding.translation import Translation


@dataclasses.dataclass(frozen=True)
class SentenceTranslation:
    """A sentence of a text and its translation.

    Attributes:
        source: the sentence in one line.
        text: the translated sentence in one line.
        translations: translations of the pieces, one if the sentence was translated whole.
        checks: results of its `mnmt_jax.decoding.text.text_checks`, if they were asked for.
        missing_terms: terms of the glossary, by their sources, that are not translated as required.
        forbidden_terms: forbidden texts that the translation has.
    """

    source: str
    text: str
    translations: tuple[Translation, ...]
    missing_terms: tuple[str, ...] = ()
    forbidden_terms: tuple[str, ...] = ()
    checks: TranslationChecks | None = None


@dataclasses.dataclass(frozen=True)
class TextTranslation:
    """The translation of a text.

    Attributes:
        text: the translated text.
        sentences: its sentences, in order, without tags.
        markup: kind of markup of the text.
        checks: results of its checks, if they were asked for.
        alternatives: the text with other hypotheses of its only sentence, best first; none with
            markup, because hypotheses have no tags.
        is_translated: False if the text is in the target language and stays as it is.
    """

    text: str
    sentences: tuple[SentenceTranslation, ...]
    markup: Markup = ""
    checks: TranslationChecks | None = None
    alternatives: tuple[str, ...] = ()
    is_translated: bool = True

    @property
    def pieces(self) -> list[Translation]:
        """Translations of the pieces of all sentences."""
        return [piece for sentence in self.sentences for piece in sentence.translations]

    @property
    def retried(self) -> str | None:
        """The last search that made any of the pieces after a first one failed."""
        return last_retry(self.pieces)

    @property
    def missing_terms(self) -> tuple[str, ...]:
        """Terms of the glossary, by their sources, that are not translated as required."""
        return tuple(term for sentence in self.sentences for term in sentence.missing_terms)

    @property
    def forbidden_terms(self) -> tuple[str, ...]:
        """Forbidden texts that the translation has."""
        return tuple(term for sentence in self.sentences for term in sentence.forbidden_terms)


@dataclasses.dataclass(frozen=True)
class TextToTranslate:
    """A text and its languages.

    Attributes:
        text: any text.
        source: code of the source language.
        target: code of the target language.
        sentence_ends: where its sentences end.
        markup: "html" or "xml" (`mnmt_jax.decoding.text.markup_text`); "" is plain text.
        tag_rules: what is done with tags.
        glossary: terms and their translations.
        is_wrapped: whether its translation is divided into lines at spaces afterwards.
    """

    text: str
    source: str
    target: str
    sentence_ends: SentenceEnds = "all"
    markup: Markup = ""
    tag_rules: TagRules = TagRules()
    glossary: Glossary | None = None
    is_wrapped: bool = False

    @property
    def spacing(self) -> SentenceSpacing:
        """Separators of its translated sentences."""
        return SentenceSpacing(self.source, self.target, is_wrapped=self.is_wrapped)


@dataclasses.dataclass(frozen=True)
class LineOfText:
    """A line of a text that is to be translated.

    Attributes:
        text: the line.
        source: code of its language.
        target: code of the target language.
        aligned: whether its translation is aligned to it.
        terms: texts that the translation must or must not have.
        index: index among the lines of its text that are translated together, from 0.
        text_index: index of its text among those that are translated together, from 0.
    """

    text: str
    source: str
    target: str
    aligned: bool = False
    terms: LineTerms = NO_TERMS
    index: int = 0
    text_index: int = 0

    def numbered(self, number: int, *, sampling_index: int | None = None) -> Line:
        """Return the line with a number, as jobs take it; arguments as of `Line`."""
        return Line(
            number,
            self.text,
            self.source,
            self.target,
            aligned=self.aligned,
            terms=self.terms,
            sampling_index=sampling_index,
        )


def last_retry(pieces: Iterable[Translation]) -> str | None:
    """Return the latest further search that made one of the translations; None if none did."""
    # Names of searches sort in their order (`mnmt_jax.decoding.retry`).
    return max((piece.retried for piece in pieces if piece.retried), default=None)
