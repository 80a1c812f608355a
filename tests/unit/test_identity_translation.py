"""Documents whose sentences are translated to themselves: they are not changed at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from mnmt_jax.decoding.text.sentence_job import run_steps
from mnmt_jax.decoding.text.text_translation import translation_steps
from mnmt_jax.documents.segments import Segment, texts_to_translate
from tests.unit.made_documents import make_docx, make_odt, paragraphs, translated
from tests.unit.made_markup import same, same_aligned


def by_sentences(
    function: Callable, target: str = "de"
) -> Callable[[Sequence[Segment]], list[str]]:
    """Return a translator of segments that translates each sentence by a function."""

    def translate_segments(segments: Sequence[Segment]) -> list[str]:
        steps = translation_steps(texts_to_translate(segments, "en", target), lambda *_: True)
        results = run_steps(steps, lambda lines: [function(line.text) for line in lines])
        return [result.text for result in results]

    return translate_segments


SENTENCES = [
    # Marks beside untranslated elements, or at their ends.
    "The files <code>.po</code>, <code>.tmx</code> and <code>.md</code>.",
    "Set the limit (<code>--limit</code>), then (<code>'mlp'</code>): \"<code>f()</code>\".",
    "It is <code>.NET</code>; or <b>(<code>--x</code>)</b>, <i><code>a,</code></i>, or",
    "Say <b><code>--</code></b>.",
    "Set <a href='#'><code>(('*-en', 0.05),)</code></a>, with the <i>paper's</i> <code>5 %</code>.",
    # The same words in an untranslated element and beside it.
    "Use print to print with <code>print</code>, <code>print</code> or print.",
    "An <code>int</code> and two <code>int</code>s are in re<code>print</code>ed print.",
    # Elements inside of words.
    "H<sub>2</sub>O, 5 m<sup>2</sup> and <b>W</b>ord, <b>W</b><i>ord</i> or un<b>believ</b>able.",
    "A soft<wbr>ware of <b>H<sub>2</sub>O</b> and H<sub>2</sub>O is <b>b</b>ig a<b>n</b>d new.",
    # Ends of sentences inside of names.
    "See <i>NiuTrans</i>.LMT and NiuTrans.LMT, that is ..., and go.",
]
PAGE = "".join(f"<p>{sentence}</p>\n" for sentence in SENTENCES)
MARKDOWN = """# The files `.po`, `.tmx` and (`--x`) of NiuTrans.LMT

Set the *limit* (`--limit`), "`f()`", [`(('*-en', 0.05),)`](a.md), [`a`, `b.`](b.md); two `int`s.
- Use print to print with `print`, or ..., and **W**ord and H<sub>2</sub>O.

| `a`, b | (`.po`) |
|--------|---------|
| **`--`** is | print `print` |
"""
XLIFF = (
    '<?xml version="1.0"?>\n<!-- first --><xliff version="1.2">'
    '<file source-language="en" target-language="de"><body><trans-unit id="1"><source>{0}</source>'
    "<target>{0}</target></trans-unit></body></file></xliff><!-- > --> <?last <?x?>\n\n"
)
UNIT = 'The (<mrk mtype="protected">.po</mrk>), and ..., H<g id="1">2</g>O of NiuTrans.LMT.'
RUN, LOW = "<w:r><w:t>{}</w:t></w:r>", '<w:rPr><w:vertAlign w:val="subscript"/></w:rPr>'
WORD = "".join(
    RUN.format(text).replace("<w:r>", f"<w:r>{LOW}") if text == "2" else RUN.format(text)
    for text in ("Water is H", "2", "O.")
)
OPEN = 'Un<text:span text:style-name="T2">believ</text:span>able, H<text:a>2</text:a>O.'
DOCUMENTS = [("a.md", MARKDOWN), ("a.html", PAGE), ("a.xlf", XLIFF.format(UNIT))]


@pytest.mark.parametrize("function", [same, same_aligned])
@pytest.mark.parametrize(("name", "text"), DOCUMENTS)
def test_documents_are_not_changed(name, text, function):
    assert translated(text, name, by_sentences(function), overwrite=True)[0].decode() == text


CUES = "1\n00:00:01,000 --> 00:00:02,000\n{}\n\n2\n00:00:03,000 --> 00:00:04,000\n{}\n"
CHINESE = {"Hello.": "你好。", "Go on!": "继续！"}


@pytest.mark.parametrize(
    ("name", "text", "translation"),
    [
        ("a.srt", CUES.format("Hello.\nGo on!", "Hello."), CUES.format("你好。\n继续！", "你好。")),
        ("a.md", "Hello.\nGo on!\n\n> Hello.\n> Go on!", "你好。\n继续！\n\n> 你好。\n> 继续！"),
        ("a.md", "Hello. Go on!\n\nHello.", "你好。继续！\n\n你好。"),
        ("a.html", "<p>Hello.\n<i>Go on!</i> Hello.</p>", "<p>你好。\n<i>继续！</i>你好。</p>"),
        ("a.txt", "Hello. Go on!\nHello.", "你好。继续！\n你好。"),
    ],
)
def test_lines_are_kept_where_spaces_between_sentences_are_not(name, text, translation):
    translate = by_sentences(lambda line: same(CHINESE[line]), "zh")
    assert translated(text, name, translate, target="zh")[0].decode() == translation


def test_untranslated_elements_that_a_translation_lacks_are_put_back_with_their_spaces():
    text = '<p>Kept <b><x translate="no">%1</x></b> as <x translate="no">%2</x> now.</p>'
    lossy = by_sentences(lambda line: same(line.replace("%1", "").replace("%2", "")))
    assert translated(text, "a.html", lossy)[0].decode() == text


def test_elements_inside_of_words_stay_there_in_office_documents():
    after, _ = translated(make_docx(f"<w:p>{WORD}</w:p>"), "a.docx", by_sentences(same))
    assert paragraphs(after, "word/document.xml") == [WORD]
    after, _ = translated(make_odt(f"<text:p>{OPEN}</text:p>"), "a.odt", by_sentences(same))
    assert paragraphs(after, "content.xml") == [OPEN]
