"""Numbers of sentence pairs of a corpus, by split and direction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from mnmt_jax.data.corpus import Corpus
from mnmt_jax.data.mixtures import check_training_text
from mnmt_jax.data.opposite_directions import has_same_text
from mnmt_jax.vocabulary.language_codes import Direction


def count_pairs(
    corpus: Corpus, supervised: Sequence[Direction], splits: Iterable[str]
) -> dict[str, dict[str, int]]:
    """Count the sentence pairs of a corpus; all text is read once.

    Args:
        corpus: the corpus.
        supervised: directions that are trained on; from a language to itself for monolingual text.
        splits: `train`, which counts the supervised directions, `validation` or `test`, which count
            all directions between their languages that have such text.

    Returns:
        Counts by split and direction, such as `de-en`.

    Raises:
        UserError: if a supervised direction has no training text.
    """
    languages = {code for direction in supervised for code in direction}
    counts = {}
    for split in splits:
        if split == "train":
            check_training_text(corpus, supervised)
            directions = list(supervised)
        else:
            directions = [pair for pair in corpus.directions(split) if languages.issuperset(pair)]
        counts[split] = {"-".join(pair): size for pair, size in _sizes(corpus, split, directions)}
    return counts


def _sizes(
    corpus: Corpus, split: str, directions: Iterable[Direction]
) -> Iterator[tuple[Direction, int]]:
    """Yield each direction with its number of pairs; text of two directions is read once."""
    sizes: dict[Direction, int] = {}
    for pair in directions:
        opposite = pair[::-1]
        is_known = opposite in sizes and has_same_text(corpus, split, pair)
        sizes[pair] = sizes[opposite] if is_known else corpus.size(split, pair)
        yield pair, sizes[pair]
