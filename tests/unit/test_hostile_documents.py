"""Documents that are damaged or made to harm: one line of error, little memory and time."""

from __future__ import annotations

import contextlib
import io
import random
import re
import struct
import zipfile

import pytest

from mnmt_jax.documents import zip_archive
from mnmt_jax.documents.formats import FORMATS, read_document
from mnmt_jax.documents.segments import DocumentOptions
from mnmt_jax.errors import UserError
from tests.processor_time import is_quicker_than
from tests.unit.made_documents import capitals, identity, make_docx, make_odt, make_zip, translated
from tests.unit.made_markup import translate as markup_translation
from tests.unit.test_document_markdown import PAGE
from tests.unit.test_file_bombs import little_memory
from tests.unit.test_interchange_documents import PO, TMX, XLIFF2, xliff1
from tests.unit.test_text_documents import SRT

DOCX = make_docx("<w:p><w:r><w:t>A text</w:t></w:r></w:p>")
ODT = make_odt("<text:p>A text</text:p>")
HTML = '<!doctype html><html lang="en"><p>A <b>text</b></p></html>'
DOCUMENTS = {
    "a.txt": b"A text.\n",
    "a.md": PAGE.encode(),
    "a.html": HTML.encode(),
    "a.docx": DOCX,
    "a.odt": ODT,
    "a.srt": SRT.encode(),
    "a.po": PO.encode(),
    "a.xliff": xliff1().encode(),
    "a.xlf": XLIFF2.encode(),
    "a.tmx": TMX.encode(),
}


def refused(data: bytes, name: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        translated(data, name)
    assert "\n" not in str(caught.value) and str(caught.value).startswith(name)


def test_every_format_has_an_example():
    assert {name.removeprefix("a") for name in DOCUMENTS} == {*FORMATS} - {".htm"}


def archive_with(name: str, size: int = 1) -> bytes:
    buffer = io.BytesIO(ODT)
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, bytes(size))
    return buffer.getvalue()


def test_zip_bombs_are_refused_before_they_are_unpacked():
    big = bytearray(archive_with("a" * 20, 5 << 20))
    with little_memory():
        refused(bytes(big), "a.odt", "a.odt: unpacks to more than 200 times its size; refused")
    entry = big.rindex(b"PK\1\2")
    struct.pack_into("<I", big, entry + 24, 0x7FFFFFFF)
    with little_memory():
        refused(bytes(big), "a.odt", "a.odt: unpacks to more than 256 MiB; refused")


def test_many_parts_are_refused(monkeypatch):
    monkeypatch.setattr(zip_archive, "MAX_ENTRIES", 3)
    refused(ODT, "a.odt", "a.odt: has more than 3 parts; refused")


def test_long_parts_are_refused(monkeypatch):
    monkeypatch.setattr(zip_archive, "MAX_PART_BYTES", 1 << 20)
    data = make_odt(f"<text:p>{random.Random(0).randbytes(1 << 20).hex()}</text:p>")
    refused(data, "a.odt", "a.odt: has more than 1 MiB of text in one part; refused")


def test_a_part_that_is_longer_than_it_says_is_refused():
    data = bytearray(ODT)
    entry = data.index(b"PK\1\2", data.index(b"content.xml", data.index(b"PK\1\2")) - 46)
    (size,) = struct.unpack_from("<I", data, entry + 24)
    struct.pack_into("<I", data, entry + 24, size - 9)
    refused(bytes(data), "a.odt", "a.odt: is no complete zip archive; save the document again")


def test_damage_of_any_part_is_noticed_before_translation():
    data = bytearray(make_odt("<text:p>A text</text:p>", **{"Pictures/b.png": "<m/>" * 9}))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
    for entry in entries.values():
        damaged = bytearray(data)
        damaged[entry.header_offset + 30 + len(entry.filename)] ^= 0x55
        with pytest.raises(UserError, match=r"a\.odt: is no complete zip archive; save"):
            read_document(bytes(damaged), "a.odt", DocumentOptions("de"))
    assert len(entries) == 6


@pytest.mark.parametrize("name", ["../a", "/a", "a/../../b", "a\\b", "\\a"])
def test_names_that_lead_out_of_an_archive_are_refused(name):
    refused(archive_with(name), "a.odt", "has a part whose name leads out of the archive; refused")


