"""Which directions of which corpus are trained on, and turning them into cached tasks.

A mixture names its supervised directions. Every other direction between their languages that the
corpus can validate is zero-shot: the cache holds its validation split and no training split.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence

from mnmt_jax.data.cache_writer import TaskSource, encode_pairs
from mnmt_jax.data.parallel_corpora import CldrPhrases, Corpus, get_corpus, register_corpus
from mnmt_jax.data.published_corpora import FINE_TUNING_COUNTS, PUBLISHED
from mnmt_jax.errors import UserError, join_names
from mnmt_jax.vocabulary.languages import (
    MITRE_LANGUAGES,
    Direction,
    english_centric_directions,
    many_to_many_directions,
    mitre_directions,
)
from mnmt_jax.vocabulary.vocabulary import Vocabulary

QUICKSTART_LANGUAGES = ("en", "de", "fr", "cs")
CACHED_SPLITS = ("train", "validation")


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Directions trained on together.

    Attributes:
        name: its name.
        corpus: name of a registered corpus (`mnmt_jax.data.parallel_corpora.CORPORA`).
        directions: supervised directions.
        temperature: T of the mixing rates seqio uses; a run has its own `Data.temperature`.
        zero_shot: directions validated on without training text; None for all others between the
            languages that are trained on.
    """

    name: str
    corpus: str
    directions: tuple[Direction, ...]
    temperature: float = 5.0
    zero_shot: tuple[Direction, ...] | None = None


def task_name(corpus: str, direction: Direction) -> str:
    """Returns the name of a direction's task; of text of one language, of the language's."""
    if direction[0] == direction[1]:
        return f"{corpus}_{direction[0]}"
    return f"{corpus}_{direction[0]}_{direction[1]}"


def zero_shot_directions(
    corpus: Corpus, supervised: Iterable[Direction], split: str = "validation"
) -> tuple[Direction, ...]:
    """Returns a corpus's other directions between languages that are trained on.

    Args:
        corpus: says which directions the split has.
        supervised: directions trained on.
        split: a held-out split.
    """
    known = set(supervised)
    languages = {code for direction in known for code in direction}
    return tuple(
        direction
        for direction in corpus.directions(split)
        if direction not in known and languages.issuperset(direction)
    )


def check_training_text(corpus: Corpus, supervised: Sequence[Direction]) -> None:
    """Checks, without reading it, that there is text for every direction trained on.

    Raises:
        UserError: with the first that has none.
    """
    present = corpus.directions("train")
    if missing := sorted(set(supervised).difference(present)):
        files = corpus.missing_files("train", missing[0])
        raise UserError(
            f"corpus '{corpus.name}' has no training text for {'-'.join(missing[0])}"
            f"{f' (no file {join_names(files)})' if files else ''}; it has "
            f"{join_names(list(map('-'.join, present)))}; add the text, or leave the direction out, "
            "with --directions"
        )


def validate_lines(corpus: Corpus, supervised: Sequence[Direction]) -> None:
    """Reads once what `task_sources` will read, so that a bad line is known before any work.

    Raises:
        UserError: with the first line that is bad, or the first files without a sentence pair.
    """
    zero_shot = zero_shot_directions(corpus, supervised)
    for split, directions in (("train", supervised), ("validation", (*supervised, *zero_shot))):
        present = set(corpus.directions(split)).intersection(directions)
        for pair in sorted(present):
            opposite = pair[::-1] in present and pair > pair[::-1]  # the same lines
            if not opposite and not corpus.size(split, pair):
                raise _no_text(corpus, split, pair)


def task_sources(
    corpus: Corpus,
    supervised: Sequence[Direction],
    vocabulary: Vocabulary,
    *,
    zero_shot: Sequence[Direction] | None = None,
) -> Iterator[TaskSource]:
    """Yields what `write_cache` takes: supervised tasks, then zero-shot ones.

    Args:
        corpus: gives the text.
        supervised: directions that get a training split.
        vocabulary: turns text into ids.
        zero_shot: directions that get a validation split alone, of those that the corpus can
            validate; None for all others between the languages that are trained on.

    Raises:
        UserError: if the corpus has no training text for a supervised direction.
    """
    check_training_text(corpus, supervised)
    present = {split: dict.fromkeys(corpus.directions(split)) for split in CACHED_SPLITS}
    for direction in supervised:
        splits = [split for split in CACHED_SPLITS if direction in present[split]]
        yield _source(corpus, direction, splits, vocabulary)
    if zero_shot is None:
        zero_shot = zero_shot_directions(corpus, supervised)
    for direction in zero_shot:
        if direction not in present["validation"]:
            continue
        yield _source(corpus, direction, CACHED_SPLITS[1:], vocabulary)


def language_text(
    corpus: Corpus, directions: Iterable[Direction], limit: int
) -> dict[str, list[str]]:
    """Collects the training text of each language, to train a vocabulary on.

    Args:
        corpus: gives the text.
        directions: directions to read; of two opposite ones, which have the same text, one is.
        limit: sentences kept per language at most; the first ones of each direction in turn.

    Returns:
        Text by language, for the languages of the directions, in the corpus's order.
    """
    lines = language_lines(corpus, directions)
    return {code: list(itertools.islice(text, limit)) for code, text in lines.items()}


def language_lines(corpus: Corpus, directions: Iterable[Direction]) -> dict[str, Iterator[str]]:
    """Returns the training text of each language as `language_text` does, all of it, unread."""
    streams: dict[str, list[Iterator[str]]] = {code: [] for code in corpus.languages}
    supervised = dict.fromkeys(directions)
    for direction in supervised:
        if direction[::-1] in supervised and direction > direction[::-1]:
            continue
        for side in (1,) if direction[0] == direction[1] else (0, 1):  # alone, the target has all
            streams[direction[side]].append(_side(corpus, direction, side))
    return {code: _in_turn(texts) for code, texts in streams.items() if texts}


