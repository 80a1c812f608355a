"""Tokens of HTML and XML: byte for byte, as the standard parser, in linear time."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mnmt_jax.decoding.text.markup_tokens import MarkupReader, attributes_of
from tests.processor_time import takes_linear_time
from tests.unit.made_markup import translate

BROKEN = st.text("<>/!-?[]\"'= abB&;", max_size=40)


@given(BROKEN, st.sampled_from(["html", "xml"]))
@settings(deadline=None, derandomize=True, max_examples=500)
def test_tokens_joined_are_the_document(text, markup):
    tokens = list(MarkupReader(markup).tokens(text))
    assert "".join(token.raw for token in tokens) == text
    assert all(token.raw for token in tokens)


class Tags(HTMLParser):
    """Names and attributes of the tags that the standard library's parser sees."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.feed(document)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, {name: value or "" for name, value in reversed(attrs)}))

    def handle_endtag(self, tag):
        self.tags.append((f"/{tag}", {}))

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)


DOCUMENT = """<!DOCTYPE html><html lang="de"><head><title>A &amp; B</title>
<style>p > b { color: red }</style><script>if (a < b && "</p>") document.write("<b>");</script>
</head><body><P Class='a  b' data-x=1/2 hidden>x<br/>y<!-- <i>no</i> --><IMG alt="a > b" src=x></P>
<a href="?a=1&amp;b=2" title='He said "x>y"'>link</a></body></html>"""


def test_tags_are_those_of_the_standard_parser():
    tokens = [t for t in MarkupReader("html").tokens(DOCUMENT) if t.kind not in ("text", "other")]
    tags = [
        (f"/{t.name}", {}) if t.kind == "end" else (t.name, attributes_of(t.raw)) for t in tokens
    ]
    assert tags == Tags(DOCUMENT).tags and len(tags) > 15


@pytest.mark.parametrize(
    "unit", ["<!--", "<a ", '<a b="', '<a b=">"', "<![CDATA[", "<!DOCTYPE a[", "</", "<", "<?"]
)
@pytest.mark.parametrize("end", ["", ">"])
def test_tokens_take_linear_time(unit, end):
    reader = MarkupReader("html")
    assert takes_linear_time(lambda count: list(reader.tokens(unit * count + end)), 2_000)


def test_a_sign_that_starts_no_tag_is_text():
    assert translate("a < b and <3 c") == ("A &lt; B AND &lt;3 C", [["a < b and <3 c"]])
    assert translate("x <b and no end")[1] == [["x <b and no end"]]


@pytest.mark.parametrize("start", ["<!--", "<?php a", "<![CDATA[ a", "<!doctype a", "<!- <b"])
@pytest.mark.parametrize("markup", ["html", "xml"])
def test_what_is_never_closed_goes_to_the_end_and_is_kept(start, markup):
    page = f"<p>Hello you</p> more <b {start} secret <i and <!-- remark"
    text, steps = translate(page, markup=markup)
    assert text == f"<p>HELLO YOU</p> MORE &lt;B {start} secret <i and <!-- remark"
    assert steps == [["Hello you", "more <b"] if markup == "html" else ["Hello you more <b"]]
    assert translate(f"{start} secret", markup=markup) == (f"{start} secret", [])
