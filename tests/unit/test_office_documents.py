"""Word documents and OpenDocument texts: what is translated, and what is kept."""

from __future__ import annotations

import io
import re
import struct
import zipfile
import zlib

import docx
import pytest

from mnmt_jax.errors import UserError
from tests.unit.made_documents import (
    assert_parts_are_kept,
    identity,
    make_docx,
    make_odt,
    make_zip,
    paragraphs,
    part,
    translated,
)


def run(text: str, properties: str = "") -> str:
    properties = f"<w:rPr>{properties}</w:rPr>" if properties else ""
    space = ' xml:space="preserve"' if text != text.strip() else ""
    return f"<w:r>{properties}<w:t{space}>{text}</w:t></w:r>"


def word(content: str, translate=None) -> tuple[str, list[str]]:
    """Return the translated content of a paragraph and the texts of its segments."""
    data = make_docx(f"<w:p>{content}</w:p>")
    after, segments = translated(data, "a.docx", *([translate] if translate else []))
    return paragraphs(after, "word/document.xml")[0], [segment.text for segment in segments]


def field(instruction: str, result: str) -> str:
    def mark(kind: str) -> str:
        return f'<w:r><w:fldChar w:fldCharType="{kind}"/></w:r>'

    code = f"<w:r><w:instrText>{instruction}</w:instrText></w:r>"
    return mark("begin") + code + mark("separate") + result + mark("end")


def test_the_most_frequent_format_is_text_and_others_are_spans():
    content = run("Press ") + run("Enter", "<w:b/>") + run(" to go on.")
    after, texts = word(content)
    assert texts == ['Press <g id="1">Enter</g> to go on.']
    assert after == run("PRESS ") + run("ENTER", "<w:b/>") + run(" TO GO ON.")
    moved, _ = word(content, lambda _: ['Weiter mit <g id="1">Enter</g>'])
    assert moved == run("Weiter mit ") + run("Enter", "<w:b/>")


def test_links_without_a_space_between_them_are_different_texts():
    def link(text: str) -> str:
        return f"<w:hyperlink>{run(text)}</w:hyperlink>"

    after, texts = word(link("Home") + "<w:bookmarkStart/>" + link("About") + run(" us"))
    assert texts == ["Home", '<g id="1">About</g> us']
    assert after == link("HOME") + "<w:bookmarkStart/>" + link("ABOUT") + run(" US")
    assert word(f"<w:ins>{link('One')}{link('Two')}</w:ins>{run(' x')}")[1] == ["One", "Two", " x"]
    assert len(word(link("One") + run(" ") + link("Two") + link("2"))[1]) == 1
    assert len(word(field("HYPERLINK x", run("One")) + field("HYPERLINK y", run("Two")))[1]) == 2
    body = "<text:p><text:a>Home</text:a><text:a>About</text:a></text:p>"
    after, segments = translated(make_odt(body), "a.odt")
    assert [segment.text for segment in segments] == ["Home", "About"]
    assert paragraphs(after, "content.xml") == ["<text:a>HOME</text:a><text:a>ABOUT</text:a>"]


def test_runs_that_word_split_are_one():
    """By spelling marks, languages and editing sessions."""
    content = (
        '<w:r w:rsidR="1"><w:t>to</w:t></w:r><w:proofErr w:type="spellStart"/>'
        '<w:r><w:rPr><w:lang w:val="en-US"/></w:rPr><w:t>get</w:t></w:r>'
        "<w:r><w:lastRenderedPageBreak/><w:t>h</w:t></w:r>"
        "<w:r><w:rPr><w:noProof/></w:rPr><w:t>er</w:t></w:r>"
    )
    assert word(content) == (run("TOGETHER"), ["together"])


def test_spaces_with_a_format_are_no_spans_unless_it_is_seen():
    content = run("One") + run(" ", "<w:b/>") + run("two")
    assert word(content) == (run("ONE TWO"), ["One two"])
    content = run("One") + run(" ", '<w:u w:val="single"/>') + run("two")
    assert word(content)[1] == ['One<g id="1"> </g>two']


def test_tabs_and_line_breaks_end_a_text():
    content = "<w:r><w:t>Name:</w:t><w:tab/><w:t>Ann</w:t><w:br/><w:t>12</w:t></w:r>"
    after, texts = word(content)
    assert texts == ["Name:", "Ann"]
    kept = "<w:r><w:tab/></w:r>", "<w:r><w:br/></w:r>"
    assert after == run("NAME:") + kept[0] + run("ANN") + kept[1] + run("12")


