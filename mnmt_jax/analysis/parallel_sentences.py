"""Parallel sentences of several languages, paired by a shared reference."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int

from mnmt_jax.analysis.teacher_forcing import ForcedSentences, make_forced_sentences
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.errors import UserError

MIN_PARALLEL = 2  # minimum number of sentences in a comparison


@dataclasses.dataclass(frozen=True, eq=False)
class ParallelSentences:
    """Parallel sentences of two languages, both translated into the same third language.

    Attributes:
        first: sentences of the language whose code sorts first.
        second: sentences of the other language.
        first_rows: row numbers in `first`, int `[pairs]`.
        second_rows: row numbers in `second`, in the same order.
    """

    first: ForcedSentences
    second: ForcedSentences
    first_rows: Int[np.ndarray, " pairs"]
    second_rows: Int[np.ndarray, " pairs"]

    @property
    def languages(self) -> tuple[str, str]:
        """The two languages."""
        return self.first.direction[0], self.second.direction[0]

    def states(
        self, pooled: Mapping[ForcedSentences, np.ndarray], location_index: int
    ) -> tuple[Float[np.ndarray, "pairs embed"], Float[np.ndarray, "pairs embed"]]:
        """Return the states of both languages, float64.

        Args:
            pooled: from `sentence_states`.
            location_index: index of the location.
        """
        return (
            pooled[self.first][self.first_rows, location_index].astype(np.float64),
            pooled[self.second][self.second_rows, location_index].astype(np.float64),
        )


def align_by_reference(sentence_sets: Sequence[ForcedSentences]) -> list[ParallelSentences]:
    """Pair the directions into one language by their references.

    The target language is the same for both, so that its tag or branch affects both states alike.
    Of sentences with the same reference or the same source, the first is used.

    Args:
        sentence_sets: sentences with references, by direction.

    Returns:
        One item for every two directions with at least `MIN_PARALLEL` common sentences, in order.
    """
    aligned = []
    for first, second in itertools.combinations(sentence_sets, 2):
        if first.direction[1] != second.direction[1]:
            continue
        first, second = sorted((first, second), key=lambda forced: forced.direction)
        second_rows = _rows_by_target(second)
        row_pairs = [
            (row, second_rows[text])
            for text, row in _rows_by_target(first).items()
            if text in second_rows
        ]
        if len(row_pairs) >= MIN_PARALLEL:
            rows, other_rows = np.array(row_pairs, np.int64).T
            aligned.append(ParallelSentences(first, second, rows, other_rows))
    return aligned


def check_has_parallel(pairs: Sequence[ParallelSentences], task: str) -> None:
    """Check that there are parallel sentences to compare.

    Raises:
        UserError: if there are none.
    """
    if not pairs:
        raise UserError(
            f"task '{task}': no two of the languages have {MIN_PARALLEL} or more sentences with "
            "the same references in a third language; raise --limit, omit --directions, or use a "
            "test set that is parallel in three or more languages"
        )


def group_by_languages(
    pairs: Sequence[ParallelSentences],
) -> Iterator[tuple[tuple[str, str], list[ParallelSentences]]]:
    """Yield every two languages with their items, one per target language."""
    for names in dict.fromkeys(pair.languages for pair in pairs):
        yield names, [pair for pair in pairs if pair.languages == names]


def _rows_by_target(forced: ForcedSentences) -> dict[str, int]:
    sources: set[str] = set()
    row_by_target: dict[str, int] = {}
    for row, (source, target) in enumerate(zip(forced.sources, forced.targets, strict=True)):
        if target not in row_by_target and source not in sources:
            row_by_target[target] = row
            sources.add(source)
    return row_by_target


def to_own_language(
    translator: Translator, sentence_sets: Sequence[ForcedSentences]
) -> list[tuple[ForcedSentences, ForcedSentences, ForcedSentences]]:
    """Return each direction with its sources and its references, each into their own language.

    Args:
        translator: the model.
        sentence_sets: sentences with references.

    Returns:
        Triples of the direction, x -> x and y -> y. Equal texts share one object.

    Raises:
        UserError: if a reference is blank.
    """
    cache: dict[tuple[str, tuple[str, ...]], ForcedSentences] = {}

    def own_language(code: str, texts: tuple[str, ...]) -> ForcedSentences:
        if (code, texts) not in cache:
            cache[code, texts] = make_forced_sentences(translator, (code, code), texts, texts)
        return cache[code, texts]

    triples = []
    for forced in sentence_sets:
        (source, target), texts = forced.direction, forced.targets
        if blank := [text for text in texts if not text.strip()]:
            raise UserError(
                f"{source}-{target}: {len(blank)} references are blank; leave the direction out"
            )
        triples.append((forced, own_language(source, forced.sources), own_language(target, texts)))
    return triples
