"""Translation of documents: sentences are translated whole, with their tags placed afterwards.

Everything outside of translated sentences is kept byte for byte. Text between two block tags is
split into sentences whatever inline tags are in it. White space in a sentence, line breaks too, is
a space. In XML, line breaks end sentences as in plain text; in HTML, only if all of them do.
Untranslated elements (`<code>`, `translate="no"`, ignored tags) are translated with their
sentence if the translation keeps their text; otherwise they are left out, and placed as a tag is.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from mnmt_jax.decoding.text.markup_runs import Run, split_runs
from mnmt_jax.decoding.text.markup_tokens import MarkupReader
from mnmt_jax.decoding.text.placeholders import placeholder_spans
from mnmt_jax.decoding.text.sentence_spacing import SentenceSpacing
from mnmt_jax.decoding.text.tag_placement import Node, all_nodes, fixed_nodes, place_tags
from mnmt_jax.decoding.text.text_parts import SentenceEnds, split_long, split_spaces, split_text
from mnmt_jax.decoding.text.translated_text import LineOfText, SentenceTranslation
from mnmt_jax.decoding.translation import Alignment, Translation
from mnmt_jax.vocabulary.normalization import has_letters


class PlainSentence(Protocol):
    """A sentence that is translated without markup."""

    def lines(self) -> list[LineOfText]:
        """Return the lines to translate."""

    def take(self, translations: Iterable[Translation]) -> None:
        """Take the translations of `lines`."""

    def keeps_placeholders(self) -> bool:
        """Return whether the translation has the placeholders of the sentence."""

    def split_at_placeholders(self) -> bool:
        """Translate the text around placeholders instead; return whether that is different."""

    def translated(self) -> str:
        """Return the translated sentence."""

    def alignment(self) -> Alignment | None:
        """Return how it is aligned, if that is known."""

    def result(self) -> SentenceTranslation:
        """Return the sentence with its translation."""


MakeSentence = Callable[[str, bool], PlainSentence]
"""Makes a sentence of a text, and whether it has tags to place."""


class MarkedSentence:
    """A sentence with its elements.

    Args:
        source: the sentence without tags.
        nodes: its elements.
        make: makes the sentence that is translated.
        between: text between the sentence before and this one; None if they do not belong to one
            text.
    """

    def __init__(
        self, source: str, nodes: Sequence[Node], make: MakeSentence, between: str | None
    ) -> None:
        self.between = between
        self._source, self._nodes, self._make = source, nodes, make
        self._plain = make(source, bool(nodes))
        self._placed: str | None = None

    def lines(self) -> list[LineOfText]:
        """Return the lines to translate."""
        return self._plain.lines()

    def take(self, translations: Iterable[Translation]) -> None:
        """Take the translations of `lines`."""
        self._plain.take(translations)
        translation, alignment = self._plain.translated(), self._plain.alignment()
        self._placed = place_tags(self._source, translation, self._nodes, alignment)

    def keeps_placeholders(self) -> bool:
        """Return whether the translation has the placeholders and the untranslated elements."""
        return self._placed is not None and self._plain.keeps_placeholders()

    def split_at_placeholders(self) -> bool:
        """Translate the sentence without what was lost; return whether that is different."""
        if self._placed is not None:
            return self._plain.split_at_placeholders()
        self._leave_out_fixed()
        return True

    def result(self) -> SentenceTranslation:
        """Return the sentence with its translation, without tags."""
        return self._plain.result()

    def translated(self) -> str:
        """Return the translated sentence without tags."""
        return self._plain.translated()

    def placed(self) -> str:
        """Return the translated sentence with its tags."""
        assert self._placed is not None, "untranslated elements are left out in the last step"
        return self._placed

    def _leave_out_fixed(self) -> None:
        """Translate the sentence without its untranslated elements."""
        spans = [(node.start, node.end) for node in fixed_nodes(self._nodes)]
        kept = _kept_characters(self._source, spans)
        before = list(itertools.accumulate(kept, initial=0))
        shortened = "".join(itertools.compress(self._source, kept))
        last_nodes = set(_last_nodes(self._nodes))
        for node in all_nodes(self._nodes):
            start, end = before[node.start], before[node.end]
            is_left_out = start == end and not node.is_empty
            follows = self._source[node.end : node.end + 1]
            if node in last_nodes and follows == " ":
                node.has_space |= is_left_out or not kept[node.end]
            elif node in last_nodes and not follows:
                node.has_space |= start < end and shortened[end - 1] == " "
            node.start, node.end = start, end
        self._source = shortened
        self._plain = self._make(self._source, True)


@dataclasses.dataclass(frozen=True)
class MarkupParts:
    """A document as sentences and what is between them.

    Attributes:
        parts: strings that stay as they are, and sentences.
    """

    parts: Sequence[str | MarkedSentence]

    @property
    def sentences(self) -> list[MarkedSentence]:
        """The sentences, in order."""
        return [part for part in self.parts if isinstance(part, MarkedSentence)]

    def joined(self, spacing: SentenceSpacing) -> str:
        """Return the translated document, with these spaces between sentences."""
        return spacing.join_marked(
            (part, None, None)
            if isinstance(part, str)
            else (part.placed(), part.translated(), part.between)
            for part in self.parts
        )


def split_markup(
    document: str,
    language: str,
    ends: SentenceEnds,
    reader: MarkupReader,
    make: MakeSentence,
    fits: Callable[[str], bool],
) -> MarkupParts:
    """Split a document into sentences.

    Args:
        document: HTML or XML, or a part of it.
        language: code of its language.
        ends: where sentences end; "all" is "punctuation" in HTML.
        reader: what its tags mean.
        make: makes sentences.
        fits: whether the model takes a text whole; longer sentences are split.
    """
    parts: list[str | MarkedSentence] = []
    keep_lines = ends == "lines" or (ends == "all" and reader.markup == "xml")
    for run in split_runs(reader, document, keep_lines=keep_lines):
        if isinstance(run, str):
            parts.append(run)
        else:
            spans = list(_sentence_spans(run, language, ends, fits))
            parts += _sentences_of(run, spans, make)
    return MarkupParts(parts)


def has_text(reader: MarkupReader, document: str) -> bool:
    """Return whether a document has letters outside of tags and untranslated elements."""
    return any(
        isinstance(run, Run) and _has_letters(run.text, run.nodes)
        for run in split_runs(reader, document)
    )


def _sentence_spans(
    run: Run, language: str, ends: SentenceEnds, fits: Callable[[str], bool]
) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each sentence, or of pieces of it that fit.

    Untranslated elements and placeholders are not divided.
    """
    text, start = _masked(run), 0
    whole = [(node.start, node.end) for node in fixed_nodes(run.nodes)]
    whole += placeholder_spans(run.text)
    end_of: dict[int, int] = {}  # by place inside of one of these
    for first, last in sorted(whole, key=lambda span: span[1]):
        end_of |= dict.fromkeys(range(first + 1, last), last)  # the last end of those that overlap
    if ends != "none" and "\n" not in text:
        ends = "punctuation"
    between = itertools.pairwise([0, *run.stops, len(text)])
    for part in itertools.chain(
        *(split_text(text[first:last], language, ends) for first, last in between)
    ):
        pieces = split_long(part.text, fits) if part.is_sentence else []
        stops = [start + stop for stop in itertools.accumulate(map(len, pieces))]
        first = start
        for stop in stops:
            last = stop
            while last in end_of:
                last = end_of[last]
            last = min(last, start + len(part.text))
            before, stripped, _ = split_spaces(text[first:last])
            if stripped:
                yield first + len(before), first + len(before) + len(stripped)
            first = max(first, last)
        start += len(part.text)


