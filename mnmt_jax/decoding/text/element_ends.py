"""Ends of elements in HTML and XML; HTML may omit end tags (its standard, section 13.1.2.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from mnmt_jax.decoding.text.markup_tokens import BLOCKS, MarkupReader, Token

_TABLE = frozenset(("table",))
_SECTIONS = frozenset("tbody thead tfoot".split())
_ROWS = _SECTIONS | {"tr"}
_CELLS = frozenset("td th".split())
_ENTRIES = frozenset("dd dt li".split())
_ENDED_BY: Mapping[str, frozenset[str]] = {
    "p": _ROWS
    | _CELLS
    | _ENTRIES
    | frozenset(
        "address article aside blockquote center details dialog dir div dl fieldset figcaption "
        "figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr main menu nav ol p pre search "
        "section summary table ul".split()
    ),
    "li": frozenset(("li",)),
    **dict.fromkeys(("dd", "dt"), frozenset(("dd", "dt"))),
    **dict.fromkeys(_CELLS, _CELLS | _ROWS),
    "tr": _ROWS,
    **dict.fromkeys(_SECTIONS, _SECTIONS),
    "caption": _ROWS | _CELLS | {"caption", "col", "colgroup"},
    "colgroup": _ROWS | _CELLS | {"caption", "colgroup"},
    **dict.fromkeys(("rt", "rp"), frozenset("rb rp rt rtc".split())),
    "option": frozenset(("option", "optgroup", "hr")),
    "optgroup": frozenset(("optgroup", "hr")),
}
"""Start tags before which an element ends whose end tag is omitted."""
_BLOCK_ENDS = BLOCKS - {"br", "p"}
_ENDED_WITH: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(_ENDED_BY, _BLOCK_ENDS),
    **dict.fromkeys(_CELLS, _ROWS | _TABLE),
    "tr": _SECTIONS | _TABLE,
    **dict.fromkeys(("caption", "colgroup", *_SECTIONS), _TABLE),
    **dict.fromkeys(("rt", "rp"), _BLOCK_ENDS | {"ruby"}),
}
"""End tags of parents with which an element ends whose end tag is omitted."""
_SCOPES = frozenset(
    "annotation-xml applet button desc foreignobject marquee mi mn mo ms mtext object".split()
)
"""Inline elements whose content ends no element around them (section 13.2.4.2)."""


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
    """Names of an element and of the blocks and scopes in it that are open, the outermost first.

    Args:
        name: name of the element.
        is_html: whether end tags may be omitted.
    """

    def __init__(self, name: str, is_html: bool) -> None:
        self._outermost, self._is_html = name, is_html
        self._parent_ends = _ENDED_WITH.get(name, frozenset()) if is_html else frozenset()
        self._kept = BLOCKS | _SCOPES if is_html else frozenset()
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
        if is_open and (token.name == self._outermost or token.name in self._kept):
            self._names.append(token.name)
            self._counts[token.name] += 1

    def end(self, name: str) -> None:
        """End the last open element of a name; if it is of none, it may be that of the parent."""
        is_ending = self._counts[name] > 0 or name in self._parent_ends
        while self._names and is_ending:
            if self._pop() == name:
                break

    def _pop(self) -> str:
        name = self._names.pop()
        self._counts[name] -= 1
        return name
