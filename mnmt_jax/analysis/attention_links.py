"""Drawings of the largest attention weights: lines from each query to its top keys."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from mnmt_jax.pages.html_elements import Html, tag
from mnmt_jax.pages.style_sheet import colour_class

_ROW, _LABEL, _GAP, _TOP = 20, 130, 160, 14
_WIDTH = 2 * _LABEL + _GAP
_THICKEST = 4.0  # pixels of a line of weight 1


def top_keys(
    weights: Float[np.ndarray, "queries keys"], count: int
) -> Int[np.ndarray, "queries count"]:
    """Return the keys with the largest weights of each query, largest first.

    Args:
        weights: attention weights; ties go to the earlier key.
        count: number of keys; at most all.
    """
    return np.argsort(-weights, axis=1, kind="stable")[:, :count]


def link_chart(
    title: str,
    queries: Sequence[str],
    keys: Sequence[str],
    weights: Float[np.ndarray, "queries keys"],
    count: int,
) -> Html:
    """Draw queries on the left, keys on the right, and a line to each of the top keys.

    Args:
        title: caption.
        queries: tokens.
        keys: tokens.
        weights: attention weights; a line is as thick and opaque as its weight, and a key without
            weight has none.
        count: number of keys of each query.
    """
    lines, chosen = [], top_keys(weights, count)
    for query, row in enumerate(chosen):
        for key in row:
            weight = float(weights[query, key])
            if weight > 0:
                text = f"{queries[query]} to {keys[key]}: {100 * weight:.1f} %"
                lines.append(_line(query, int(key), weight, text))
    labels = [_label(text, n, _LABEL - 6, "end") for n, text in enumerate(queries)]
    labels += [_label(text, n, _LABEL + _GAP + 6, "start") for n, text in enumerate(keys)]
    height = _TOP + _ROW * max(len(queries), len(keys))
    drawing = tag(
        "svg",
        lines,
        labels,
        viewBox=f"0 0 {_WIDTH} {height}",
        role="img",
        aria_label=f"{title}: the {count} largest weights of each query",
    )
    return tag("figure", tag("figcaption", title), drawing)


def _line(query: int, key: int, weight: float, text: str) -> Html:
    style = f"stroke:var(--run);stroke-opacity:{min(1.0, 0.4 + 0.6 * weight):.2f}"
    return tag(
        "line",
        tag("title", text),
        x1=_LABEL,
        y1=_y(query),
        x2=_LABEL + _GAP,
        y2=_y(key),
        stroke_width=f"{max(0.5, _THICKEST * weight):.2f}",
        class_=colour_class(0),
        style=style,
    )


def _label(text: str, number: int, x: int, anchor: str) -> Html:
    return tag("text", text, x=x, y=_y(number) + 4, text_anchor=anchor)


def _y(number: int) -> int:
    return _TOP + _ROW * number
