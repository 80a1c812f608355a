"""Training mixtures: direction sets, and their conversion to cached tasks.

A mixture names its supervised directions. Every other direction between their languages that has a
validation split in the corpus is zero-shot: the cache holds its validation split only.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from mnmt_jax.data.cache_writer import TaskSource, encode_pairs
from mnmt_jax.data.opposite_directions import distinct_directions
from mnmt_jax.data.parallel_corpora import CldrPhrases, Corpus, get_corpus, register_corpus
from mnmt_jax.data.published_corpora import FINE_TUNING_COUNTS, PUBLISHED
from mnmt_jax.errors import UserError, join_names
from mnmt_jax.vocabulary.language_codes import Direction
from mnmt_jax.vocabulary.languages import (
    MITRE_LANGUAGES,
    english_centric_directions,
    find_english,
    many_to_many_directions,
    mitre_directions,
)
from mnmt_jax.vocabulary.vocabulary import Vocabulary

QUICKSTART_LANGUAGES = ("en", "de", "fr", "cs")
CACHED_SPLITS = ("train", "validation")
EVALUATION_SPLITS = ("validation", "test")


@dataclasses.dataclass(frozen=True)
class Mixture:
    """A set of directions that are trained on together.

    Attributes:
        name: name of the mixture.
        corpus: name of a registered corpus (`mnmt_jax.data.parallel_corpora.CORPORA`).
        directions: supervised directions.
        temperature: T of the mixing rates for seqio; a training run uses `Data.temperature`.
        zero_shot: directions with validation text only; None for all other directions between the
            supervised languages.
    """

    name: str
    corpus: str
    directions: tuple[Direction, ...]
    temperature: float = 5.0
    zero_shot: tuple[Direction, ...] | None = None


def task_name(corpus: str, direction: Direction) -> str:
    """Return CORPUS_SOURCE_TARGET, or CORPUS_LANGUAGE for monolingual text."""
    if direction[0] == direction[1]:
        return f"{corpus}_{direction[0]}"
    return f"{corpus}_{direction[0]}_{direction[1]}"


def zero_shot_directions(
    corpus: Corpus, supervised: Iterable[Direction], split: str = "validation"
) -> tuple[Direction, ...]:
    """Return the other directions of a split between supervised languages.

    Args:
        corpus: the corpus; it lists the directions of the split.
        supervised: directions that are trained on.
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
    """Check that the corpus has training text for all supervised directions, without reading it.

    Raises:
        UserError: if a direction has none; names the first.
    """
    present = corpus.directions("train")
    if missing := sorted(set(supervised).difference(present)):
        files = corpus.missing_files("train", missing[0])
        raise UserError(
            f"corpus '{corpus.name}' has no training text for {'-'.join(missing[0])}"
            f"{f' (no file {join_names(files)})' if files else ''}; it has "
            f"{join_names(list(map('-'.join, present)))}; add the text, or leave the direction "
            "out, with --directions or left_out_pairs of a --bridge file"
        )


def validate_lines(corpus: Corpus, supervised: Sequence[Direction]) -> None:
    """Read all text that `cache_task_sources` will read once, to report bad lines before any work.

    Raises:
        UserError: if a line is bad or files hold no sentence pair; names the first.
    """
    zero_shot = zero_shot_directions(corpus, supervised)
    for split, directions in (("train", supervised), ("validation", (*supervised, *zero_shot))):
        present = set(corpus.directions(split)).intersection(directions)
        for direction in distinct_directions(corpus, split, sorted(present)):
            if not corpus.size(split, direction):
                raise no_text_error(corpus, split, direction)


class PlannedTask(NamedTuple):
    """A task of a cache before its text is read.

    Attributes:
        name: name of the task.
        direction: source and target language.
        splits: splits that it has.
    """

    name: str
    direction: Direction
    splits: tuple[str, ...]


