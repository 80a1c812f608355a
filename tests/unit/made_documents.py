"""Made documents of every format, and a translator that marks words."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping, Sequence

from lxml import etree

from mnmt_jax.documents.formats import read_document
from mnmt_jax.documents.segments import DocumentOptions, Segment

_WORD = re.compile(r"<[^>]*>|&\w+;|[^\W\d_]+")
ODT_HEAD = (
    'xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0" '
    'xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0" '
    'xmlns:style="urn:oasis:names:tc:opendocument:xmlns:style:1.0" '
    'xmlns:draw="urn:oasis:names:tc:opendocument:xmlns:drawing:1.0" '
    'xmlns:fo="urn:oasis:names:tc:opendocument:xmlns:xsl-fo-compatible:1.0" '
    'xmlns:x="http://example.org/editing" office:version="1.3"'
)
ODT_STYLES = (
    '<style:style style:name="T1" style:family="text">'
    '<style:text-properties x:rsid="00a1"/></style:style>'
    '<style:style style:name="T2" style:family="text">'
    '<style:text-properties fo:font-weight="bold"/></style:style>'
    '<style:style style:name="T3" style:family="text">'
    '<style:text-properties x:rsidious="1"/></style:style>'
    '<style:style style:name="T4" style:family="text" style:parent-style-name="T2">'
    '<style:text-properties x:rsid="00a1"/></style:style>'
)


def capitals(segments: Sequence[Segment]) -> list[str]:
    """Translate words into capitals, outside of tags and references."""
    return [
        _WORD.sub(lambda match: match[0] if match[0][0] in "<&" else match[0].upper(), one.text)
        if one.markup
        else one.text.upper()
        for one in segments
    ]


def translated(
    data: bytes | str, name: str, translate=capitals, **options: object
) -> tuple[bytes, list[Segment]]:
    """Return the translated document and its segments."""
    seen: list[Segment] = []

    def record(segments: Sequence[Segment]) -> Sequence[str]:
        seen.extend(segments)
        return translate(segments)

    data = data.encode() if isinstance(data, str) else data
    languages = DocumentOptions(**{"source": "en", "target": "de"} | options)
    document = read_document(data, name, languages)
    return document.write(record(document.segments)), seen


def identity(segments: Sequence[Segment]) -> list[str]:
    return [segment.text for segment in segments]


def make_zip(parts: Mapping[str, str | bytes], stored: Sequence[str] = ("mimetype",)) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in parts.items():
            method = zipfile.ZIP_STORED if name in stored else zipfile.ZIP_DEFLATED
            archive.writestr(name, text, method)
    return buffer.getvalue()


def make_odt(body: str, styles: str = "", **parts: str | bytes) -> bytes:
    """Return an OpenDocument text with the content of its body and of its master page."""
    content = (
        f"<office:document-content {ODT_HEAD}><office:automatic-styles>{ODT_STYLES}"
        f"</office:automatic-styles><office:body><office:text>{body}</office:text></office:body>"
        "</office:document-content>"
    )
    masters = (
        f"<office:document-styles {ODT_HEAD}><office:master-styles><style:master-page>"
        f"<style:header>{styles}</style:header></style:master-page></office:master-styles>"
        "</office:document-styles>"
    )
    mimetype = "application/vnd.oasis.opendocument.text"
    named = {"mimetype": mimetype, "content.xml": content, "styles.xml": masters}
    return make_zip(named | {"META-INF/manifest.xml": "<m/>", "Pictures/a.png": b"\x89PNG"} | parts)


W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_WORD_TYPE = "application/vnd.openxmlformats-officedocument.wordprocessingml"


def make_docx(body: str, **others: str) -> bytes:
    """Return a Word document with the content of its body, and of other parts, such as header1."""
    roots = {"document": "document", "header": "hdr", "footer": "ftr", "footnotes": "footnotes"}
    kinds = {"document": "document.main"}
    parts, overrides = {}, ""
    for name, text in {"document": f"<w:body>{body}</w:body>", **others}.items():
        kind = name.rstrip("0123456789")
        root = roots[kind]
        parts[f"word/{name}.xml"] = f'<w:{root} xmlns:w="{W}">{text}</w:{root}>'
        overrides += (
            f'<Override PartName="/word/{name}.xml" '
            f'ContentType="{_WORD_TYPE}.{kinds.get(kind, kind)}+xml"/>'
        )
    types = "http://schemas.openxmlformats.org/package/2006/content-types"
    head = {"[Content_Types].xml": f'<Types xmlns="{types}">{overrides}</Types>'}
    return make_zip(head | parts | {"word/media/image1.png": b"\x89PNG", "word/styles.xml": "<s/>"})


def part(data: bytes, name: str) -> str:
    """Return a part of an archive without declarations of namespaces."""
    text = zipfile.ZipFile(io.BytesIO(data)).read(name).decode()
    return re.sub(r'\s+xmlns:\w+="[^"]*"|<\?xml[^>]*\?>\s*', "", text)


def paragraphs(data: bytes, name: str) -> list[str]:
    """Return the paragraphs of a part that are in no other, without the element's attributes."""
    root = etree.fromstring(zipfile.ZipFile(io.BytesIO(data)).read(name))
    result = []
    for element in root.iter("{*}p", "{*}h"):
        text = etree.tostring(element, encoding="unicode", with_tail=False)
        text = re.sub(r'\s+xmlns:\w+="[^"]*"', "", text)
        if not any(parent.tag in (element.tag,) for parent in element.iterancestors()):
            result.append(re.sub(r"^<[^>]*>|</[^>]*>$", "", text))
    return result


def assert_parts_are_kept(before: bytes, after: bytes, *touched: str) -> None:
    """Assert that parts, their order and their compression are kept, but the touched ones."""
    archives = [zipfile.ZipFile(io.BytesIO(data)) for data in (before, after)]
    first, second = ([(e.filename, e.compress_type) for e in one.infolist()] for one in archives)
    assert first == second
    kept = [name for name in archives[0].namelist() if name not in touched]
    assert kept
    for name in kept:
        assert archives[0].read(name) == archives[1].read(name), name
