"""Benchmarks: test sentences of a corpus by direction, and the choice of directions."""

from __future__ import annotations

import copy
import functools
import itertools
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from mnmt_jax.data.document_corpus import documents
from mnmt_jax.data.mixtures import MIXTURES
from mnmt_jax.data.parallel_corpora import CORPORA, CldrPhrases, Corpus, get_corpus
from mnmt_jax.errors import UserError, join_names, suggest
from mnmt_jax.evaluation.off_target import NearestRendering
from mnmt_jax.files.file_digest import short_digest
from mnmt_jax.vocabulary.language_codes import Direction, canonical_code_or_input
from mnmt_jax.vocabulary.language_detectors import LanguageDetector, make_lid176
from mnmt_jax.vocabulary.languages import MITRE_LANGUAGES, find_english

SPLIT = "test"
SUBSETS = ("all", "supervised", "zero_shot")
UNKNOWN_TRAINING = (
    "the run does not record its training directions (it has no tasks.json: it was imported, or "
    "made by an older version, whose training command writes the file if it is run once more), so "
    "no direction is labelled supervised or zero-shot"
)


@dataclass(frozen=True)
class TestSet:
    """Test sentences of one direction.

    Attributes:
        sources: source sentences.
        references: reference translations, in the same order.
    """

    sources: Sequence[str]
    references: Sequence[str]

    @property
    def fingerprint(self) -> str:
        """Hash of the ordered sentence pairs, 16 hexadecimal digits."""
        text = json.dumps([*zip(self.sources, self.references, strict=True)])
        return short_digest(text)


class Benchmark:
    """Test sentences of a corpus, with the language detectors for outputs.

    Args:
        task: task name to report.
        corpus: the corpus.
        languages: language codes to evaluate; None for all of the corpus.
        new_codes: other codes for languages of the corpus, such as `pt_BR` for its `pt`, by code of
            the corpus; all else here and in results has the new codes.
        limit: number of sentences per direction, from the start; 0 for all.
        candidates: additional languages that outputs may be in, for off-target detection.
        split: name of the split.
        detector: detector of the language of outputs; None is lid.176.
        second_detector: another detector, for a second off-target ratio; None for none.
        note: text for the top of pages of results.

    Attributes:
        task: the argument.
        split: the argument.
        note: the argument.
        limit: the argument.
        detector: the argument, or lid.176.
        second_detector: the argument.
        directions: the available directions, in the order of the corpus.
    """

    def __init__(
        self,
        task: str,
        corpus: Corpus,
        *,
        languages: Collection[str] | None = None,
        new_codes: Mapping[str, str] | None = None,
        limit: int = 0,
        candidates: Sequence[str] = (),
        split: str = SPLIT,
        detector: LanguageDetector | None = None,
        second_detector: LanguageDetector | None = None,
        note: str = "",
    ) -> None:
        self.task, self.split, self.note = task, split, note
        self.detector = detector or make_lid176()
        self.second_detector = second_detector
        self._corpus = corpus
        self.limit = limit
        renamed = {code: code for code in corpus.languages} | dict(new_codes or {})
        self._corpus_codes = {code: original for original, code in renamed.items()}
        codes = set(self._corpus_codes if languages is None else languages)
        available = [
            (renamed[source], renamed[target]) for source, target in corpus.directions(split)
        ]
        self._numbers = {pair: number for number, pair in enumerate(available)}
        self.directions: tuple[Direction, ...] = tuple(
            pair for pair in available if codes.issuperset(pair)
        )
        if not self.directions:
            raise UserError(
                f"task '{task}': no direction has a {split} split between languages of the model; "
                f"the corpus has {' '.join(self._corpus_codes)}, the model "
                f"{' '.join(candidates or sorted(codes))}"
            )
        self._candidates = tuple(candidates)
        self._aligned: Mapping[str, Sequence[str]] = {}

    def number(self, direction: Direction) -> int:
        """Return the position of a direction in the corpus, whatever else is evaluated."""
        return self._numbers[direction]

    def only(self, directions: Sequence[Direction]) -> Benchmark:
        """Return a copy restricted to some of the directions."""
        restricted = copy.copy(self)
        restricted.directions = tuple(directions)
        return restricted

    def unlimited(self) -> Benchmark:
        """Return a copy with all sentences of each direction."""
        unlimited = copy.copy(self)
        unlimited.limit = 0
        for cached in ("_phrases", "nearest"):
            unlimited.__dict__.pop(cached, None)
        return unlimited

    def common_to(self, languages: Sequence[str]) -> Benchmark:
        """Return a copy with the sentences that several languages have, aligned by their English.

        It has all directions between the languages, and one sentence for each English sentence
        that is in the pairs of English with all of them, in the order of the first pair.

        Args:
            languages: at least two codes.

        Raises:
            UserError: if a language has no pair with English, or no sentence is common.
        """
        unlimited = self.unlimited()
        by_english = {code: unlimited._sentences_by_english(code) for code in languages}
        first, *others = by_english.values()
        common = [text for text in first if all(text in other for other in others)]
        if not common:
            raise UserError(
                f"task '{self.task}': no {self.split} sentence is common to {join_names(languages)}"
            )
        common = common[: self.limit or None]
        aligned = copy.copy(self)
        aligned._aligned = {
            code: [sentences[text] for text in common] for code, sentences in by_english.items()
        }
        aligned.directions = tuple(itertools.permutations(languages, 2))
        aligned._numbers = {pair: number for number, pair in enumerate(aligned.directions)}
        return aligned

    def _sentences_by_english(self, code: str) -> dict[str, str]:
        """Return the sentences of a language by their English; the first of equal ones."""
        english = find_english(dict.fromkeys(itertools.chain(*self.directions)))
        pairs = [pair for pair in ((english, code), (code, english)) if pair in self.directions]
        if english is None or not pairs:
            raise UserError(
                f"task '{self.task}': '{code}' has no {self.split} sentences with English"
            )
        texts = self.texts(pairs[0])
        sides = dict(zip(pairs[0], (texts.sources, texts.references), strict=True))
        sentences: dict[str, str] = {}
        for text, sentence in zip(sides[english], sides[code], strict=True):
            sentences.setdefault(text, sentence)
        return sentences

    def texts(self, direction: Direction) -> TestSet:
        """Return the test sentences of a direction.

        Raises:
            UserError: if the direction has no sentences.
        """
        source, target = direction
        if self._aligned:
            return TestSet(self._aligned[source], self._aligned[target])
        if isinstance(self._corpus, CldrPhrases):
            return TestSet(self._phrases[source], self._phrases[target])
        all_pairs = self._corpus.pairs(self.split, self._corpus_direction(direction))
        pairs = list(itertools.islice(all_pairs, self.limit or None))
        if not pairs:
            raise UserError(
                f"task '{self.task}': no {self.split} sentences for {'-'.join(direction)}"
            )
        sources, references = zip(*pairs, strict=True)
        return TestSet(sources, references)

    def document_sizes(self, direction: Direction) -> list[int]:
        """Return the number of test sentences of each document of a direction, in order.

        Raises:
            UserError: if the corpus has no documents.
        """
        sizes, remaining = [], len(self.texts(direction).sources)
        for document in documents(self._corpus, self.split, self._corpus_direction(direction)):
            if not remaining:
                break
            sizes.append(min(len(document), remaining))
            remaining -= sizes[-1]
        return sizes

    @functools.cached_property
    def nearest(self) -> NearestRendering | None:
        """The exact off-target detector; None unless all items exist in all languages (CLDR)."""
        if not isinstance(self._corpus, CldrPhrases):
            return None
        columns = self._phrases
        return NearestRendering(
            [dict(zip(columns, item, strict=True)) for item in zip(*columns.values(), strict=True)]
        )

    @functools.cached_property
    def _phrases(self) -> dict[str, list[str]]:
        """Phrases of a CLDR corpus by language."""
        assert isinstance(self._corpus, CldrPhrases)
        size = self._corpus.size(self.split, self._corpus_direction(self.directions[0]))
        cldr = self._corpus.cldr
        meanings = cldr.meanings(self.split, min(size, self.limit or size))
        candidates = map(canonical_code_or_input, self._candidates)
        known = set(MITRE_LANGUAGES).difference(self._corpus_codes.values())
        codes = self._corpus_codes | {code: code for code in candidates if code in known}
        return {
            code: [cldr.render(meaning, original) for meaning in meanings]
            for code, original in codes.items()
        }

    def _corpus_direction(self, direction: Direction) -> Direction:
        """Return a direction in the codes of the corpus."""
        source, target = direction
        return self._corpus_codes[source], self._corpus_codes[target]


