"""Sentences of several languages that mean the same: those with one reference in one language."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int

from mnmt_jax.analysis.teacher_forcing import ForcedSentences, make_forced_sentences
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.errors import UserError

MIN_PARALLEL = 2  # sentences that a comparison needs


@dataclasses.dataclass(frozen=True, eq=False)
class ParallelSentences:
    """Sentences of two languages, both translated into a third, that mean the same.

    Attributes:
        first: sentences into the third of the language whose code comes first.
        second: of the other.
        rows: of the first, int `[pairs]`.
        others: of the second, in the same order.
    """

    first: ForcedSentences
    second: ForcedSentences
    rows: Int[np.ndarray, " pairs"]
    others: Int[np.ndarray, " pairs"]

    @property
    def languages(self) -> tuple[str, str]:
        """The two languages."""
        return self.first.direction[0], self.second.direction[0]

    def states(
        self, pooled: Mapping[ForcedSentences, np.ndarray], place: int
    ) -> tuple[Float[np.ndarray, "pairs embed"], Float[np.ndarray, "pairs embed"]]:
        """Returns the states of both, float64.

        Args:
            pooled: from `sentence_states`.
            place: number of the place.
        """
        return (
            pooled[self.first][self.rows, place].astype(np.float64),
            pooled[self.second][self.others, place].astype(np.float64),
        )


def align_by_reference(every: Sequence[ForcedSentences]) -> list[ParallelSentences]:
    """Pairs the directions into one language by their references.

    With one target language, whose tag or branch has a part in the states, only what is said
    differs. Of sentences with the same reference, or the same source, the first is taken.

    Args:
        every: sentences with references, by direction.

    Returns:
        One item for each two directions with `MIN_PARALLEL` sentences in common, in their order.
    """
    found = []
    for one, other in itertools.combinations(every, 2):
        if one.direction[1] != other.direction[1]:
            continue
        one, other = sorted((one, other), key=lambda each: each.direction)
        places = _by_target(other)
        pairs = [(row, places[text]) for text, row in _by_target(one).items() if text in places]
        if len(pairs) >= MIN_PARALLEL:
            rows, others = np.array(pairs, np.int64).T
            found.append(ParallelSentences(one, other, rows, others))
    return found


def check_has_parallel(pairs: Sequence[ParallelSentences], task: str) -> None:
    """Checks that there is something to compare.

    Raises:
        UserError: otherwise.
    """
    if not pairs:
        raise UserError(
            f"task '{task}': no two of the languages have {MIN_PARALLEL} sentences or more with the same "
            "references in a third; raise --limit, leave --directions out, or take a test set that "
            "is parallel in three languages or more"
        )


def group_by_languages(
    pairs: Sequence[ParallelSentences],
) -> Iterator[tuple[tuple[str, str], list[ParallelSentences]]]:
    """Yields each two languages with what there is of them: an item per target language."""
    for names in dict.fromkeys(each.languages for each in pairs):
        yield names, [each for each in pairs if each.languages == names]


def _by_target(forced: ForcedSentences) -> dict[str, int]:
    sources: set[str] = set()
    found: dict[str, int] = {}
    for row, (source, target) in enumerate(zip(forced.sources, forced.targets, strict=True)):
        if target not in found and source not in sources:
            found[target] = row
            sources.add(source)
    return found


def to_own_language(
    translator: Translator, every: Sequence[ForcedSentences]
) -> list[tuple[ForcedSentences, ForcedSentences, ForcedSentences]]:
    """Returns each direction with its sources and its references, each into their own language.

    Args:
        translator: the model.
        every: sentences with references.

    Returns:
        The direction, x -> x and y -> y; of the same texts the same object.

    Raises:
        UserError: if a reference is blank.
    """
    made: dict[tuple[str, tuple[str, ...]], ForcedSentences] = {}

    def own(code: str, texts: tuple[str, ...]) -> ForcedSentences:
        if (code, texts) not in made:
            made[code, texts] = make_forced_sentences(translator, (code, code), texts, texts)
        return made[code, texts]

    found = []
    for forced in every:
        (source, target), texts = forced.direction, forced.targets
        if blank := [text for text in texts if not text.strip()]:
            raise UserError(
                f"{source}-{target}: {len(blank)} references are blank; leave the direction out"
            )
        found.append((forced, own(source, forced.sources), own(target, texts)))
    return found