def test_hyperlinks_bookmarks_and_notes_are_kept():
    link = '<w:hyperlink w:anchor="a">{}</w:hyperlink>'
    style = '<w:rStyle w:val="Hyperlink"/>'
    mark = '<w:bookmarkStart w:id="0" w:name="b"/>'
    small = '<w:rPr><w:vertAlign w:val="superscript"/></w:rPr>'
    note = f'<w:r>{small}<w:footnoteReference w:id="2"/></w:r>'
    end = '<w:bookmarkEnd w:id="0"/>'
    content = mark + run("See ") + link.format(run("this page", style)) + run(".") + note + end
    after, texts = word(content)
    assert texts == ['See <g id="1">this page</g>.']
    translated_link = link.format(run("THIS PAGE", style))
    assert after == mark + run("SEE ") + translated_link + run(".") + note + end


def test_codes_of_fields_are_kept_and_links_are_translated():
    page = field(" PAGE ", run("Seven"))
    after, texts = word(run("Page ") + page + run(" of it"))
    assert texts == ['Page <x id="1"/> of it'] and after == run("PAGE ") + page + run(" OF IT")
    link = field(' HYPERLINK "http://a.b" ', run("here"))
    after, texts = word(run("Click ") + link + run(" please"))
    assert texts == ['Click <g id="1">here</g> please']
    assert after == run("CLICK ") + link.replace("here", "HERE") + run(" PLEASE")
    opening = field(" TOC ", run("Contents"))[: -len('<w:r><w:fldChar w:fldCharType="end"/></w:r>')]
    after, texts = word(opening)
    assert texts == ["Contents"] and after == opening.replace("Contents", "CONTENTS")


def test_deleted_text_is_kept_and_inserted_text_is_translated():
    content = (
        run("We ") + "<w:del><w:r><w:delText>gone</w:delText></w:r></w:del>"
        f"<w:ins>{run('stay')}</w:ins>" + run(" here")
    )
    after, texts = word(content)
    assert texts == ['We <x id="1"/><g id="2">stay</g> here']
    assert after == content.replace("We", "WE").replace("stay", "STAY").replace("here", "HERE")


def test_text_boxes_cells_headers_and_notes_are_translated():
    box = "<w:txbxContent><w:p>{}</w:p></w:txbxContent>"
    inner = f"<w:r><w:pict>{box.format(run('inside'))}</w:pict></w:r>"
    body = (
        f"<w:p>{run('around ')}{inner}{run('it')}</w:p>"
        f"<w:tbl><w:tr><w:tc><w:p>{run('cell')}</w:p></w:tc></w:tr></w:tbl>"
    )
    data = make_docx(
        body,
        header1=f"<w:p>{run('head')}</w:p>",
        footnotes=f"<w:footnote><w:p>{run('note')}</w:p></w:footnote>",
    )
    after, segments = translated(data, "a.docx")
    assert [one.text for one in segments] == [
        'around <x id="1"/>it',
        "inside",
        "cell",
        "head",
        "note",
    ]
    assert part(after, "word/document.xml").count("INSIDE") == 1
    assert part(after, "word/header1.xml").count("HEAD") == 1
    assert part(after, "word/footnotes.xml").count("NOTE") == 1
    touched = ("word/document.xml", "word/header1.xml", "word/footnotes.xml")
    assert_parts_are_kept(data, after, *touched)


def made_by_word() -> bytes:
    document = docx.Document()
    document.add_heading("A title", 1)
    paragraph = document.add_paragraph("Press ", style="List Bullet")
    paragraph.add_run("Enter").bold = True
    paragraph.add_run(" now").italic = True
    paragraph.add_run(", please.\tTabbed  text")
    paragraph.add_run().add_picture(io.BytesIO(PNG))
    table = document.add_table(1, 2)
    table.cell(0, 0).text, table.cell(0, 1).text = "A cell", "12"
    document.sections[0].header.paragraphs[0].text = "The header"
    buffer = io.BytesIO()
    document.save(buffer)
    return buffer.getvalue()


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


PNG = (
    b"\x89PNG\r\n\x1a\n"
    + _chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
    + _chunk(b"IDAT", zlib.compress(b"\0\0"))
    + _chunk(b"IEND", b"")
)


def runs_of(data: bytes) -> list[tuple[str, object]]:
    """Return the characters of a document with their formats, read by python-docx."""
    document = docx.Document(io.BytesIO(data))
    places = [*document.paragraphs, *document.sections[0].header.paragraphs]
    places += [p for row in document.tables[0].rows for cell in row.cells for p in cell.paragraphs]
    return [
        (character, (paragraph.style.name, run.bold, run.italic))
        for paragraph in places
        for run in paragraph.runs
        for character in run.text
    ]


