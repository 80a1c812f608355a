"""Parallel multilingual prompting: training pairs whose source includes a second translation.

    P(T | S)   becomes   P(T | S, A)    A: the translation of S in an auxiliary language

The source of a prompted pair is `S [tag of A's language] A`; only T is predicted. A model is
trained on prompted and plain pairs, and then translates plain sources too. Translations come from
the other tasks of a cache: a task that shares S or T with the pair gives A.

Source: Luo et al. 2026 ("NiuTrans.LMT: Toward Inclusive and Scalable Multilingual Machine
Translation with LLMs", arXiv 2511.07003), section 3. They mix both kinds half and half (section
5.1). Their prompt is text for a language model ("Translate this from English to Russian and
Kirghiz: ..."); the tag is ours.
"""

from __future__ import annotations

import dataclasses
import functools
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from mnmt_jax.data.cache import CachedTask, TokenCache
from mnmt_jax.data.cache_writer import (
    ReusedTask,
    TaskSource,
    TokenPair,
    check_cache_directory,
    has_prompts,
    write_tasks,
)
from mnmt_jax.data.instruction import join_auxiliary
from mnmt_jax.errors import UserError, join_names
from mnmt_jax.files.atomic_write import new_folder
from mnmt_jax.vocabulary.language_codes import Direction
from mnmt_jax.vocabulary.vocabulary import Vocabulary

PREFIX = "prompted_"
_TRAIN = "train"


@dataclasses.dataclass(frozen=True, eq=False)
class PromptedPairs:
    """The tasks of a cache, and tasks of their training pairs with prompts.

    Attributes:
        cache: cache of the plain pairs, with tasks that share sentences.
        auxiliary: auxiliary language of each language that has one. A direction takes that of its
            target, or else that of its source, if it differs from both.
    """

    cache: TokenCache
    auxiliary: Mapping[str, str]

    def auxiliary_of(self, name: str) -> str | None:
        """Return the auxiliary language of a task; None if it gets no prompts.

        Text of single languages and chunks of documents get none.
        """
        return _auxiliary_of(self.cache.tasks[name], self.auxiliary, self.cache.vocabulary)

    def tasks(self) -> Iterator[ReusedTask | TaskSource]:
        """Yield all tasks of the new cache.

        Raises:
            UserError: if no task has an auxiliary language.
        """
        prompted = _auxiliary_by_name(self.cache.tasks, self.auxiliary, self.cache.vocabulary)
        for name in self.cache.tasks:
            yield ReusedTask(self.cache, name)
        for name, language in prompted.items():
            task, pairs = self.cache.tasks[name], functools.partial(self._pairs, name, language)
            languages = task.source_lang, task.target_lang
            yield TaskSource(f"{PREFIX}{name}", *languages, {_TRAIN: pairs}, task.share)

    def _direction(self, name: str) -> Direction:
        return _direction_of(self.cache.tasks[name], self.cache.vocabulary)

    def _pairs(self, name: str, language: str) -> Iterator[TokenPair]:
        """Yield the pairs of a task that have a translation in an auxiliary language.

        Raises:
            UserError: if none has one.
        """
        count = 0
        translations = [self._translations(side, language) for side in self._direction(name)]
        for pair in self.cache.pairs(name, _TRAIN):
            sides = zip(translations, pair, strict=True)
            candidates = (by_text.get(text.tobytes()) for by_text, text in sides)
            if auxiliary := next(filter(None, candidates), None):
                count += 1
                source, target = (side.tolist() for side in pair)
                yield join_auxiliary(self.cache.vocabulary, source, language, auxiliary), target
        if not count:
            raise UserError(
                f"--auxiliary: no pair of '{name}' has a translation in '{language}'; other tasks "
                "must share its sentences"
            )

    def _translations(self, language: str, auxiliary: str) -> dict[bytes, list[int]]:
        """Return the first translation of each sentence of a language, by its pieces as bytes."""
        translations: dict[bytes, list[int]] = {}
        for name in self.cache.tasks_with(_TRAIN):
            direction = self._direction(name)
            if {*direction} == {language, auxiliary}:
                for pair in self.cache.pairs(name, _TRAIN):
                    text, translation = pair if direction[0] == language else reversed(pair)
                    translations.setdefault(text.tobytes(), translation.tolist())
        return translations


def _direction_of(task: CachedTask | ReusedTask | TaskSource, vocabulary: Vocabulary) -> Direction:
    """Return the languages of a task in the vocabulary's codes."""
    code_of = vocabulary.vocabulary_code_of
    return code_of(task.source_lang), code_of(task.target_lang)


def _auxiliary_of(
    task: CachedTask | ReusedTask | TaskSource, auxiliary: Mapping[str, str], vocabulary: Vocabulary
) -> str | None:
    """Return the auxiliary language of a task; see `PromptedPairs.auxiliary_of`."""
    source, target = direction = _direction_of(task, vocabulary)
    if source == target or task.context:
        return None
    for language in (target, source):
        if (code := auxiliary.get(language)) is not None and code not in direction:
            return code
    return None


def _auxiliary_by_name(
    tasks: Mapping[str, CachedTask | ReusedTask | TaskSource],
    auxiliary: Mapping[str, str],
    vocabulary: Vocabulary,
) -> dict[str, str]:
    """Return the auxiliary language of each training task that has one.

    Raises:
        UserError: if no task has one.
    """
    trained = {name: task for name, task in tasks.items() if _TRAIN in task.splits}
    languages = {name: _auxiliary_of(task, auxiliary, vocabulary) for name, task in trained.items()}
    prompted = {name: code for name, code in languages.items() if code is not None}
    if not prompted:
        raise UserError(
            "--auxiliary: no training direction can have one of these languages; the tasks are "
            + join_names(list(trained))
        )
    return prompted


def write_prompted_cache(
    directory: str | Path,
    tasks: Iterable[TaskSource | ReusedTask],
    auxiliary: Mapping[str, str],
    *,
    vocabulary: Vocabulary,
    overwrite: bool = False,
    report: Callable[[str], None] = lambda line: None,
) -> TokenCache:
    """Write a token cache of tasks and of their prompted pairs.

    Args:
        directory: folder of the new cache.
        tasks: the plain tasks.
        auxiliary: as in `PromptedPairs`.
        vocabulary: saved with the cache.
        overwrite: as in `write_cache`.
        report: called with one line per finished task.

    Raises:
        UserError: as `write_cache` and `PromptedPairs`, or if a task has prompts already.
    """
    directory, tasks = Path(directory), list(tasks)
    check_cache_directory(directory, overwrite)
    for task in tasks:
        if isinstance(task, ReusedTask) and has_prompts(task.cache, task.name):
            raise UserError(
                f"--auxiliary: '{task.name}' has prompts already; leave its cache out of --also"
            )
    _auxiliary_by_name({task.name: task for task in tasks}, auxiliary, vocabulary)
    with new_folder(directory, overwrite=overwrite) as partial:
        plain = partial / "plain"
        write_tasks(plain, tasks, vocabulary=vocabulary, report=report)
        write_tasks(
            partial,
            PromptedPairs(TokenCache.open(plain), auxiliary).tasks(),
            vocabulary=vocabulary,
            report=lambda line: report(line) if line.startswith(PREFIX) else None,
        )
        shutil.rmtree(plain)
    return TokenCache.open(directory)
