"""Which sentences of a cache are translated back into which languages, and the pairs that gives.

Of every training pair (x, y in t) with t among some languages, a language r other than t is drawn
from a pool; the pseudo pair is (what a model makes of y in r, y).

Source: third paper, Appendix A, after Zhang et al. 2020 (language-layers spec 5). The paper names
six languages and neither the pool nor English; here both are chosen, and the pool is without it.
"""

from __future__ import annotations

import array
import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from mnmt_jax.data.cache import TokenCache, decode_records
from mnmt_jax.data.cache_writer import TaskSource
from mnmt_jax.errors import UserError, join_names
from mnmt_jax.vocabulary.language_codes import canonical_code_or_input
from mnmt_jax.vocabulary.seeded_permutation import hash64, text_hash64

PREFIX = "back_translated_"
_TRAIN = "train"
_BLOCK = 4096
_ENGLISH = "en"


@dataclasses.dataclass(frozen=True)
class BackTranslationDraws:
    """What is translated into what: a pure function of these values.

    Attributes:
        languages: codes of the languages whose sentences are translated, if targets of training.
        pool: codes of the languages they are translated into.
        seed: of the draws.
        round: how often the pairs have been made anew, from 1; each has draws of its own.
    """

    languages: tuple[str, ...]
    pool: tuple[str, ...] = ()
    seed: int = 1
    round: int = 1

    @classmethod
    def of(cls, languages: Sequence[str], pool: Sequence[str], **rest: int) -> BackTranslationDraws:
        """Returns draws with a pool: without one it is the languages but English."""
        others = pool or [code for code in languages if canonical_code_or_input(code) != _ENGLISH]
        return cls(tuple(languages), tuple(others), **rest)

    def check(self, cache: TokenCache) -> tuple[str, ...]:
        """Checks that there is something to translate and something to draw.

        Args:
            cache: of the real pairs.

        Returns:
            The names of the tasks whose targets are translated.

        Raises:
            UserError: otherwise.
        """
        known = cache.vocabulary.languages
        for flag, codes in (("languages", self.languages), ("pool", self.pool)):
            if len(set(codes)) < len(codes):
                raise UserError(f"--{flag}={','.join(codes)} names a language twice")
            if unknown := [code for code in codes if code not in known]:
                raise UserError(
                    f"--{flag}: the vocabulary has no {join_names(unknown)}; it has {join_names(known)}"
                )
        trained = cache.tasks_with(_TRAIN)
        if made := [name for name in trained if name.startswith(PREFIX)]:
            raise UserError(
                f"{cache.directory}: '{made[0]}' was back-translated already; name the cache of "
                "the real pairs"
            )
        targets = {_target_of(cache, name) for name in trained}
        for code in self.languages:
            if code not in targets:
                raise UserError(
                    f"--languages: no training task of {cache.directory} has the target '{code}'; "
                    f"there are {join_names(sorted(targets))}"
                )
            if not set(self.pool) - {code}:
                drawn = f"--pool={','.join(self.pool)}" if self.pool else "--languages without en"
                raise UserError(
                    f"{drawn} has no language to translate '{code}' into; name another in --pool"
                )
        return tuple(name for name in trained if _target_of(cache, name) in self.languages)

    def drawn(self, task: str, target_lang: str, count: int) -> list[str]:
        """Returns the language that each of a task's targets is translated into.

        Args:
            task: its name.
            target_lang: code of its target language.
            count: its pairs; the draw of one does not depend on how many there are.
        """
        others = [code for code in self.pool if code != target_lang]
        hashed = hash64(self.seed, self.round, text_hash64(task), np.arange(count))
        return [others[number] for number in (hashed % np.uint64(len(others))).tolist()]


def _target_of(cache: TokenCache, name: str) -> str:
    """Return the vocabulary's code of a task's target language."""
    return cache.vocabulary.vocabulary_code_of(cache.tasks[name].target_lang)


@dataclasses.dataclass
class _Spool:
    """Pairs of one direction: the sources, and where in the cache their targets are."""

    sources: array.array
    lengths: array.array
    task: array.array
    index: array.array

    @classmethod
    def empty(cls) -> _Spool:
        return cls(*(array.array("i") for _ in range(4)))


