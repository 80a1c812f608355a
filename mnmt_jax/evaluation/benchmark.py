"""Benchmarks: test sentences of a corpus by direction, and the choice of directions."""

from __future__ import annotations

import copy
import functools
import hashlib
import itertools
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from mnmt_jax.data.mixtures import MIXTURES
from mnmt_jax.data.parallel_corpora import CORPORA, CldrPhrases, Corpus, get_corpus
from mnmt_jax.errors import UserError, suggest
from mnmt_jax.evaluation.language_detectors import LanguageDetector, make_lid176
from mnmt_jax.evaluation.off_target import NearestRendering
from mnmt_jax.vocabulary.language_codes import canonical_code_or_input
from mnmt_jax.vocabulary.languages import MITRE_LANGUAGES, Direction

SPLIT = "test"
WHICH = ("all", "supervised", "zero_shot")
UNKNOWN_TRAINING = (
    "the run does not record its training directions (it has no tasks.json: it was imported, or "
    "made by an older version), so no direction is labelled supervised or zero-shot"
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
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class Benchmark:
    """Test sentences of a corpus, with the language detectors for outputs.

    Args:
        task: task name to report.
        corpus: the corpus.
        languages: language codes to evaluate; None for all of the corpus.
        limit: number of sentences per direction, from the start; 0 for all.
        candidates: additional languages that outputs may be in, for off-target detection.
        split: name of the split.
        detector: detector of the language of outputs; None is lid.176.

    Attributes:
        task: the argument.
        split: the argument.
        detector: the argument, or lid.176.
        directions: the available directions, in the order of the corpus.
    """

    def __init__(
        self,
        task: str,
        corpus: Corpus,
        *,
        languages: Collection[str] | None = None,
        limit: int = 0,
        candidates: Sequence[str] = (),
        split: str = SPLIT,
        detector: LanguageDetector | None = None,
    ) -> None:
        self.task, self.split = task, split
        self.detector = detector or make_lid176()
        self._corpus = corpus
        self._limit = limit
        codes = set(corpus.languages if languages is None else languages)
        self.directions: tuple[Direction, ...] = tuple(
            pair for pair in corpus.directions(split) if codes.issuperset(pair)
        )
        if not self.directions:
            raise UserError(
                f"task '{task}': no direction has a {split} split between languages of the model; "
                f"the corpus has {' '.join(corpus.languages)}, the model "
                f"{' '.join(candidates or sorted(codes))}"
            )
        self._candidates = tuple(candidates)

    def only(self, directions: Sequence[Direction]) -> Benchmark:
        """Return a copy restricted to some of the directions."""
        restricted = copy.copy(self)
        restricted.directions = tuple(directions)
        return restricted

    def texts(self, direction: Direction) -> TestSet:
        """Return the test sentences of a direction.

        Raises:
            UserError: if the direction has no sentences.
        """
        if isinstance(self._corpus, CldrPhrases):
            source, target = direction
            return TestSet(self._phrases[source], self._phrases[target])
        pairs = list(
            itertools.islice(self._corpus.pairs(self.split, direction), self._limit or None)
        )
        if not pairs:
            raise UserError(
                f"task '{self.task}': no {self.split} sentences for {'-'.join(direction)}"
            )
        sources, references = zip(*pairs, strict=True)
        return TestSet(sources, references)

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
        size = self._corpus.size(self.split, self.directions[0])
        cldr = self._corpus.cldr
        meanings = cldr.meanings(self.split, min(size, self._limit or size))
        candidates = map(canonical_code_or_input, self._candidates)
        candidate_codes = (code for code in candidates if code in MITRE_LANGUAGES)
        codes = dict.fromkeys((*cldr.languages, *candidate_codes))
        return {code: [cldr.render(meaning, code) for meaning in meanings] for code in codes}


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
    directions: Sequence[Direction], subset: str, supervised: Collection[Direction] | None
) -> tuple[Direction, ...]:
    """Select the supervised, the zero-shot or all directions.

    Args:
        directions: the available directions.
        subset: one of `WHICH`.
        supervised: directions that the model was trained on; None if unknown.

    Raises:
        UserError: if `subset` is invalid, if it needs `supervised` and that is unknown, or if no
            direction is left.
    """
    if subset not in WHICH:
        raise UserError(f"--directions={subset} must be one of {', '.join(WHICH)}")
    if subset == "all":
        return tuple(directions)
    if supervised is None:
        raise UserError(
            f"--directions={subset}: {UNKNOWN_TRAINING}; use --directions=all, or run the training "
            "command once more, which writes the file"
        )
    want_supervised = subset == "supervised"
    selected = tuple(pair for pair in directions if (pair in supervised) == want_supervised)
    if not selected:
        raise UserError(f"--directions={subset}: the task has no such direction for this run")
    return selected