def get_mixture(name: str) -> Mixture:
    """Returns a built-in mixture.

    Raises:
        UserError: if there is none of this name.
    """
    if name not in MIXTURES:
        raise UserError(f"unknown mixture '{name}'; built in are {', '.join(MIXTURES)}")
    return MIXTURES[name]


def mixture_corpus(mixture: Mixture) -> Corpus:
    """Makes the corpus of a mixture."""
    return get_corpus(mixture.corpus)


def _source(
    corpus: Corpus, direction: Direction, splits: Sequence[str], vocabulary: Vocabulary
) -> TaskSource:
    readers = {
        split: functools.partial(_encoded, vocabulary, corpus, (split, direction))
        for split in splits
    }
    share = corpus.share if "train" in splits else None
    return TaskSource(task_name(corpus.name, direction), *direction, readers, share)


def _encoded(
    vocabulary: Vocabulary, corpus: Corpus, part: tuple[str, Direction]
) -> Iterator[tuple[list[int], list[int]]]:
    """Yields the ids of the pairs of a split and direction.

    Raises:
        UserError: if it is a training split without any.
    """
    pairs = encode_pairs(vocabulary, corpus.pairs(*part), part[1])
    first = list(itertools.islice(pairs, 1))
    if not first and part[0] == "train":
        raise _no_text(corpus, *part)
    yield from first
    yield from pairs


def _no_text(corpus: Corpus, split: str, direction: Direction) -> UserError:
    """Says that files hold no sentence."""
    files = join_names(corpus.files(split, direction)) or f"{split} {'-'.join(direction)}"
    what = "sentence" if direction[0] == direction[1] else "sentence pair"
    return UserError(
        f"corpus '{corpus.name}': {files}: no {what}; give text, or leave the files out"
    )


def _side(corpus: Corpus, direction: Direction, side: int) -> Iterator[str]:
    for sentences in corpus.pairs("train", direction):
        yield sentences[side]


def _in_turn(streams: Sequence[Iterator[str]]) -> Iterator[str]:
    """Yields one item of each stream in turn until all have ended."""
    for items in itertools.zip_longest(*streams):
        yield from (item for item in items if item is not None)


def _quickstart_corpus() -> Corpus:
    sizes = {"train": 30_000, "validation": 500, "test": 500}
    return CldrPhrases(QUICKSTART_LANGUAGES, inventory="small", sizes=sizes, name="cldr_quickstart")


def _cldr_mixtures(corpus: str) -> tuple[Mixture, ...]:
    return (
        Mixture(f"{corpus}_english_centric", corpus, english_centric_directions(MITRE_LANGUAGES)),
        Mixture(f"{corpus}_bridge", corpus, mitre_directions()),
        Mixture(f"{corpus}_many_to_many", corpus, many_to_many_directions(MITRE_LANGUAGES)),
    )


def _published_mixtures() -> tuple[Mixture, ...]:
    """Lists the mixtures of published runs, most of them named as their corpora."""
    names = {"nllb": "nllb_bridge"}
    parts = ("flores_tuning", "iwslt17_de", "wmt14")
    plain = [row for row in PUBLISHED.values() if row.supervised and row.name not in parts]
    tuning = PUBLISHED["flores_tuning"]
    return (
        *(
            Mixture(
                names.get(row.name, row.name),
                row.name,
                row.supervised,
                row.temperature,
                None if row.tested else (),
            )
            for row in plain
        ),
        *(
            Mixture(
                f"flores_finetune_{count}",
                tuning.name,
                tuning.supervised[:count],
                tuning.temperature,
            )
            for count in FINE_TUNING_COUNTS
        ),
        _german_mixture("iwslt17_de", "iwslt17"),
        *_transfer_mixtures("ted30"),
        *_transfer_mixtures("wmt14"),
        Mixture("wmt14_en_de", "wmt14", (("en", "de"),), 1.0, ()),
        Mixture("wmt14_en_fr", "wmt14", (("en", "fr"),), 1.0, ()),
    )


def _german_mixture(name: str, before: str) -> Mixture:
    """Returns a mixture that adds German to a corpus, tested with all its other languages.

    Source: Qu and Watanabe (2022), section 4.4 (Table 4).
    """
    row = PUBLISHED[name]
    others = [code for code in PUBLISHED[before].languages if code != "en"]
    zero_shot = [pair for code in others for pair in ((code, "de"), ("de", code))]
    return Mixture(name, name, row.supervised, row.temperature, tuple(zero_shot))


def _transfer_mixtures(corpus: str) -> Iterator[Mixture]:
    """Yields a mixture trained from German and tested from French, and the converse.

    Source: Graformer, section 4.9 (Tables 7 and 8).
    """
    german, french = ("de", "en"), ("fr", "en")
    yield Mixture(f"{corpus}_transfer_de", corpus, (german,), 1.0, (french,))
    yield Mixture(f"{corpus}_transfer_fr", corpus, (french,), 1.0, (german,))


register_corpus("cldr_quickstart", _quickstart_corpus)
MIXTURES: dict[str, Mixture] = {
    mixture.name: mixture
    for mixture in (
        Mixture(
            "cldr_quickstart", "cldr_quickstart", english_centric_directions(QUICKSTART_LANGUAGES)
        ),
        Mixture(
            "cldr_quickstart_many_to_many",
            "cldr_quickstart",
            many_to_many_directions(QUICKSTART_LANGUAGES),
        ),
        *_cldr_mixtures("cldr"),
        *_cldr_mixtures("cldr_small"),
        *_published_mixtures(),
    )
}
"""Built-in mixtures by name; none needs TensorFlow."""
