"""Ends of elements in HTML and XML; HTML may omit end tags (its standard, section 13.1.2.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from mnmt_jax.decoding.markup_tokens import BLOCKS, MarkupReader, Token

_ROWS = frozenset("tr tbody thead tfoot".split())
_CELLS = frozenset("td th".split())
_ENTRIES = frozenset("dd dt li".split())
_ENDED_BY: Mapping[str, frozenset[str]] = {
    "p": _ROWS
    | _CELLS
    | _ENTRIES
    | frozenset(
        "address article aside blockquote center details dialog dir div dl fieldset figcaption "
        "figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr main menu nav ol p pre search "
        "section table ul".split()
    ),
    "li": frozenset(("li",)),
    **dict.fromkeys(("dd", "dt"), frozenset(("dd", "dt"))),
    **dict.fromkeys(_CELLS, _CELLS | _ROWS),
    "tr": _ROWS,
    **dict.fromkeys(("tbody", "thead", "tfoot"), _ROWS - {"tr"}),
    "option": frozenset(("option", "optgroup", "hr")),
    "optgroup": frozenset(("optgroup", "hr")),
}
"""Start tags before which an element ends whose end tag is omitted."""


def end_of_element(reader: MarkupReader, tokens: Sequence[Token], start: int) -> int:
    """Return the index after an element: after its end tag, or before the tag that implies it.

    Args:
        reader: knows the markup.
        tokens: of the document.
        start: index of the start tag, or of the tag of an empty element.

    Returns:
        The index; that after the last token if the element does not end.
    """
    if tokens[start].kind != "start":
        return start + 1
    elements = _OpenElements(tokens[start].name, reader.markup == "html")
    for index in range(start + 1, len(tokens)):
        token = tokens[index]
        if token.kind in ("start", "empty"):
            elements.start(token)
        elif token.kind == "end":
            elements.end(token.name)
        if elements.is_ended:
            return index + (token.name == tokens[start].name and token.kind == "end")
    return len(tokens)


class _OpenElements:
    """Names of an element and of the blocks in it that are open, the outermost first.

    Args:
        name: name of the element.
        is_html: whether end tags may be omitted.
    """

    def __init__(self, name: str, is_html: bool) -> None:
        self._outermost, self._is_html = name, is_html
        self._names = [name]
        self._counts = Counter(self._names)

    @property
    def is_ended(self) -> bool:
        """Whether the element has ended."""
        return not self._names

    def start(self, token: Token) -> None:
        """Open an element, after the end of those that it implies."""
        while self._is_html and self._names and token.name in _ENDED_BY.get(self._names[-1], ()):
            self._pop()
        is_open = token.kind == "start" and bool(self._names)
        if is_open and (token.name == self._outermost or (self._is_html and token.name in BLOCKS)):
            self._names.append(token.name)
            self._counts[token.name] += 1

    def end(self, name: str) -> None:
        """End the last open element of a name; if it is of none, it may be that of the parent."""
        is_inner = self._counts[name] > 0
        is_block = self._is_html and name in BLOCKS and name not in ("br", "p")
        is_of_parent = is_block and self._outermost in _ENDED_BY
        while self._names and (is_inner or is_of_parent):
            if self._pop() == name:
                break

    def _pop(self) -> str:
        name = self._names.pop()
        self._counts[name] -= 1
        return name