def test_unusual_archives_are_refused():
    with pytest.warns(UserWarning, match="Duplicate"):
        twice = archive_with("content.xml")
    refused(twice, "a.odt", "a.odt: has two parts of one name; refused")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("content.xml", "a")
    refused(buffer.getvalue(), "a.odt", "a.odt: is compressed in an unusual way; refused")
    encrypted = bytearray(ODT)
    encrypted[encrypted.index(b"PK\1\2") + 8] |= 1
    refused(bytes(encrypted), "a.odt", "a.odt: is encrypted; save it without a password")
    manifest = {"META-INF/manifest.xml": "<m><encryption-data/></m>"}
    inside = make_odt("<text:p>A</text:p>", **manifest)
    refused(inside, "a.odt", "a.odt: is encrypted; save it without a password")


ENTITIES = '<!DOCTYPE {0} [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'
EXTERNAL = '<!DOCTYPE {0} [<!ENTITY a SYSTEM "file:///etc/hostname">]>'


@pytest.mark.parametrize("doctype", [ENTITIES, EXTERNAL])
def test_entities_are_refused_in_documents(doctype):
    message = "declares entities, which can grow to any size; refused"
    content = f"{doctype.format('x')}<x>&b;</x>"
    refused(make_zip({"content.xml": content}), "a.odt", f"a.odt/content.xml: {message}")
    refused(make_zip({"[Content_Types].xml": content}), "a.docx", message)
    for name, root in (("a.tmx", "tmx"), ("a.xlf", "xliff")):
        refused(f"{doctype.format(root)}<{root}>&b;</{root}>".encode(), name, message)


def test_a_dtd_elsewhere_is_not_read(tmp_path):
    (tmp_path / "a.dtd").write_text('<!ENTITY x "read">')
    data = TMX.replace("tmx14.dtd", f"{tmp_path}/a.dtd").replace("red<", "red &x;<")
    assert "RED &x;<" in translated(data, "a.tmx")[0].decode()


def test_deep_elements_are_refused():
    deep = "<text:span>" * 5000
    refused(make_odt(f"<text:p>{deep}a"), "a.odt", "Excessive depth")
    data = f"<tmx>{'<a>' * 5000}"
    refused(data.encode(), "a.tmx", "Excessive depth")


@pytest.mark.parametrize("name", ["a.pdf", "a", "a.DOC", "docx", ".txt", "a.txt.exe"])
def test_other_formats_are_refused(name):
    with pytest.raises(
        UserError, match=rf"{re.escape(name)}: .*the file extension must be one of \.txt, \.md, "
    ):
        translated(b"A text", name)
    assert translated(b"A text", "A.TXT")[0] == b"A TEXT"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_damaged_files_give_one_line_or_a_document(name):
    """Cut, and with bytes changed, inserted and removed."""
    data = DOCUMENTS[name]
    draw = random.Random(len(data))
    kinds = {"document": 0, "refused": 0}
    for trial in range(150):
        damaged = bytearray(data)
        for _ in range(draw.choice((1, 1, 3, 20))):
            place = draw.randrange(len(damaged))
            if trial % 3 == 0:
                del damaged[place:]
            elif trial % 3 == 1:
                damaged[place] = draw.choice((0, 0xFF, ord("<"), ord('"'), draw.randrange(256)))
            else:
                damaged[place:place] = draw.choice((b"<", b"]]>", b"&", b"\n\n", b"\xc3", b"\0"))
            damaged = damaged or bytearray(b" ")
        try:
            translated(bytes(damaged), name, identity)
            kinds["document"] += 1
        except UserError as error:
            assert "\n" not in str(error) and name in str(error)
            kinds["refused"] += 1
    assert all(kinds.values()), kinds


def run_of(text: str) -> str:
    return f"<w:r>{text}</w:r>"


KINDS = ("begin", "separate", "end")
MARK = {kind: run_of(f'<w:fldChar w:fldCharType="{kind}"/>') for kind in KINDS}
LINK = MARK["begin"] + run_of("<w:instrText>HYPERLINK x</w:instrText>") + MARK["separate"]


WORD = run_of("<w:t>a</w:t>")