def test_an_untranslated_document_is_the_same_for_python_docx():
    data = made_by_word()
    after, segments = translated(data, "a.docx", identity)
    assert len(segments) == 5
    assert runs_of(after) == runs_of(data) and len(runs_of(data)) > 40
    assert_parts_are_kept(data, after, "word/document.xml", "word/header1.xml")
    upper = runs_of(translated(data, "a.docx")[0])
    assert upper == [(character.upper(), kind) for character, kind in runs_of(data)]


@pytest.mark.parametrize(
    ("content", "text", "expected"),
    [
        ("Plain text", "Plain text", "PLAIN TEXT"),
        (
            'Press <text:span text:style-name="T2">Enter</text:span>.',
            'Press <g id="1">Enter</g>.',
            'PRESS <text:span text:style-name="T2">ENTER</text:span>.',
        ),
        ('to<text:span text:style-name="T1">get</text:span>her', "together", "TOGETHER"),
        (
            'an <text:span text:style-name="T3">unknown</text:span> property',
            'an <g id="1">unknown</g> property',
            'AN <text:span text:style-name="T3">UNKNOWN</text:span> PROPERTY',
        ),
        (
            'a <text:span text:style-name="T4">parent</text:span>',
            'a <g id="1">parent</g>',
            'A <text:span text:style-name="T4">PARENT</text:span>',
        ),
        ('a <text:s text:c="2"/>b <text:s/>c', "a   b  c", 'A <text:s text:c="2"/>B <text:s/>C'),
        ('<text:s text:c="4"/>a', "a", '<text:s text:c="4"/>A'),
        (" <text:s/>a<text:s/> ", "a", " <text:s/>A<text:s/> "),
        ("\n  a\n", " a ", " A "),
        (
            '<text:span text:style-name="T2"><text:s/>a</text:span>',
            "a",
            '<text:span text:style-name="T2"><text:s/>A</text:span>',
        ),
        ('<text:tab/><text:s text:c="2"/>a', "a", '<text:tab/><text:s text:c="2"/>A'),
        ("a\n   b", "a b", "A B"),
        ("a<text:soft-page-break/> b", "a b", "A B"),
        (
            'see <text:a text:name="n">it</text:a><text:bookmark text:name="b"/>',
            'see <g id="1">it</g>',
            'SEE <text:a text:name="n">IT</text:a><text:bookmark text:name="b"/>',
        ),
    ],
)
def test_paragraphs_of_opendocument(content, text, expected):
    data = make_odt(f"<text:p>{content}</text:p>")
    after, segments = translated(data, "a.odt")
    assert [one.text for one in segments] == [text]
    assert paragraphs(after, "content.xml") == [expected]
    assert_parts_are_kept(data, after, "content.xml", "styles.xml")


def test_notes_frames_headers_and_headings_of_opendocument():
    note = (
        "<text:note><text:note-citation>1</text:note-citation><text:note-body>"
        "<text:p>A note</text:p></text:note-body></text:note>"
    )
    frame = "<draw:frame><draw:text-box><text:p>A box</text:p></draw:text-box></draw:frame>"
    deleted = "<text:tracked-changes><text:p>gone</text:p></text:tracked-changes>"
    body = (
        f'{deleted}<text:h text:outline-level="1">Title</text:h>'
        f"<text:p>One{note} two<text:tab/>three<text:line-break/>four{frame}</text:p>"
    )
    after, segments = translated(make_odt(body, styles="<text:p>The head</text:p>"), "a.odt")
    assert [one.text for one in segments] == [
        "Title",
        'One<x id="1"/> two',
        "three",
        "four",
        "A note",
        "A box",
        "The head",
    ]
    expected = re.sub("Title|One|two|three|four|A note|A box", lambda match: match[0].upper(), body)
    assert expected in part(after, "content.xml") and "gone" in part(after, "content.xml")
    assert "<text:p>THE HEAD</text:p>" in part(after, "styles.xml")


def test_the_first_part_of_opendocument_stays_uncompressed():
    data, _ = translated(make_odt("<text:p>A</text:p>"), "a.odt")
    assert data[30:38] == b"mimetype" and data[38:50] == b"application/"


def test_text_that_xml_does_not_allow_is_left_out():
    assert word(run("A"), lambda _: ["a\0\x01\ud800b"])[0] == run("ab")
    assert word(run("A"), lambda _: ["a\0\x0bb"])[0] == run("a b")
    spans = run("Press ") + run("Enter", "<w:b/>")
    marked, _ = word(spans, lambda _: ['P\0 <g id="1">E\x01</g>'])
    assert marked == run("P ") + run("E", "<w:b/>")


def test_a_translation_that_lacks_elements_is_an_error():
    data = make_docx(f"<w:p>{run('Press ')}{run('Enter', '<w:b/>')}</w:p>")
    for wrong in ("Weiter", '<g id="1">a</g><g id="1">b</g>', '<g id="1">a'):
        with pytest.raises(ValueError, match="the translation of a fragment"):
            translated(data, "a.docx", lambda _, text=wrong: [text])


