"""LibreOffice help pages: sentences in several languages, aligned by paragraph ids.

Each paragraph of a page has the id of its English original in all languages. Page and id identify
translations of each other, so no alignment model is needed.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

from mnmt_jax.errors import UserError
from mnmt_jax.files.path_checks import check_inside

MAX_PAGE_BYTES = 4 << 20
"""Largest help page that is read; real ones have up to 0.2 MB."""

_ID_PREFIXES = ("par_", "hd_")
_VOID_TAGS = frozenset("br col hr img input link meta source wbr".split())
_HIDDEN_TAGS = ("script", "style")
_HELD_OUT = {"test": range(5), "validation": range(5, 10)}  # of 100 buckets of pages
_MIN_WORDS = 4
_MIN_LETTER_FRACTION = 0.75  # of letters and blanks in an English sentence
_LENGTH_RATIO_RANGE = (0.4, 2.5)  # translation to English, after adding ten characters to both

# A sentence ends at white space after a stop, or after a stop and a closing quote or bracket, if a
# possible start of a sentence follows.
_SENTENCE_END = re.compile(r"""(?:(?<=[.!?])|(?<=[.!?]["”“»’)]))\s+(?=[^\W\d_a-z]|["“„«¿¡(])""")
_ABBREVIATION_END = re.compile(
    r"\b(?:e\.g|i\.e|etc|vs|no|nr|fig|abb|z\.\s?b|d\.\s?h|bzw|usw|ggf|p\.\s?ex|ecc|ad es|např"
    r"|tzv)\.$",
    re.IGNORECASE,
)
_MAX_ABBREVIATION_LENGTH = 16  # length of the longest of these and a character before it


@dataclass(frozen=True)
class Segment:
    """An English sentence or paragraph with its translations.

    Attributes:
        location: page, id of the paragraph, and sentence number in it from 0, separated by tabs.
        split: "train", "validation" or "test"; the same for all segments of a page.
        page_number: number of the page in reading order, from 0: test pages first, training pages
            last.
        texts: text by language, English first; languages without a good translation are absent.
    """

    location: str
    split: str
    page_number: int
    texts: Mapping[str, str]


def segments(folders: Mapping[str, Path]) -> Iterator[Segment]:
    """Yield the aligned segments of all pages: test pages first, training pages last.

    Sentences that differ only in case and punctuation are deduplicated; the first is kept. So no
    English sentence of a held-out split is in another split.

    Args:
        folders: folder of each language's pages, with the same file names in all; includes "en".

    Raises:
        UserError: if a page is a link that leads out of its language's folder, is larger than
            `MAX_PAGE_BYTES`, or has a name with a control character.
    """
    pages = [path.relative_to(folders["en"]) for path in folders["en"].rglob("*.html")]
    seen: set[str] = set()
    for turn, page in enumerate(sorted(pages, key=lambda page: (_bucket(page), str(page)))):
        texts = {code: _checked_paragraphs(folder, page) for code, folder in folders.items()}
        for name in texts["en"]:
            paragraph = {code: by_id.get(name, "") for code, by_id in texts.items()}
            for number, sentence_row in enumerate(_align(paragraph)):
                translations = {
                    code: text
                    for code, text in sentence_row.items()
                    if _is_translation(sentence_row["en"], text)
                }
                skeleton = re.sub(r"\W+", "", sentence_row["en"].lower())
                if translations and skeleton not in seen:
                    seen.add(skeleton)
                    place = f"{page.as_posix()}\t{name}\t{number}"
                    yield Segment(
                        place, split_of(page), turn, {"en": sentence_row["en"], **translations}
                    )


def split_of(page: Path) -> str:
    """Return the split of a page, which depends only on its name."""
    bucket = _bucket(page)
    return next((split for split, buckets in _HELD_OUT.items() if bucket in buckets), "train")


def paragraphs(page: Path) -> dict[str, str]:
    """Return the paragraphs of a page by id; none if the page does not exist.

    The second paragraph with the same id, in a section that a page repeats, has the suffix "#2".
    """
    if not page.is_file():
        return {}
    with page.open("rb") as file:
        content = file.read(MAX_PAGE_BYTES + 1)
    if len(content) > MAX_PAGE_BYTES:
        raise UserError(f"{page}: is larger than {MAX_PAGE_BYTES >> 20} MiB; this is no help page")
    reader = _PageReader()
    reader.feed(content.decode("utf-8", errors="replace"))
    reader.close()
    joined = {
        name: unicodedata.normalize("NFC", "".join(chunks)) for name, chunks in reader.texts.items()
    }
    return {name: " ".join(text.split()) for name, text in joined.items()}


def _checked_paragraphs(folder: Path, page: Path) -> dict[str, str]:
    """Return the paragraphs of a page, after checks of its name and location."""
    if not str(page).isprintable():
        raise UserError(f"{ascii(str(folder / page))}: has a control character; rename the page")
    check_inside(folder / page, folder)
    return paragraphs(folder / page)


def sentences(text: str) -> list[str]:
    """Split a paragraph into sentences; knows some abbreviations of the help's languages."""
    result, begin = [], 0
    for end in _SENTENCE_END.finditer(text):
        if not _ABBREVIATION_END.search(
            text[max(begin, end.start() - _MAX_ABBREVIATION_LENGTH) : end.start()]
        ):
            result.append(text[begin : end.start()].strip())
            begin = end.end()
    return [sentence for sentence in (*result, text[begin:].strip()) if sentence]


@dataclass(frozen=True)
class _Element:
    """An open element.

    Attributes:
        tag: tag name.
        name: id of the paragraph that its text belongs to.
        silent: whether its text is hidden.
    """

    tag: str
    name: str = ""
    silent: bool = False


class _PageReader(HTMLParser):
    """HTML parser that collects the text of each paragraph with an id of the original."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.texts: dict[str, list[str]] = {}
        self._open = [_Element("")]
        self._open_tags: Counter[str] = Counter()
        self._id_counts: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "br":
            self.handle_data(" ")
        if tag in _VOID_TAGS:
            return
        attributes, outer = dict(attrs), self._open[-1]
        name = attributes.get("id") or ""
        # Of variants per operating system the default is shown, although all have `hidden`.
        hidden = "hidden" in attributes and not name.startswith("default")
        silent = (
            outer.silent
            or hidden
            or tag in _HIDDEN_TAGS
            or "code" in (attributes.get("class") or "")
        )
        is_paragraph = name.startswith(_ID_PREFIXES) and not silent
        self._open_tags[tag] += 1
        self._open.append(
            _Element(tag, self._add_paragraph(name) if is_paragraph else outer.name, silent)
        )

    def handle_endtag(self, tag: str) -> None:
        if not self._open_tags[tag]:
            return
        closed = ""
        while closed != tag:
            closed = self._open.pop().tag
            self._open_tags[closed] -= 1

    def handle_data(self, data: str) -> None:
        element = self._open[-1]
        if element.name and not element.silent:
            self.texts[element.name].append(data)

    def _add_paragraph(self, name: str) -> str:
        """Return a unique name for a paragraph and add an entry for its text."""
        self._id_counts[name] += 1
        unique = name if self._id_counts[name] == 1 else f"{name}#{self._id_counts[name]}"
        self.texts.setdefault(unique, [])
        return unique


def _align(texts: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """Yield aligned sentences, or the paragraph if the languages differ in sentence counts."""
    by_language = {code: sentences(text) for code, text in texts.items()}
    if len({len(language_sentences) for language_sentences in by_language.values()}) > 1:
        yield texts
        return
    for row in zip(*by_language.values(), strict=True):
        yield dict(zip(by_language, row, strict=True))


def _is_translation(english: str, other: str) -> bool:
    """Return whether a text is long enough, is not code, and differs from the English text."""
    if not other or other == english or len(english.split()) < _MIN_WORDS:
        return False
    minimum, maximum = _LENGTH_RATIO_RANGE
    letters = sum(character.isalpha() or character.isspace() for character in english)
    return (
        letters >= _MIN_LETTER_FRACTION * len(english)
        and minimum < (len(other) + 10) / (len(english) + 10) < maximum
    )


def _bucket(page: Path) -> int:
    """Return the bucket of a page, from 0 to 99."""
    return int(hashlib.sha256(page.as_posix().encode()).hexdigest(), 16) % 100
