"""Terms of a line: texts that its translation must or must not contain, and their tokens."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import unicodedata
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import regex

from mnmt_jax.decoding.search_terms import SearchTerms
from mnmt_jax.decoding.text.placeholders import change_around_placeholders, inside_placeholders
from mnmt_jax.vocabulary.language_codes import has_separate_words
from mnmt_jax.vocabulary.letter_case import capitalized_spellings, to_lower
from mnmt_jax.vocabulary.vocabulary import Vocabulary

_BEFORE = "("  # separates a term from the space mark that precedes the first word of a text
_WORD_START = r"(?:(?<!\w)|(?!\w))"  # a text that begins with a mark may be anywhere
_GROWTH = 4  # smallest size of arrays, and ratio of consecutive ones
_MAX_SEQUENCES = 16  # alternatives of a term, in all their forms
_MAX_TOKENS = 16  # of an alternative
_MAX_POSITIONS = 1024  # of all required terms of a line
_MAX_FORBIDDEN = 64
_MAX_TERMS = 64  # required ones of a line


@dataclasses.dataclass(frozen=True)
class Term:
    """A term of a source text and the alternatives for its translation.

    Attributes:
        source: the term as the glossary has it.
        targets: alternatives, of which the translation must have one.
        count: how often the source has the term.
    """

    source: str
    targets: tuple[str, ...]
    count: int = 1


@dataclasses.dataclass(frozen=True)
class LineTerms:
    """Terms of a line; false if there are none.

    Attributes:
        required: terms that the translation must have.
        forbidden: texts that the translation must not have.
    """

    required: tuple[Term, ...] = ()
    forbidden: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self.required or self.forbidden)


NO_TERMS = LineTerms()


class TermsShape(NamedTuple):
    """Sizes of the arrays of a line's terms; lines of one shape are searched together."""

    terms: int
    alternatives: int
    forbidden: int
    length: int


@dataclasses.dataclass(frozen=True)
class EncodedTerms:
    """Token sequences of a line's terms.

    Attributes:
        required: sequences of the alternatives of each term.
        counts: how often each term is required.
        forbidden: sequences that must not occur.
    """

    required: tuple[tuple[tuple[int, ...], ...], ...]
    counts: tuple[int, ...]
    forbidden: tuple[tuple[int, ...], ...]

    @property
    def shape(self) -> TermsShape:
        """Sizes of the arrays, from few possible ones so that few programs are compiled."""
        sequences = (*itertools.chain(*self.required), *self.forbidden)
        return TermsShape(
            _padded(len(self.required)),
            _padded(max(map(len, self.required), default=1)),
            _padded(len(self.forbidden)) if self.forbidden else 0,
            _padded(max(map(len, sequences))),
        )


def encode_terms(terms: LineTerms, vocabulary: Vocabulary, language: str) -> EncodedTerms | None:
    """Return the token sequences of terms; None if there are none.

    A text has up to four sequences: as at the start of a word and inside of one (after a bracket),
    and both with its first letter as a capital (at the start of a sentence); up to six if the
    language has a capital of its own, such as İ beside I. Left out are sequences
    with unk, of more than 16 tokens, and terms without any other or beyond the size of the arrays.

    Args:
        terms: the terms.
        vocabulary: of the model.
        language: code of the target language.
    """
    required: list[tuple[tuple[int, ...], ...]] = []
    counts: list[int] = []
    for term in terms.required[:_MAX_TERMS]:
        targets = term.targets[:_MAX_SEQUENCES]
        sequences = _sequences(targets, vocabulary, language)[:_MAX_SEQUENCES]
        if sequences and _positions([*required, sequences]) <= _MAX_POSITIONS:
            required.append(sequences)
            counts.append(term.count)
    forbidden = _sequences(terms.forbidden[:_MAX_FORBIDDEN], vocabulary, language)
    forbidden = forbidden[:_MAX_FORBIDDEN]
    if not required and not forbidden:
        return None
    return EncodedTerms(
        tuple(required), tuple(with_contained(required, counts, _count_tokens)), forbidden
    )


def search_terms(encoded: Sequence[EncodedTerms], size: int) -> SearchTerms:
    """Return the terms of lines of one shape as arrays.

    Args:
        encoded: terms of each line.
        size: rows of the arrays; rows without a line have no terms.
    """
    shape = encoded[0].shape
    width = shape.terms * shape.alternatives
    tokens = np.zeros((size, width + shape.forbidden, shape.length), np.int32)
    counts = np.zeros((size, shape.terms), np.int32)
    for row, terms in enumerate(encoded):
        counts[row, : len(terms.counts)] = terms.counts
        for index, sequence in _placed(terms, shape):
            tokens[row, index, : len(sequence)] = sequence
    return SearchTerms(tokens, counts, shape.alternatives)


def missing_terms(
    terms: LineTerms, text: str, language: str, *, ignore_case: bool = False
) -> tuple[str, ...]:
    """Return the sources of required terms that a translation lacks, or has too rarely.

    Terms must start words, in languages whose words are separate; they may end inside of one. What
    starts or ends inside of a placeholder, such as a URL, is no match.

    Args:
        terms: the terms.
        text: the translation.
        language: code of its language.
        ignore_case: whether case does not matter. Otherwise the first letter may be a capital.
    """
    if not terms.required:
        return ()
    comparable = functools.partial(_comparable, language=language, ignore_case=ignore_case)
    text = comparable(text)
    forms = [
        [comparable(form) for target in term.targets for form in _cased(target, language)]
        for term in terms.required
    ]
    count_in = functools.partial(count_texts, start_words=has_separate_words(language))
    counts = with_contained(forms, [term.count for term in terms.required], count_in)
    inside = inside_placeholders(text)
    return tuple(
        term.source
        for term, alternatives, count in zip(terms.required, forms, counts, strict=True)
        if count_in(alternatives, text, inside=inside) < count
    )


