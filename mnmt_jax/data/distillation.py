"""Sequence-level distillation: sources of a cache, and tasks whose targets are their translations.

    L = -log p_student(ŷ | x)    ŷ: the translation of x that the teacher's search finds

The target of a pair is replaced by ŷ, and the student is trained by maximum likelihood. Each
direction may have a teacher of its own, so specialised teachers become one multilingual student.
With the model itself as the teacher and minimum Bayes risk as the search, ŷ is the sample that the
others agree with most,

    ŷ = argmax_h sum_r U(h, r)   h, r: samples of p(y | x)

and further training on ŷ is MBR fine-tuning.

Source: Kim and Rush 2016 ("Sequence-Level Knowledge Distillation"), section 3.2, whose search is
beam search; Finkelstein and Freitag 2023 ("MBR and QE Finetuning", arXiv 2309.10966).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from mnmt_jax.data.cache import TokenCache
from mnmt_jax.data.cache_writer import ReusedTask, TaskSource, TokenPair
from mnmt_jax.data.instruction import split_auxiliary
from mnmt_jax.errors import UserError

PREFIX = "distilled_"
_TRAIN = "train"
_BLOCK = 4096


@dataclasses.dataclass(frozen=True, eq=False)
class DistilledPairs:
    """Training sources to translate, in a fixed order, and the tasks built from the translations.

    Attributes:
        cache: cache of the real pairs.
        names: names of the tasks whose sources are translated, in the order of translation.
        keep: whether the real pairs stay beside the distilled ones, which then have tasks
            `distilled_NAME`.
    """

    cache: TokenCache
    names: tuple[str, ...]
    keep: bool = False

    def __post_init__(self) -> None:
        """Check that the tasks were not distilled before.

        Raises:
            UserError: if one was, and the real pairs are kept.
        """
        if self.keep and (old := [name for name in self.cache.tasks if name.startswith(PREFIX)]):
            raise UserError(
                f"{self.cache.directory}: '{old[0]}' was distilled already; name the cache of the "
                "real pairs"
            )

    def __len__(self) -> int:
        """Return the number of sentences to translate."""
        return sum(self.cache.split(name, _TRAIN).examples for name in self.names)

    def direction(self, name: str) -> tuple[str, str]:
        """Return the languages of a task in the vocabulary's codes."""
        task, vocabulary = self.cache.tasks[name], self.cache.vocabulary
        source, target = task.source_lang, task.target_lang
        return vocabulary.vocabulary_code_of(source), vocabulary.vocabulary_code_of(target)

    def facts(self) -> dict[str, Any]:
        """Return the values that determine the sentences."""
        content = {name: self.cache.split(name, _TRAIN).content for name in self.names}
        return {"tasks": content, "keep": self.keep, "cache": self.cache.vocabulary.fingerprint}

    def sentences(self) -> Iterator[tuple[str, str, str]]:
        """Yield (text, source language, target language) of each source, without its prompt."""
        vocabulary = self.cache.vocabulary
        for name in self.names:
            direction = self.direction(name)
            for source, _ in self.cache.pairs(name, _TRAIN):
                yield vocabulary.decode(split_auxiliary(vocabulary, source)[0]), *direction

    def sources(self, translations: Iterable[str]) -> Iterator[ReusedTask | TaskSource]:
        """Yield all tasks of the new cache.

        Args:
            translations: translations of `sentences`, in the same order; pairs whose translation is
                blank are left out.
        """
        stream = iter(translations)
        for name in self.names:
            task = self.cache.tasks[name]
            splits: dict[str, Callable[[], Iterable[TokenPair]]] = {
                _TRAIN: functools.partial(self._distilled, name, stream)
            }
            if not self.keep:
                others = [split for split in task.splits if split != _TRAIN]
                splits |= {one: functools.partial(self._pairs, name, one) for one in others}
            new_name = f"{PREFIX}{name}" if self.keep else name
            languages = task.source_lang, task.target_lang
            yield TaskSource(new_name, *languages, splits, task.share, task.context)
        for name in self.cache.tasks:
            if self.keep or name not in self.names:
                yield ReusedTask(self.cache, name)

    def _distilled(self, name: str, translations: Iterator[str]) -> Iterator[TokenPair]:
        """Yield the sources of a task with their encoded translations."""
        _, target_lang = self.direction(name)
        pairs = self._pairs(name, _TRAIN)
        while block := list(itertools.islice(pairs, _BLOCK)):
            texts = [next(translations) for _ in block]
            pieces = self.cache.vocabulary.encode_lines(texts, target_lang)
            for (source, _), target in zip(block, pieces, strict=True):
                if target:
                    yield source, target

    def _pairs(self, name: str, split: str) -> Iterator[tuple[list[int], list[int]]]:
        """Yield the piece ids of a split, in order."""
        for source, target in self.cache.pairs(name, split):
            yield source.tolist(), target.tolist()


def assign_teachers(
    pairs_of: Mapping[str, tuple[str, str]], teachers: Mapping[tuple[str, str] | None, str]
) -> dict[str, str]:
    """Return the teacher of each task that has one, ordered by teacher.

    Args:
        pairs_of: direction of each training task.
        teachers: run of each direction; None is that of all other directions between two
            languages.
    """
    default = teachers.get(None)
    runs = {
        name: teachers.get(pair, default if pair[0] != pair[1] else None)
        for name, pair in pairs_of.items()
    }
    assigned = {name: run for name, run in runs.items() if run is not None}
    order = list(dict.fromkeys(assigned.values()))
    return dict(sorted(assigned.items(), key=lambda item: order.index(item[1])))
