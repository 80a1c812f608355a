"""Sentences of LibreOffice's help pages in several languages, aligned by what the pages say.

Every paragraph of a page has the id of its English original, the same in every language, so that
nothing is guessed: page and id say which paragraphs are translations of each other.
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

_IDS = ("par_", "hd_")
_EMPTY = frozenset("br col hr img input link meta source wbr".split())
_QUIET = ("script", "style")
_HELD_OUT = {"test": range(5), "validation": range(5, 10)}  # of a hundred parts of the pages
_LEAST_WORDS = 4
_LETTERS = 0.75  # share of an English sentence that letters and blanks have at least
_LENGTHS = (0.4, 2.5)  # of a translation by its original, both with ten characters more

# The end of a sentence is a blank after a full stop, perhaps with a quote or bracket behind it, and
# before what may begin one.
_END = re.compile(r"""(?:(?<=[.!?])|(?<=[.!?]["”“»’)]))\s+(?=[^\W\d_a-z]|["“„«¿¡(])""")
_NO_END = re.compile(
    r"\b(?:e\.g|i\.e|etc|vs|no|nr|fig|abb|z\.\s?b|d\.\s?h|bzw|usw|ggf|p\.\s?ex|ecc|ad es|např"
    r"|tzv)\.$",
    re.IGNORECASE,
)
_ABBREVIATION = 16  # characters that hold any of these and one before


@dataclass(frozen=True)
class Segment:
    """An English sentence, or a whole paragraph, with its translations.

    Attributes:
        place: page, id of the paragraph, and number within it from 0, with tabs.
        split: "train", "validation" or "test"; all of a page has the same.
        turn: number of the page, from 0; pages come in the order of the splits' deal.
        texts: by language, English first; a language without a good translation is not there.
    """

    place: str
    split: str
    turn: int
    texts: Mapping[str, str]


def segments(folders: Mapping[str, Path]) -> Iterator[Segment]:
    """Yields what the pages of several languages say, test pages first, training pages last.

    Of sentences that are alike but for case and punctuation the first is taken, so that no English
    sentence of a held-out split is in another split.

    Args:
        folders: pages of each language, under the same names in all; English ("en") among them.

    Raises:
        UserError: if a page is a link that leads out of its language's folder, is larger than
            `MAX_PAGE_BYTES`, or has a name that does not fit a line of text.
    """
    pages = [path.relative_to(folders["en"]) for path in folders["en"].rglob("*.html")]
    known: set[str] = set()
    for turn, page in enumerate(sorted(pages, key=lambda page: (_part(page), str(page)))):
        texts = {code: _checked_paragraphs(folder, page) for code, folder in folders.items()}
        for name in texts["en"]:
            own = {code: found.get(name, "") for code, found in texts.items()}
            for number, row in enumerate(_aligned(own)):
                good = {
                    code: text for code, text in row.items() if _is_translation(row["en"], text)
                }
                skeleton = re.sub(r"\W+", "", row["en"].lower())
                if good and skeleton not in known:
                    known.add(skeleton)
                    place = f"{page.as_posix()}\t{name}\t{number}"
                    yield Segment(place, split_of(page), turn, {"en": row["en"], **good})


def split_of(page: Path) -> str:
    """Returns the split of a page, which follows from its name alone."""
    part = _part(page)
    return next((split for split, parts in _HELD_OUT.items() if part in parts), "train")


def paragraphs(page: Path) -> dict[str, str]:
    """Returns the paragraphs of a page by their ids; none if it is not there.

    The second paragraph with an id, of a section that stands in the page twice, has "#2" behind it.
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
        name: unicodedata.normalize("NFC", "".join(parts)) for name, parts in reader.texts.items()
    }
    return {name: " ".join(text.split()) for name, text in joined.items()}


def _checked_paragraphs(folder: Path, page: Path) -> dict[str, str]:
    """Returns the paragraphs of a page that may be read and named."""
    if not str(page).isprintable():
        raise UserError(f"{ascii(str(folder / page))}: has a control character; rename the page")
    check_inside(folder / page, folder)
    return paragraphs(folder / page)


def sentences(text: str) -> list[str]:
    """Cuts a paragraph into sentences; knows a few abbreviations of the help's languages."""
    found, begin = [], 0
    for end in _END.finditer(text):
        if not _NO_END.search(text[max(begin, end.start() - _ABBREVIATION) : end.start()]):
            found.append(text[begin : end.start()].strip())
            begin = end.end()
    return [sentence for sentence in (*found, text[begin:].strip()) if sentence]


@dataclass(frozen=True)
class _Element:
    """An element that is open: the id that its text belongs to, and whether it is shown at all."""

    tag: str
    name: str = ""
    silent: bool = False


class _PageReader(HTMLParser):
    """Collects the text of the innermost element with an id of the original."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.texts: dict[str, list[str]] = {}
        self._open = [_Element("")]
        self._open_tags: Counter[str] = Counter()
        self._uses: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "br":
            self.handle_data(" ")
        if tag in _EMPTY:
            return
        given, outer = dict(attrs), self._open[-1]
        name = given.get("id") or ""
        # Of a switch between systems the default is shown, though it has `hidden` like the rest.
        hidden = "hidden" in given and not name.startswith("default")
        silent = outer.silent or hidden or tag in _QUIET or "code" in (given.get("class") or "")
        own = name.startswith(_IDS) and not silent
        self._open_tags[tag] += 1
        self._open.append(_Element(tag, self._new(name) if own else outer.name, silent))

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

    def _new(self, name: str) -> str:
        """Returns the name under which a paragraph is kept, and makes room for its text."""
        self._uses[name] += 1
        unique = name if self._uses[name] == 1 else f"{name}#{self._uses[name]}"
        self.texts.setdefault(unique, [])
        return unique


def _aligned(texts: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """Yields sentence by sentence, or the whole where a language has not as many sentences."""
    cut = {code: sentences(text) for code, text in texts.items()}
    if len({len(found) for found in cut.values()}) > 1:
        yield texts
        return
    for row in zip(*cut.values(), strict=True):
        yield dict(zip(cut, row, strict=True))


def _is_translation(english: str, other: str) -> bool:
    """Tells whether a text is long enough and no code, and is translated."""
    if not other or other == english or len(english.split()) < _LEAST_WORDS:
        return False
    least, most = _LENGTHS
    letters = sum(character.isalpha() or character.isspace() for character in english)
    return (
        letters >= _LETTERS * len(english)
        and least < (len(other) + 10) / (len(english) + 10) < most
    )


def _part(page: Path) -> int:
    """Returns which of a hundred parts of the pages a page is in."""
    return int(hashlib.sha256(page.as_posix().encode()).hexdigest(), 16) % 100
