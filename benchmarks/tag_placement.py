"""F1 of the placement of tags by attention and by relative position, on references with tags.

    python benchmarks/tag_placement.py --run runs/quickstart/register --cldr
    python benchmarks/tag_placement.py --run RUN --help_pages TREE

Sources are aligned to their references under teacher forcing, so the tags of the reference are the
truth. An element is correct if it is around the same characters; F1 is that of words in elements.

- CLDR: phrases with their parts marked: items of lists, heads and bodies, numbers.
- LibreOffice help (`mnmt fetch libreoffice_help`, its packages unpacked in TREE): paragraphs of the
  pages with the same inline tags in both languages.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mnmt_jax.commands.common_flags import CommandParser, positive_int
from mnmt_jax.data.cldr.cldr_corpus import CldrCorpus
from mnmt_jax.data.cldr.renderer import Meaning, Renderer
from mnmt_jax.data.libreoffice_corpus import HELP_FOLDERS, find_page_folder
from mnmt_jax.data.libreoffice_pages import split_of
from mnmt_jax.decoding.alignment import AttentionPath, align_lines, alignment_path, alignment_paths
from mnmt_jax.decoding.encoded_lines import Line
from mnmt_jax.decoding.text.markup_runs import Run, split_runs
from mnmt_jax.decoding.text.markup_tokens import MarkupReader, Token
from mnmt_jax.decoding.text.tag_placement import Node, place_tags
from mnmt_jax.decoding.translation import Alignment, Hypothesis, Translation
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.errors import UserError
from mnmt_jax.runtime.run_command import run_command
from mnmt_jax.vocabulary.language_codes import Direction

_XML = MarkupReader("xml")
_WORD = re.compile(r"\w+|[^\w\s]")
_MAX_ELEMENTS = 6
_MIN_WORDS = 3


@dataclasses.dataclass(frozen=True)
class Pair:
    """A source and its reference, with the same elements `<p0>`, `<p1>` and so on."""

    source: str
    reference: str


class MarkedRenderer(Renderer):
    """Renders meanings with a tag around each part, which has the same number in all languages."""

    def __init__(self, language: str) -> None:
        super().__init__(language)
        self._numbers: Iterator[int] = itertools.count()

    def marked(self, meaning: Meaning) -> str:
        """Return a meaning with its parts marked."""
        self._numbers = itertools.count()
        return _without_outer(self.render(meaning))

    def render(self, meaning: Meaning) -> str:
        """Return a meaning or part with its tag."""
        number = next(self._numbers)
        return f"<p{number}>{super().render(meaning)}</p{number}>"

    def _count(self, patterns: dict[str, str], number: int | str) -> str:
        tag = next(self._numbers)
        text = super()._count(patterns, number)
        written = str(number).replace(".", self._locale.decimal_symbol)
        return re.sub(rf"(?<!\d){re.escape(written)}(?!\d)", f"<p{tag}>{written}</p{tag}>", text)


def cldr_pairs(
    languages: Sequence[str], limit: int, split: str = "test"
) -> dict[Direction, list[Pair]]:
    """Return marked phrases of a split in all directions."""
    meanings = CldrCorpus(languages).meanings(split, limit)
    texts = {code: [MarkedRenderer(code).marked(one) for one in meanings] for code in languages}
    return {
        (source, target): list(_comparable(zip(texts[source], texts[target], strict=True)))
        for source, target in itertools.permutations(languages, 2)
    }


def help_pairs(
    tree: Path, languages: Sequence[str], limit: int, split: str = "test"
) -> dict[Direction, list[Pair]]:
    """Return paragraphs of the pages of a split, from and into English."""
    codes = [code for code in HELP_FOLDERS if code in languages]
    folders = {code: find_page_folder(code, [tree]) for code in codes}
    if missing := [code for code in codes if folders[code] is None]:
        raise UserError(f"{tree}: no help pages in {missing[0]}; unpack its package there")
    english: Any = folders["en"]
    pages = sorted(page.relative_to(english) for page in english.rglob("*.html"))
    directions = [d for code in codes if code != "en" for d in (("en", code), (code, "en"))]
    pairs: dict[Direction, list[Pair]] = {direction: [] for direction in directions}
    for page in (page for page in pages if split_of(page) == split):
        texts: dict[str, dict[str, str]] = {
            code: dict(help_paragraphs(folder / page)) for code, folder in folders.items() if folder
        }
        for source, target in directions:
            shared = texts[source].keys() & texts[target].keys()
            both = ((texts[source][name], texts[target][name]) for name in sorted(shared))
            pairs[source, target] += _comparable(map(_numbered, both))
    return {direction: list(dict.fromkeys(items))[:limit] for direction, items in pairs.items()}


def help_paragraphs(page: Path) -> Iterator[tuple[str, str]]:
    """Yield the ids of the paragraphs of a page, with their inner HTML."""
    if not page.is_file():
        return
    tokens = list(MarkupReader("html").tokens(page.read_text("utf-8", errors="replace")))
    for number, token in enumerate(tokens):
        match = re.search(r'\bid="((?:par|hd)_\w+)"', token.raw) if token.kind == "start" else None
        if match:
            yield match[1], "".join(_inner(tokens, number))


def _inner(tokens: Sequence[Token], start: int) -> Iterator[str]:
    """Yield the tokens in an element; none if it has blocks, scripts or comments."""
    depth = 0
    for token in tokens[start:]:
        depth += {"start": 1, "end": -1}.get(token.kind, 0)
        if depth == 0:
            return
        if token is not tokens[start]:
            yield token.raw


def _numbered(texts: tuple[str, str]) -> tuple[str, str]:
    """Return two texts with the same tags as `<p0>` and so on; empty if they are not comparable."""
    openings = [[raw for kind, raw, _ in _tags(text) if kind == "start"] for text in texts]
    if not openings[0] or Counter(openings[0]) != Counter(openings[1]):
        return "", ""
    numbers = {name: n for n, name in enumerate(_occurrences(openings[0]))}
    written = []
    for text, raws in zip(texts, openings, strict=True):
        names = iter(_occurrences(raws))
        stack, result = list[int](), ""
        for kind, raw, _ in MarkupReader("html").tokens(text):
            if kind == "start":
                stack.append(numbers[next(names)])
                result += f"<p{stack[-1]}>"
            elif kind == "end" and stack:
                result += f"</p{stack.pop()}>"
            elif kind == "text":
                result += raw.replace("&nbsp;", " ")
            else:
                return "", ""
        written.append(result if not stack else "")
    return written[0], written[1]


def _tags(text: str) -> Iterator[Token]:
    return (token for token in MarkupReader("html").tokens(text) if token.kind != "text")


def _occurrences(names: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield names with the number of the same ones before."""
    counts: Counter[str] = Counter()
    for name in names:
        yield name, counts[name]
        counts[name] += 1


