"""Translated documents with markup: sentences, untranslated elements, a model, and limits."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from mnmt_jax.decoding.text.markup_runs import text_of
from mnmt_jax.decoding.text.markup_text import split_markup
from mnmt_jax.decoding.text.markup_tokens import MarkupReader, TagRules
from mnmt_jax.decoding.text.sentence_job import run_steps
from mnmt_jax.decoding.text.text_translation import translation_steps
from mnmt_jax.decoding.text.translated_text import TextToTranslate
from mnmt_jax.errors import UserError
from tests.processor_time import is_quicker_than, takes_linear_time
from tests.unit.made_markup import reverse_words, same, translate
from tests.unit.made_translator import LINES, made_translator


def test_a_sentence_is_translated_whole_whatever_tags_are_in_it():
    document = "<p>Hello <b>big <i>wide</i></b> world. How <a href='x>y'>are you</a>?</p>"
    text, (lines,) = translate(document)
    assert lines == ["Hello big wide world.", "How are you?"]
    assert text == "<p>HELLO <b>BIG <i>WIDE</i></b> WORLD. HOW <a href='x>y'>ARE YOU</a>?</p>"


def test_what_is_outside_of_sentences_is_kept_byte_for_byte():
    document = (
        "<!DOCTYPE html>\r\n<!-- Comment. --><DIV  Class = 'x'\n>\n\t<P>12 &euro; </P>"
        "<pre> a  b </pre><script>var a = '<p>b</p>';</script>&nbsp;</DIV ><?php x ?>"
    )
    assert translate(document) == (document, [])


def test_elements_over_several_sentences_stay_over_them():
    document = "<i><b>One two. Three</b> four.</i> Five <u>six. Seven</u> eight."
    text, (lines,) = translate(document)
    assert lines == ["One two.", "Three four.", "Five six.", "Seven eight."]
    assert text == document.upper().replace("<B>", "<b>").replace("</B>", "</b>").replace(
        "<I>", "<i>"
    ).replace("</I>", "</i>").replace("<U>", "<u>").replace("</U>", "</u>")


def test_white_space_in_a_sentence_is_a_space_and_around_it_is_kept():
    text, (lines,) = translate("<p>\n  A line\n  is <b>wrapped</b>\tlong.\n</p>")
    assert lines == ["A line is wrapped long."]
    assert text == "<p>\n  A LINE IS <b>WRAPPED</b> LONG.\n</p>"


def test_a_space_at_the_end_of_an_element_is_kept_between_sentences():
    assert translate("Say <b>hello. </b>World is.")[0] == "SAY <b>HELLO.</b> WORLD IS."
    assert translate("Is <b>hello <img></b> there.")[0] == "IS <b>HELLO <img></b> THERE."


def test_entities_are_characters_in_sentences_and_are_escaped_in_translations():
    text, (lines,) = translate("<p>Caf&eacute; &lt;3 &amp; more &#8211; so</p>", same)
    assert lines == ["Café <3 & more – so"]
    assert text == "<p>Café &lt;3 &amp; more – so</p>"


def test_line_breaks_and_blocks_end_sentences_and_line_ends_do_not():
    _, (lines,) = translate("one<br>two <b>three\nfour</b><hr/>five<td>six")
    assert lines == ["one", "two three four", "five", "six"]


@pytest.mark.parametrize(
    ("document", "ends", "lines"),
    [
        ("A <g>title\nA</g> body.", "all", ["A title", "A body."]),
        ("A <g>title \r\n  A</g> body.", "lines", ["A title", "A body."]),
        ("A <g>title\n\n\nA</g> body.", "all", ["A title", "A body."]),
        ("Title <x/>\n <y/>\n body.", "all", ["Title", "body."]),
        ("- one <g>item</g>\n- another", "all", ["one item", "another"]),
        ("A line that is wrapped and goes <g>on in\nthe next</g> line.", "all", 1),
        ("A line that is wrapped and goes <g>on in\nthe next</g> line.", "lines", 2),
        ("A line that is wrapped and goes <g>on in\n\nthe next</g> line.", "all", 2),
        ("A <g>title \n</g>A body.", "all", ["A title", "A body."]),
        ("A title <g>\nA</g> body.", "all", ["A title", "A body."]),
        ("A <g>title\r\n</g>A body.", "lines", ["A title", "A body."]),
        ("A title<g>\r\n  A</g> body.", "lines", ["A title", "A body."]),
        ("A <g>title\n \n</g>A body.", "all", ["A title", "A body."]),
        ("A title <x/>\n A body.", "all", ["A title", "A body."]),
        ("A <g>title\nA</g> body.", "punctuation", ["A title A body."]),
        ("A <g>title\nA</g> body. And.", "none", ["A title A body. And."]),
    ],
)
def test_line_breaks_end_sentences_in_xml_as_in_text(document, ends, lines):
    text, (translated,) = translate(document, markup="xml", sentence_ends=ends)
    if isinstance(lines, int):
        assert len(translated) == lines
        lines = translated
    assert translated == lines and not any("  " in line for line in lines)
    if len(lines) == 1:
        document = document.replace("\n", " ")
    assert re.sub("<[^>]*>", "", text) == re.sub("<[^>]*>", "", document).upper()
    assert re.findall("<[^>]*>", text) == re.findall("<[^>]*>", document)


def test_a_line_break_in_a_sentence_is_one_space_beside_an_atom():
    document = "A line that is wrapped and goes on in <x/>\n the next line."
    text, (lines,) = translate(document, same, markup="xml")
    assert lines == ["A line that is wrapped and goes on in the next line."]
    assert text == document.replace("\n ", " ")


def test_line_breaks_end_sentences_in_html_if_all_do():
    _, (lines,) = translate("<p>A <b>title\nA</b> body.</p>", sentence_ends="lines")
    assert lines == ["A title", "A body."]


@pytest.mark.parametrize(
    "document",
    [
        "<code>x = 1</code>",
        "<p translate='no'>Keep <b>this</b></p>",
        "<span class='a notranslate'>Keep this</span>",
        "<style>p { a: b }</style>",
        "<kept>Keep this</kept>",
    ],
)
def test_untranslated_elements_stay(document):
    rules = TagRules(ignored=frozenset({"kept"}))
    assert translate(document, tag_rules=rules) == (document, [])


@pytest.mark.parametrize(
    "document",
    [
        "<p><ruby>Word<rt>reading</rt></ruby> is read</p>",
        "<p><ruby>Word<rp>(</rp><rt>reading</rt><rp>)</rp></ruby> is read</p>",
        "<p><ruby><rb>Word</rb><rt>reading</rt></ruby> is read</p>",
        "<p><ruby>Word<rp>(<rt>reading<rp>)</ruby> is read</p>",
    ],
)
def test_readings_of_ruby_stay_and_are_no_text(document):
    text, lines = translate(document)
    assert lines == [["Word is read"]]
    assert text == document.replace("Word", "WORD").replace(" is read", " IS READ")


@pytest.mark.parametrize(
    ("document", "lines"),
    [
        ("<p translate=no>Keep\n<p>One<p>two", ["One", "two"]),
        ("<p translate=no>Keep<hr>One", ["One"]),
        ("<details><p translate=no>Keep<summary>One</summary></details>", ["One"]),
        ("<div><p translate=no>Keep <b>it</div>One", ["One"]),
        ("<p translate=no>Keep<span>it</p>One", ["One"]),
        ("<ul><li translate=no>Keep<li>one</ul><p>Two", ["one", "Two"]),
        ("<ul><li translate=no>Keep</ul>One", ["One"]),
        ("<ul><li translate=no>Keep<ul><li>it<li>it</ul>it</br>it<li>one</ul>", ["one"]),
        ("<table><tr><td translate=no>Keep<td>one<tr><th>two</table>", ["one", "two"]),
        ("<table><tr><td translate=no><p>Keep<tr><td>one</table>", ["one"]),
        ("<table><tr translate=no><td>Keep<td>it<tr><td>one</table>Two", ["one", "Two"]),
        ("<tbody translate=no><tr><td>Keep<tr><td>it<tbody><td>one", ["one"]),
        ("<dl><dt translate=no>Keep<dd>one<dt>two</dl>", ["one", "two"]),
        ("<select><option translate=no>Keep<option>one</select>", ["one"]),
        ("<div translate=no><p>Keep<p>it</div>One", ["One"]),
        ("<p translate=no>Keep<button><div>it</div>it</button>it</p>One", ["One"]),
        ("<p translate=no>Keep<object><p>it</object>it<p>One", ["One"]),
        ("<p translate=no><svg><desc><p>it</desc></svg>it<p>One", ["One"]),
        ("<p translate=no><svg><foreignObject><hr>it</foreignObject></svg>it</p>One", ["One"]),
        ("<p translate=no>Keep<button>it</p>One", ["One"]),
        ("<td translate=no>Keep</div></body>it</td><td>One", ["One"]),
        ("<table><tr translate=no><td>Keep</div></td></table>One", ["One"]),
        ("<table><td translate=no>Keep</li>it</tr><td>One", ["One"]),
        ("<table><caption translate=no>Keep</div><tr><td>one</table>", ["one"]),
        ("<table><caption translate=no>Keep</table>One", ["One"]),
        ("<table><colgroup translate=no><col><tr><td>one</table>", ["one"]),
        ("<ruby><rt translate=no>Keep<rb>one</ruby> two", ["one two"]),
        ("<div><ruby><rp translate=no>Keep</ruby>One</div>", ["One"]),
        ("<div><ruby><rt translate=no>Keep</div>One", ["One"]),
    ],
)
def test_an_untranslated_element_without_an_end_tag_ends_where_html_ends_it(document, lines):
    text, (translated,) = translate(document)
    assert translated == lines
    before, *_ = re.split(r"\b(?i:one)", document)
    assert text.startswith(before) and text.lower() == document.lower()


def test_elements_of_xml_end_with_their_end_tags():
    document = '<p translate="no">Keep <p>it</p> it</p> <p>One</p>'
    assert translate(document, same, markup="xml") == (document, [["Keep it it One"]])


def test_nested_elements_take_linear_time():
    def run(count):
        document = "<b>" * count + "Deep" + "</b>" * count
        assert translate(document, same)[0] == document

    assert takes_linear_time(run, 4_000, least=1e-2)


@pytest.mark.parametrize("unit", ["<p>", "<b>", "<div></div>", "<hr>", "<li></li></ul>", "<td>"])
def test_the_end_of_an_element_is_found_in_linear_time(unit):
    def run(count):
        translate("<option translate=no>" + "<b>" * count + unit * count)

    assert takes_linear_time(run, 3_000, least=1e-2)


def test_an_untranslated_element_that_the_translation_keeps_is_found_in_it():
    text, steps = translate("Press <code>Ctrl &amp; C</code> now.", reverse_words)
    assert steps == [["Press Ctrl & C now."], ["Press now."]]
    text, steps = translate("Press <code>Ctrl</code> now.", reverse_words)
    assert (text, steps) == ("now. <code>Ctrl</code> Press", [["Press Ctrl now."]])


def test_an_untranslated_element_that_is_lost_is_left_out_and_placed():
    text, steps = translate("Press <b>the <code>Ctrl</code> key</b> now.")
    assert steps == [["Press the Ctrl key now."], ["Press the key now."]]
    assert text == "PRESS <b>THE <code>Ctrl</code> KEY</b> NOW."


@pytest.mark.parametrize(
    "document",
    [
        "Run <code>Ctrl</code> <code>Alt</code>",
        "<b>Run it <code>Ctrl</code></b> <code>Alt</code>",
        "Now <b>run it <code>Ctrl</code> <code>Alt</code></b>",
        "Now <b>run it <code>Ctrl</code></b> <i>here</i>",
        "Run <b><code>Ctrl</code> <code>Alt</code></b> here",
        "Run <code>Ctrl</code><img> <code>Alt</code> here",
        f"Now <b>run it <code>{'x' * 50}</code> <code>{'y' * 50}</code></b>",
    ],
)
def test_spaces_beside_elements_that_are_left_out_are_kept(document):
    def function(text):
        return same(text.replace("Ctrl", "").replace("Alt", ""))

    assert translate(document, function)[0] == document


def test_an_element_that_ended_a_sentence_has_a_space_after_it():
    document = "Now <b>run it <code>Ctrl +</code></b>"
    text, _ = translate(document, lambda text: reverse_words(text.replace(" Ctrl +", " ")))
    assert text.rstrip() == "<b>it run <code>Ctrl +</code></b> Now"


def test_equal_untranslated_elements_have_different_words():
    document = "Press <code id='1'>x</code> or <code id='2'>x</code> now."
    text, _ = translate(document, lambda _: same("x x now Press or."))
    assert text == "<code id='1'>x</code> <code id='2'>x</code> now Press or."


@pytest.mark.parametrize("length, line", [(40, f"Press {'x' * 40} now."), (41, "Press now.")])
def test_a_long_untranslated_element_is_not_translated_along(length, line):
    document = f"Press <code>{'x' * length}</code> now."
    assert translate(document, same) == (document, [[line]])


def test_placeholders_are_kept_in_marked_sentences():
    text, steps = translate("Hello <b>{name}</b> and <code>Ctrl</code> friends.")
    assert len(steps) == 3 and "{name}" in text and "<code>Ctrl</code>" in text
    assert Counter(re.findall("<.*?>", text)) == Counter(["<b>", "</b>", "<code>", "</code>"])


def test_xml_tags_are_inline_unless_they_split():
    document = "<Doc><r1>Hello </r1><r2>world</r2><T>Next one</T></Doc>"
    assert translate(document, markup="xml")[1] == [["Hello worldNext one"]]
    rules = TagRules(splitting=frozenset({"T"}))
    text, (lines,) = translate(document, markup="xml", tag_rules=rules)
    assert lines == ["Hello world", "Next one"]
    assert text == "<Doc><r1>HELLO</r1> <r2>WORLD</r2><T>NEXT ONE</T></Doc>"


@pytest.mark.parametrize(
    ("document", "lines"),
    [
        ("<button>Save</button>\n<button>Cancel</button>", ["Save", "Cancel"]),
        ("<label>Name</label><input><label>City <input></label>", ["Name", "City"]),
        ("<a href='/'>Home</a><!-- x --><a href='/a'>About</a> us", ["Home", "About us"]),
        ("<b><a>One. Two</a><a>Three</a></b> four", ["One.", "Two", "Three four"]),
        ("See <a>one</a> <a>two</a><a>2</a>", ["See one two2"]),
        ("<a>one</a>, <a>two</a><sup><a>b</a></sup>", ["one, twob"]),
        ("<a>漢</a><a>字</a> <b>W</b><i>ord</i>", ["漢字 Word"]),
    ],
)
def test_form_controls_and_links_without_a_space_between_them_end_sentences(document, lines):
    text, (translated,) = translate(document)
    assert translated == lines
    assert text == re.sub(r"(?:\A|>)[^<]+", lambda match: match[0].upper(), document)
    rules = TagRules(non_splitting=frozenset(("a", "button", "input", "label")))
    assert len(translate(document, tag_rules=rules)[1][0]) <= 2


def test_html_blocks_are_inline_if_they_do_not_split():
    rules = TagRules(non_splitting=frozenset({"div"}))
    assert translate("one <div>two</div>", tag_rules=rules)[1] == [["one two"]]


def test_an_entity_of_an_xml_document_is_kept():
    text, _ = translate("<a>Use &brand; now &lt;</a>", markup="xml")
    assert text == "<a>USE &brand; NOW &lt;</a>"


def test_no_sentences_are_split_on_request():
    assert translate("One. Two.", sentence_ends="none")[1] == [["One. Two."]]


def test_sentences_of_a_language_without_spaces_are_separated_in_others():
    text, _ = translate("<b>你好。再</b>见。", same, source="zh", target="en")
    assert text == "<b>你好。 再</b>见。"


def test_a_space_between_sentences_is_left_out_beside_wide_characters():
    answers = {"Hello.": same("你好。"), "Bye.": same("再见。")}
    document = "<p><b>Hello.</b> Bye. Bye.</p> <p>Bye.</p>"
    text, _ = translate(document, answers.get, target="zh")
    assert text == "<p><b>你好。</b>再见。再见。</p> <p>再见。</p>"
    # Of what is between them, the space alone.
    link = '<a title="A > B">'
    for between, after in (
        (f" {link}", link),
        (f"\n{link}", f"\n{link}"),
        (" <!-- a -->", "<!-- a -->"),
    ):
        text, _ = translate(f"<p>Hello.{between}Bye.</a></p>", answers.get, target="zh")
        assert text == f"<p>你好。{after}再见。</a></p>"


def test_tags_that_are_badly_nested_are_all_kept():
    document = "one <b><i>two</b> three</i> four</u> <u>five"
    text, _ = translate(document)
    assert Counter(re.findall("<.*?>", text)) == Counter(re.findall("<.*?>", document))


@pytest.mark.parametrize("end", ["<!-- a > b", "<code>three", "<code>a<!-- b", "<script>c"])
def test_what_is_never_closed_stays_at_the_end(end):
    assert translate(f"one two {end}", reverse_words) == (f"two one {end}", [["one two"]])


def test_the_text_of_a_document():
    assert text_of(MarkupReader("html"), "<p>A <b>b</b></p><p>c<script>d</script>") == "A b\nc"


# A model.


def test_a_model_places_tags_by_its_attention():
    translator = made_translator("register", "register")
    first, *rest = LINES[0].split()
    document = f"<p>{first} <b>{rest[0]}</b> {' '.join(rest[1:])}</p>"
    plain = translator.translate_text(LINES[0], source="en", target="de")
    marked = translator.translate_text(document, source="en", target="de", markup="html")
    assert re.sub("<.*?>", "", marked.text) == plain.text
    assert re.findall("<.*?>", marked.text) == ["<p>", "<b>", "</b>", "</p>"]
    (sentence,) = marked.sentences
    assert sentence.translations[0].alignment is not None
    assert plain.sentences[0].translations[0].alignment is None
    with pytest.raises(UserError, match="markup='md': must be 'html', 'xml' or ''"):
        translator.translate_text("x", source="en", target="de", markup="md")


# Limits.


@pytest.mark.parametrize(
    "document",
    [
        "<b>" * 3000 + "some text" + "</b>" * 3000,
        "<b>x</i>" * 3000,
        "<b>A</b> b " * 2000,
        "word " * 5000,
        "a<!--x-->" * 3000,
        "a" * 190 + "<code>" + "x" * 30 + "</code>" + "b" * 400,
    ],
    ids=["deep", "badly nested", "elements", "long", "comments", "cut"],
)
def test_any_document_takes_little_time_and_keeps_its_tags(document):
    def run(lines):
        assert all(len(line.text) <= 200 for line in lines)
        return [same(line.text) for line in lines]

    def check():
        texts = [TextToTranslate(document, "en", "de", markup="html")]
        (result,) = run_steps(translation_steps(texts, lambda line, _: len(line) <= 200), run)
        tags = [Counter(re.findall("<[^>]*>", text)) for text in (result.text, document)]
        assert tags[0] == tags[1]

    assert is_quicker_than(30, check)


@pytest.mark.parametrize("name", ["https://x.org/a,b;c?d=e", "{n, plural, one {# a} other {# b}}"])
@pytest.mark.parametrize("limit", [3, 11, 13])
def test_pieces_of_a_long_sentence_have_whole_placeholders(name, limit):
    """Each piece is checked by itself."""
    pieces = []
    split_markup(
        f"One <i>two</i> {name} three, {name} four",
        "en",
        "all",
        MarkupReader("html"),
        lambda text, _: pieces.append(text),
        lambda text: len(text) <= limit,
    )
    assert sum(piece.count(name) for piece in pieces) == 2
    assert "".join(pieces).replace(" ", "") == f"Onetwo{name}three,{name}four".replace(" ", "")


@pytest.mark.parametrize(
    "element",
    [
        "https://x.org/<code>my page</code>",
        "<code>my page at https://x.org/a -o b</code>",
        "<code>curl https://x.org/a</code>/b",
        "{n}<code>a {n}</code>{n}",
    ],
)
@pytest.mark.parametrize("limit", [6, 20, 30])
def test_elements_beside_placeholders_are_written_once(element, limit):
    document = f"Now open {element} and read all of the text there."
    texts = [TextToTranslate(document, "en", "de", markup="html")]
    (result,) = run_steps(
        translation_steps(texts, lambda line, _: len(line) <= limit),
        lambda lines: [same(line.text) for line in lines],
    )
    assert result.text == document


def test_pieces_of_a_long_sentence_have_their_own_alignment():
    """A piece is translated in reverse order; its tags follow its words."""
    texts = [TextToTranslate("a b <b>c</b> d e f <i>g</i> h", "en", "de", markup="html")]
    (result,) = run_steps(
        translation_steps(texts, lambda line, _: len(line.split()) <= 4),
        lambda lines: [reverse_words(line.text) for line in lines],
    )
    assert result.text == "d <b>c</b> b a h <i>g</i> f e"


@pytest.mark.parametrize(
    ("page", "line"),
    [
        ('See <a href="x">this page <i class="icon"></i></a>, please.', "See this page, please."),
        ("See <b>one <i>two <u></u></i></b>, three", "See one two, three"),
        ("See <b>one <i>two <u></u></i> <s></s></b> three", "See one two three"),
        ("See <b>one <i></i></b> : two", "See one : two"),
        ("See <b>one <i></i></b>", "See one"),
        ("See <b>one <i></i><u></u></b>, two <code>x</code> (b)", "See one, two x (b)"),
        ("Go (<a><img> Home</a>) now", "Go (Home) now"),
        ("See <a><img> Home</a> <a>of us</a>", "See Home of us"),
    ],
)
def test_a_space_beside_an_icon_is_once_in_the_text(page, line):
    for markup in ("html", "xml"):
        page = page if markup == "html" else page.replace("<img>", "<img/>").replace("code", "x")
        text, steps = translate(page, same, markup=markup)
        assert steps == [[line]] and text == page


def test_a_space_beside_an_icon_ends_a_word():
    text, steps = translate("a <b>See <i></i></b>this<b><i></i> page</b>", same)
    assert steps == [["a See this page"]]
    assert text == "a <b>See <i></i></b> this <b><i></i> page</b>"


def test_a_space_after_a_no_break_space_is_kept():
    assert translate("up&nbsp; now\xa0 <b>and </b> so")[0] == "UP\xa0 NOW\xa0 <b>AND</b> SO"