def plan_tasks(
    corpus: Corpus,
    supervised: Sequence[Direction],
    *,
    zero_shot: Sequence[Direction] | None = None,
) -> list[PlannedTask]:
    """Return the tasks of a cache: supervised tasks, then zero-shot ones.

    Args:
        corpus: corpus with the text.
        supervised: directions that get a training split.
        zero_shot: directions that get a validation split only, if the corpus has one for them; None
            for all other directions between the supervised languages.

    Raises:
        UserError: if the corpus has no training text for a supervised direction.
    """
    check_training_text(corpus, supervised)
    present = {split: set(corpus.directions(split)) for split in CACHED_SPLITS}
    if zero_shot is None:
        zero_shot = zero_shot_directions(corpus, supervised)
    trained = [
        (pair, tuple(split for split in CACHED_SPLITS if pair in present[split]))
        for pair in supervised
    ]
    held_out = [(pair, CACHED_SPLITS[1:]) for pair in zero_shot if pair in present["validation"]]
    return [
        PlannedTask(task_name(corpus.name, pair), pair, splits)
        for pair, splits in (*trained, *held_out)
    ]


def plan_evaluation_tasks(corpus: Corpus, directions: Sequence[Direction]) -> list[PlannedTask]:
    """Return the tasks with the validation and test text of directions.

    Raises:
        UserError: if a direction has neither.
    """
    present = {split: set(corpus.directions(split)) for split in EVALUATION_SPLITS}
    tasks = []
    for pair in directions:
        splits = tuple(split for split in EVALUATION_SPLITS if pair in present[split])
        if not splits:
            raise UserError(
                f"corpus '{corpus.name}' has no validation or test text for {'-'.join(pair)}; "
                "leave the direction out"
            )
        tasks.append(PlannedTask(task_name(corpus.name, pair), pair, splits))
    return tasks


def cache_task_sources(
    corpus: Corpus,
    supervised: Sequence[Direction],
    vocabulary: Vocabulary,
    *,
    zero_shot: Sequence[Direction] | None = None,
) -> Iterator[TaskSource]:
    """Yield the tasks of `plan_tasks` with their text, for `write_cache`.

    Args:
        corpus: as in `plan_tasks`.
        supervised: as in `plan_tasks`.
        vocabulary: encodes text as ids.
        zero_shot: as in `plan_tasks`.

    Raises:
        UserError: as `plan_tasks`.
    """
    for task in plan_tasks(corpus, supervised, zero_shot=zero_shot):
        yield _task_source(corpus, task, vocabulary)


def language_text(
    corpus: Corpus, directions: Iterable[Direction], limit: int, english_from: Sequence[str] = ()
) -> dict[str, list[str]]:
    """Collect the training text of each language, to train a vocabulary on.

    Args:
        corpus: corpus with the text.
        directions: directions to read; of opposite directions with the same text one is read.
        limit: maximum sentences per language, taken from its directions round-robin.
        english_from: languages in whose pairs English is read; other languages are then read in
            their pair with English alone. Empty: all pairs are read.

    Returns:
        Text by language, for the languages of the directions, in the order of the corpus.

    Raises:
        UserError: if a language of `english_from` has no pair with English.
    """
    lines = language_lines(corpus, directions, english_from)
    return {code: list(itertools.islice(text, limit)) for code, text in lines.items()}


def language_lines(
    corpus: Corpus, directions: Iterable[Direction], english_from: Sequence[str] = ()
) -> dict[str, Iterator[str]]:
    """Return lazy iterators over the text of `language_text`, without a limit."""
    streams: dict[str, list[Iterator[str]]] = {code: [] for code in corpus.languages}
    distinct = dict.fromkeys(directions)
    english = find_english(corpus.languages)
    if english_from:
        _check_english_pairs(distinct, english, english_from)
    for direction in distinct_directions(corpus, "train", distinct):
        for side in (1,) if direction[0] == direction[1] else (0, 1):  # monolingual: target only
            if not english_from or _is_read(direction, side, english, english_from):
                streams[direction[side]].append(_side_sentences(corpus, direction, side))
    return {code: _interleave(texts) for code, texts in streams.items() if texts}