def _without_outer(text: str) -> str:
    """Return a text without the tag that is around all of it."""
    return re.sub(r"^<(p\d+)>(.*)</\1>$", r"\2", text)


def _comparable(texts: Iterable[tuple[str, str]]) -> Iterator[Pair]:
    """Yield pairs in which the elements of both have text, and none is around everything."""
    for source, reference in texts:
        spans = [spans_of(text) for text in (source, reference)]
        is_good = spans[0] and spans[0].keys() == spans[1].keys()
        if is_good and len(spans[0]) <= _MAX_ELEMENTS and len(_words(source)) >= _MIN_WORDS:
            yield Pair(source, reference)


def _words(text: str) -> list[str]:
    return _WORD.findall(run_of(text).text)


def run_of(text: str) -> Run:
    """Return the run of a text."""
    runs = [run for run in split_runs(_XML, text) if isinstance(run, Run)]
    return runs[0] if runs else Run()


def spans_of(text: str) -> dict[str, tuple[int, int]]:
    """Return the characters of each element, without spaces; {} if one is empty or everything."""
    run = run_of(text)
    spans: dict[str, tuple[int, int]] = {}

    def visit(nodes: Sequence[Node]) -> None:
        for node in nodes:
            spans[node.opening] = _letters(run.text, node.start), _letters(run.text, node.end)
            visit(node.children)

    visit(run.nodes)
    everything = 0, _letters(run.text, len(run.text))
    return {} if any(s[0] == s[1] or s == everything for s in spans.values()) else spans


def _letters(text: str, end: int) -> int:
    """Return the number of characters that are not spaces before a position."""
    return len(text[:end].replace(" ", ""))


@dataclasses.dataclass
class Counts:
    """Counts of elements, and of words in them."""

    elements: int = 0
    exact: int = 0
    shared: int = 0
    placed: int = 0
    true: int = 0

    def add(self, placed: str, reference: str) -> None:
        """Compare the elements of a placement with those of the reference."""
        actual, expected = spans_of_all(placed), spans_of_all(reference)
        words = word_spans(reference)
        for name, span in expected.items():
            sets = [_inside(words, one) for one in (actual[name], span)]
            self.elements += 1
            self.exact += actual[name] == span
            self.shared += len(sets[0] & sets[1])
            self.placed += len(sets[0])
            self.true += len(sets[1])

    def __str__(self) -> str:
        """Return the share of exact elements and F1, in percent."""
        f1 = 2 * self.shared / max(self.placed + self.true, 1)
        return f"{100 * self.exact / max(self.elements, 1):5.1f} {100 * f1:5.1f}"


