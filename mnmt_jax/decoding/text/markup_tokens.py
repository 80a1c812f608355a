"""Tokenizer of HTML and XML: tags, text, comments and declarations, byte for byte.

The tokens of a document joined are the document. Parsers that build a tree (lxml, html5lib,
selectolax) write attributes, entities and omitted tags in their own way, and `html.parser` takes
quadratic time for some inputs, so tokens are found here by the rules of the HTML standard, section
13.2.5, in linear time.
"""

from __future__ import annotations

import dataclasses
import html
import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

Markup = Literal["", "html", "xml"]
"""Kind of markup of a text; "" is plain text."""

MARKUPS = ("", "html", "xml")

_TOKEN = re.compile(
    r"""
      (?P<other> <!--(?:-?>|.*?(?:--!?>|\Z))                  # a comment
               | <!\[CDATA\[.*?(?:\]\]>|\Z)
               | <!DOCTYPE[^>\[]*\[.*?(?:\]\s*>|\Z)           # with an internal subset
               | <[!?][^>]*>
               | </(?:[^a-zA-Z_>][^>]*)?> )
    | (?P<end>   </[a-zA-Z_][^>]*> )
    | (?P<start> <[a-zA-Z_:](?:[^>"'=]++|=\s*+(?:"[^"]*+(?:"|\Z)|'[^']*+(?:'|\Z))?|["'])*+(?:>|\Z) )
    | (?P<text>  [^<]++|< )
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_COMMENT_START = re.compile("<[!?]")  # of comments, declarations and instructions
_NAME = re.compile(r"</?([^\s/>]+)")
_ATTRIBUTE = re.compile(r"""([^\s=>"'/]+)(?:\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s>"']+)))?""")
_ENTITY = re.compile(r"&(?:#\d+|#[xX][0-9a-fA-F]+|\w+);?")
_XML_ENTITIES = ("amp", "lt", "gt", "quot", "apos")
_VOID = frozenset("area base br col embed hr img input link meta param source track wbr".split())
_RAW_TEXT = ("script", "style")
BLOCKS = frozenset(
    "address article aside blockquote body br caption center col colgroup dd details dialog dir "
    "div dl dt fieldset figcaption figure footer form frameset h1 h2 h3 h4 h5 h6 head header "
    "hgroup hr html iframe legend li link main menu meta nav noscript ol optgroup option p pre "
    "search section select summary table tbody td template textarea tfoot th thead title tr ul "
    "video".split()
)
"""Elements of HTML that end paragraphs."""
_SPLITTING = BLOCKS | {"button", "input", "label"}
_LINKS = frozenset(("a",))
_INVISIBLE = frozenset((*_RAW_TEXT, "math", "rp", "rt", "svg", "template"))
_UNTRANSLATED = _INVISIBLE | {"code", "pre"}


class Token(NamedTuple):
    """A token of a document.

    Attributes:
        kind: `text`; `start`, `end` or `empty` for tags; `other` for comments, declarations,
            processing instructions, CDATA and scripts.
        raw: its characters.
        name: of a tag; in lower case in HTML.
    """

    kind: Literal["text", "start", "end", "empty", "other"]
    raw: str
    name: str = ""


@dataclasses.dataclass(frozen=True)
class TagRules:
    """Rules of translation for tags, by name.

    Attributes:
        ignored: their content is not translated.
        splitting: text is never translated across them.
        non_splitting: they are inline, whatever HTML says.
    """

    ignored: frozenset[str] = frozenset()
    splitting: frozenset[str] = frozenset()
    non_splitting: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True)
class MarkupReader:
    """Tokenizer of documents that knows block, void and untranslated elements.

    Attributes:
        markup: "html" or "xml".
        rules: exceptions.
    """

    markup: Markup
    rules: TagRules = TagRules()

    def tokens(self, text: str) -> Iterator[Token]:
        """Yield the tokens of a document; a tag that is never closed is text or, in part, kept.

        A comment or declaration that is never closed goes to the end.

        Args:
            text: the document or a part of one.
        """
        position, last_end = 0, text.rfind(">")
        while position < len(text):
            if position > last_end:  # no tag can end
                comment = _COMMENT_START.search(text, position)
                stop = comment.start() if comment else len(text)
                rest = Token("text", text[position:stop]), Token("other", text[stop:])
                yield from (token for token in rest if token.raw)
                return
            match = _TOKEN.match(text, position)
            raw = match.group() if match else text[position]
            token = self._token((match and match.lastgroup) or "text", raw)
            position += len(raw)
            yield token
            if self.markup == "html" and token.kind == "start" and token.name in _RAW_TEXT:
                end = re.compile(f"</{token.name}", re.IGNORECASE).search(text, position)
                stop = end.start() if end else len(text)
                if stop > position:
                    yield Token("other", text[position:stop])
                position = stop

    def _token(self, kind: str, raw: str) -> Token:
        if kind == "text":
            return Token("text", raw)
        if kind == "other" or not raw.endswith(">"):
            return Token("other", raw)
        match = _NAME.match(raw)
        name = match[1] if match else ""
        if self.markup == "html":
            name = name.lower()
        if kind == "end":
            return Token("end", raw, name)
        is_empty = raw.endswith("/>") or (self.markup == "html" and name in _VOID)
        return Token("empty" if is_empty else "start", raw, name)

    def is_block(self, name: str) -> bool:
        """Return whether text before and after a tag are different sentences."""
        if name in self.rules.splitting:
            return True
        return self._is_html(name, _SPLITTING)

    def is_link(self, name: str) -> bool:
        """Return whether two such elements without a space between them are different sentences."""
        return self._is_html(name, _LINKS)

    def _is_html(self, name: str, names: frozenset[str]) -> bool:
        """Return whether a name is one of HTML that is not inline by the rules."""
        is_one = self.markup == "html" and name in names
        return is_one and name not in self.rules.non_splitting

    def is_untranslated(self, tag: Token) -> bool:
        """Return whether the content of an element stays as it is."""
        if tag.name in self.rules.ignored:
            return True
        if self.markup == "html" and tag.name in _UNTRANSLATED:
            return True
        attributes = attributes_of(tag.raw)
        classes = attributes.get("class", "").split() if self.markup == "html" else []
        translate = attributes.get("translate", attributes.get("its:translate", ""))
        return translate.lower() == "no" or "notranslate" in classes

    def is_visible(self, tag: Token) -> bool:
        """Return whether the content of an untranslated element is read as part of the text."""
        return not (self.markup == "html" and tag.name in _INVISIBLE)

    def visible_text(self, tokens: Sequence[Token]) -> str:
        """Return the text of an untranslated element; "" if it is not read with its sentence."""
        if not self.is_visible(tokens[0]):
            return ""
        raw = "".join(token.raw for token in tokens if token.kind == "text")
        return "".join(character for character, _ in self.decoded(raw))

    def decoded(self, raw: str) -> Iterator[tuple[str, str]]:
        """Yield the characters of raw text, each with its raw form; "" for an unknown entity."""
        position = 0
        for match in _ENTITY.finditer(raw):
            yield from ((character, character) for character in raw[position : match.start()])
            yield from self._entity(match.group())
            position = match.end()
        yield from ((character, character) for character in raw[position:])

    def _entity(self, raw: str) -> Iterator[tuple[str, str]]:
        if self.markup == "xml" and raw[1] != "#" and raw[1:].rstrip(";") not in _XML_ENTITIES:
            yield ("", raw) if raw.endswith(";") else (raw, raw)
            return
        character = html.unescape(raw)
        if character == raw:  # no entity
            yield from ((letter, letter) for letter in raw)
        else:
            yield character, raw


def attributes_of(tag: str) -> dict[str, str]:
    """Return the attributes of a start tag by their names in lower case."""
    name = _NAME.match(tag)
    attributes: dict[str, str] = {}
    for match in _ATTRIBUTE.finditer(tag, name.end() if name else 1):
        value = next((group for group in match.groups()[1:] if group is not None), "")
        attributes.setdefault(match[1].lower(), html.unescape(value))
    return attributes
