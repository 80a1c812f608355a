"""Placement of the tags of a sentence in its translation.

Each element of the source sentence is placed around the words of the translation that are aligned
to its words. The elements of a parent are placed inside of it and beside each other, so no tag is
lost or leaves its parent; elements of one parent may change their order, as words do.

Attention is sharpened before: the weights of a source piece are divided by their sum, because all
words attend to some pieces, and words at the same relative position are preferred. A word that is
once in both texts is aligned to itself, and an element inside of it stays at its letters. Marks
beside an element are inside if the source has marks there. The constants were chosen on validation
text (docs/serving.md).
"""

from __future__ import annotations

import dataclasses
import heapq
import html
import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float

from mnmt_jax.decoding.alignment import overlaps
from mnmt_jax.decoding.text.word_units import aligned_units, find_copies, marks_of, split_units
from mnmt_jax.decoding.translation import Alignment, AlignmentWeights
from mnmt_jax.vocabulary.piece_offsets import Span

_THRESHOLD = 0.5  # share of a word's weight by which it belongs to an element
_TAKEN = 1e6  # by which a word is avoided that another element has
_FIXED = 1000.0  # score of a word that an element must have
_MARK = -0.05  # most that a mark scores, so that no element ends with one of the words beside it
_SMOOTHING = 1.0  # added to the sum of a source piece's weights, so that noise stays noise
_DISTANCE = 4.0  # nats by which a weight is less if its words are at opposite ends of the sentence


