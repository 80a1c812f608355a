"""Glossaries measured on LibreOffice's help, with the terms of its own index.

Example:
    mnmt fetch libreoffice_help --output data/libreoffice_help
    apt-get download libreoffice-help-en-us libreoffice-help-de
    for file in libreoffice-help-*.deb; do dpkg-deb -x $file tree; done
    python benchmarks/glossaries.py RUN --help_folder tree/usr/share/libreoffice/help \
        --source en --target de --input data/libreoffice_help/test.en \
        --reference data/libreoffice_help/test.de

Terms are entries of the index at the same place of both languages. Lines are those that have a term
whose translation the reference has, and only such terms are in their glossary. Compared are

- no glossary;
- the constrained search;
- placeholders: `__TERM0__` in the source, replaced by the term's translation in the output;
- placeholders by `translate_text`, which translates the text around a placeholder that is lost.

Printed are the share of the terms that the translations have, chrF++, and processor seconds, those
of compilation left out.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import sacrebleu

from mnmt_jax.commands.common_flags import CommandParser, positive_int
from mnmt_jax.commands.text_files import read_lines
from mnmt_jax.data.libreoffice_corpus import HELP_FOLDERS
from mnmt_jax.decoding.glossary import Glossary, GlossaryEntry
from mnmt_jax.decoding.terms import LineTerms, missing_terms
from mnmt_jax.decoding.text.sentence_job import SentenceJob
from mnmt_jax.decoding.text.translated_text import TextToTranslate
from mnmt_jax.decoding.translation_job import TranslationJob
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.runtime.run_command import run_command

_ENTRY = re.compile(r'\{url:"([^"?]*)[^"#]*#([^"]*)", app:"(\w+)", text:"((?:[^"\\]|\\.)*)"\}')
_LEAST = 3  # characters of a term


@dataclasses.dataclass(frozen=True)
class _Item:
    """A line, its reference, the terms whose translation this has, and its language."""

    source: str
    reference: str
    terms: LineTerms
    target: str


def main() -> None:
    """Translate in each way, and print what is measured."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--help_folder", required=True, type=Path, metavar="DIR")
    for name in ("source", "target"):
        parser.add_argument(f"--{name}", required=True, metavar="CODE")
    for name in ("input", "reference"):
        parser.add_argument(f"--{name}", required=True, metavar="FILE")
    parser.add_argument("--beam_size", type=positive_int, default=5, metavar="N")
    parser.add_argument("--lines", type=positive_int, default=10_000, metavar="N")
    flags = parser.parse_args()
    entries = _index_entries(flags.help_folder, flags.source, flags.target)
    pairs = zip(read_lines(flags.input), read_lines(flags.reference), strict=True)
    items = list(itertools.islice(_items(pairs, entries, flags.source, flags.target), flags.lines))
    count = sum(term.count for item in items for term in item.terms.required)
    print(f"{len(entries)} terms of the index; {count} in {len(items)} lines")
    translator = Translator.load(flags.run, bindings=[f"Decode.beam_size={flags.beam_size}"])
    for name, translate in _systems(translator, items, flags.source, flags.target).items():
        translate()  # compiles
        start = time.process_time()
        texts = translate()
        seconds = time.process_time() - start
        score = sacrebleu.corpus_chrf(texts, [[i.reference for i in items]], word_order=2).score
        share = 1 - sum(map(_missing, items, texts)) / sum(len(i.terms.required) for i in items)
        print(f"{name}: {share:.1%} of terms, chrF++ {score:.1f}, {seconds:.1f} s")


