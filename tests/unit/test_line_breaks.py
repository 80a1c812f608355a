"""Line breaks of a document in its translation: each at a space of its own."""

from __future__ import annotations

import pytest

from mnmt_jax.decoding.text.line_breaks import join_wrapped, line_break_spans, nearest_space
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


@pytest.mark.parametrize(
    ("lines", "joined"),
    [
        (["<i>今天天气</i>", "<b>很好</b>"], "<i>今天天气</i><b>很好</b>"),
        (["今天", "<i>OK</i>", "很好"], "今天 <i>OK</i> 很好"),
        (["<i>the", "cat</i>"], "<i>the cat</i>"),
        (["오늘", "날씨"], "오늘 날씨"),
        (["ｶﾀ", "ｶﾅ"], "ｶﾀｶﾅ"),
        (["", "今"], " 今"),
    ],
)
def test_wrapped_lines_are_joined_without_a_space_between_wide_characters(lines, joined):
    assert join_wrapped(lines) == joined


@pytest.mark.parametrize(
    "text",
    [
        "我|出|生|在|2024|年|。",
        "我|爱|MicrosoftWindows",
        "在|1,234.5|米|a@b.com|和|Café|对|Да",
        "你|{name}|好|<0>对|<br></0>|%(x)s|吗",
        "<i>好</i>",
        "好|<i>的|啊</i>|<b class='a b'>对</b>|吗",
        "家|👨‍👩‍👧|👍🏽|🇩🇪|🇫🇷|❤️|。",
        "กิ|น|ที่",
    ],
)
def test_line_breaks_without_spaces_are_outside_of_words_tags_and_emoji(text):
    whole = text.replace("|", "")
    for place, _ in reversed(line_break_spans(whole, "zh")):
        whole = f"{whole[:place]}|{whole[place:]}"
    assert whole == text


def test_spaces_of_tags_are_no_places_of_line_breaks():
    assert line_break_spans("<a b='c d'>e  f</a> < g", "de") == [(12, 14), (19, 20), (21, 22)]


@pytest.mark.parametrize("name", ["{{ user.name }}", "{n, plural, one {# day} other {# days}}"])
def test_spaces_of_placeholders_are_no_places_of_line_breaks(name):
    end = len(name) + 2
    assert line_break_spans(f"a {name} b", "de") == [(1, 2), (end, end + 1)]
    assert line_break_spans(f"日{name}", "zh") == [(1, 1)]
    after, _ = translated(f"a b\nc *{name}*", "a.md", lambda _: [f'<g id="1">{name}</g> x'])
    assert after.decode() == f"*{name}*\nx"


def test_line_breaks_of_markdown_are_at_different_spaces():
    after, _ = translated(
        "x\ny\nand many more words here\n", "a.md", lambda _: ["wwwwwwwwwwww b c"]
    )
    assert after.decode() == "wwwwwwwwwwww\nb\nc\n"
