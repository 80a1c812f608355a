"""The frame of a page: one HTML file, without anything from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from mnmt_jax.evaluation.html_elements import Child, Html, breakable, tag
from mnmt_jax.evaluation.style_sheet import STYLE, colour_class

_TITLE = 60  # characters of names in a title


def html_page(title: str, sections: Sequence[Child], *, generator: Html) -> str:
    """Return a page as HTML.

    Args:
        title: of the window.
        sections: its body.
        generator: from `generator_mark`.
    """
    head = tag(
        "head",
        Html('<meta charset="utf-8">'),
        generator,
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        tag("title", title),
        tag("style", Html(STYLE)),
    )
    body = tag("body", tag("main", sections))
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def generator_mark(name: str) -> Html:
    """Return the mark by which a page is known again.

    Args:
        name: of what writes it.
    """
    return Html(f'<meta name="generator" content="{name}">')


def run_name(name: str, number: int, *, extra: str = "") -> Html:
    """Write the name of a run beside a square of its colour.

    Args:
        name: of the run; it may be broken at separators.
        number: of its colour.
        extra: further classes.
    """
    classes = f"{extra} name {colour_class(number)}".strip()
    return tag("span", breakable(name), class_=classes)


def run_title(names: Sequence[str], noun: str) -> str:
    """Name everything that a page is about, or count it where the names are long.

    Args:
        names: of runs, say.
        noun: for several of them in the plural, e.g. "models".
    """
    text = " and ".join(names) if len(names) < 3 else ", ".join(names)
    return text if len(names) == 1 or len(text) <= _TITLE else f"{len(names)} {noun}"


def section(title: str, *children: Child) -> Html:
    """Write a part of a page under its heading."""
    return tag("section", tag("h2", breakable(title)), *children)


def collapsible(summary: Html, *children: Html, unfolded: bool) -> Html:
    """Write a fold; HTML spells an open one as an attribute without value.

    Args:
        summary: a `summary` element.
        *children: what is folded.
        unfolded: show it at first.
    """
    closed = tag("details", summary, *children)
    return Html(closed.replace("<details>", "<details open>", 1)) if unfolded else closed