@pytest.mark.parametrize("depth", [200, 1500])
@pytest.mark.parametrize(
    ("page", "opening", "closing"),
    [
        ("a.md", "*a ", " c*"),
        ("a.md", "~~a ", " c~~"),
        ("a.md", "<b>a ", " c</b>"),
        ("a.docx", LINK + WORD, MARK["end"]),
        ("a.docx", MARK["begin"], MARK["end"]),
        ("a.docx", f"<w:ins>{(LINK + WORD) * 9}", f"{MARK['end'] * 9}</w:ins>"),
        ("a.odt", '<text:span text:style-name="T2">a ', "</text:span>"),
        ("a.xlf", '<g id="1">a ', " c</g>"),
    ],
)
def test_deeply_nested_spans_are_translated_or_refused(page, opening, closing, depth):
    make = {
        "a.md": "{}\n".format,
        "a.docx": lambda text: make_docx(f"<w:p>{WORD}{text}</w:p>"),
        "a.odt": lambda text: make_odt(f"<text:p>One {text}</text:p>"),
        "a.xlf": lambda text: xliff1().replace("Press ", f"Press {text}"),
    }[page]
    middle = run_of("<w:t>Hello</w:t>") if page == "a.docx" else "Hello"

    def by_sentences(segments):
        return [markup_translation(one.text, markup=one.markup)[0] for one in segments]

    data = make(opening * depth + middle + closing * depth)
    try:
        after, _ = translated(data, page, by_sentences if depth == 200 else capitals)
    except UserError as error:
        assert depth > 200 and "Excessive depth" in str(error)
    else:
        assert after != data


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.srt", "\n" * 200_000),
        ("a.srt", "1" * 200_000),
        ("a.srt", "00:00:00,000 --> " * 20_000),
        ("a.srt", "1\n00:00:00,000 --> 00:00:01,000\na\n" * 5000),
        ("a.srt", "1\n00:00:00,000 --> 00:00:01,000\n" + "<a\n" * 3000),
        ("a.srt", "1\n00:00:00,000 --> 00:00:01,000\n" + "a b\n" * 3000),
        ("a.po", 'msgid "a"\nmsgstr ""\n' * 5000),
        ("a.po", 'msgid ""\n' + '"a"\n' * 10000 + 'msgstr ""\n'),
        ("a.html", "<meta " * 100_000),
        ("a.html", '<meta charset="punycode"><p>A text-' + "a" * 1_000_000),
        ("a.html", '<meta charset="big5"><p>' + "é a" * 100_000),
        ("a.po", 'msgid ""\nmsgstr "Content-Type: a; charset=punycode"\n-' + "a" * 1_000_000),
        ("a.po", 'msgid ""\nmsgstr "' + "Content-Type: a" * 100_000 + '"\n'),
        ("a.po", 'msgid ""\n' * 5000 + "\n" * 100_000),
        ("a.tmx", "<!--" * 100_000),
        ("a.tmx", "<tmx>" + "<?a?>" * 100_000 + "</tmx>"),
        ("a.odt", "<text:p>a<text:s/></text:p>" * 5000),
        ("a.odt", "<text:p>" + "a<text:s/>" * 5000 + "</text:p>"),
        ("a.odt", "<text:p>" + "a<text:tab/>" * 5000 + "</text:p>"),
        ("a.odt", "<text:p>" + '<text:s text:c="999999999"/>' * 200 + "a</text:p>"),
        ("a.odt", "<text:p>" + "<text:span>a</text:span> b" * 40_000 + "</text:p>"),
        ("a.docx", "<w:p>" + "<w:r><w:t>a</w:t></w:r>" * 5000 + "</w:p>"),
        ("a.docx", "<w:p>" + '<w:r><w:fldChar w:fldCharType="begin"/></w:r>' * 5000 + "</w:p>"),
        (
            "a.docx",
            "<w:p>" + "<w:ins>" * 200 + "<w:r><w:t>a</w:t></w:r>" + "</w:ins>" * 200 + "</w:p>",
        ),
    ],
)
def test_repetitive_files_take_little_time(name, text):
    make = {"a.odt": make_odt, "a.docx": make_docx}.get(name, str.encode)
    data = make(text)

    def run():
        with contextlib.suppress(UserError):
            translated(data, name, identity)

    assert is_quicker_than(10, run)
