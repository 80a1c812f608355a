"""Segments of targets, and paired codes, in XLIFF and TMX."""

from __future__ import annotations

import pytest

from mnmt_jax.errors import UserError
from tests.unit.made_documents import translated

SEGMENT = '<mrk mtype="seg" mid="{}">{}</mrk>'.format
CODE = '<x id="3"/>'
XLIFF = (
    '<xliff version="1.2"><file source-language="en" target-language="de"><body>'
    '<trans-unit id="1" approved="yes">{}</trans-unit></body></file></xliff>'
)
SEGMENTED = XLIFF.format(
    f"<source>One. Two {CODE}here.</source><seg-source>{SEGMENT(1, 'One.')} "
    f"{SEGMENT(2, f'Two {CODE}here.')}{SEGMENT(3, '')}</seg-source>"
    '<target state="{}">{}</target>'
)
TRANSLATED = SEGMENT(2, f"TWO {CODE}HERE.")


@pytest.mark.parametrize(
    ("target", "texts", "expected"),
    [
        (
            f"{SEGMENT(1, '')} {SEGMENT(2, ' ')}",
            ["One.", 'Two <x id="1"/>here.'],
            f"{SEGMENT(1, 'ONE.')} {TRANSLATED}{SEGMENT(3, '')}",
        ),
        (
            f"{SEGMENT(2, '')}!{SEGMENT(1, 'Eins.')}{SEGMENT(3, '')}",
            ['Two <x id="1"/>here.'],
            f"{TRANSLATED}!{SEGMENT(1, 'Eins.')}{SEGMENT(3, '')}",
        ),
    ],
)
def test_empty_segments_of_a_target_are_translated(target, texts, expected):
    after, segments = translated(SEGMENTED.format("final", target), "a.xlf")
    assert [one.text for one in segments] == texts
    written = after.decode().replace(SEGMENT(3, "").replace("></mrk>", "/>"), SEGMENT(3, ""))
    assert f'<target state="translated">{expected}</target>' in written
    assert "approved" not in written


@pytest.mark.parametrize(
    "target",
    [f"{SEGMENT(4, '')}{CODE}", "<g>Eins</g>", SEGMENT(1, "Eins."), SEGMENT(3, "") + CODE],
)
def test_a_target_with_content_is_kept(target):
    with pytest.raises(UserError, match="there is nothing to translate"):
        translated(SEGMENTED.format("final", target), "a.xlf")
