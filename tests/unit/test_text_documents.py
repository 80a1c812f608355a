"""Plain text, HTML and subtitles: encodings, line ends and layout."""

from __future__ import annotations

import codecs
import re

import pytest
import srt

from mnmt_jax.decoding.text.sentence_job import run_steps
from mnmt_jax.decoding.text.text_translation import translation_steps
from mnmt_jax.decoding.text.translated_text import TextToTranslate
from mnmt_jax.decoding.translation import Hypothesis, Translation
from mnmt_jax.documents.text_encoding import decode_text
from mnmt_jax.errors import UserError
from tests.unit.made_documents import identity, translated
from tests.unit.made_markup import translate as markup_translation

SRT = """1
00:00:01,000 --> 00:00:02,500
The first line
of two lines

2
00:00:03,000 --> 00:00:04,000 X1:40 Y1:20
{\\an8}- Hello, you!
- <i>Goodbye then.</i>

3
0:00:05.000-->0:00:06.000

4
00:00:07,000 --> 00:00:08,000
♪ 12 ♪
5
00:00:09,000 --> 00:00:10,000
<b>- One
- Two</b>
"""


@pytest.mark.parametrize(
    ("encoding", "mark"),
    [
        ("utf-8", b""),
        ("utf-8", codecs.BOM_UTF8),
        ("utf-16-le", codecs.BOM_UTF16_LE),
        ("utf-16-be", codecs.BOM_UTF16_BE),
        ("utf-32-le", codecs.BOM_UTF32_LE),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_encodings_and_line_ends_are_kept(encoding, mark, end):
    text = f"Ein Café.{end}{end} - zwei{end}"
    after, _ = translated(mark + text.encode(encoding), "a.txt")
    assert after == mark + text.upper().encode(encoding)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a\ncaf\xe9 noir", r"a\.txt:2: is not UTF-8; convert .* Windows-1252"),
        ("a long text".encode("utf-16-le"), r"a\.txt: is not UTF-8; convert .* UTF-16LE"),
        (codecs.BOM_UTF16_LE + b"\x00\xd8a", r"a\.txt: is not valid UTF-16-LE; export it again"),
        (b" 12:30 \n", r"a\.txt: has no text; there is nothing to translate"),
        (b"", r"a\.txt: has no text; there is nothing to translate"),
    ],
)
def test_text_that_cannot_be_read_is_refused(data, message):
    with pytest.raises(UserError, match=message):
        translated(data, "a.txt")


def test_the_encoding_is_guessed_by_the_named_line():
    data = b"a\rb\n" + "你好".encode("gb18030")
    with pytest.raises(UserError, match=r"a\.txt:2: is not UTF-8; convert .* GB18030"):
        decode_text(data, "a.txt")


def test_html_is_one_segment_in_its_encoding():
    page = '<html><head><meta charset="ISO-8859-1"></head><body>Caf\xe9</body></html>'
    after, (segment,) = translated(
        page.encode("latin-1"), "a.html", lambda _: [page.replace("Caf", "→ ")]
    )
    assert segment.text == page and segment.markup == "html"
    assert after == page.replace("Caf", "&#8594; ").encode("latin-1")
    assert translated("\ufeff<p>é</p>", "a.htm", identity)[0] == "\ufeff<p>é</p>".encode()
    with pytest.raises(UserError, match=r"a\.html: has no text; there is nothing to translate"):
        translated("<p class='a'>12</p>", "a.html")
    for name in ("nothing", "punycode", "utf-7"):
        with pytest.raises(UserError, match=rf"a\.html: declares {name}, which is not supported;"):
            translated(f'<meta charset="{name}">é', "a.html")


@pytest.mark.parametrize(
    ("page", "is_translated"),
    [
        ("<style>p{color:red}</style><p>123</p>", False),
        ("<img alt='text'><script>var abc</script>", False),
        ("<pre>code only</pre><!-- a comment -->", False),
        ("<p><code>abc</code> 12 <b translate=no>Keep</b> 3", False),
        ("<p><code>abc</code> 12 <b>a</b> 3", True),
        ("<pre>code</pre>a", True),
        ("<ruby>12<rt>reading</rt></ruby>", False),
    ],
)
def test_a_page_without_text_to_translate_is_refused(page, is_translated):
    assert bool(markup_translation(page)[1]) == is_translated
    if is_translated:
        assert translated(page, "a.html", identity)[0].decode() == page
    else:
        with pytest.raises(UserError, match=r"a\.html: has no text; there is nothing to"):
            translated(page, "a.html")


