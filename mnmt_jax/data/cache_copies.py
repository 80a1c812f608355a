"""The tasks of a token cache as sources of another."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

from mnmt_jax.data.cache import TaskSource, TokenCache, TokenPair
from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.pieces import Vocabulary

_READ_PAIRS = 4096  # at a time


def cached_sources(cache: TokenCache, vocabulary: Vocabulary) -> Iterator[TaskSource]:
    """Yields what `write_cache` takes, to write the tasks of a cache into another one.

    Args:
        cache: gives the tasks.
        vocabulary: of the other one; the cache's own, or with languages added to it.

    Raises:
        UserError: if the ids of the cache mean something else there.
    """
    if not vocabulary.continues(cache.vocabulary):
        raise UserError(
            f"{cache.directory}: its vocabulary is another, not one that languages were added to; "
            "cache its text with --vocabulary"
        )
    for task in cache.tasks.values():
        pairs = functools.partial(_cached_pairs, cache, task.name)
        splits = {split: functools.partial(pairs, split) for split in task.splits}
        yield TaskSource(task.name, task.source_lang, task.target_lang, splits)


def _cached_pairs(cache: TokenCache, task: str, split: str) -> Iterator[TokenPair]:
    indices = np.arange(cache.split(task, split).examples)
    for start in range(0, len(indices), _READ_PAIRS):
        for record in cache.read(task, split, indices[start : start + _READ_PAIRS]):
            count, *tokens = np.frombuffer(record, "<i4").tolist()
            yield tokens[:count], tokens[count:]
