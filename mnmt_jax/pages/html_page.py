"""Self-contained HTML pages and their common elements."""

from __future__ import annotations

from collections.abc import Sequence

from mnmt_jax.pages.html_elements import Child, Html, breakable, tag
from mnmt_jax.pages.style_sheet import STYLE, colour_class

_MAX_TITLE = 60  # maximal number of characters of the names in a title


def html_page(title: str, sections: Sequence[Child], *, generator: Html) -> str:
    """Return an HTML page.

    Args:
        title: title of the browser window.
        sections: content of the body.
        generator: result of `generator_mark`.
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
    """Return the generator element, which identifies pages of a program.

    Args:
        name: name of the generating program or command.
    """
    return Html(f'<meta name="generator" content="{name}">')


def run_name(name: str, number: int, *, extra: str = "") -> Html:
    """Return the name of a run with a square in its colour.

    Args:
        name: name of the run; it may break at separators.
        number: index of the colour.
        extra: additional CSS classes.
    """
    classes = f"{extra} name {colour_class(number)}".strip()
    return tag("span", breakable(name), class_=classes)


def run_title(names: Sequence[str], noun: str) -> str:
    """Join the names of a page's runs for its title, or count them if the names are long.

    Args:
        names: names, e.g. of runs.
        noun: plural noun for the count, e.g. "models".
    """
    text = " and ".join(names) if len(names) < 3 else ", ".join(names)
    return text if len(names) == 1 or len(text) <= _MAX_TITLE else f"{len(names)} {noun}"


def section(title: str, *children: Child) -> Html:
    """Return a section of a page with its heading."""
    return tag("section", tag("h2", breakable(title)), *children)


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Html:
    """Render a table of texts; the first cell of a row is its header."""
    head = tag("thead", tag("tr", [tag("th", breakable(text), scope="col") for text in header]))
    body = [
        tag(
            "tr", tag("th", breakable(row_header), scope="row"), [tag("td", text) for text in cells]
        )
        for row_header, *cells in rows
    ]
    return tag("div", tag("table", head, tag("tbody", body), class_="averages"), class_="scroll")


def collapsible(summary: Html, *children: Html, unfolded: bool) -> Html:
    """Return a collapsible `details` element.

    Args:
        summary: a `summary` element.
        *children: the collapsible content.
        unfolded: whether it is open initially.
    """
    details = tag("details", summary, *children)
    return Html(details.replace("<details>", "<details open>", 1)) if unfolded else details