@dataclasses.dataclass(eq=False)
class Node:
    """An element, or something without text, in a sentence.

    Attributes:
        start: number of characters of the sentence before it.
        end: number of characters of the sentence up to its end.
        opening: its start tag, or everything of what has no text; "" if it starts earlier.
        closing: its end tag; "" if it ends later.
        children: what it contains, in order.
        is_fixed: whether its text stays as it is; then `opening` is all of it.
        starts_before: whether it starts before the sentence.
        ends_after: whether it ends after the sentence.
        has_space: whether a space follows that is not a character of the sentence.
    """

    start: int
    end: int
    opening: str = ""
    closing: str = ""
    children: list[Node] = dataclasses.field(default_factory=list)
    is_fixed: bool = False
    starts_before: bool = False
    ends_after: bool = False
    has_space: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether it has no text."""
        return self.start == self.end


def place_tags(
    source: str, translation: str, nodes: Sequence[Node], alignment: Alignment | None = None
) -> str | None:
    """Return a translated sentence with its tags, and with special characters as entities.

    Args:
        source: the sentence.
        translation: its translation.
        nodes: elements of the sentence, in order.
        alignment: of both; None aligns words by their relative position.

    Returns:
        The translation; None if the text of fixed nodes is not in it as often as in the sentence,
        or outside of their parents.
    """
    if not nodes:
        return _escaped(translation)
    fixed = list(fixed_nodes(nodes))
    fixed_sources = [(node.start, node.end) for node in fixed]
    copies = find_copies(source, translation, fixed_sources)
    if copies is None:
        return None
    cuts = {place for node in all_nodes(nodes) for place in (node.start, node.end)}
    units = aligned_units(source, translation, dict(zip(copies, fixed_sources, strict=True)), cuts)
    alignment = _sharpened(alignment) if alignment else relative_alignment(source, translation)
    spans = list(units)
    fixed_units = {node: spans.index(copy) for node, copy in zip(fixed, copies, strict=True)}
    weights = _Weights(source, translation, units, alignment, fixed_units)
    placed: dict[Node, Span] = {}
    _place(nodes, (0, len(spans)), weights, placed)
    if any(placed[node] != (unit, unit + 1) for node, unit in fixed_units.items()):
        return None
    return _Writer(source, translation, spans, placed).write(nodes)


def relative_alignment(source: str, translation: str) -> Alignment:
    """Align words by their relative position."""
    spans = [split_units(text) for text in (source, translation)]
    shares = [
        [(start / len(text), end / len(text)) for start, end in text_spans]
        for text, text_spans in zip((source, translation), spans, strict=True)
    ]
    weights = _rows_to_one(overlaps(shares[1], shares[0]))
    return Alignment(tuple(spans[0]), tuple(spans[1]), weights)


def fixed_nodes(nodes: Sequence[Node]) -> Iterator[Node]:
    """Yield the nodes whose text stays as it is, in order."""
    return (node for node in all_nodes(nodes) if node.is_fixed and not node.is_empty)


def all_nodes(nodes: Sequence[Node]) -> Iterator[Node]:
    """Yield nodes and what they contain, in order."""
    for node in nodes:
        yield node
        yield from all_nodes(node.children)


class _Weights:
    """Weights of the characters of the source for each unit of the translation.

    Args:
        source: the sentence.
        translation: its translation.
        units: words and marks of the translation, with their places in the source if known.
        alignment: of both.
        fixed: the unit that is the translation of a fixed node, and of no other.
    """

    def __init__(
        self,
        source: str,
        translation: str,
        units: Mapping[Span, Span | None],
        alignment: Alignment,
        fixed: Mapping[Node, int],
    ) -> None:
        self._source, self._fixed = source, fixed
        characters = [(index, index + 1) for index in range(len(source))]
        of_units = overlaps(list(units), alignment.target) @ alignment.weights
        by_character = overlaps(alignment.source, characters)
        sizes = by_character.sum(axis=1, keepdims=True)
        shares = by_character / np.maximum(sizes, 1)
        matrix = _rows_to_one(of_units @ shares)
        marks = marks_of(translation)
        self._is_mark = np.array([all(marks[start:end]) for start, end in units], bool)
        self._is_mark[list(fixed.values())] = False
        self._source_marks = np.array(marks_of(source), bool)
        for node in fixed:
            self._source_marks[node.start : node.end] = False
        for unit, origin in enumerate(units.values()):
            if origin is not None:
                start, end = origin
                matrix[unit] = 0.0
                matrix[unit, start:end] = 1 / (end - start)
        self._sums = np.concatenate([np.zeros((len(units), 1)), np.cumsum(matrix, axis=1)], axis=1)

    @property
    def size(self) -> int:
        """Number of units."""
        return len(self._is_mark)

    def element_scores(self, start: int, end: int, within: Span) -> Float[np.ndarray, " units"]:
        """Return the scores for an element, at whose ends marks do not count."""
        scores = self.scores(start, end, within)
        if not self._source_marks[start:end].all():
            marks = self._is_mark[slice(*within)]
            scores[marks] = np.minimum(scores[marks], _MARK)
        return scores

    def with_marks(self, node: Node, span: Span, free: Bool[np.ndarray, " units"]) -> Span:
        """Return a range with the marks beside it, so many that it has those of the element.

        The range of a fixed node is its text, and stays as it is.
        """
        if node.is_fixed:
            return span
        text, marks = (one[node.start : node.end] for one in (self._source, self._source_marks))
        characters = [marks[place] for place in range(len(text)) if not text[place].isspace()]
        first, last = span
        inside = list(self._is_mark[first:last])
        before, after = (
            len(list(itertools.takewhile(bool, wanted)))
            - len(list(itertools.takewhile(bool, side)))
            for wanted, side in ((characters, inside), (characters[::-1], inside[::-1]))
        )
        available = self._is_mark & free
        while before > 0 and first > 0 and available[first - 1]:
            first, before = first - 1, before - 1
        while after > 0 and last < len(available) and available[last]:
            last, after = last + 1, after - 1
        return first, last

    def unit_of(self, node: Node) -> int | None:
        """Return the unit of a fixed node."""
        return self._fixed.get(node)

    def scores(self, start: int, end: int, within: Span) -> Float[np.ndarray, " units"]:
        """Return by how much the weights of a part of the source exceed the threshold."""
        first, last = within
        scores = self._sums[first:last, end] - self._sums[first:last, start] - _THRESHOLD
        for node, unit in self._fixed.items():
            if first <= unit < last:
                inside = start <= node.start and node.end <= end
                scores[unit - first] = _FIXED if inside else -_FIXED
        return scores


def _sharpened(alignment: Alignment) -> Alignment:
    """Return an alignment relative to what all words attend to and to relative positions."""
    weights = alignment.weights / (alignment.weights.sum(axis=0) + _SMOOTHING)
    target, source = (
        np.array([(start + end) / 2 for start, end in spans]) / max(spans[-1][1], 1)
        for spans in (alignment.target, alignment.source)
    )
    nearness = np.exp(-_DISTANCE * np.abs(np.subtract.outer(target, source)))
    return dataclasses.replace(alignment, weights=_rows_to_one(_rows_to_one(weights) * nearness))


def _rows_to_one(weights: AlignmentWeights) -> AlignmentWeights:
    sums = weights.sum(axis=1, keepdims=True)
    return weights / np.where(sums > 0, sums, 1.0)


def _place(
    nodes: Sequence[Node], within: Span, weights: _Weights, placed: dict[Node, Span]
) -> None:
    """Place the children of a node in its units, and their children in theirs."""
    elements = [node for node in nodes if not node.is_empty]
    for node in elements:
        if node.starts_before or node.ends_after:
            placed[node], within = _place_at_end(node, within, weights)
    free = np.zeros(weights.size, bool)
    free[slice(*within)] = True
    _place_elements(
        [node for node in elements if node not in placed], within, weights, free, placed
    )
    for node in elements:
        _place(node.children, placed[node], weights, placed)
    _place_empty(nodes, within, weights, placed)


def _place_at_end(node: Node, within: Span, weights: _Weights) -> tuple[Span, Span]:
    """Return the range of an element at an end of the sentence, and what is left of its parent."""
    first, last = within
    scores = weights.scores(node.start, node.end, within)
    if node.starts_before:
        cut = min(first + max(_best_prefix(scores), 1), last)
        return (first, cut), (cut, last)
    cut = max(last - max(_best_prefix(scores[::-1]), 1), first)
    return (cut, last), (first, cut)


def _place_elements(
    nodes: Sequence[Node],
    within: Span,
    weights: _Weights,
    free: Bool[np.ndarray, " units"],
    placed: dict[Node, Span],
) -> None:
    """Place elements beside each other, the one with the best range first."""
    best = [_best_range(node, within, weights, free) for node in nodes]
    queue = [(-score, number) for number, (score, _) in enumerate(best)]
    heapq.heapify(queue)
    while queue:
        _, number = heapq.heappop(queue)
        node, (first, last) = nodes[number], best[number][1]
        if not free[first:last].all():  # of a range that another one has taken meanwhile
            best[number] = _best_range(node, within, weights, free)
            heapq.heappush(queue, (-best[number][0], number))
            continue
        placed[node] = weights.with_marks(node, (first, last), free)
        free[slice(*placed[node])] = False


def _best_range(
    node: Node, within: Span, weights: _Weights, free: Bool[np.ndarray, " units"]
) -> tuple[float, Span]:
    """Return the best free range of an element, and its score; fixed ones are placed first.

    The range is empty if there is none.
    """
    unit = weights.unit_of(node)
    if unit is not None and free[unit]:
        return np.inf, (unit, unit + 1)
    available = free[slice(*within)]
    if not available.any():
        return -np.inf, (within[1], within[1])
    scores = weights.element_scores(node.start, node.end, within)
    return _best_part(np.where(available, scores, -_TAKEN), within[0])


def _best_part(scores: Float[np.ndarray, " units"], first: int) -> tuple[float, Span]:
    """Return the part of scores with the largest sum, which is not empty, and this sum."""
    best, start, total = (-np.inf, (first, first + 1)), 0, 0.0
    for index, score in enumerate(scores.tolist()):
        if total <= 0:
            start, total = index, 0.0
        total += score
        if total > best[0]:
            best = total, (first + start, first + index + 1)
    return best


def _best_prefix(scores: Float[np.ndarray, " units"]) -> int:
    """Return the length of the prefix with the largest sum, the shortest of equal ones."""
    return int(np.argmax(np.concatenate([[0.0], np.cumsum(scores)])))


def _place_empty(
    nodes: Sequence[Node], within: Span, weights: _Weights, placed: dict[Node, Span]
) -> None:
    """Place what has no text between the units of a node, outside of its elements, in order."""
    spans = [placed[node] for node in nodes if not node.is_empty]
    least = within[0]
    for node in nodes:
        if not node.is_empty:
            continue
        scores = weights.scores(0, node.start, within)
        sums = np.concatenate([[0.0], np.cumsum(scores)])
        allowed = [
            cut
            for cut in range(least, within[1] + 1)
            if not any(start < cut < end for start, end in spans)
        ]
        least = max(allowed or [least], key=lambda cut: sums[cut - within[0]])
        placed[node] = least, least


@dataclasses.dataclass(frozen=True)
class _Writer:
    """Writes a translation with its tags.

    Attributes:
        source: the sentence.
        translation: its translation.
        units: words and marks of the translation.
        placed: range of units of each node.
    """

    source: str
    translation: str
    units: Sequence[Span]
    placed: dict[Node, Span]

    def write(self, nodes: Sequence[Node]) -> str:
        """Return the whole translation."""
        return self._inside(nodes, 0, len(self.translation))

    def _inside(self, nodes: Sequence[Node], start: int, end: int) -> str:
        """Return the characters of the translation from `start` to `end` with their tags."""
        order = {node: (*self.placed[node], number) for number, node in enumerate(nodes)}
        ordered = sorted(nodes, key=order.__getitem__)
        text = ""
        for node, following in itertools.zip_longest(ordered, ordered[1:]):
            first, last = self._within(node, start, end)
            text += _escaped(self.translation[start:first]) + self._node(node, first, last)
            start = last
            is_beside = bool(following) and self._within(following, start, end)[0] == last
            if node.has_space and (is_beside or self.translation[last : last + 1].strip()):
                text += " "
        return text + _escaped(self.translation[start:end])

    def _node(self, node: Node, first: int, last: int) -> str:
        if node.is_empty:
            return _tags(node)
        if node.is_fixed:
            return node.opening
        return node.opening + self._inside(node.children, first, last) + node.closing

    def _within(self, node: Node, start: int, end: int) -> Span:
        """Return the characters of a node, between `start` and `end`."""
        first, last = self._characters(node)
        return min(max(first, start), end), min(max(last, start), end)

    def _characters(self, node: Node) -> Span:
        """Return the characters of the units of a node."""
        first, last = self.placed[node]
        if first < last:
            start, end = self.units[first][0], self.units[last - 1][1]
            if node.starts_before:
                start = 0
            if self.source[node.end - 1].isspace():  # before what was left out of the sentence
                while self.translation[end : end + 1].isspace():
                    end += 1
            return start, len(self.translation) if node.ends_after else end
        before = self.units[first - 1][1] if first else 0
        after = self.units[first][0] if first < len(self.units) else len(self.translation)
        if node.is_empty and self.source[node.start - 1 : node.start].isspace():
            return after, after
        return before, before


def _tags(node: Node) -> str:
    """Return the tags of a node without text; those inside of it were perhaps left out."""
    text = node.opening
    for number, child in enumerate(node.children, start=1):
        text += _tags(child)
        if child.has_space and number < len(node.children):
            text += " "
    return text + node.closing


def _escaped(text: str) -> str:
    return html.escape(text, quote=False)
