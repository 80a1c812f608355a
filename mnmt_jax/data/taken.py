"""Tasks that a new cache takes from another as they are there."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

from mnmt_jax.data.cache import CachedTask, TokenCache


@dataclasses.dataclass(frozen=True, eq=False)
class TakenTask:
    """A task of another cache of the same vocabulary; what `write_cache` takes.

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
