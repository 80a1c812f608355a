"""Inline structure of Markdown with positions, which markdown-it-py does not record."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from mnmt_jax.decoding.text.markup_tokens import MarkupReader
from mnmt_jax.documents.passages import MAX_DEPTH
from mnmt_jax.errors import UserError, install_remedy
from mnmt_jax.vocabulary.normalization import has_letters

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import StateBlock
    from markdown_it.rules_inline import StateInline

_MAX_LISTS = 32  # levels; there may be twice as many of quotations
_MAX_NESTING = 2 * _MAX_LISTS + 1  # an item of a list is a level, and so is a paragraph

_RULES = {  # function of markdown_it.rules_inline by name of the rule
    "newline": "newline",
    "escape": "escape",
    "backticks": "backtick",
    "link": "link",
    "image": "image",
    "autolink": "autolink",
    "html_inline": "html_inline",
    "entity": "entity",
}
_ATOMS = ("image", "autolink")
# But no link with an address or label.
_FOOTNOTE = re.compile(r"\[\^[^\]\s]{1,80}\](?!\(|\[(?!\^))")
_Tokenize = Callable[["StateBlock", int, int], None]
_PAIRS = ("emphasis", "strikethrough")
_HTML = MarkupReader("html")
_UNTRANSLATED = "html_untranslated"  # name of the event of an HTML element


@dataclasses.dataclass(frozen=True)
class Event:
    """A place of a text that is not plain.

    Attributes:
        start: its first character.
        end: after its last character.
        kind: "open", "close", "atom", "text", "soft_break" or "hard_break".
        name: rule of Markdown.
        text: what it means, for a "text".
    """

    start: int
    end: int
    kind: str
    name: str
    text: str = ""


def make_parser(name: str) -> MarkdownIt:
    """Return a parser of CommonMark, tables and strikethrough that records positions.

    Its `parse` raises UserError if text is nested too deeply, where markdown-it leaves it out.

    Args:
        name: of the document, for messages.

    Raises:
        UserError: if markdown-it-py is not installed.
    """
    try:
        from markdown_it import MarkdownIt, rules_inline
    except ImportError:
        raise UserError(
            f"{name}: Markdown needs markdown-it-py; {install_remedy('documents')}"
        ) from None

    parser = MarkdownIt("commonmark", {"maxNesting": _MAX_NESTING})
    parser.enable(["table", "strikethrough"])
    tokenize: Any = _checked(parser.block.tokenize, name)
    parser.block.tokenize = tokenize  # type: ignore[method-assign]
    parser.core.ruler.enableOnly(["normalize", "block"])
    for rule, function in _RULES.items():
        parser.inline.ruler.at(rule, _recorded(rule, getattr(rules_inline, function)))
    for rule in _PAIRS:
        parser.inline.ruler.at(rule, _recorded(rule, getattr(rules_inline, rule).tokenize))
    return parser


def _checked(tokenize: _Tokenize, name: str) -> _Tokenize:
    """Return a tokenizer of blocks that leaves out no text; arguments as of `make_parser`."""

    def tokenize_all(state: StateBlock, start: int, end: int) -> None:
        for line in range(start, end) if state.level >= _MAX_NESTING else ():
            if has_letters(state.src[state.bMarks[line] : state.eMarks[line]]):
                raise UserError(
                    f"{name}, line {line + 1}: is in more than {_MAX_LISTS} lists or "
                    f"{2 * _MAX_LISTS} quotations; nest it less deeply"
                )
        tokenize(state, start, end)

    return tokenize_all


def find_events(parser: MarkdownIt, content: str, env: Any) -> list[Event]:
    """Return the events of the content of a paragraph, in order.

    Args:
        parser: of `make_parser`.
        content: the content of an inline token.
        env: environment of the parsed document, with its references.
    """
    from markdown_it.rules_inline import StateInline

    state = StateInline(content, parser, env, [])
    records: list[_Record] = []
    state.records = records  # type: ignore[attr-defined]
    parser.inline.tokenize(state)
    for rule in parser.inline.ruler2.getRules(""):
        rule(state)
    events = [event for record in records for event in record.events(content)]
    events.sort(key=lambda event: (event.start, event.end))
    return list(_without_deep_pairs(_with_html_pairs(events, content)))


@dataclasses.dataclass(frozen=True)
class _Record:
    """A rule that applied, and the tokens that it made."""

    rule: str
    start: int
    end: int
    label_end: int
    tokens: Sequence[Any]
    sizes: Sequence[int] = ()  # of the tokens of emphasis, in characters

    def events(self, content: str) -> Iterator[Event]:
        """Yield its events, once all rules have been applied."""
        kinds = [token.type for token in self.tokens]
        if self.rule in _PAIRS:
            yield from self._pairs()
        elif self.rule == "link":
            yield Event(self.start, self.start + 1, "open", self.rule)
            yield Event(self.label_end, self.end, "close", self.rule)
        elif "hardbreak" in kinds or "softbreak" in kinds:
            start = self.start
            while start and content[start - 1] == " ":
                start -= 1
            if start and content[start - 1] == "\n":  # they belong to the line break before
                start = self.start
            kind = "hard_break" if "hardbreak" in kinds else "soft_break"
            yield Event(start, self.end, kind, self.rule)
        elif "text_special" in kinds:
            text = self.tokens[kinds.index("text_special")].content
            yield Event(self.start, self.end, "text", self.rule, text)
        elif self.rule in _ATOMS or "code_inline" in kinds or "html_inline" in kinds:
            yield Event(self.start, self.end, "atom", self.rule)

    def _pairs(self) -> Iterator[Event]:
        """Yield the marks of emphasis; of two marks the outer one became an empty text."""
        position = self.start
        for token, size in zip(self.tokens, self.sizes, strict=True):
            name, _, side = token.type.rpartition("_")
            if side in ("open", "close"):
                is_double = name in ("strong", "s")
                start = position - 1 if name == "strong" and side == "open" else position
                yield Event(start, start + 1 + is_double, side, name)
            position += size


def _recorded(rule: str, apply: Callable[[StateInline, bool], bool]) -> Any:
    """Return a rule that records where it applied."""

    def record(state: StateInline, silent: bool) -> bool:
        records = getattr(state, "records", None)
        start, count, label_end = state.pos, len(state.tokens), 0
        if rule == "link" and _FOOTNOTE.match(state.src, start):
            return False  # if its note is an address, that defines a link for CommonMark
        if records is not None and not silent and rule == "link" and state.src[start] == "[":
            label_end = state.md.helpers.parseLinkLabel(state, start, True)
        applied = apply(state, silent)
        if records is not None and applied and not silent:
            tokens = state.tokens[count:]
            sizes = [len(token.content) for token in tokens] if rule in _PAIRS else []
            if sum(sizes) > state.pos - start:  # the first is the text before
                tokens, sizes = tokens[1:], sizes[1:]
            records.append(_Record(rule, start, state.pos, label_end, tokens, sizes))
        return applied

    return record


def _with_html_pairs(events: Sequence[Event], content: str) -> list[Event]:
    """Return events in which HTML tags of a pair at one level open and close.

    An untranslated element is one atom.
    """
    result = list(events)
    open_tags: list[tuple[str, int]] = []  # name and number; "" is an element of Markdown
    for number, event in enumerate(events):
        if event.kind == "open":
            open_tags.append(("", number))
        elif event.kind == "close":
            while open_tags and open_tags.pop()[0]:
                pass
        elif event.name == "html_inline":
            tag = next(_HTML.tokens(content[event.start : event.end]))
            if tag.kind == "start":
                open_tags.append((tag.name, number))
            elif tag.kind == "end" and open_tags and open_tags[-1][0] == tag.name:
                _, first = open_tags.pop()
                _join(result, first, number, content)
    return list(_outermost(result))


def _without_deep_pairs(events: Sequence[Event]) -> Iterator[Event]:
    """Yield events in which pairs at deeper levels are atoms, one for each end."""
    depth = 0
    for event in events:
        depth += event.kind == "open"
        is_deep = event.kind in ("open", "close") and depth > MAX_DEPTH
        depth -= event.kind == "close"
        yield dataclasses.replace(event, kind="atom") if is_deep else event


def _outermost(events: Sequence[Event]) -> Iterator[Event]:
    """Yield the events that are not inside of an untranslated element."""
    end = 0
    for event in events:
        if event.start >= end:
            yield event
            end = event.end if event.name == _UNTRANSLATED else end


def _join(events: list[Event], first: int, last: int, content: str) -> None:
    """Make a pair of HTML tags an element: an atom, if it is untranslated."""
    opening, closing = events[first], events[last]
    if _HTML.is_untranslated(next(_HTML.tokens(content[opening.start : opening.end]))):
        events[first] = Event(opening.start, closing.end, "atom", _UNTRANSLATED)
    else:
        events[first] = dataclasses.replace(opening, kind="open")
        events[last] = dataclasses.replace(closing, kind="close")


def ends_sentence(event: Event, literal: str) -> bool:
    """Return whether an event is a tag of HTML that ends a sentence.

    Args:
        event: the event.
        literal: its characters.
    """
    return event.name == "html_inline" and _HTML.is_block(next(_HTML.tokens(literal)).name)


def shown_text(event: Event, literal: str) -> str:
    """Return the text of an atom that is read with its sentence and stays as it is.

    Args:
        event: the atom.
        literal: its characters.
    """
    if event.name == _UNTRANSLATED:
        return _HTML.visible_text(list(_HTML.tokens(literal))).strip()
    return literal.strip("`<>") if event.name in ("backticks", "autolink") else ""
