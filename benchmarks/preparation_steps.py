"""Speed of the preparation steps on made sentence pairs (docs/scale.md).

    python benchmarks/preparation_steps.py --pairs 20000

Prints a table: sentence pairs per second of process CPU time in one thread, for each step. Tables
of character classes are made beforehand, arrays of characters anew for each step.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mnmt_jax.commands.common_flags import CommandParser, positive_int
from mnmt_jax.data.preparation.character_rules import (
    Histogram,
    PunctuationOnly,
    PunctuationShare,
    Script,
    Unreadable,
)
from mnmt_jax.data.preparation.duplicates import (
    NearDuplicates,
    PairDuplicates,
    SourceDuplicates,
    TargetDuplicates,
)
from mnmt_jax.data.preparation.histograms import write_histogram
from mnmt_jax.data.preparation.language_rule import DetectedLanguage
from mnmt_jax.data.preparation.length_rules import Length, LengthRatio, PieceLength, PieceRatio
from mnmt_jax.data.preparation.pair_rules import Copies, Numbers, RepeatedNgrams, Score
from mnmt_jax.data.preparation.steps import KeyRule, PairBatch, PairRule, PieceRule, Step, Transform
from mnmt_jax.data.preparation.transforms import Moses, Normalize, Segment
from mnmt_jax.errors import UserError
from mnmt_jax.runtime.run_command import run_command

DIRECTION = ("en", "ru")
BATCH = 5000  # pairs
_MOST = 10_000_000
_WORDS, _WORDS_PER_SENTENCE = 5000, 18
_ALPHABETS = {"en": "abcdefghijklmnopqrstuvwxyz", "ru": "абвгдежзийклмнопрстуфхцчшщыэюя"}


def main() -> None:
    """Run the benchmark."""
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=positive_int, default=20_000, metavar="N")
    flags = parser.parse_args()
    batches = list(_batches(flags.pairs))
    characters = sum(len(text) for batch in batches for text in (*batch.sources, *batch.targets))
    print(f"{flags.pairs:,} pairs, {characters / flags.pairs / 2:.0f} characters a sentence\n")
    print("| step | pairs per CPU second |\n|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for code, alphabet in _ALPHABETS.items():
            write_histogram(Path(folder) / code, [alphabet])
        for step in _steps(folder):
            print(f"| {_describe(step)} | {_speed(step, batches, flags.pairs)} |", flush=True)


def _steps(folder: str) -> list[Step]:
    return [
        Normalize(),
        Normalize("NFKC"),
        Moses(),
        Moses(tokenize=True),
        Segment(),
        Length(max_characters=500, max_words=100),
        LengthRatio(3, "characters"),
        LengthRatio(3),
        Script(),
        DetectedLanguage(),
        Copies(),
        Copies(ignore_case=True, ignore_punctuation=True),
        PunctuationOnly(),
        PunctuationShare(),
        Numbers(),
        RepeatedNgrams(),
        RepeatedNgrams(n=10, unit="characters"),
        Histogram(folder),
        Unreadable(),
        Score("laser", 1.06),
        PairDuplicates(),
        PairDuplicates(ignore_case=True, ignore_punctuation=True),
        SourceDuplicates(),
        TargetDuplicates(),
        NearDuplicates(),
        PieceLength(1, 250),
        PieceRatio(3),
    ]


def _speed(step: Step, batches: list[PairBatch], pairs: int) -> str:
    direction = ("en", "zh") if isinstance(step, Segment) else DIRECTION
    try:
        step.check_languages(direction)
    except UserError as error:
        return str(error)
    if slow := isinstance(step, DetectedLanguage | NearDuplicates | Moses | Segment):
        batches = [_first(batch, 500) for batch in batches[:1]]
        pairs = len(batches[0])
    batches = [dataclasses.replace(batch, direction=direction) for batch in batches]
    _run(step, _first(batches[0], 10))
    start = time.process_time()
    for batch in batches:
        _run(step, batch)
    speed = pairs / (time.process_time() - start)
    if speed > _MOST:
        return f"over {_MOST:,}"
    return f"{speed:,.0f}" if slow else f"{round(speed, -3):,.0f}"


def _run(step: Step, batch: PairBatch) -> None:
    batch = dataclasses.replace(batch)  # without the arrays of an earlier step
    if isinstance(step, Transform):
        step.apply(batch.sources, batch.direction[0])
        step.apply(batch.targets, batch.direction[1])
    elif isinstance(step, PairRule):
        step.keeps(batch)
    elif isinstance(step, KeyRule):
        step.keys(batch)
    elif isinstance(step, PieceRule):
        step.keeps(np.ones((len(batch), 2), int))


def _first(batch: PairBatch, count: int) -> PairBatch:
    scores = {name: values[:count] for name, values in batch.scores.items()}
    return PairBatch(batch.sources[:count], batch.targets[:count], batch.direction, scores)


def _describe(step: Step) -> str:
    """Return the name of a step with the settings that are not the defaults."""
    settings = (
        f"{field.name} = {getattr(step, field.name)!r}"
        for field in dataclasses.fields(step)
        if field.name not in ("folder", "scripts") and getattr(step, field.name) != field.default
    )
    return f"`{step.name}` {', '.join(settings).replace(chr(39), '')}".strip()


def _batches(pairs: int) -> Iterator[PairBatch]:
    rng = np.random.default_rng(0)
    words = {code: _words(rng, alphabet) for code, alphabet in _ALPHABETS.items()}
    for start in range(0, pairs, BATCH):
        count = min(BATCH, pairs - start)
        sources, targets = (_sentences(rng, words[code], count) for code in DIRECTION)
        yield PairBatch(sources, targets, DIRECTION, {"laser": rng.uniform(1, 1.3, count)})


def _words(rng: np.random.Generator, alphabet: str) -> list[str]:
    letters = np.array(list(alphabet))
    return ["".join(rng.choice(letters, rng.integers(1, 10))) for _ in range(_WORDS)]


def _sentences(rng: np.random.Generator, words: list[str], count: int) -> list[str]:
    """Return sentences of words of falling frequency; one in four has a year."""
    lengths = rng.integers(4, 2 * _WORDS_PER_SENTENCE - 3, count)
    indices = (_WORDS * rng.random((count, lengths.max())) ** 3).astype(int)
    sentences = []
    for length, row in zip(lengths.tolist(), indices.tolist(), strict=True):
        sentence = " ".join(words[index] for index in row[:length])
        year = f", {1900 + row[0] % 100}" if row[-1] % 4 == 0 else ""
        sentences.append(f"{sentence.capitalize()}{year}.")
    return sentences


if __name__ == "__main__":
    run_command(main)
