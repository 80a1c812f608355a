"""Tasks that a new cache takes from another as they are there: a task's files are ids alone."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from mnmt_jax.data.cache import CachedTask, TokenCache
from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.pieces import Vocabulary


def taken_tasks(cache: TokenCache, vocabulary: Vocabulary) -> Iterator[TakenTask]:
    """Yields all tasks of a cache, to be written into another one.

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
    for name in cache.tasks:
        yield TakenTask(cache, name)


@dataclasses.dataclass(frozen=True, eq=False)
class TakenTask:
    """A task of another cache whose ids mean the same; what `write_cache` takes.

    Attributes:
        cache: the other.
        name: of the task there, and here.
    """

    cache: TokenCache
    name: str

    @property
    def source_lang(self) -> str:
        """Code of the source language."""
        return self.cache.tasks[self.name].source_lang

    @property
    def target_lang(self) -> str:
        """Code of the target language."""
        return self.cache.tasks[self.name].target_lang

    def write(self, directory: Path, shard_examples: int) -> CachedTask:
        """Links its files, which nobody changes, or copies them where links do not go.

        Args:
            directory: of the cache to be.
            shard_examples: ignored; the shards stay as they are.
        """
        del shard_examples
        for file in self.cache.files(self.name):
            old, new = self.cache.directory / file, directory / file
            new.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(old, new)
            except OSError:
                shutil.copyfile(old, new)
        return self.cache.tasks[self.name]