def spans_of_all(text: str) -> dict[str, tuple[int, int]]:
    """Return the characters of each element, also of empty ones."""
    return dict(_nested_span(text, match) for match in re.finditer(r"<(p\d+)>", text))


def _nested_span(text: str, match: re.Match[str]) -> tuple[str, tuple[int, int]]:
    end = text.index(f"</{match[1]}>", match.end())
    return match.group(), (_plain_length(text[: match.end()]), _plain_length(text[:end]))


def _plain_length(text: str) -> int:
    """Return the number of characters that are neither tags nor spaces."""
    plain = re.sub(r"<[^>]*>", "", text)
    return sum(not character.isspace() for character, _ in _XML.decoded(plain))


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return the words of a text by their characters, without spaces."""
    plain = run_of(text).text
    return [
        (_letters(plain, match.start()), _letters(plain, match.end()))
        for match in _WORD.finditer(plain)
    ]


def _inside(words: Sequence[tuple[int, int]], span: tuple[int, int]) -> set[tuple[int, int]]:
    return {word for word in words if span[0] <= word[0] and word[1] <= span[1]}


def align(
    translator: Translator, direction: Direction, pairs: Sequence[Pair], path: AttentionPath
) -> list[Alignment | None]:
    """Align sources and references."""
    vocabulary = translator.vocabulary
    texts = [(run_of(pair.source).text, run_of(pair.reference).text) for pair in pairs]
    lines = [Line(n, source, *direction) for n, (source, _) in enumerate(texts)]
    references = [
        Translation((Hypothesis(text, 0.0, tuple(vocabulary.encode(text, direction[1]))),))
        for _, text in texts
    ]
    translated = list(zip(lines, references, strict=True))
    decode = translator.config.decode
    return align_lines(translator.inference_model, translated, decode, path)


def score(pairs: Sequence[Pair], alignments: Sequence[Alignment | None], counts: Counts) -> None:
    """Place the tags of all pairs, and count."""
    for pair, alignment in zip(pairs, alignments, strict=True):
        run, reference = run_of(pair.source), run_of(pair.reference).text
        placed = place_tags(run.text, reference, run.nodes, alignment)
        assert placed is not None, "pairs have no untranslated elements"
        counts.add(placed, pair.reference)


def corpora_of(
    flags: argparse.Namespace, languages: Sequence[str]
) -> Iterator[tuple[str, dict[Direction, list[Pair]]]]:
    """Yield the corpora that flags ask for, by their names."""
    wanted = flags.directions.split(",") if flags.directions else []
    corpora = {}
    if flags.cldr:
        corpora["CLDR"] = cldr_pairs(languages, flags.limit, flags.split)
    if flags.help_pages:
        corpora["help"] = help_pairs(flags.help_pages, languages, flags.limit, flags.split)
    for name, by_direction in corpora.items():
        yield (
            name,
            {
                direction: pairs
                for direction, pairs in by_direction.items()
                if not wanted or "-".join(direction) in wanted
            },
        )


def print_rows(translator: Translator, name: str, flags: argparse.Namespace) -> None:
    """Print a row for each corpus and path."""
    plan = translator.inference_model.model.plan
    paths = alignment_paths(plan) if flags.all_paths else [alignment_path(plan)]
    for corpus, by_direction in corpora_of(flags, translator.languages):
        relative = Counts()
        for pairs in by_direction.values():
            score(pairs, [None] * len(pairs), relative)
        for path in paths:
            attention = Counts()
            for direction, pairs in by_direction.items():
                score(pairs, align(translator, direction, pairs, path), attention)
            layers = "+".join(str(spec.layer) for spec in path)
            row = f"{name:18} {corpus:6} {relative.elements:6}   {relative}   {attention}"
            print(f"{row}   layer {layers}", flush=True)


def main() -> None:
    """Print a table."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("--run", required=True, action="append", metavar="RUN")
    parser.add_argument("--cldr", action="store_true")
    parser.add_argument("--help_pages", type=Path, metavar="TREE")
    parser.add_argument(
        "--limit", type=positive_int, default=100, metavar="N", help="pairs of each direction"
    )
    parser.add_argument("--directions", default="", metavar="xx-yy,...", help="default: all")
    parser.add_argument("--split", choices=("validation", "test"), default="test")
    parser.add_argument("--all_paths", action="store_true", help="compare layers")
    flags = parser.parse_args()
    print("run, corpus, elements; exact %, F1 % of relative position; the same of attention")
    for run in flags.run:
        print_rows(Translator.load(run), Path(run).name, flags)


if __name__ == "__main__":
    run_command(main)
