"""Random documents through the translation of texts with markup: structure is kept."""

from __future__ import annotations

import io
import random
import re
import zipfile
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree
from markdown_it import MarkdownIt

from mnmt_jax.decoding.text.sentence_job import run_steps
from mnmt_jax.decoding.text.text_translation import translation_steps
from mnmt_jax.decoding.text.translated_text import TextToTranslate
from mnmt_jax.decoding.translation import Hypothesis, Translation
from mnmt_jax.documents.segments import Segment
from tests.unit.made_documents import W, identity, make_docx, make_odt, part, translated

_WORDS = st.sampled_from(
    [
        "One",
        "two",
        "three.",
        "FOUR",
        "five?",
        "{name}",
        "%s",
        "http://a.b/c",
        "&amp;",
        "7",
        "—",
        "ß!",
    ]
)
_TEXT = st.lists(_WORDS, max_size=4).map(" ".join)
_SPACED = st.tuples(st.sampled_from(["", " "]), _TEXT, st.sampled_from(["", " ", "  "])).map(
    "".join
)


def shuffle_words(line: str) -> str:
    """Return a line with other words in another order; some are lost."""
    draw = random.Random(line)
    words = line.split()
    draw.shuffle(words)
    return " ".join(word.upper() for word in words if draw.random() < 0.8) or words[0]


def through_texts(segments: Sequence[Segment]) -> list[str]:
    """Translate segments as commands and the server do."""
    texts = [TextToTranslate(one.text, "en", "de", markup=one.markup) for one in segments]

    def translate(lines):
        return [Translation((Hypothesis(shuffle_words(line.text), -1.0, ()),)) for line in lines]

    results = run_steps(translation_steps(texts, lambda text, _: len(text) < 60), translate)
    return [result.text for result in results]


_CODE = '<x id="2" translate="no">code</x>'


@pytest.mark.parametrize(
    "text",
    [f'<g id="1">{_CODE}</g> b', f'a <g id="1">{_CODE}</g> b', f'a. <g id="1">{_CODE} c</g>'],
)
def test_untranslated_elements_inside_others_are_kept(text):
    """Also if the translation loses their text."""
    (translated,) = through_texts([Segment(text, "xml")])
    root = etree.fromstring(f"<f>{translated}</f>")
    assert [element.get("id") for element in root.iter("g", "x")] == ["1", "2"]
    assert root.find("g/x").text == "code"


def _run(properties: str) -> st.SearchStrategy[str]:
    format_of = f"<w:rPr>{properties}</w:rPr>" if properties else ""
    space = 'xml:space="preserve"'
    return _SPACED.map(lambda text: f"<w:r>{format_of}<w:t {space}>{text}</w:t></w:r>")


_CODES = st.sampled_from(
    [
        "<w:r><w:tab/></w:r>",
        "<w:r><w:br/></w:r>",
        '<w:r><w:footnoteReference w:id="2"/></w:r>',
        '<w:bookmarkStart w:id="0" w:name="b"/>',
        '<w:r><w:fldChar w:fldCharType="begin"/></w:r>',
        "<w:r><w:instrText>HYPERLINK a</w:instrText></w:r>",
        '<w:r><w:fldChar w:fldCharType="separate"/></w:r>',
        '<w:r><w:fldChar w:fldCharType="end"/></w:r>',
    ]
)
_RUNS = st.one_of(_run(""), _run("<w:b/>"), _run('<w:u w:val="single"/>'), _CODES)
_LINKS = st.lists(_RUNS, max_size=4).map(
    lambda runs: f'<w:hyperlink w:anchor="a">{"".join(runs)}</w:hyperlink>'
)
_PARAGRAPHS = st.lists(st.one_of(_RUNS, _LINKS), max_size=8).map(
    lambda runs: f"<w:p><w:pPr/>{''.join(runs)}</w:p>"
)


