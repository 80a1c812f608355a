"""Documents: what users of other servers complain about.

Issue numbers are those of LibreTranslate, unless another project is named.
"""

from __future__ import annotations

import time

import pytest
import requests

from tests.unit.made_documents import make_docx, make_odt, paragraphs
from tests.unit.made_server import MadeJob, made_service, serving
from tests.unit.test_serving_documents import TEXT, refusal, send

SPACE = 'xml:space="preserve"'
RUNS = f"<w:r><w:t {SPACE}>Some </w:t></w:r><w:r><w:rPr><w:b/></w:rPr><w:t>words</w:t></w:r>"
DOCX = make_docx(
    f"<w:p>{RUNS}</w:p><w:tbl><w:tr><w:tc><w:p>{RUNS}</w:p></w:tc></w:tr></w:tbl>",
    header1=f"<w:p>{RUNS}</w:p>",
)
SPANS = 'Some <text:span text:style-name="T2">words</text:span>'
ODT = make_odt(f"<text:h>{SPANS}</text:h><text:p>{SPANS}</text:p>", f"<text:p>{SPANS}</text:p>")
PARTS = {
    "a.docx": ("word/document.xml", "word/header1.xml"),
    "a.odt": ("content.xml", "styles.xml"),
}


@pytest.fixture
def job():
    job = MadeJob()
    job.respond = str.upper
    return job


def download(response: requests.Response) -> bytes:
    assert response.status_code == 200, response.text
    return requests.get(response.json()["translatedFileUrl"], timeout=60).content


@pytest.mark.parametrize(("data", "name"), [(DOCX, "a.docx"), (ODT, "a.odt")])
def test_947_office_files_do_not_come_back_unchanged(job, data, name):
    """Each paragraph of each part is translated, also if words have formats."""
    with serving(made_service(job, wait_milliseconds=0)) as address:
        after = download(send(address, data, name))
    before = [text for part in PARTS[name] for text in paragraphs(data, part)]
    translated = [text for part in PARTS[name] for text in paragraphs(after, part)]
    assert translated == [text.replace("Some", "SOME").replace("words", "WORDS") for text in before]
    assert len(before) == 3


@pytest.mark.parametrize("name", ["a.docx", "a.odt", "a.txt", "a.po", "a.srt"])
def test_683_a_file_without_text_is_refused_instead_of_returned(job, name):
    times = "1\n00:00:00,000 --> 00:00:01,000\n12\n"
    data = {
        "a.docx": make_docx("<w:p><w:r><w:t>12</w:t></w:r></w:p>"),
        "a.odt": make_odt("<text:p>12</text:p>"),
        "a.txt": b"12",
        "a.po": b'msgid "Some words"\nmsgstr "Worte"\n',
        "a.srt": times.encode(),
    }
    with serving(made_service(job, wait_milliseconds=0)) as address:
        status, error = refusal(send(address, data[name], name))
    assert status == 400 and "there is nothing to translate" in error


@pytest.mark.parametrize(
    ("count", "fields", "message"),
    [(1, {}, "missing target_lang parameter"), (2, {"target_lang": "DE"}, "file: send one file")],
)
def test_a_document_needs_one_file_and_a_target(job, count, fields, message):
    files = [("file", ("a.txt", TEXT))] * count
    with serving(made_service(job, wait_milliseconds=0)) as address:
        response = requests.post(f"{address}/v2/document", fields, files=files, timeout=60)
    assert response.status_code == 400 and message in response.json()["message"]


def test_683_a_failed_translation_is_an_error_instead_of_the_file(job):
    job.respond = None
    with serving(made_service(job, wait_milliseconds=0)) as address:
        response = send(address, make_odt("<text:p>Fail.</text:p>"), "a.odt")
    assert refusal(response) == (500, "the translation failed")


def test_875_a_long_document_with_pictures_does_not_get_stuck(job):
    """19 pages and 3.8 MB, as in the issue."""
    text = "".join(f"<text:p>This is sentence {number} of many.</text:p>" for number in range(900))
    picture = {"Pictures/b.png": bytes(range(256)) * 15_000}
    with serving(made_service(job, wait_milliseconds=0)) as address:
        start = time.monotonic()
        after = download(send(address, make_odt(text, **picture), "a.odt"))
        assert time.monotonic() - start < 60
    assert paragraphs(after, "content.xml")[899] == "THIS IS SENTENCE 899 OF MANY."


def test_875_a_document_that_takes_too_long_ends_with_an_error(job):
    """Also for clients that ask for the status."""
    job.gate.clear()
    settings = {"wait_milliseconds": 0, "document_timeout": 1}
    with serving(made_service(job, **settings)) as address:
        assert refusal(send(address, ODT, "a.odt"))[0] == 503
        files = {"file": ("a.odt", ODT)}
        fields = {"source_lang": "EN", "target_lang": "DE"}
        handle = requests.post(f"{address}/v2/document", fields, files=files, timeout=60).json()
        url = f"{address}/v2/document/{handle['document_id']}"
        deadline, status = time.monotonic() + 30, {"status": ""}
        while status["status"] != "error" and time.monotonic() < deadline:
            status = requests.post(url, {"document_key": handle["document_key"]}, timeout=60).json()
            time.sleep(0.05)
        job.gate.set()
    assert status["error_message"] == "the translation took too long; divide the document"


def test_476_a_file_of_text_is_translated_as_the_text(job):
    text = "Remember that it is late.\n\nSee {name}: 12.\n"
    fields = {"q": text, "source": "en", "target": "de"}
    with serving(made_service(job, wait_milliseconds=0)) as address:
        file = download(send(address, text.encode())).decode()
        answer = requests.post(f"{address}/translate", fields, timeout=60).json()
    assert file == answer["translatedText"] != text


def test_688_headers_and_footers_are_translated(job):
    run = "<w:p><w:r><w:t>Some words</w:t></w:r></w:p>"
    data = make_docx(run, header1=run, footer1=run, footnotes=f"<w:footnote>{run}</w:footnote>")
    with serving(made_service(job, wait_milliseconds=0)) as address:
        after = download(send(address, data, "a.docx"))
    for part in ("document", "header1", "footer1", "footnotes"):
        assert paragraphs(after, f"word/{part}.xml") == ["<w:r><w:t>SOME WORDS</w:t></w:r>"]


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("a.docx", DOCX, "Some words" * 3),
        ("a.odt", ODT, "Some words" * 3),
        ("a.srt", b"1\n00:00:01,000 --> 00:00:02,000\nA {\\i1}&{\\i0} b\n", "A & b"),
        ("a.html", b"<p class='long'>Some <b>words</b></p><script>var a</script>", "Some words"),
    ],
)
def test_formatting_does_not_count_towards_quotas(job, name, data, text):
    with serving(made_service(job, wait_milliseconds=0)) as address:
        send(address, data, name)
        usage = requests.get(f"{address}/v2/usage", timeout=60).json()
    assert usage["character_count"] == len(text)