def _check_english_pairs(
    directions: Iterable[Direction], english: str | None, english_from: Iterable[str]
) -> None:
    """Check that the languages have pairs with English.

    Raises:
        UserError: if one has none.
    """
    paired = {code for pair in directions if english in pair for code in pair} - {english}
    if unpaired := [code for code in english_from if code not in paired]:
        raise UserError(
            f"--english_from: '{unpaired[0]}' has no pair with English; choose from "
            f"{join_names(sorted(paired)) or 'none'}"
        )


def _is_read(
    direction: Direction, side: int, english: str | None, english_from: Sequence[str]
) -> bool:
    """Return whether a side of a pair is read: English in some pairs, others with English."""
    other = direction[1 - side]
    return other in english_from if direction[side] == english else other == english


def get_mixture(name: str) -> Mixture:
    """Return a built-in mixture.

    Raises:
        UserError: if there is no mixture of this name.
    """
    if name not in MIXTURES:
        raise UserError(f"unknown mixture '{name}'; built in are {', '.join(MIXTURES)}")
    return MIXTURES[name]


def mixture_corpus(mixture: Mixture) -> Corpus:
    """Make the corpus of a mixture."""
    return get_corpus(mixture.corpus)


def _task_source(corpus: Corpus, task: PlannedTask, vocabulary: Vocabulary) -> TaskSource:
    pair_readers = {
        split: functools.partial(_encoded, vocabulary, corpus, (split, task.direction))
        for split in task.splits
    }
    share = corpus.share if "train" in task.splits else None
    return TaskSource(task.name, *task.direction, pair_readers, share, corpus.context)


def _encoded(
    vocabulary: Vocabulary, corpus: Corpus, split_direction: tuple[str, Direction]
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the (source, target) ids of a split and direction.

    Raises:
        UserError: if a training split has no pair.
    """
    pairs = encode_pairs(vocabulary, corpus.pairs(*split_direction), split_direction[1])
    first_pair = list(itertools.islice(pairs, 1))
    if not first_pair and split_direction[0] == "train":
        raise no_text_error(corpus, *split_direction)
    yield from first_pair
    yield from pairs


def no_text_error(corpus: Corpus, split: str, direction: Direction) -> UserError:
    """Return the error of files without a sentence."""
    files = join_names(corpus.files(split, direction)) or f"{split} {'-'.join(direction)}"
    unit = "sentence" if direction[0] == direction[1] else "sentence pair"
    return UserError(f"corpus '{corpus.name}': {files}: no {unit}; add text, or remove the files")


def _side_sentences(corpus: Corpus, direction: Direction, side: int) -> Iterator[str]:
    for sentences in corpus.pairs("train", direction):
        yield sentences[side]


def _interleave(streams: Sequence[Iterator[str]]) -> Iterator[str]:
    """Yield items round-robin from all streams until all are exhausted."""
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
    """Return the mixtures of published runs; most have the name of their corpus."""
    mixture_names = {"nllb": "nllb_bridge"}
    excluded = ("flores_tuning", "iwslt17_de", "wmt14")
    one_mixture_rows = [
        row for row in PUBLISHED.values() if row.supervised and row.name not in excluded
    ]
    tuning = PUBLISHED["flores_tuning"]
    return (
        *(
            Mixture(
                mixture_names.get(row.name, row.name),
                row.name,
                row.supervised,
                row.temperature,
                None if row.tested_languages else (),
            )
            for row in one_mixture_rows
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


def _german_mixture(name: str, base_corpus: str) -> Mixture:
    """Return a mixture that adds German to a corpus; zero-shot with its non-English languages.

    Source: Qu and Watanabe (2022), section 4.4 (Table 4).
    """
    row = PUBLISHED[name]
    other_languages = [code for code in PUBLISHED[base_corpus].languages if code != "en"]
    zero_shot = [pair for code in other_languages for pair in ((code, "de"), ("de", code))]
    return Mixture(name, name, row.supervised, row.temperature, tuple(zero_shot))


def _transfer_mixtures(corpus: str) -> Iterator[Mixture]:
    """Yield a mixture trained from German and tested from French, and the reverse.

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