class BackTranslatedPairs:
    """Sentences to translate, in an order of their own, and the tasks that translations make.

    Attributes:
        cache: of the real pairs.
        draws: what is translated into what.
        tasks: names of the tasks whose targets are translated.
    """

    def __init__(self, cache: TokenCache, draws: BackTranslationDraws) -> None:
        """Checks the draws against the cache; see `BackTranslationDraws.check`."""
        self.cache, self.draws = cache, draws
        self.tasks = draws.check(cache)

    def __len__(self) -> int:
        """Returns how many sentences there are."""
        return sum(self.cache.split(name, _TRAIN).examples for name in self.tasks)

    def facts(self) -> dict[str, Any]:
        """Returns all that decides what is translated into what."""
        content = {name: self.cache.split(name, _TRAIN).content for name in self.tasks}
        return {**dataclasses.asdict(self.draws), "tasks": content}

    def sentences(self) -> Iterator[tuple[str, str, str]]:
        """Yields each target's text, its language, and the language it is translated into."""
        for name in self.tasks:
            lengths, code = self.cache.lengths(name, _TRAIN), _target_of(self.cache, name)
            drawn = self.draws.drawn(name, code, len(lengths))
            for start in range(0, len(lengths), _BLOCK):
                indices = np.arange(start, min(start + _BLOCK, len(lengths)))
                for index, (_, target) in zip(indices, self._read(name, indices), strict=True):
                    yield self.cache.vocabulary.decode(target), code, drawn[index]

    def sources(self, translations: Iterable[str]) -> Iterator[TaskSource]:
        """Yields the tasks of the pseudo pairs.

        Args:
            translations: of `sentences`, in their order; a blank one makes no pair.

        Raises:
            UserError: if all are blank.
        """
        spools = self._spools(iter(translations))
        if not spools:
            raise UserError("every translation is blank; translate with another checkpoint")
        for source_lang, target_lang in sorted(spools):
            pairs = functools.partial(self._pairs, spools[source_lang, target_lang])
            name = f"{PREFIX}{source_lang}_{target_lang}"
            yield TaskSource(name, source_lang, target_lang, {_TRAIN: pairs})

    def _spools(self, translations: Iterator[str]) -> dict[tuple[str, str], _Spool]:
        """Encodes translations and sorts them by direction."""
        spools: dict[tuple[str, str], _Spool] = {}
        for number, name in enumerate(self.tasks):
            count = self.cache.split(name, _TRAIN).examples
            code = _target_of(self.cache, name)
            drawn = self.draws.drawn(name, code, count)
            for start in range(0, count, _BLOCK):
                languages = drawn[start : start + _BLOCK]
                texts = [next(translations) for _ in languages]
                pieces = self.cache.vocabulary.encode_lines(texts, languages)
                for index, found in enumerate(pieces, start=start):
                    if found:
                        spool = spools.setdefault((drawn[index], code), _Spool.empty())
                        spool.sources.extend(found)
                        spool.lengths.append(len(found))
                        spool.task.append(number)
                        spool.index.append(index)
        return spools

    def _pairs(self, spool: _Spool) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
        """Yields the pairs of a direction, their targets from the cache."""
        task, index = np.array(spool.task), np.array(spool.index)
        sources, ends = np.array(spool.sources), np.cumsum(spool.lengths)
        for number in np.unique(task).tolist():
            own = np.flatnonzero(task == number)
            for start in range(0, len(own), _BLOCK):
                block = own[start : start + _BLOCK]
                found = self._read(self.tasks[number], index[block])
                for place, (_, target) in zip(block.tolist(), found, strict=True):
                    end = int(ends[place])
                    yield sources[end - spool.lengths[place] : end].tolist(), target.tolist()

    def _read(self, task: str, indices: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields the pieces of pairs."""
        lengths = self.cache.lengths(task, _TRAIN)[indices]
        sources, targets = decode_records(self.cache.read(task, _TRAIN, indices), lengths)
        ends = np.cumsum(lengths, axis=0)[:-1]
        yield from zip(np.split(sources, ends[:, 0]), np.split(targets, ends[:, 1]), strict=True)