def _index_entries(folder: Path, source: str, target: str) -> dict[str, tuple[str, ...]]:
    """Return the translations of each term of the index."""
    indexes = [
        _index(folder / HELP_FOLDERS.get(code, code) / "bookmarks.js") for code in (source, target)
    ]
    terms = collections.defaultdict[str, dict[str, None]](dict)
    for place in indexes[0].keys() & indexes[1].keys():
        levels = [index[place] for index in indexes]
        if [len(one) for one in levels] == [1, 1] and len(levels[0][0]) == len(levels[1][0]):
            for term, translation in zip(levels[0][0], levels[1][0], strict=True):
                if len(term) >= _LEAST and translation:
                    terms[_uncapitalized(term)][translation] = None
    return {term: tuple(sorted(translations)) for term, translations in terms.items()}


def _index(path: Path) -> Mapping[tuple[str, ...], list[list[str]]]:
    """Return the entries of an index by their place, each a list of levels."""
    entries = collections.defaultdict[tuple[str, ...], list[list[str]]](list)
    for page, anchor, application, text in _ENTRY.findall(path.read_text(encoding="utf-8")):
        place = page.split("/", 1)[1], anchor, application
        entries[place].append([level.strip() for level in text.split(" -- ")])
    return entries


def _uncapitalized(term: str) -> str:
    """Return a term without its capital if it has no others, so that it fits any case."""
    return term.lower() if term[1:] == term[1:].lower() else term


def _items(
    pairs: Iterable[tuple[str, str]],
    entries: Mapping[str, Sequence[str]],
    source_lang: str,
    target: str,
) -> Iterator[_Item]:
    """Yield the lines that have a term whose translation the reference has."""
    glossary = Glossary(tuple(GlossaryEntry(term, tuple(t)) for term, t in entries.items()))
    for source, reference in pairs:
        required = []
        for term in glossary.terms_of(source, source_lang).required:
            targets = tuple(target for target in term.targets if target in reference)
            one = dataclasses.replace(term, targets=targets[:1])
            if targets and not missing_terms(LineTerms((one,)), reference, target):
                required.append(one)
        if required:
            yield _Item(source, reference, LineTerms(tuple(required)), target)


def _missing(item: _Item, text: str) -> int:
    return len(missing_terms(item.terms, text, item.target))


def _systems(
    translator: Translator, items: Sequence[_Item], source: str, target: str
) -> dict[str, Callable[[], list[str]]]:
    """Return the ways to translate, by name."""
    job = TranslationJob.create(translator)

    def translate(*, with_terms: bool) -> list[str]:
        lines = list(
            job.number_lines([item.source for item in items], source=source, target=target)
        )
        if with_terms:
            lines = [
                dataclasses.replace(line, terms=item.terms)
                for line, item in zip(lines, items, strict=True)
            ]
        return [translation.text for _, translation in job.in_order(iter(lines))]

    marked = [_with_placeholders(item) for item in items]

    def by_placeholders(*, as_texts: bool) -> list[str]:
        sources = [text for text, _ in marked]
        if as_texts:
            job = SentenceJob.create(translator)
            results = job.translate_texts([TextToTranslate(t, source, target) for t in sources])
            texts = [result.text for result in results]
        else:
            texts = translator.translate(sources, source=source, target=target)
        return [_restored(text, targets) for text, (_, targets) in zip(texts, marked, strict=True)]

    return {
        "no glossary": lambda: translate(with_terms=False),
        "constrained search": lambda: translate(with_terms=True),
        "placeholders": lambda: by_placeholders(as_texts=False),
        "placeholders, translate_text": lambda: by_placeholders(as_texts=True),
    }


def _with_placeholders(item: _Item) -> tuple[str, dict[str, str]]:
    """Return the source with placeholders, and the translation of each."""
    source, targets = item.source, {}
    for number, term in enumerate(item.terms.required):
        placeholder = f"__TERM{number}__"
        pattern = rf"(?<!\w){re.escape(term.source)}(?!\w)"
        source = re.sub(pattern, placeholder, source, flags=re.IGNORECASE)
        targets[placeholder] = term.targets[0]
    return source, targets


def _restored(text: str, targets: Mapping[str, str]) -> str:
    for placeholder, target in targets.items():
        text = text.replace(placeholder, target)
    return text


if __name__ == "__main__":
    run_command(main)