def benchmark_codes(xml: str, container: str) -> Counter[tuple[str, str]]:
    """Return the elements without text, with their nearest parents of a kind."""
    root = etree.fromstring(xml)
    kinds = ("t", "r", "rPr", "b", "u", "span", "s")
    codes: Counter[tuple[str, str]] = Counter()
    for element in root.iter():
        name = etree.QName(element).localname
        parents = [etree.QName(parent).localname for parent in element.iterancestors()]
        if name not in kinds:
            codes[name, next((parent for parent in parents if parent == container), "")] += 1
    return codes


@settings(max_examples=150, deadline=None)
@given(st.lists(_PARAGRAPHS, min_size=1, max_size=3))
def test_word_documents_keep_their_codes(paragraphs):
    body = "".join(paragraphs) + "<w:p><w:r><w:t>Some text</w:t></w:r></w:p>"
    after, _ = translated(make_docx(body), "a.docx", through_texts)
    before = f'<w:document xmlns:w="{W}"><w:body>{body}</w:body></w:document>'
    text = part(after, "word/document.xml").replace("<w:document", f'<w:document xmlns:w="{W}"')
    assert benchmark_codes(text, "hyperlink") == benchmark_codes(before, "hyperlink")
    assert "SOME" in text or "TEXT" in text


_PIECES = st.recursive(
    _SPACED,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(
            lambda parts: f'<text:a text:name="n">{"".join(parts)}</text:a>'
        ),
        st.lists(inner, max_size=3).map(
            lambda parts: f'<text:span text:style-name="T2">{"".join(parts)}</text:span>'
        ),
        st.sampled_from(["<text:tab/>", "<text:line-break/>", '<text:bookmark text:name="b"/>']),
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(st.lists(_PIECES, max_size=4))
def test_opendocument_keeps_its_codes(pieces):
    content = "".join(pieces)
    data = make_odt(f"<text:p>{content}</text:p><text:p>Some text</text:p>")
    after, _ = translated(data, "a.odt", through_texts)
    texts = [part(one, "content.xml") for one in (data, after)]
    head = re.search(r"<office:document-content[^>]*>", zip_text(data))[0]
    plain = '<office:document-content office:version="1.3">'
    before, now = (benchmark_codes(text.replace(plain, head), "a") for text in texts)
    assert now == before


def zip_text(data: bytes) -> str:
    return zipfile.ZipFile(io.BytesIO(data)).read("content.xml").decode()


_INLINE = st.recursive(
    _TEXT.map(lambda text: text.replace("&amp;", "&")),
    lambda inner: st.one_of(
        inner.map(lambda text: f"**{text.strip()}**"),
        inner.map(lambda text: f"_{text.strip()}_"),
        inner.map(lambda text: f"[{text}](http://x.y)"),
        st.just("`code`"),
        st.just("![alt](a.png)"),
    ),
    max_leaves=4,
)
_BLOCKS = st.one_of(
    st.lists(_INLINE, min_size=1, max_size=3).map("\n".join),
    _INLINE.map(lambda text: f"# {text}"),
    _INLINE.map(lambda text: f"- {text}\n- b"),
    _INLINE.map(lambda text: f"> {text}\n> more"),
    st.just("```\ncode\n```"),
)


def blocks_of(text: str) -> list[tuple[str, str]]:
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    return [(token.type, token.tag) for token in tokens]


@settings(max_examples=150, deadline=None)
@given(st.lists(_BLOCKS, min_size=1, max_size=3))
def test_markdown_keeps_its_blocks(blocks):
    page = "\n\n".join([*blocks, "Some text"])
    after, _ = translated(page, "a.md", through_texts)
    assert blocks_of(after.decode()) == blocks_of(page)


@settings(max_examples=150, deadline=None)
@given(st.lists(_BLOCKS, min_size=1, max_size=3))
def test_untranslated_markdown_is_the_same(blocks):
    page = "\n\n".join([*blocks, "Some text"])
    assert translated(page, "a.md", identity)[0].decode() == page


@pytest.mark.parametrize("text", ["- a", "1. a", "# a", "> a", "a\n\n- b"])
def test_the_blocks_are_told_apart(text):
    assert blocks_of(text) != blocks_of("a")