@pytest.mark.parametrize(
    ("declared", "actual", "text"),
    [
        ("iso-8859-1", "cp1252", "“é €”"),
        ("US-ASCII", "cp1252", "“Café”"),
        ("gb2312", "gbk", "镕基"),
        ("Shift_JIS", "cp932", "①髙"),
    ],
)
def test_html_is_read_in_the_larger_encoding_that_browsers_use(declared, actual, text):
    page = f'<meta charset="{declared}"><p>{text}</p>'.encode(actual)
    assert translated(page, "a.html", identity)[0] == page


@pytest.mark.parametrize(
    "head",
    [
        '<!-- was: <meta charset="iso-8859-1"> --><meta charset="utf-8">',
        '<meta name="description" content="How to set charset=latin1"><meta charset="utf-8">',
        "<meta data-charset=latin1 name=charset><META CharSet=utf-8>",
        "<script>'<meta charset=latin1>'</script>",
        '<meta charset=""><meta charset=\'utf-8\'><meta charset="latin1">',
        '<meta http-equiv="refresh" content="1; charset=latin1">',
        "<!-- <meta charset=latin1>",
    ],
)
def test_only_declarations_of_html_name_its_encoding(head):
    page = f"{head}\n<p>Grüße an alle</p>-->x</p>\n"
    after, (segment,) = translated(page, "a.html", identity)
    assert segment.text == page and after.decode() == page
    for declaration in (
        "<meta http-equiv=Content-Type content='text/html; charset=ISO-8859-1'>",
        '<meta content="text/html;charset = latin1" HTTP-EQUIV="content-type" />',
        "<meta id=a charset = latin1>",
    ):
        narrow = f"<!-- charset=utf-8 -->{declaration}<p>Grüße an alle</p>".encode("latin-1")
        assert translated(narrow, "a.html", identity)[0] == narrow


@pytest.mark.parametrize("charset", ["utf-8", "UTF8", "utf-16", "UTF-16LE"])
def test_a_declaration_of_utf_16_in_ascii_means_utf_8(charset):
    page = f'<meta charset="{charset}"><p>Café</p>{{}}\n'
    for end in ("", "a"):  # an even and an odd number of bytes
        after, (segment,) = translated(page.format(end), "a.html", identity)
        assert segment.text == page.format(end) and after == page.format(end).encode()


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_times_lines_and_marks_of_subtitles_are_kept(end):
    data = SRT.replace("\n", end)
    after, segments = translated(data, "a.srt")
    assert [(one.text, one.markup) for one in segments] == [
        ("The first line of two lines", ""),
        ("- Hello, you!", ""),
        ("- <i>Goodbye then.</i>", "html"),
        ("<b>- One - Two</b>", "html"),
    ]
    assert translated(data, "a.srt", identity)[0].decode() == data
    texts = ["The first line", "of two lines", "Hello, you!", "Goodbye then.", "One", "Two"]
    for text in texts:
        data = data.replace(text, text.upper())
    assert after.decode() == data


@pytest.mark.parametrize(
    "text",
    [
        "<i>Tom & Jerry</i> run, x < y > z",
        '<font color="#fff&1">R&B</font> &amp; <3',
        "<b>&copy; &lt;i&gt;</b> a<- b",
        "Tom & Jerry < &amp;",
    ],
)
def test_characters_of_entities_are_themselves_in_subtitles(text):
    def by_sentences(segments):
        texts = [TextToTranslate(one.text, "en", "de", markup=one.markup) for one in segments]
        results = run_steps(
            translation_steps(texts, lambda *_: True),
            lambda lines: [Translation((Hypothesis(one.text, 0.0, ()),)) for one in lines],
        )
        return [result.text for result in results]

    cue = f"1\n00:00:01,000 --> 00:00:02,000\n{text}\n"
    for translate in (identity, by_sentences):
        assert translated(cue, "a.srt", translate)[0].decode() == cue


