"""Translation of texts: sentences are translated, and everything between them is kept.

- A text is split by `text_parts.split_text`; what has no letters stays as it is.
- A sentence that is longer than the largest bucket is split further instead of being cut.
- A sentence in capitals is translated in lower case with a first capital, and returned in capitals.
- If a placeholder is lost, the text around it is translated instead, piece by piece.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Generator, Iterable, Sequence

from mnmt_jax.decoding.terms import NO_TERMS, LineTerms, missing_terms, present_forbidden_terms
from mnmt_jax.decoding.text.markup_text import MarkedSentence, split_markup
from mnmt_jax.decoding.text.markup_tokens import MarkupReader
from mnmt_jax.decoding.text.placeholders import (
    change_around_placeholders,
    keeps_placeholders,
    split_at_placeholders,
)
from mnmt_jax.decoding.text.text_parts import (
    Part,
    join_lines,
    restore_line_breaks,
    split_long,
    split_spaces,
    split_text,
)
from mnmt_jax.decoding.text.translated_text import (
    LineOfText,
    SentenceTranslation,
    TextToTranslate,
    TextTranslation,
)
from mnmt_jax.decoding.translation import Alignment, Translation
from mnmt_jax.vocabulary.letter_case import to_lower, to_upper
from mnmt_jax.vocabulary.normalization import has_letters

_LEAST_CAPITALS = 2  # letters of a sentence in capitals


Steps = Generator[list[LineOfText], Sequence[Translation], list[TextTranslation]]
"""Yields lines to translate, and takes their translations; at most three times."""

_REPEATS = 2  # of sentences that lost a placeholder or an untranslated element


def translation_steps(texts: Iterable[TextToTranslate], fits: Callable[[str, str], bool]) -> Steps:
    """Translate texts, with the translation of lines left to the caller.

    Args:
        texts: the texts.
        fits: whether the model takes a line of a language whole.
    """
    plans = [_DocumentPlan(text, fits) if text.markup else _TextPlan(text, fits) for text in texts]
    by_text: list[Sequence[_Sentence | MarkedSentence]] = [plan.sentences for plan in plans]
    yield from _translate(by_text)
    for _ in range(_REPEATS):
        by_text = [
            [
                sentence
                for sentence in sentences
                if not sentence.keeps_placeholders() and sentence.split_at_placeholders()
            ]
            for sentences in by_text
        ]
        if any(by_text):
            yield from _translate(by_text)
    return [plan.result() for plan in plans]


def _translate(
    by_text: Sequence[Sequence[_Sentence | MarkedSentence]],
) -> Generator[list[LineOfText], Sequence[Translation], None]:
    """Translate the sentences of each text."""
    lines: list[LineOfText] = []
    for t, sentences in enumerate(by_text):
        of_text = [line for sentence in sentences for line in sentence.lines()]
        lines += (
            dataclasses.replace(line, index=n, text_index=t) for n, line in enumerate(of_text)
        )
    translations = iter((yield lines) if lines else ())
    for sentence in itertools.chain(*by_text):
        sentence.take(translations)


class _Sentence:
    """A sentence, the pieces in which it is translated, and their translations."""

    def __init__(
        self,
        sentence: str,
        text: TextToTranslate,
        fits: Callable[[str], bool],
        *,
        aligned: bool = False,
    ) -> None:
        self.source, self._breaks = join_lines(sentence)
        self._text, self._fits, self._aligned = text, fits, aligned
        self._is_capitals = _is_capitals(self.source)
        self._pieces = self._fitting(
            [(_true_case(self.source, text.source) if self._is_capitals else self.source, "")]
        )
        self._translations: tuple[Translation, ...] = ()
        self._is_split = False

    def _fitting(self, pieces: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """Split pieces until each fits; a piece is a text, and what follows it untranslated."""
        result = []
        for piece, after in pieces:
            *first, last = split_long(piece, self._fits) or [""]
            result += [(part, "") for part in first]
            result.append((last, after))
        return result

    def split_at_placeholders(self) -> bool:
        """Translate the text around placeholders instead; return whether that is different."""
        if self._is_split:
            return False
        self._pieces, self._is_split = self._fitting(split_at_placeholders(self.source)), True
        return True

    def lines(self) -> list[LineOfText]:
        """Return the lines to translate: the pieces that have letters."""
        source, target = self._text.source, self._text.target
        return [
            LineOfText(
                piece.strip(),
                source,
                target,
                terms=self._terms(piece),
                aligned=self._aligned,
            )
            for piece, _ in self._pieces
            if has_letters(piece)
        ]

    def _terms(self, text: str) -> LineTerms:
        glossary = self._text.glossary
        if glossary is None:
            return NO_TERMS
        return glossary.terms_of(text, self._text.source, ignore_case=self._is_capitals)

    def take(self, translations: Iterable[Translation]) -> None:
        """Take the translations of `lines`."""
        count = sum(has_letters(piece) for piece, _ in self._pieces)
        self._translations = tuple(itertools.islice(translations, count))

    def keeps_placeholders(self) -> bool:
        """Return whether the translation has the placeholders of the sentence."""
        return keeps_placeholders(self.source, self.translated())

    def translated(self) -> str:
        """Return the translated sentence in one line."""
        return self._joined([translation.text for translation in self._translations])

    def alternatives(self) -> list[str]:
        """Return what `translated` is with other hypotheses that keep the placeholders.

        There are none of a sentence that was translated in pieces.
        """
        if len(self._translations) != 1:
            return []
        texts = [self._joined([other.text]) for other in self._translations[0].hypotheses[1:]]
        return [text for text in texts if keeps_placeholders(self.source, text)]

    def _joined(self, translations: Iterable[str]) -> str:
        """Return the pieces with these translations in one line."""
        translations = iter(translations)
        parts: list[tuple[str, bool]] = []
        for piece, after in self._pieces:
            if has_letters(piece):
                leading, _, trailing = split_spaces(piece)
                parts += [(leading, False), (next(translations), True), (trailing, False)]
            else:
                parts.append((piece, False))
            parts.append((after, False))
        text = self._text.spacing.join(parts)
        if self._is_capitals:
            target = self._text.target
            text = change_around_placeholders(text, lambda part: to_upper(part, target))
        return text

    def alignment(self) -> Alignment | None:
        """Return how the translation is aligned, if it was translated whole with an alignment."""
        if len(self._pieces) != 1 or len(self._translations) != 1:
            return None
        (translation,), ((piece, after),) = self._translations, self._pieces
        is_whole = len(piece) == len(self.source) and not after and piece == piece.strip()
        has_length = len(translation.text) == len(self.translated())  # capitals may change it
        return translation.alignment if is_whole and has_length else None

    def result(self) -> SentenceTranslation:
        """Return the sentence with its translation."""
        text, terms = self.translated(), self._terms(self.source)
        language, ignore_case = self._text.target, self._is_capitals
        return SentenceTranslation(
            self.source,
            text,
            self._translations,
            missing_terms(terms, text, language, ignore_case=ignore_case),
            present_forbidden_terms(terms, text, language, ignore_case=ignore_case),
        )

    def restored(self, text: str) -> str:
        """Return a translation in one line with the line breaks of the sentence."""
        return restore_line_breaks(text, self._breaks, self._text.target)


class _TextPlan:
    """The parts of a text, and its sentences."""

    def __init__(self, text: TextToTranslate, fits: Callable[[str, str], bool]) -> None:
        self._text = text
        self._parts: list[Part | _Sentence] = [
            _Sentence(part.text, text, lambda line: fits(line, text.source))
            if part.is_sentence
            else part
            for part in split_text(text.text, text.source, text.sentence_ends)
        ]
        self.sentences = [part for part in self._parts if isinstance(part, _Sentence)]

    def result(self) -> TextTranslation:
        """Return the translated text."""
        text = self._joined([sentence.translated() for sentence in self.sentences])
        others = self.sentences[0].alternatives() if len(self.sentences) == 1 else []
        alternatives = dict.fromkeys(self._joined([other]) for other in others)
        return TextTranslation(
            text,
            tuple(sentence.result() for sentence in self.sentences),
            alternatives=tuple(other for other in alternatives if other != text),
        )

    def _joined(self, translations: Sequence[str]) -> str:
        """Return the text with these translations of its sentences."""
        remaining = iter(translations)
        return self._text.spacing.join(
            (part.restored(next(remaining)), True)
            if isinstance(part, _Sentence)
            else (part.text, False)
            for part in self._parts
        )


class _DocumentPlan:
    """A document with markup, and its sentences."""

    def __init__(self, text: TextToTranslate, fits: Callable[[str, str], bool]) -> None:
        def fit(line: str) -> bool:
            return fits(line, text.source)

        def make(sentence: str, aligned: bool) -> _Sentence:
            return _Sentence(sentence, text, fit, aligned=aligned)

        reader = MarkupReader(text.markup, text.tag_rules)
        self._markup = text.markup
        self._parts = split_markup(text.text, text.source, text.sentence_ends, reader, make, fit)
        self._spacing = text.spacing
        self.sentences = self._parts.sentences

    def result(self) -> TextTranslation:
        """Return the translated document."""
        text = self._parts.joined(self._spacing)
        sentences = tuple(sentence.result() for sentence in self.sentences)
        return TextTranslation(text, sentences, self._markup)


def _is_capitals(sentence: str) -> bool:
    """Return whether all cased letters outside placeholders are capitals, at least two."""
    outside = "".join(text for text, _ in split_at_placeholders(sentence))
    return outside.isupper() and sum(map(str.isalpha, outside)) >= _LEAST_CAPITALS


def _true_case(sentence: str, language: str) -> str:
    """Return a sentence in lower case around placeholders, with a capital at its start."""
    lower = change_around_placeholders(sentence, lambda text: to_lower(text, language))
    (start, _), *_ = split_at_placeholders(lower)
    letters = [index for index, character in enumerate(start) if character.isalpha()]
    if not letters:  # it starts with a placeholder
        return lower
    first = letters[0]
    return lower[:first] + to_upper(lower[first], language) + lower[first + 1 :]