def _sentences_of(
    run: Run, spans: Sequence[tuple[int, int]], make: MakeSentence
) -> Iterator[str | MarkedSentence]:
    """Yield the sentences of a run and the raw text around them."""
    raw_end = previous_end = 0
    for start, end in spans:
        nodes = _nodes_of(run, start, end)
        if not _has_letters(run.text[start:end], nodes):
            continue
        first, last = _region(run, start, end)
        between = run.text[previous_end:start] if previous_end else None
        yield from _raw_between(run, raw_end, first, previous_end)
        yield _spaces_before(run, start, first)
        sentence = run.text[start:end].replace("\n", " ")
        yield MarkedSentence(sentence, nodes, make, between)
        yield _spaces_after(run, end, last)
        raw_end, previous_end = last, end
    yield run.raw[raw_end:]


def _raw_between(run: Run, start: int, end: int, index: int) -> list[str]:
    """Return a part of the document, with the character of the text at an index by itself."""
    first, last = run.spans[index] if index < len(run.spans) else (start, start)
    if not start <= first < last <= end:
        return [run.raw[start:end]]
    return [run.raw[start:first], run.raw[first:last], run.raw[last:end]]


def _masked(run: Run) -> str:
    """Return the text of a run with letters for untranslated elements, in which none ends."""
    characters = list(run.text)
    for node in fixed_nodes(run.nodes):
        characters[node.start : node.end] = "x" * (node.end - node.start)
    return "".join(characters)


