"""HTML by functions: whatever is not `Html` already is escaped, and every tag is closed."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from typing import Any

from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.languages import Language, get_language

_RIGHT_TO_LEFT = frozenset({"Arabic", "Hebrew"})
_SEPARATORS = re.compile(r"[_/=:.,+-]+(?=[^\s_/=:.,+-])")
_BCP_47 = {"tl": "fil", "sh": "sr-Latn"}  # as browsers know them


class Html(str):
    """Marks a text as markup that needs no escaping."""


Child = str | Html | Sequence[Any]
"""Text, markup, or a sequence of children."""


def tag(name: str, *children: Child, **attributes: str | int) -> Html:
    """Write an element.

    Args:
        name: the element, e.g. "td".
        *children: text, markup, or sequences of markup.
        **attributes: `class_` and the like lose their underscore, `aria_label` gets a hyphen; an
            empty text leaves the attribute out.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value != ""
    )
    return Html(f"<{name}{written}>{join(children)}</{name}>")


def join(children: Iterable[Child]) -> Html:
    """Concatenate children, escaping those that are plain text."""
    parts = []
    for child in children:
        if isinstance(child, Html):
            parts.append(str(child))
        elif isinstance(child, str):
            parts.append(html.escape(child))
        else:
            parts.append(join(child))
    return Html("".join(parts))


def breakable(text: str) -> Html:
    """Write a name that a narrow page may break after `_`, `-`, `/`, `=`, `,` and the like."""
    return Html(_SEPARATORS.sub(r"\g<0><wbr/>", html.escape(text)))


def language_name(code: str) -> str:
    """Return a language's English name, or the code if it is none of a language."""
    known = _language_or_none(code)
    return known.name if known else code


def text_in(code: str, text: str) -> Html:
    """Write a text with the language and direction of writing it is in.

    Args:
        code: language; "" if unknown.
        text: what to show; an empty text is shown as "(empty)".
    """
    if not text.strip():
        return tag("span", "(empty)", class_="text muted")
    known = _language_or_none(code)
    if known is None:
        return tag("span", text, class_="text", dir="auto")
    written = "rtl" if known.script in _RIGHT_TO_LEFT else "ltr"
    return tag(
        "span",
        text,
        class_="text",
        lang=_BCP_47.get(known.code, known.code.replace("_", "-")),
        dir=written,
    )


def _language_or_none(code: str) -> Language | None:
    try:
        return get_language(code) if code else None
    except UserError:
        return None
