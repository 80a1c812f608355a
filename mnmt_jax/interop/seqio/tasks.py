"""Registration of translation tasks and mixtures with seqio. Imports TensorFlow; the core does not.

An example has four features: `inputs` and `targets`, piece ids without tags and eos, and
`source_lang` and `target_lang`, one index each into the vocabulary's languages. Tags and eos are
added when batches are built, because the instruction is a setting of the run, not of the data.
The names `inputs` and `targets` are seqio's, because its evaluators and tools expect them.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import seqio
import tensorflow as tf

from mnmt_jax.data.cache_writer import TaskSource
from mnmt_jax.data.cldr import SPLITS
from mnmt_jax.data.mixtures import task_name
from mnmt_jax.data.parallel_corpora import Corpus
from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.metrics import corpus_scores
from mnmt_jax.evaluation.off_target import lid_off_target
from mnmt_jax.interop.seqio.vocabulary import LanguageVocabulary, PieceVocabulary
from mnmt_jax.vocabulary.language_codes import Direction, canonical_code

_TEXTS = ("inputs", "targets")
_DIRECTIONS: dict[str, Direction] = {}  # by name of a task registered here
_ZERO_SHOT: dict[str, tuple[str, ...]] = {}  # by mixture: validation-only tasks


def output_features(vocabulary: PieceVocabulary) -> dict[str, seqio.Feature]:
    """Return the output features that all tasks share."""
    text = functools.partial(seqio.Feature, vocabulary=vocabulary, add_eos=False)
    lang = functools.partial(seqio.Feature, vocabulary=LanguageVocabulary(), add_eos=False)
    return {"inputs": text(), "targets": text(), "source_lang": lang(), "target_lang": lang()}


def add_task(
    name: str,
    source: seqio.DataSource,
    *,
    direction: Direction,
    vocabulary: PieceVocabulary,
    keys: tuple[str, str] = ("inputs", "targets"),
) -> seqio.Task:
    """Register a task for one direction of any seqio data source.

    Args:
        name: the task's name.
        source: yields examples that hold the two texts, e.g. a `seqio.TfdsDataSource`.
        direction: source and target language, both with a tag in the vocabulary.
        vocabulary: vocabulary that encodes the text.
        keys: feature names of the source and target text in the examples; dots separate nested
            names, as in "translation.de".
    """
    _DIRECTIONS[name] = direction
    return seqio.TaskRegistry.add(
        name,
        source=source,
        preprocessors=[
            functools.partial(_select_texts, keys=keys),
            functools.partial(_encode_texts, direction=direction, vocabulary=vocabulary),
            functools.partial(_add_languages, direction=direction, vocabulary=vocabulary),
            seqio.CacheDatasetPlaceholder(),
        ],
        postprocess_fn=_text_to_score,
        output_features=output_features(vocabulary),
        metric_fns=[translation_metrics(direction[1])],
    )


def add_corpus(
    corpus: Corpus, *, directions: Iterable[Direction], vocabulary: PieceVocabulary
) -> list[str]:
    """Register one task per direction of a text corpus, with all splits of the corpus.

    Args:
        corpus: the text corpus.
        directions: directions to register, with or without a training split.
        vocabulary: vocabulary that encodes the text.

    Returns:
        The tasks' names, `{corpus}_{source}_{target}`.

    Raises:
        UserError: if the corpus has no split of a direction.
    """
    present = {pair for split in corpus.splits() for pair in corpus.directions(split)}
    canonical = _canonical_directions(directions)
    if absent := [pair for pair in canonical if pair not in present]:
        raise UserError(f"corpus '{corpus.name}' has no text for {'-'.join(absent[0])}")
    return add_named_corpus(
        corpus.name, lambda: corpus, directions=canonical, vocabulary=vocabulary
    )


def add_named_corpus(
    name: str,
    load: Callable[[], Corpus],
    *,
    directions: Iterable[Direction],
    vocabulary: PieceVocabulary,
) -> list[str]:
    """Register one task per direction of a corpus that is loaded when a task is first used.

    Tasks can therefore be registered before the files of the corpus exist.

    Args:
        name: name of the corpus.
        load: returns the corpus, or raises if files are missing; called more than once.
        directions: directions to register.
        vocabulary: vocabulary that encodes the text.

    Returns:
        The tasks' names, `{corpus}_{source}_{target}`.
    """
    names = []
    for direction in _canonical_directions(directions):
        names.append(task_name(name, direction))
        source = _CorpusSource(load, direction)
        add_task(names[-1], source, direction=direction, vocabulary=vocabulary)
    return names


def _canonical_directions(directions: Iterable[Direction]) -> tuple[Direction, ...]:
    """Return directions with canonical codes."""
    return tuple((canonical_code(source), canonical_code(target)) for source, target in directions)


class _CorpusSource(seqio.FunctionDataSource):
    """Data source of one direction of a corpus; counts examples only on request."""

    def __init__(self, load: Callable[[], Corpus], direction: Direction) -> None:
        super().__init__(functools.partial(_corpus_dataset, load, direction), splits=())
        self._load, self._direction = load, direction

    @property
    def splits(self) -> Sequence[str]:
        """The splits that contain the direction."""
        corpus = self._load()
        return tuple(
            split for split in corpus.splits() if self._direction in corpus.directions(split)
        )

    def num_input_examples(self, split: str) -> int:
        """Return the number of sentence pairs."""
        return self._load().size(split, self._direction)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'-'.join(self._direction)})"


def add_mixture(
    name: str, tasks: Sequence[str], *, temperature: float, zero_shot: Sequence[str] = ()
) -> seqio.Mixture:
    """Register a mixture with rates p_i ~ n_i^(1/T).

    Args:
        name: the mixture's name.
        tasks: names of its tasks.
        temperature: T; 1 samples in proportion to size.
        zero_shot: names of tasks without training. They form the mixture NAME_zero_shot, and a
            token cache of this mixture includes their validation splits.

    Source: registers.md 6.4 (fairseq's temperature sampling).
    """
    rate = functools.partial(_temperature_rate, temperature=temperature)
    if zero_shot:
        seqio.MixtureRegistry.add(f"{name}_zero_shot", list(zero_shot), default_rate=1.0)
    _ZERO_SHOT[name] = tuple(zero_shot)
    return seqio.MixtureRegistry.add(name, list(tasks), default_rate=rate)


def translation_metrics(target_lang: str) -> Callable[..., dict[str, float]]:
    """Return a seqio metric function: BLEU, chrF++, exact match, off-target ratio, in percent.

    Args:
        target_lang: determines BLEU's tokenizer. BLEU is omitted if that tokenizer is not
            installed, and `off_target_lid` if lid.176 has no reliable label for
            the language.
    """

    def metrics(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
        scores = corpus_scores(predictions, targets, target_lang)
        values = {"bleu": scores.bleu, "chrf": scores.chrf, "exact_match": scores.exact_match}
        values["off_target_lid"] = lid_off_target(predictions, target_lang).ratio
        return {name: value for name, value in values.items() if value is not None}

    return metrics


def task_sources(name: str, splits: Sequence[str]) -> Iterator[TaskSource]:
    """Yield all tasks of a registered task or mixture as sources for the token cache.

    Args:
        name: a task or mixture whose modules have been imported.
        splits: splits to write, if the task has them; "train" is skipped for zero-shot tasks of a
            mixture.

    Raises:
        UserError: if the name is not registered, or this module did not register a task.
    """
    for task in seqio.get_subtasks(_provider(name)):
        yield _task_source(task, splits)
    held_out = [split for split in splits if split != "train"]
    for zero_shot_task in _ZERO_SHOT.get(name, ()):
        yield _task_source(seqio.TaskRegistry.get(zero_shot_task), held_out)


class RegisteredText(Corpus):
    """Corpus of the text of a registered task or mixture, including zero-shot tasks.

    Args:
        name: a task or mixture whose modules have been imported.

    Raises:
        UserError: if the name is not registered, or this module did not register a task.
    """

    def __init__(self, name: str) -> None:
        tasks = [*seqio.get_subtasks(_provider(name))]
        tasks += [
            seqio.TaskRegistry.get(zero_shot_task) for zero_shot_task in _ZERO_SHOT.get(name, ())
        ]
        self._tasks: dict[Direction, list[seqio.Task]] = {}
        for task in tasks:
            self._tasks.setdefault(_direction(task), []).append(task)
        super().__init__(name, tuple(dict.fromkeys(code for pair in self._tasks for code in pair)))

    def splits(self) -> tuple[str, ...]:
        """Return the splits that any task has."""
        return tuple(split for split in SPLITS if self.directions(split))

    def directions(self, split: str) -> tuple[Direction, ...]:
        """Return the directions whose tasks have the split."""
        return tuple(
            pair for pair, tasks in self._tasks.items() if any(split in t.splits for t in tasks)
        )

    def pairs(self, split: str, direction: Direction) -> Iterator[tuple[str, str]]:
        """Yield the texts before tokenization; see the base class."""
        self._check(split, direction)
        for task in self._tasks.get(direction, ()):
            if split in task.splits:
                dataset = task.get_dataset(sequence_length=None, split=split, shuffle=False)
                for example in dataset.as_numpy_iterator():
                    yield tuple(example[f"{key}_pretokenized"].decode() for key in _TEXTS)


def registered_vocabulary(name: str) -> PieceVocabulary:
    """Return the vocabulary of a registered task or mixture.

    Raises:
        UserError: if the name is not registered or its vocabulary is not a `PieceVocabulary`.
    """
    vocabulary = _provider(name).output_features["targets"].vocabulary
    if not isinstance(vocabulary, PieceVocabulary):
        raise UserError(f"'{name}' uses {type(vocabulary).__name__}; use PieceVocabulary")
    return vocabulary


def _provider(name: str) -> seqio.Task | seqio.Mixture:
    try:
        return seqio.get_mixture_or_task(name)
    except ValueError as error:
        raise UserError(
            f"'{name}' is no built-in mixture and not registered with seqio; import the module "
            "that registers it with --module_import"
        ) from error


def _task_source(task: seqio.Task, splits: Sequence[str]) -> TaskSource:
    readers = {
        split: functools.partial(_task_pairs, task, split)
        for split in splits
        if split in task.splits
    }
    return TaskSource(task.name, *_direction(task), readers)


def _direction(task: seqio.Task) -> Direction:
    if task.name not in _DIRECTIONS:
        raise UserError(
            f"task '{task.name}' has no languages; register it with "
            "mnmt_jax.interop.seqio.tasks.add_task"
        )
    return _DIRECTIONS[task.name]


def _task_pairs(task: seqio.Task, split: str) -> Iterator[tuple[Any, Any]]:
    dataset = task.get_dataset(sequence_length=None, split=split, shuffle=False)
    for example in dataset.as_numpy_iterator():
        yield example["inputs"], example["targets"]


def _corpus_dataset(
    load: Callable[[], Corpus],
    direction: Direction,
    split: str,
    shuffle_files: bool = False,
    seed: int | None = None,
) -> tf.data.Dataset:
    """Return a dataset that streams a corpus; seqio shuffles it with its own buffer."""
    del shuffle_files, seed

    def examples() -> Iterator[dict[str, str]]:
        for source, target in load().pairs(split, direction):
            yield {"inputs": source, "targets": target}

    text = tf.TensorSpec((), tf.string)
    return tf.data.Dataset.from_generator(
        examples, output_signature={"inputs": text, "targets": text}
    )


def _select_texts(dataset: tf.data.Dataset, keys: tuple[str, str]) -> tf.data.Dataset:
    def select_texts(example: dict[str, Any]) -> dict[str, Any]:
        texts = [functools.reduce(operator.getitem, key.split("."), example) for key in keys]
        return {"inputs": texts[0], "targets": texts[1]}

    return dataset.map(select_texts)


def _encode_texts(
    dataset: tf.data.Dataset, direction: Direction, vocabulary: PieceVocabulary
) -> tf.data.Dataset:
    """Encode the text of both sides by language; keep the text, as seqio's `tokenize` does."""
    vocabularies = {
        key: vocabulary.in_language(code) for key, code in zip(_TEXTS, direction, strict=True)
    }

    def encode(example: dict[str, Any]) -> dict[str, Any]:
        texts = {f"{key}_pretokenized": example[key] for key in _TEXTS}
        return texts | {
            key: side_vocabulary.encode_tf(example[key])
            for key, side_vocabulary in vocabularies.items()
        }

    return dataset.map(encode, num_parallel_calls=tf.data.AUTOTUNE)


def _add_languages(
    dataset: tf.data.Dataset, direction: Direction, vocabulary: PieceVocabulary
) -> tf.data.Dataset:
    indices = [vocabulary.vocabulary.language_index(code) for code in direction]

    def add(example: dict[str, Any]) -> dict[str, Any]:
        languages = {
            name: tf.constant([index], tf.int32)
            for name, index in zip(("source_lang", "target_lang"), indices, strict=True)
        }
        return {**example, **languages}

    return dataset.map(add)


def _text_to_score(
    output: str, example: Mapping[str, Any] | None = None, is_target: bool = False
) -> str:
    """Return the text to score: corpus text for a reference, decoded text for a prediction."""
    if is_target and example is not None:
        return example["targets_pretokenized"].decode()
    return output


def _temperature_rate(task: seqio.Task, temperature: float) -> float:
    split = "train" if "train" in task.splits else sorted(task.splits)[-1]
    return task.num_input_examples(split) ** (1.0 / temperature)
