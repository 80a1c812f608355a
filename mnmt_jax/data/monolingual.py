"""Monolingual corpora, whose directions lead from a language to itself.

A line is a pair with an empty source; a language model reads the target. So vocabularies, caches
and batches are built in the same way as from pairs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from mnmt_jax.data.corpus import Corpus, FileCorpus, Line, NoFilesError, add_if_new
from mnmt_jax.data.opposite_directions import distinct_directions
from mnmt_jax.data.split_aliases import find_files, language_aliases
from mnmt_jax.data.text_reader import Cleaning, read_lines, resolve
from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.language_codes import Direction


class MonolingualCorpus(Corpus):
    """Monolingual text of a parallel corpus, by language, without repeated sentences.

    Of opposite directions with the same text one is read. Keeps 8 bytes (of a hash) per sentence of
    a language in memory.

    Args:
        corpus: parallel corpus.
        directions: directions whose training text is used. In other splits, the text of a language
            is that of the first direction that has it.
    """

    min_languages = 1

    def __init__(self, corpus: Corpus, directions: Iterable[Direction]) -> None:
        self._corpus = corpus
        self._directions = tuple(dict.fromkeys(directions))
        codes = dict.fromkeys(itertools.chain(*self._directions))
        super().__init__(corpus.name, [code for code in corpus.languages if code in codes])

    def splits(self) -> tuple[str, ...]:
        """Return the splits of the corpus."""
        return self._corpus.splits()

    def directions(self, split: str) -> tuple[Direction, ...]:
        """Return (code, code) for each language of the split."""
        known = {code for direction in self._distinct_directions(split) for code in direction}
        return tuple((code, code) for code in self.languages if code in known)

    def pairs(self, split: str, direction: Direction) -> Iterator[tuple[str, str]]:
        """Yield pairs of an empty source and a sentence of the language; see the base class."""
        check_has_language(self, split, direction)
        sides = [
            (pair, pair.index(direction[0]))
            for pair in self._distinct_directions(split)
            if direction[0] in pair
        ]
        seen: set[bytes] = set()
        for pair, side in sides if split == "train" else sides[:1]:
            for sentences in self._corpus.pairs(split, pair):
                if add_if_new((sentences[side],), seen):
                    yield "", sentences[side]

    def _distinct_directions(self, split: str) -> Sequence[Direction]:
        """Return the directions to read, one of two opposite ones that have the same text."""
        available = [pair for pair in self._corpus.directions(split) if pair in self._directions]
        return distinct_directions(self._corpus, split, available)


class MonolingualFiles(FileCorpus):
    """Monolingual files with a sentence per line.

    Args:
        name: name of the corpus.
        pattern: path with `{language}`, with `{split}` unless all files are training text, with `*`
            if a language has several files, such as "news/news.*.{language}.shuffled.deduped.gz",
            and with `**` for any folders. Several files are read in the order of their names. A
            file may be gzip.
        languages: codes.
        splits: name of each split in the path.
        cleaning: which lines are bad, and whether they are errors or dropped.
    """

    min_languages = 1

    def __init__(
        self,
        name: str,
        pattern: str,
        languages: Sequence[str],
        *,
        splits: Mapping[str, str],
        cleaning: Cleaning = Cleaning(),  # noqa: B008 - frozen
    ) -> None:
        if "{language}" not in pattern:
            raise UserError(f"pattern {pattern!r}: must have {{language}}")
        words = dict(splits) if "{split}" in pattern else {"train": ""}
        self._patterns = {split: pattern.replace("{split}", word) for split, word in words.items()}
        super().__init__(name, languages, words, cleaning)
        self._forms = language_aliases(self._patterns.values(), languages)
        self._paths_by_language = {
            (split, code): self._paths(split_pattern, forms)
            for split, split_pattern in self._patterns.items()
            for code, forms in self._forms.items()
        }
        if not any(self._paths_by_language.values()):
            raise NoFilesError(
                f"corpus {name!r}: no files match {pattern} for languages "
                f"{' '.join(self.languages)}"
            )

    def directions(self, split: str) -> tuple[Direction, ...]:
        """Return (code, code) for each language that has a file."""
        return tuple(
            (code, code) for code in self.languages if self._paths_by_language.get((split, code))
        )

    def files(self, split: str, direction: Direction) -> tuple[str, ...]:
        """Return the files of the language."""
        return self._paths_by_language[split, direction[0]]

    def missing_files(self, split: str, direction: Direction) -> tuple[str, ...]:
        """Return the expected paths of languages without a file."""
        if split not in self._patterns:
            return ()
        missing = (
            code
            for code in dict.fromkeys(direction)
            if not self._paths_by_language.get((split, code))
        )
        forms = (self._forms[code][0] for code in missing)
        names = (self._patterns[split].replace("{language}", form) for form in forms)
        return tuple(name if name.endswith(".gz") else f"{name} or .gz" for name in names)

    def pairs(self, split: str, direction: Direction) -> Iterator[tuple[str, str]]:
        """Yield pairs of an empty source and a sentence of the language; see the base class."""
        check_has_language(self, split, direction)
        for _, sentence in self._clean(split, direction):
            yield "", sentence

    def _read(self, split: str, direction: Direction) -> Iterator[Line]:
        for path in self.files(split, direction):
            for number, line in enumerate(read_lines(path, self._max_bytes), start=1):
                yield Line((line, line), (f"{path}:{number}",) * 2)

    @classmethod
    def _paths(cls, pattern: str, forms: Sequence[str]) -> tuple[str, ...]:
        """Return the files of the first form of a code that has any."""
        by_form = (cls._files(pattern.replace("{language}", form)) for form in forms)
        return next((paths for paths in by_form if paths), ())

    @staticmethod
    def _files(pattern: str) -> tuple[str, ...]:
        paths = find_files(pattern)
        if not pattern.endswith(".gz"):
            for path in paths:
                resolve(path.removesuffix(".gz"))
        return tuple(paths)


def check_has_language(corpus: Corpus, split: str, direction: Direction) -> None:
    """Check that a monolingual corpus has text of a language.

    Raises:
        UserError: if not.
    """
    if direction not in corpus.directions(split):
        known = " ".join(code for code, _ in corpus.directions(split)) or "none"
        raise UserError(
            f"corpus {corpus.name!r}: {split} has no text of {'-'.join(dict.fromkeys(direction))} "
            f"alone; it has {known}"
        )