def present_forbidden_terms(
    terms: LineTerms, text: str, language: str, *, ignore_case: bool = False
) -> tuple[str, ...]:
    """Return the forbidden texts that a translation has; arguments as in `missing_terms`."""
    if not terms.forbidden:
        return ()
    comparable = functools.partial(_comparable, language=language, ignore_case=ignore_case)
    text = comparable(text)
    inside = inside_placeholders(text)
    return tuple(
        one
        for one in terms.forbidden
        if any(_has_text(text, comparable(form), inside) for form in _cased(one, language))
    )


def _has_text(text: str, part: str, inside: Collection[int]) -> bool:
    """Return whether a text has a part that starts and ends at none of the places `inside`."""
    place = text.find(part)
    while place >= 0 and (place in inside or place + len(part) in inside):
        place = text.find(part, place + 1)
    return place >= 0


def _comparable(text: str, *, language: str, ignore_case: bool) -> str:
    """Return a text in the form that vocabularies write, NFKC.

    Placeholders keep their case, by which they are known.
    """
    text = unicodedata.normalize("NFKC", text)
    if not ignore_case:
        return text
    return change_around_placeholders(text, lambda part: to_lower(part, language))


def with_contained(
    terms: Sequence[Sequence], counts: Sequence[int], count_in: Callable[[Any, Any], int]
) -> list[int]:
    """Return how often each term must occur if those in occurrences of other terms do not count.

    Args:
        terms: alternatives of each term; of more than 64 the counts are as they are.
        counts: how often each term is required.
        count_in: returns how often a term occurs in an alternative of another one.
    """
    if len(terms) > _MAX_TERMS:  # not of a sentence that anybody writes; pairs would take long
        return list(counts)
    return [
        counts[i]
        + sum(
            counts[j] * min(count_in(term, alternative) for alternative in other)
            for j, other in enumerate(terms)
            if j != i and count_in(term, other[0])  # most terms do not occur in others
        )
        for i, term in enumerate(terms)
    ]


def count_texts(
    alternatives: Sequence[str],
    text: str,
    *,
    start_words: bool = False,
    inside: Collection[int] = frozenset(),
) -> int:
    """Return how often a text has one of several alternatives, without overlap.

    Args:
        alternatives: the texts to look for.
        text: the text.
        start_words: whether those in a word, after its first letter, do not count.
        inside: places at which those that count neither start nor end.
    """
    longest_first = sorted((one for one in alternatives if one in text), key=len, reverse=True)
    if not longest_first:
        return 0
    start = _WORD_START if start_words else ""
    pattern = f"{start}(?:{'|'.join(map(regex.escape, longest_first))})"
    spans = (match.span() for match in regex.finditer(pattern, text))
    return sum(first not in inside and last not in inside for first, last in spans)


def _count_tokens(alternatives: Sequence[Sequence[int]], tokens: Sequence[int]) -> int:
    """Return how often a sequence has one of several alternatives, without overlap."""
    count = start = 0
    for end in range(1, len(tokens) + 1):
        if any(tokens[max(start, end - len(one)) : end] == one for one in alternatives):
            count, start = count + 1, end
    return count


def _sequences(
    texts: Sequence[str], vocabulary: Vocabulary, language: str
) -> tuple[tuple[int, ...], ...]:
    """Return the different token sequences of texts, without those that cannot be generated."""
    sequences = dict.fromkeys(
        sequence
        for text in texts
        for form in _cased(text, language)
        for sequence in _encode(form, vocabulary, language)
    )
    return tuple(
        one for one in sequences if 0 < len(one) <= _MAX_TOKENS and vocabulary.unk_id not in one
    )


def _encode(text: str, vocabulary: Vocabulary, language: str) -> Iterator[tuple[int, ...]]:
    """Yield the tokens of a text as a separate word, and as the rest of a word."""
    bracket, alone, inside = (
        tuple(ids) for ids in vocabulary.encode_lines([_BEFORE, text, _BEFORE + text], language)
    )
    yield alone
    if inside[: len(bracket)] == bracket:
        yield inside[len(bracket) :]


def _cased(text: str, language: str) -> tuple[str, ...]:
    """Return a text, and the different texts with its first letter as a capital."""
    return tuple(dict.fromkeys((text, *capitalized_spellings(text, language))))


def _padded(size: int) -> int:
    padded = _GROWTH
    while padded < size:
        padded *= _GROWTH
    return padded


def _positions(required: Sequence[tuple[tuple[int, ...], ...]]) -> int:
    """Return the size of the arrays of required terms."""
    shape = EncodedTerms(tuple(required), (), ()).shape
    return shape.terms * shape.alternatives * shape.length


def _placed(terms: EncodedTerms, shape: TermsShape) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield each sequence with its place in the arrays."""
    for number, alternatives in enumerate(terms.required):
        yield from enumerate(alternatives, start=number * shape.alternatives)
    yield from enumerate(terms.forbidden, start=shape.terms * shape.alternatives)