@pytest.mark.parametrize(
    ("text", "segment", "result"),
    [
        (
            "{b}One{/b} and {\\i1}two{\\i0} & {\\c&HFF&}so",
            "<b {b}>One</b {/b}> and <i {\\i1}>two</i {\\i0}> &amp; <x {\\c&amp;HFF&amp;}/>so",
            "{b}ONE{/b} AND {\\i1}TWO{\\i0} & {\\c&HFF&}SO",
        ),
        (
            "{\\an8}{\\i1}One {i}\n{\\pos(1, 2)}two",
            "<i {\\i1}>One <i {i}> <x {\\pos(1, 2)}/>two",
            "{\\an8}{\\i1}ONE {i}\n{\\pos(1, 2)}TWO",
        ),
        ("{U}<i>One</i>{/U}", "<U {U}><i>One</i></U {/U}>", "{U}<i>ONE</i>{/U}"),
    ],
)
def test_tags_in_braces_are_no_text_of_subtitles(text, segment, result):
    cue = "1\n00:00:01,000 --> 00:00:02,000\n{}\n".format

    def translate(segments):
        assert [(one.text, one.markup) for one in segments] == [(segment, "html")]
        return [markup_translation(one.text)[0] for one in segments]

    assert translated(cue(text), "a.srt", translate)[0].decode() == cue(result)
    assert translated(cue(text), "a.srt", identity)[0].decode() == cue(text)


def test_subtitles_of_tags_alone_are_refused():
    cue = "1\n00:00:01,000 --> 00:00:02,000\n{\\an8}<i>♪ 12 ♪</i>\n"
    with pytest.raises(UserError, match=r"a\.srt: has no text; there is nothing to translate"):
        translated(cue, "a.srt")


def test_subtitles_are_read_alike_by_another_reader():
    before = list(srt.parse(SRT.replace("\n\n4", "\n\n\n4")))
    after = list(srt.parse(translated(SRT.replace("\n\n4", "\n\n\n4"), "a.srt")[0].decode()))
    assert len(before) == 5
    assert [(one.index, one.start, one.end) for one in before] == [
        (one.index, one.start, one.end) for one in after
    ]


@pytest.mark.parametrize(
    ("text", "target", "lines"),
    [
        ("Die erste Zeile von zwei Zeilen", "de", ["Die erste Zeile", "von zwei Zeilen"]),
        ("Donaudampfschifffahrt", "de", ["Donaudampfschifffahrt"]),
        ("ab\ncd", "de", ["ab", "cd"]),
        ("两行中的第一行", "zh_Hans", ["两行中", "的第一行"]),
        ("第一行 第二", "zh", ["第一行", "第二"]),
        ("กินที่", "th", ["กิน", "ที่"]),
        ("กี่", "th", ["กี่"]),
        ("", "de", []),
        ("- Da dort", "de", ["- Da", "dort"]),
        ("- Donaudampfschifffahrt", "de", ["- Donaudampfschifffahrt"]),
        ("<i>- Ja</i>", "de", ["<i>- Ja</i>"]),
        ("–对", "zh", ["–对"]),
        ('<font color="#ff0">Ja.</font>', "de", ['<font color="#ff0">Ja.</font>']),
        ('<b class="a b">当然可以。</b>', "zh", ['<b class="a b">当', "然可以。</b>"]),
        ("<i>好</i>", "zh", ["<i>好</i>"]),
    ],
)
def test_a_cue_keeps_its_number_of_lines_if_it_has_so_many(text, target, lines):
    cue = SRT.split("\n\n")[0]
    after, _ = translated(cue, "a.srt", lambda _: [text], target=target)
    assert after.decode().split("\n")[2:] == lines


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["", "\n", "\n\n2\n00:00:03,000 --> 00:00:04,000\nTwo\n"])
def test_no_blank_line_ends_a_cue(end, last):
    times = "1\n00:00:01,000 --> 00:00:02,000\n"
    cue = f"{times}{{\\an8}}One two\nthree\n- Four\nfive{last}".replace("\n", end)
    after, _ = translated(cue, "a.srt", lambda ones: ["Hier", "- Da", "Dort"][: len(ones)])
    expected = f"{times}{{\\an8}}Hier\n- Da{last.replace('Two', 'Dort')}"
    assert after.decode() == expected.replace("\n", end)


