"""Text, steps and runs of preparations for tests."""

from __future__ import annotations

import abc
import dataclasses
import hashlib
import random
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from mnmt_jax.data.mixtures import plan_tasks
from mnmt_jax.data.parallel_corpora import ParallelFiles
from mnmt_jax.data.preparation.outputs import CacheOutput
from mnmt_jax.data.preparation.prepare import prepare
from mnmt_jax.data.preparation.recipes import Recipe
from mnmt_jax.data.preparation.runners import LocalRunner
from mnmt_jax.data.preparation.steps import KeyRule, PairRule, PieceRule, Transform
from tests.unit import made_text

LANGUAGES = ("de", "en", "fr")
DIRECTIONS = (("en", "de"), ("de", "en"), ("fr", "en"), ("en", "fr"))
SIZES = {"chunk_pairs": 40, "partition_keys": 50}
SHARD_EXAMPLES = 70


@dataclasses.dataclass(frozen=True)
class Lower(Transform):
    """Lower case."""

    name: ClassVar[str] = "lower"

    def apply(self, sentences, language):
        return [sentence.lower() for sentence in sentences]


class OnePairRule(PairRule):
    """A rule defined by a function of one pair."""

    def keeps(self, batch):
        pairs = zip(batch.sources, batch.targets, strict=True)
        kept = [self.accepts(source, target, batch.direction) for source, target in pairs]
        return np.array(kept, bool)

    @abc.abstractmethod
    def accepts(self, source, target, direction):
        """Return whether a pair is kept."""


@dataclasses.dataclass(frozen=True)
class Differ(OnePairRule):
    """Sides that differ."""

    name: ClassVar[str] = "differ"

    def accepts(self, source, target, direction):
        return source != target


def key_of(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def start_of(sentence: str) -> str:
    return sentence[:12]


@dataclasses.dataclass(frozen=True)
class Starts(KeyRule):
    """The starts of both sides, as two columns."""

    name: ClassVar[str] = "starts"

    def keys(self, batch):
        pairs = zip(batch.sources, batch.targets, strict=True)
        rows = [[key_of(start_of(side)) for side in pair] for pair in pairs]
        return np.array(rows, np.uint64).reshape(-1, 2)


@dataclasses.dataclass(frozen=True)
class Sources(KeyRule):
    """The source."""

    name: ClassVar[str] = "sources"

    def keys(self, batch):
        return np.array([[key_of(text)] for text in batch.sources], np.uint64).reshape(-1, 1)


@dataclasses.dataclass(frozen=True)
class Even(PieceRule):
    """Even numbers of pieces on the first side."""

    name: ClassVar[str] = "even"

    def keeps(self, lengths):
        return lengths[:, 0] % 2 == 0


@dataclasses.dataclass(frozen=True)
class Nothing(OnePairRule):
    """Nothing."""

    name: ClassVar[str] = "nothing"

    def accepts(self, source, target, direction):
        return False


STEPS = (Lower(), Differ(), Sources(), Starts(), Differ(), Even())


def made_recipe(steps) -> Recipe:
    return Recipe("made", "made", "", "", tuple(steps))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Aligned lines in three languages, of which many repeat others but for case."""
    folder = tmp_path_factory.mktemp("corpus")
    draw = random.Random(0)
    for split, count in (("train", 250), ("validation", 30)):
        numbers = [draw.randrange(1, 150) for _ in range(count)]
        for language in LANGUAGES:
            lines = [made_text.sentence(number, language) for number in numbers]
            lines = [line.title() if draw.random() < 0.3 else line for line in lines]
            if language == "de":  # some sentences are English
                english = [made_text.sentence(number, "en").lower() for number in numbers]
                lines = [
                    e if n % 17 == 0 else t for n, t, e in zip(numbers, lines, english, strict=True)
                ]
            path = folder / f"{split}.{language}"
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return ParallelFiles("made", str(folder / "{split}.{language}"), LANGUAGES)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("vocabulary")
    made_text.vocabulary().save(folder)
    return folder


def run(corpus, vocabulary, output, steps=STEPS, *, processes=1, **changes):
    """Prepare the made text as a cache; return what was dropped."""
    tasks = plan_tasks(corpus, DIRECTIONS)
    with LocalRunner(processes) as runner:
        return prepare(
            corpus,
            tasks,
            made_recipe(steps),
            output=output,
            runner=runner,
            **SIZES | {"form": CacheOutput(vocabulary, SHARD_EXAMPLES)} | changes,
        )


def content(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file of a cache."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