def test_other_archives_are_refused():
    with pytest.raises(UserError, match=r"a\.docx: has no \[Content_Types\]\.xml; save"):
        translated(make_odt("<text:p>A</text:p>"), "a.docx")
    with pytest.raises(UserError, match=r"a\.odt: has no content\.xml; save"):
        translated(make_docx(""), "a.odt")
    sheet = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet.main+xml"
    types = "http://schemas.openxmlformats.org/package/2006/content-types"
    override = f'<Override PartName="/xl/workbook.xml" ContentType="{sheet}"/>'
    content = {"[Content_Types].xml": f'<Types xmlns="{types}">{override}</Types>'}
    for parts in (content, content | {"xl/workbook.xml": "<workbook/>"}):
        with pytest.raises(UserError, match=r"a\.docx: is no Word document; save it as \.docx"):
            translated(make_zip(parts), "a.docx")


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ("word/kópf.xml".encode(), "word/kópf.xml"),
        ("word/κό.xml".encode(), "word/κό.xml"),
        (b"word/k\xa2pf.xml", "word/kópf.xml"),  # in cp437
    ],
)
def test_names_of_parts_without_the_flag_of_utf_8_are_kept(raw, name):
    placeholder = "x" * len(raw)
    archive = make_docx(f"<w:p>{run('A')}</w:p>", header1=f"<w:p>{run('Top')}</w:p>")
    with zipfile.ZipFile(io.BytesIO(archive)) as parts:
        content = {one: parts.read(one) for one in parts.namelist()}
    content[placeholder] = content.pop("word/header1.xml")
    types = content["[Content_Types].xml"].decode().replace("word/header1.xml", name)
    data = make_zip(content | {"[Content_Types].xml": types})
    after, segments = translated(data.replace(placeholder.encode(), raw), "a.docx")
    assert [segment.text for segment in segments] == ["A", "Top"]
    with zipfile.ZipFile(io.BytesIO(after)) as parts:
        assert name in parts.namelist() and b"TOP" in parts.read(name)


@pytest.mark.parametrize("properties", ["", "<w:b/>"])
def test_the_base_of_a_ruby_is_read_with_its_sentence_in_word(properties):
    def ruby(base: str) -> str:
        inner = f"<w:rubyPr/><w:rt>{run('kanji')}</w:rt><w:rubyBase>{base}</w:rubyBase>"
        return run("", properties).replace("<w:t></w:t>", f"<w:ruby>{inner}</w:ruby>")

    content = run("He reads ") + ruby(run("A long") + run(" word", "<w:b/>")) + run(" well.")
    after, texts = word(content)
    assert texts == ['He reads <g id="1">A long<g id="2"> word</g></g> well.']
    inner = run("A LONG") + run(" WORD", "<w:b/>")
    assert after == run("HE READS ") + ruby(inner) + run(" WELL.")
    moved, _ = word(content, lambda _: ['<g id="1">汉<g id="2">字</g></g> liest er'])
    assert moved == ruby(run("汉") + run("字", "<w:b/>")) + run(" liest er")
    empty = run("A ") + ruby("").replace("<w:rubyBase></w:rubyBase>", "") + run(" b")
    assert word(empty)[0] == empty.replace(" b<", " B<")


def test_the_base_of_a_ruby_is_read_with_its_sentence_in_opendocument():
    def ruby(base: str) -> str:
        inner = f"<text:ruby-base>{base}</text:ruby-base><text:ruby-text>kanji</text:ruby-text>"
        return f'<text:ruby text:style-name="T1">{inner}</text:ruby>'

    control = '<x:content-control xmlns:x="{}">{}</x:content-control>'.format
    space = "urn:org:documentfoundation:names:experimental:office:xmlns:loext:1.0"
    body = f"He reads {ruby('Chinese <text:s/>characters')} well, {control(space, 'I see')}."
    after, segments = translated(make_odt(f"<text:p>{body}</text:p>"), "a.odt")
    assert [one.text for one in segments] == [
        'He reads <g id="1">Chinese  characters</g> well, <g id="2">I see</g>.'
    ]
    written = paragraphs(after, "content.xml")[0]
    assert ruby("CHINESE <text:s/>CHARACTERS") in written
    assert written.endswith(">I SEE</x:content-control>.")
    assert written.startswith("HE READS <text:ruby") and " WELL, <x:" in written
    body = "A <text:ruby><text:ruby-text>kanji</text:ruby-text></text:ruby> b"
    after, _ = translated(make_odt(f"<text:p>{body}</text:p>"), "a.odt")
    assert paragraphs(after, "content.xml")[0] == body.replace("> b", "> B")