TWO_CUES = "1\n00:00:01,000 --> 00:00:02,000\nHello there\n\n2\n{}\nA second cue\n"


@pytest.mark.parametrize(
    "times",
    [
        "00:00:03 --> 00:00:04",
        "00:00:03,0000 --> 00:00:04,123456",
        "-00:00:00,500 --> +00:00:01.000",
        " 0:0:3-->100:00:04,5 X1:40",
    ],
)
def test_forms_of_times_are_kept(times):
    after, segments = translated(TWO_CUES.format(times), "a.srt")
    assert [one.text for one in segments] == ["Hello there", "A second cue"]
    kept = TWO_CUES.replace("Hello there", "HELLO THERE").replace("A second cue", "A SECOND CUE")
    assert after.decode() == kept.format(times)


@pytest.mark.parametrize(
    "times",
    [
        "00:00:03,000 -> 00:00:04,000",
        "00:00:03,000 ––> 00:00:04,000",
        "00:00:03,000 → 00:00:04,000",
        "00:03,000 --> 00:04,000",
        "00:00:03:000 --> 00:00:04:000",
        "00:00:03, 000 --> 00:00:04, 000",
        "−00:00:03,000 --> 00:00:04,000",
        "00:00:03,000 --> ",
        "00:00:03,000 --> 00:00:04,000" + " a" * 400,
    ],
)
def test_a_malformed_line_of_times_is_refused(times):
    message = f"a.srt:6: {times.strip()[:40]!r} is not a line of times; write 00:00:01,000 --> 00:"
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        translated(TWO_CUES.format(times), "a.srt")


@pytest.mark.parametrize("text", ["At 10:30 -> eleven", "10:30 -> 11:00", "--> go", "1, 2 --> 3"])
def test_arrows_in_a_cue_are_text(text):
    cue = f"1\n00:00:01,000 --> 00:00:02,000\n{text}\n"
    if any(map(str.isalpha, text)):
        assert translated(cue, "a.srt")[0].decode() == cue.replace(text, text.upper())
    else:
        with pytest.raises(UserError, match="there is nothing to translate"):
            translated(cue, "a.srt")


@pytest.mark.parametrize(
    "text",
    ["10\xa0km\u202f? Non\u202f!\nOui\xa0: 5\u2009%", "\u3000A\u3000b", "<i>a\u3000b</i> c"],
)
def test_no_break_and_wide_spaces_of_subtitles_are_kept(text):
    def by_sentences(segments):
        return [markup_translation(one.text, markup=one.markup)[0] for one in segments]

    cue = f"1\n00:00:01,000 --> 00:00:02,000\n{text}\n"
    for translate in (identity, by_sentences):
        after, _ = translated(cue, "a.srt", translate)
        assert after.decode().upper() == cue.upper()


def test_text_outside_of_cues_names_its_line():
    with pytest.raises(UserError, match=r"a\.srt:2: is before the first line of times; repair it"):
        translated(f"\nWEBVTT\n{SRT}", "a.srt")
    with pytest.raises(UserError, match=r"a\.srt: has no line of times, such as 00:00:01,000 -->"):
        translated("no times", "a.srt")


@pytest.mark.parametrize("name", ["a.txt", "a.html", "a.md", "a.srt"])
@pytest.mark.parametrize(
    ("source", "remedy"),
    [
        ("de", "(if it is Windows-1252: iconv -f Windows-1252 -t UTF-8 FILE > NEW)"),
        ("cs", "(if it is Windows-1250: "),
        ("ru", "(if it is Windows-1251: "),
        ("zh_Hant", "convert the file to UTF-8"),
        (None, "(if it is Windows-1251: "),
    ],
)
def test_the_likely_encoding_is_one_of_the_language(name, source, remedy):
    with pytest.raises(UserError, match=r"is not UTF-8; convert the file to UTF-8") as error:
        translated("Füße".encode("latin-1"), name, source=source)
    assert str(error.value).endswith(remedy) or (
        remedy.startswith("(") and remedy in str(error.value)
    )
