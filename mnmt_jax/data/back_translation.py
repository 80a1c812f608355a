"""Back-translation: selection of the cached targets to translate, and the resulting pseudo pairs.

For every training pair (x, y in t) whose target language t is selected, a language r other than t
is drawn from a pool. The pseudo pair is (the translation of y into r, y).

Source: Qu and Watanabe 2022, Appendix A, after Zhang et al. 2020 (language-layers spec 5). The
paper names six languages, but neither the pool nor English. Here the languages and the pool are
options, and the default pool excludes English.
"""

from __future__ import annotations

import array
import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from mnmt_jax.data.cache import TokenCache
from mnmt_jax.data.cache_writer import TaskSource, has_prompts
from mnmt_jax.errors import UserError, join_names
from mnmt_jax.vocabulary.language_codes import canonical_code_or_input
from mnmt_jax.vocabulary.seeded_permutation import hash64, text_hash64

PREFIX = "back_translated_"
_TRAIN = "train"
_BLOCK = 4096
_ENGLISH = "en"


@dataclasses.dataclass(frozen=True)
class BackTranslationDraws:
    """Draws of the language that each sentence is translated into: a pure function of the fields.

    Attributes:
        languages: codes of the languages whose sentences are translated, where they are training
            targets.
        pool: codes of the languages to translate into.
        seed: seed of the draws.
        round: number of the back-translation round, from 1; each round has different draws.
    """

    languages: tuple[str, ...]
    pool: tuple[str, ...] = ()
    seed: int = 1
    round: int = 1

    @classmethod
    def of(
        cls, languages: Sequence[str], pool: Sequence[str], **fields: int
    ) -> BackTranslationDraws:
        """Return draws whose pool defaults to `languages` without English."""
        pool_or_default = pool or [
            code for code in languages if canonical_code_or_input(code) != _ENGLISH
        ]
        return cls(tuple(languages), tuple(pool_or_default), **fields)

    def check(self, cache: TokenCache) -> tuple[str, ...]:
        """Check that the cache has targets to translate and that the pool has a language for each.

        Args:
            cache: cache of the real pairs.

        Returns:
            The names of the tasks whose targets are translated. Those with document context are
            left out, because a chunk that is translated as one line may get another number of
            sentences, and those with prompts, because the tasks without have the same targets.

        Raises:
            UserError: if a language is repeated, unknown, no training target, or has no other
                language in the pool, or if the cache holds back-translated tasks already, or no
                training task of sentences.
        """
        known = cache.vocabulary.languages
        for flag, codes in (("languages", self.languages), ("pool", self.pool)):
            if len(set(codes)) < len(codes):
                raise UserError(f"--{flag}={','.join(codes)} names a language twice")
            if unknown := [code for code in codes if code not in known]:
                raise UserError(
                    f"--{flag}: the vocabulary has no {join_names(unknown)}; it has "
                    f"{join_names(known)}"
                )
        trained = [
            name
            for name in cache.tasks_with(_TRAIN)
            if not (cache.tasks[name].context or has_prompts(cache, name))
        ]
        if pseudo := [name for name in trained if name.startswith(PREFIX)]:
            raise UserError(
                f"{cache.directory}: '{pseudo[0]}' was back-translated already; name the cache of "
                "the real pairs"
            )
        targets = {_target_of(cache, name) for name in trained}
        if not targets:
            raise UserError(
                f"{cache.directory}: no training task of sentences; name a cache that has some"
            )
        for code in self.languages:
            if code not in targets:
                raise UserError(
                    f"--languages: no training task of {cache.directory} has the target '{code}'; "
                    f"there are {join_names(sorted(targets))}"
                )
            if not set(self.pool) - {code}:
                pool_arg = (
                    f"--pool={','.join(self.pool)}" if self.pool else "--languages without en"
                )
                raise UserError(
                    f"{pool_arg} has no language to translate '{code}' into; name another in --pool"
                )
        return tuple(name for name in trained if _target_of(cache, name) in self.languages)

    def drawn(self, task: str, target_lang: str, count: int) -> list[str]:
        """Return the language that each target of a task is translated into.

        Args:
            task: name of the task.
            target_lang: code of the task's target language.
            count: number of pairs of the task; it does not affect the draw of a pair.
        """
        candidates = [code for code in self.pool if code != target_lang]
        hashes = hash64(self.seed, self.round, text_hash64(task), np.arange(count))
        return [candidates[number] for number in (hashes % np.uint64(len(candidates))).tolist()]


