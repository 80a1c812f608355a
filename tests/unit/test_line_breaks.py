"""Line breaks of a document in its translation: each at a space of its own."""

from __future__ import annotations

import pytest

from mnmt_jax.documents.line_breaks import nearest_space
from tests.unit.made_documents import translated


@pytest.mark.parametrize(
    ("spaces", "place", "first", "expected"),
    [
        ([2, 5, 9], 6, 0, 1),
        ([2, 6], 4, 0, 0),
        ([2, 5, 9], 1, 2, 2),
        ([2, 5, 9], 4.9, 2, 2),
        ([2, 5], 99, 1, 1),
        ([2, 5], 1, 2, None),
        ([], 1, 0, None),
    ],
)
def test_the_nearest_space_that_is_left(spaces, place, first, expected):
    assert nearest_space(spaces, place, first) == expected


def test_line_breaks_of_markdown_are_at_different_spaces():
    after, _ = translated(
        "x\ny\nand many more words here\n", "a.md", lambda _: ["wwwwwwwwwwww b c"]
    )
    assert after.decode() == "wwwwwwwwwwww\nb\nc\n"