def _has_letters(sentence: str, nodes: Sequence[Node]) -> bool:
    """Return whether there are letters outside of untranslated elements."""
    kept = _kept_characters(sentence, [(node.start, node.end) for node in fixed_nodes(nodes)])
    return has_letters("".join(itertools.compress(sentence, kept)))


def _nodes_of(run: Run, start: int, end: int) -> list[Node]:
    """Return the elements of a sentence, with positions in it.

    Elements around the sentence, and what is before its first and after its last character, are
    outside.
    """
    return [_cut(node, start, end) for node in _inside(run, start, end)]


def _inside(run: Run, start: int, end: int) -> list[Node]:
    """Return the outermost elements of a sentence, which may also be partly outside."""
    nodes = _near(run.nodes, start, end)
    while outer := [n for n in nodes if n.start <= start and end <= n.end and not n.is_fixed]:
        nodes = _near(outer[0].children, start, end)
    return [node for node in nodes if node.start < end and start < node.end]


def _near(nodes: Sequence[Node], start: int, end: int) -> Sequence[Node]:
    """Return the siblings that touch a part of the text."""
    first = bisect.bisect_left(nodes, start, key=lambda node: node.end)
    last = bisect.bisect_right(nodes, end, key=lambda node: node.start)
    return nodes[first:last]


def _region(run: Run, start: int, end: int) -> tuple[int, int]:
    """Return where a sentence with its tags is in the document."""
    first, last = run.spans[start][0], run.spans[end - 1][1]
    for node in all_nodes(_inside(run, start, end)):
        if not node.is_empty and start <= node.start < end:
            first = min(first, run.tags[node][0])
        if not node.is_empty and start < node.end <= end:
            last = max(last, run.tags[node][1])
    return first, last


def _spaces_before(run: Run, start: int, first: int) -> str:
    """Return the spaces before a sentence that are in its region, as they are in the document."""
    index = start
    while index and run.spans[index - 1][0] >= first:
        index -= 1
    return "".join(run.raw[slice(*span)] for span in run.spans[index:start])


def _spaces_after(run: Run, end: int, last: int) -> str:
    """Return the spaces after a sentence that are in its region, as they are in the document."""
    index = end
    while index < len(run.spans) and run.spans[index][1] <= last:
        index += 1
    return "".join(run.raw[slice(*span)] for span in run.spans[end:index])


def _cut(node: Node, start: int, end: int) -> Node:
    """Return the part of an element that is in a sentence."""
    starts_before, ends_after = node.start < start, node.end > end
    children = [
        child
        for child in _near(node.children, start, end)
        if (child.start < end and start < child.end)
        or (child.is_empty and child.start == start and not starts_before)
        or (child.is_empty and child.start == end and not ends_after)
    ]
    return dataclasses.replace(
        node,
        start=max(node.start, start) - start,
        end=min(node.end, end) - start,
        opening="" if starts_before else node.opening,
        closing="" if ends_after else node.closing,
        starts_before=starts_before,
        ends_after=ends_after,
        children=[_cut(child, start, end) for child in children],
    )


def _last_nodes(nodes: Sequence[Node], parent_end: int = -1) -> Iterator[Node]:
    """Yield the last node at each position, but at `parent_end` its parent is."""
    for node, following in itertools.zip_longest(nodes, nodes[1:]):
        if node.end != parent_end and (following is None or following.end != node.end):
            yield node
        yield from _last_nodes(node.children, node.end)


def _kept_characters(text: str, removed: Iterable[tuple[int, int]]) -> list[bool]:
    """Return which characters stay if spans are removed, and spaces that would be doubled."""
    kept = [True] * len(text)
    for start, end in removed:
        kept[start:end] = [False] * (end - start)
    previous = " "
    for index, character in enumerate(text):
        if kept[index]:
            kept[index] = not (character == " " == previous)
            previous = character
    return kept
