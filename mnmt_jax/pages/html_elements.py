"""HTML builder functions with escaping of plain text."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from typing import Any

from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.languages import Language, get_language

_RIGHT_TO_LEFT = frozenset({"Adlam", "Arabic", "Hebrew", "N’Ko", "Syriac", "Thaana"})
_SEPARATORS = re.compile(r"[_/=:.,+-]+(?=[^\s_/=:.,+-])")
_BCP_47 = {"tl": "fil", "sh": "sr-Latn"}  # language tags for browsers


class Html(str):
    """Markup that needs no escaping."""


Child = str | Html | Sequence[Any]
"""Text, markup, or a sequence of children."""


def tag(name: str, *children: Child, **attributes: str | int) -> Html:
    """Return an element with its closing tag.

    Args:
        name: name of the element, e.g. "td".
        *children: text (escaped), markup, or sequences of children.
        **attributes: attributes; `class_` becomes `class`, `aria_label` becomes `aria-label`. An
            attribute with an empty string is left out.
    """
    formatted = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value != ""
    )
    return Html(f"<{name}{formatted}>{join(children)}</{name}>")


def join(children: Iterable[Child]) -> Html:
    """Concatenate children, escaping those that are plain text."""
    escaped = []
    for child in children:
        if isinstance(child, Html):
            escaped.append(str(child))
        elif isinstance(child, str):
            escaped.append(html.escape(child))
        else:
            escaped.append(join(child))
    return Html("".join(escaped))


def breakable(text: str) -> Html:
    """Return a name with line break opportunities after `_`, `-`, `/`, `=`, `,` and the like."""
    return Html(_SEPARATORS.sub(r"\g<0><wbr/>", html.escape(text)))


def language_name(code: str) -> str:
    """Return the English name of a language, or the code if it is unknown."""
    language = _language_or_none(code)
    return language.name if language else code


def text_in(code: str, text: str) -> Html:
    """Return a text element with its language and writing direction as attributes.

    Args:
        code: language code; "" if unknown.
        text: the text; an empty one is shown as "(empty)".
    """
    if not text.strip():
        return tag("span", "(empty)", class_="text muted")
    language = _language_or_none(code)
    if language is None:
        return tag("span", text, class_="text", dir="auto")
    direction = "rtl" if language.script in _RIGHT_TO_LEFT else "ltr"
    return tag(
        "span",
        text,
        class_="text",
        lang=_BCP_47.get(language.code, language.code.replace("_", "-")),
        dir=direction,
    )


def _language_or_none(code: str) -> Language | None:
    try:
        return get_language(code) if code else None
    except UserError:
        return None
