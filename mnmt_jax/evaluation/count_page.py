"""HTML page of the numbers of sentence pairs of a corpus: a heat map of directions by split."""

from __future__ import annotations

import math
from collections.abc import Mapping

from mnmt_jax.pages.heatmap import value_heatmap
from mnmt_jax.pages.html_elements import Html, tag
from mnmt_jax.pages.html_page import generator_mark, html_page, section

GENERATOR = generator_mark("mnmt count")
_LEGEND = (
    "Rows are sources, columns are targets; a dash is a direction without text. Colour grows with "
    "the logarithm."
)


def count_page(corpus: str, counts: Mapping[str, Mapping[str, int]]) -> str:
    """Return the page.

    Args:
        corpus: name of the corpus.
        counts: sentences by split and direction, such as `de-en`.
    """
    title = f"Sentences of {corpus}"
    sections = [counts_section(split, by_direction) for split, by_direction in counts.items()]
    return html_page(title, [tag("h1", title), *sections], generator=GENERATOR)


def counts_section(split: str, counts: Mapping[str, int]) -> Html:
    """Return a section with the heat map of the sentences of a split, by direction."""
    total = f"{split}: {sum(counts.values()):,} in all"
    return section(total, tag("p", _LEGEND), _map(split, counts))


def _map(split: str, counts: Mapping[str, int]) -> Html:
    sides = [name.split("-") for name in counts]
    languages = list(dict.fromkeys(code for pair in sides for code in pair))
    logarithms = {name: math.log10(count) for name, count in counts.items() if count}
    rows = [
        (source, [logarithms.get(f"{source}-{target}") for target in languages])
        for source in languages
    ]
    largest = max(logarithms.values(), default=0.0)
    return value_heatmap(split, languages, rows, largest=largest, write=_compact)


def _compact(logarithm: float) -> str:
    """Return a count with at most three digits: 950, 12.3k, 1.45M."""
    count = 10**logarithm
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size * 0.9995:
            return f"{count / size:.3g}{suffix}"
    return f"{count:.0f}"
