"""Glossaries: terms of a source language and their translations.

A file has a term a line, with its alternatives: `SOURCE<TAB>TARGET|ALTERNATIVE`. A target with `!`
before it is forbidden where the source has the term; with an empty source, everywhere.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from mnmt_jax.decoding.terms import NO_TERMS, LineTerms, Term
from mnmt_jax.decoding.text.placeholders import inside_placeholders
from mnmt_jax.errors import UserError
from mnmt_jax.files.file_digest import short_digest
from mnmt_jax.vocabulary.language_codes import is_spaceless
from mnmt_jax.vocabulary.letter_case import has_dotless_i, lower_spellings
from mnmt_jax.vocabulary.normalization import normalize

_FORBIDDEN = "!"
_SEPARATOR = "|"
_SPACES = re.compile(" {2,}")
_MAX_TARGETS = 100  # of a term; each is looked for in each translation
_REMEDY = "a line is SOURCE<TAB>TARGET, with further targets after |"


@dataclasses.dataclass(frozen=True)
class GlossaryEntry:
    """A term and its translations.

    Attributes:
        source: the term. If it is in lower case, it is also meant in other cases. '' stands for any
            text, and has forbidden translations only.
        targets: translations, of which one is required.
        forbidden: translations that are forbidden where the source has the term.
    """

    source: str
    targets: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()

    @functools.cached_property
    def plain(self) -> str:
        """The source as vocabularies read it; terms are found by it."""
        return plain_source(self.source)

    @classmethod
    def of_targets(cls, source: str, targets: Iterable[str], where: str) -> GlossaryEntry:
        """Return an entry from targets of which those with `!` are forbidden.

        Args:
            source: the term.
            targets: its translations.
            where: what errors name, such as a file and a line.

        Raises:
            UserError: if a target is empty, a required one has no source, or there are too many.
        """
        texts = [target.strip() for target in targets]
        forbidden = tuple(text[1:].strip() for text in texts if text.startswith(_FORBIDDEN))
        required = tuple(text for text in texts if not text.startswith(_FORBIDDEN))
        source = source.strip()
        if len(texts) > _MAX_TARGETS:
            raise UserError(
                f"{where}: '{source}' has {len(texts)} targets; leave {_MAX_TARGETS} at most"
            )
        if not texts or not all((*required, *forbidden)):
            raise UserError(f"{where}: a target of '{source}' is empty; write one")
        if required and not source:
            raise UserError(
                f"{where}: '{required[0]}' has no source; write one, or ! for forbidden"
            )
        if clash := set(required) & set(forbidden):
            raise UserError(f"{where}: '{min(clash)}' is both required and forbidden; choose one")
        return cls(source, required, forbidden)


@dataclasses.dataclass(frozen=True)
class Glossary:
    """Terms and their translations from one language into another.

    Attributes:
        entries: the terms, each source once.
        name: of the file, for messages.
    """

    entries: tuple[GlossaryEntry, ...]
    name: str = "glossary"

    def __post_init__(self) -> None:
        """Check the sources.

        Raises:
            UserError: if one occurs twice.
        """
        counts = collections.Counter(entry.plain for entry in self.entries)
        repeated = next((source for source, count in counts.items() if count > 1), None)
        if repeated is not None:
            raise UserError(f"{self.name}: '{repeated}' occurs twice; join its targets with |")

    @classmethod
    def load(cls, path: str | Path) -> Glossary:
        """Read a file; blank lines, and those with # first and no tab, are left out.

        Raises:
            UserError: if it cannot be read, or a line is not a term.
        """
        try:
            text = Path(path).read_bytes().decode("utf-8-sig")
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}; give the path of a glossary") from error
        except UnicodeDecodeError:
            raise UserError(f"{path}: not UTF-8; convert it") from None
        return cls(tuple(_parse_lines(text, str(path))), str(path))

    @classmethod
    def of_mapping(
        cls, terms: Mapping[str, str | Sequence[str]], name: str = "glossary"
    ) -> Glossary:
        """Return a glossary of terms with a translation or a list of alternatives.

        Raises:
            UserError: if a term or a translation is not text.
        """
        entries = []
        for source, targets in terms.items():
            listed = [targets] if isinstance(targets, str) else targets
            if not isinstance(listed, list | tuple) or not all(
                isinstance(text, str) for text in (source, *listed)
            ):
                raise UserError(f"{name}: '{source}' must have a text or a list of texts")
            entries.append(GlossaryEntry.of_targets(source, listed, name))
        return cls(tuple(entries), name)

    @property
    def digest(self) -> str:
        """Digest of the entries."""
        entries = [(entry.source, entry.targets, entry.forbidden) for entry in self.entries]
        return short_digest(repr(entries))

    def terms_of(self, text: str, language: str, *, ignore_case: bool = False) -> LineTerms:
        """Return the terms of a line, the longest ones where several begin.

        Args:
            text: the line. It is read as the model does: composed or decomposed characters, and
                white space of any kind and length, are the same. No term starts or ends inside of
                a placeholder.
            language: code of its language. Terms start and end at the ends of words, except in
                languages without spaces.
            ignore_case: whether the case of terms does not matter.
        """
        matches = collections.Counter(self._matches(_plain(text), language, ignore_case))
        entries = [*self._everywhere, *matches]
        if not entries:
            return NO_TERMS
        required = tuple(
            Term(entry.source, entry.targets, matches[entry]) for entry in entries if entry.targets
        )
        forbidden = dict.fromkeys(text for entry in entries for text in entry.forbidden)
        return LineTerms(required, tuple(forbidden))

    def _matches(self, text: str, language: str, ignore_case: bool) -> Iterator[GlossaryEntry]:
        index, lowers = self._index(language), lower_spellings(text, language)
        forms = (text, *lowers)
        inside = inside_placeholders(text)
        is_end = [
            place not in inside and (is_spaceless(language) or _is_boundary(text, place))
            for place in range(len(text) + 1)
        ]
        start = 0
        while start < len(text):
            lengths = set().union(*(index.lengths.get(lower[start], ()) for lower in lowers))
            stops = [start + length for length in sorted(lengths, reverse=True)]
            matches = (
                (one, stop)
                for stop in stops
                if is_end[start] and stop <= len(text) and is_end[stop]
                if (one := index.find([form[start:stop] for form in forms], ignore_case))
            )
            entry, start = next(matches, (None, start + 1))
            if entry:
                yield entry

    def _index(self, language: str) -> _Index:
        """Return the entries by their sources in the lower case of a language."""
        key = has_dotless_i(language)
        if key not in self._indexes:
            self._indexes[key] = _Index.of(self.entries, language)
        return self._indexes[key]

    @functools.cached_property
    def _indexes(self) -> dict[bool, _Index]:
        return {}

    @functools.cached_property
    def _everywhere(self) -> tuple[GlossaryEntry, ...]:
        return tuple(entry for entry in self.entries if not entry.source)


@dataclasses.dataclass(frozen=True)
class _Index:
    """Entries by their sources, as `GlossaryEntry.plain` writes them.

    Attributes:
        by_source: by the source.
        by_lower: by the spellings of the source in lower case.
        lengths: lengths of sources by their first character in lower case.
    """

    by_source: dict[str, GlossaryEntry]
    by_lower: dict[str, GlossaryEntry]
    lengths: dict[str, set[int]]

    @classmethod
    def of(cls, entries: Iterable[GlossaryEntry], language: str) -> _Index:
        """Return the index of entries for texts of a language."""
        by_source = {entry.plain: entry for entry in entries}
        by_source.pop("", None)
        lowers = [(lower_spellings(text, language), entry) for text, entry in by_source.items()]
        by_lower = {spellings[-1]: entry for spellings, entry in lowers}
        by_lower |= {spellings[0]: entry for spellings, entry in lowers}
        lengths: dict[str, set[int]] = {}
        for lower in by_lower:
            lengths.setdefault(lower[0], set()).add(len(lower))
        return cls(by_source, by_lower, lengths)

    def find(self, spellings: Sequence[str], ignore_case: bool) -> GlossaryEntry | None:
        """Return the entry of a text; one in lower case is also meant in other cases.

        Args:
            spellings: the text, and its spellings in lower case.
            ignore_case: whether the case of terms does not matter.
        """
        entries = [self.by_source.get(one) for one in spellings]
        if ignore_case:
            entries += [self.by_lower.get(one) for one in spellings[1:]]
        return next(filter(None, entries), None)


GlossaryLike = Glossary | Mapping[str, str | Sequence[str]] | str | Path
"""A glossary, its terms, or the path of its file."""


def as_glossary(glossary: GlossaryLike) -> Glossary:
    """Return a glossary from a mapping or the path of a file.

    Raises:
        UserError: if it is something else, or not a glossary.
    """
    if isinstance(glossary, Glossary):
        return glossary
    if isinstance(glossary, Mapping):
        return Glossary.of_mapping(glossary)
    if isinstance(glossary, str | Path):
        return Glossary.load(glossary)
    raise UserError("glossary must be a Glossary, a mapping of terms or the path of a file")


def _parse_lines(text: str, name: str) -> Iterator[GlossaryEntry]:
    numbers: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or (line.startswith("#") and "\t" not in line):
            continue
        where = f"{name}, line {number}"
        source, tab, targets = line.partition("\t")
        if not tab or "\t" in targets:
            raise UserError(f"{where}: {line.count(chr(9))} tabs instead of 1; {_REMEDY}")
        entry = GlossaryEntry.of_targets(source, targets.split(_SEPARATOR), where)
        if (first := numbers.setdefault(entry.source, number)) != number:
            raise UserError(
                f"{where}: '{entry.source}' is also on line {first}; join its targets with |"
            )
        yield entry


def plain_source(source: str) -> str:
    """Return a source as vocabularies read it; equal ones are one term."""
    return _plain(source).strip()


def _plain(text: str) -> str:
    """Return a text as vocabularies read it: normalised, with single spaces."""
    return _SPACES.sub(" ", normalize(text))


def _is_boundary(text: str, position: int) -> bool:
    """Return whether a word may start or end at a position."""
    if position in (0, len(text)):
        return True
    return not (_is_word(text[position - 1]) and _is_word(text[position]))


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_" or unicodedata.category(character)[0] == "M"