def _target_of(cache: TokenCache, name: str) -> str:
    """Return the vocabulary's code of a task's target language."""
    return cache.vocabulary.vocabulary_code_of(cache.tasks[name].target_lang)


@dataclasses.dataclass
class _EncodedSources:
    """Encoded sources of one direction, with the cache positions of their targets.

    Attributes:
        sources: piece ids of all sources, concatenated.
        lengths: number of pieces of each source.
        task: number of the task that holds each target.
        index: index of each target in its task.
    """

    sources: array.array
    lengths: array.array
    task: array.array
    index: array.array

    @classmethod
    def empty(cls) -> _EncodedSources:
        return cls(*(array.array("i") for _ in range(4)))


class BackTranslatedPairs:
    """Sentences to translate, in a fixed order, and the tasks built from their translations.

    Attributes:
        cache: cache of the real pairs.
        draws: draws of the languages to translate into.
        tasks: names of the tasks whose targets are translated.
    """

    def __init__(self, cache: TokenCache, draws: BackTranslationDraws) -> None:
        """Check the draws against the cache; see `BackTranslationDraws.check`."""
        self.cache, self.draws = cache, draws
        self.tasks = draws.check(cache)

    def __len__(self) -> int:
        """Return the number of sentences to translate."""
        return sum(self.cache.split(name, _TRAIN).examples for name in self.tasks)

    def facts(self) -> dict[str, Any]:
        """Return the values that determine the sentences and their languages."""
        content = {name: self.cache.split(name, _TRAIN).content for name in self.tasks}
        return {**dataclasses.asdict(self.draws), "tasks": content}

    def sentences(self) -> Iterator[tuple[str, str, str]]:
        """Yield (text, target language, language to translate into) of each target."""
        for name in self.tasks:
            lengths, target_lang = self.cache.lengths(name, _TRAIN), _target_of(self.cache, name)
            pool_languages = self.draws.drawn(name, target_lang, len(lengths))
            pairs = self.cache.pairs(name, _TRAIN)
            for pool_language, (_, target) in zip(pool_languages, pairs, strict=True):
                yield self.cache.vocabulary.decode(target), target_lang, pool_language

    def sources(self, translations: Iterable[str]) -> Iterator[TaskSource]:
        """Yield the tasks of the pseudo pairs.

        Args:
            translations: translations of `sentences`, in the same order; blank ones are skipped.

        Raises:
            UserError: if all translations are blank.
        """
        by_direction = self._encode_by_direction(iter(translations))
        if not by_direction:
            raise UserError("every translation is blank; translate with another checkpoint")
        for source_lang, target_lang in sorted(by_direction):
            pairs = functools.partial(self._pairs, by_direction[source_lang, target_lang])
            name = f"{PREFIX}{source_lang}_{target_lang}"
            yield TaskSource(name, source_lang, target_lang, {_TRAIN: pairs})

    def _encode_by_direction(
        self, translations: Iterator[str]
    ) -> dict[tuple[str, str], _EncodedSources]:
        """Encode translations and group them by direction (source, target)."""
        by_direction: dict[tuple[str, str], _EncodedSources] = {}
        for task_number, name in enumerate(self.tasks):
            count = self.cache.split(name, _TRAIN).examples
            target_lang = _target_of(self.cache, name)
            pool_languages = self.draws.drawn(name, target_lang, count)
            for start in range(0, count, _BLOCK):
                languages = pool_languages[start : start + _BLOCK]
                block_texts = [next(translations) for _ in languages]
                pieces = self.cache.vocabulary.encode_lines(block_texts, languages)
                for index, ids in enumerate(pieces, start=start):
                    if ids:
                        encoded = by_direction.setdefault(
                            (pool_languages[index], target_lang), _EncodedSources.empty()
                        )
                        encoded.sources.extend(ids)
                        encoded.lengths.append(len(ids))
                        encoded.task.append(task_number)
                        encoded.index.append(index)
        return by_direction

    def _pairs(self, encoded: _EncodedSources) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
        """Yield the (source, target) ids of a direction; targets are read from the cache."""
        task, index = np.array(encoded.task), np.array(encoded.index)
        sources, ends = np.array(encoded.sources), np.cumsum(encoded.lengths)
        for task_number in np.unique(task).tolist():
            task_rows = np.flatnonzero(task == task_number)
            cached_pairs = self.cache.pairs(self.tasks[task_number], _TRAIN, index[task_rows])
            for row, (_, target) in zip(task_rows.tolist(), cached_pairs, strict=True):
                end = int(ends[row])
                yield sources[end - encoded.lengths[row] : end].tolist(), target.tolist()