def is_built_in(task: str) -> bool:
    """Return whether a task name is of a built-in mixture or corpus."""
    return task in MIXTURES or task in CORPORA


def find_corpus(task: str) -> tuple[Corpus, tuple[str, ...]]:
    """Return the corpus of a task.

    Args:
        task: name of a mixture or a corpus.

    Returns:
        The corpus, and the languages of the task.

    Raises:
        UserError: if there is no mixture or corpus of this name.
    """
    if task in MIXTURES:
        mixture = MIXTURES[task]
        directions = (*mixture.directions, *(mixture.zero_shot or ()))
        languages = dict.fromkeys(code for pair in directions for code in pair)
        return get_corpus(mixture.corpus), tuple(languages)
    if task in CORPORA:
        corpus = get_corpus(task)
        return corpus, corpus.languages
    names = dict.fromkeys((*CORPORA, *MIXTURES))
    raise UserError(
        f"--task={task}: no such corpus or mixture; {suggest(task, names)}for files of "
        "your own add --parallel, --tsv or --bitext; for a seqio mixture, its module with "
        f"--module_import; built in are {', '.join(names)}"
    )


def choose_directions(
    directions: Sequence[Direction],
    subset: str,
    supervised: Collection[Direction] | None,
    unknown_training: str = UNKNOWN_TRAINING,
) -> tuple[Direction, ...]:
    """Select the supervised, the zero-shot or all directions.

    Args:
        directions: the available directions.
        subset: one of `SUBSETS`.
        supervised: directions that the model was trained on; None if unknown.
        unknown_training: why they are unknown.

    Raises:
        UserError: if `subset` is invalid, if it needs `supervised` and that is unknown, or if no
            direction is left.
    """
    if subset not in SUBSETS:
        raise UserError(f"--directions={subset} must be one of {', '.join(SUBSETS)}")
    if subset == "all":
        return tuple(directions)
    if supervised is None:
        raise UserError(
            f"--directions={subset}: {unknown_training}; name them with --trained_on, or use "
            "--directions=all"
        )
    want_supervised = subset == "supervised"
    selected = tuple(pair for pair in directions if (pair in supervised) == want_supervised)
    if not selected:
        raise UserError(
            f"--directions={subset}: the task has no such direction for this run; choose others, "
            "or all of them (--directions=all)"
        )
    return selected
