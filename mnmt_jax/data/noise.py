"""Noise in training text: case, typing errors and tags, as pure functions of a key per pair.

The kind of noise of a pair follows from its key alone, so that rows are planned from lengths: a
pair with noise is planned with room for more pieces. It stays as it is if it would need more. The
sentences of a chunk of a document are changed one by one, so that its separators stay.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import numpy as np

from mnmt_jax.data.document_context import Context
from mnmt_jax.vocabulary.letter_case import to_lower, to_upper
from mnmt_jax.vocabulary.seeded_permutation import hash64

Pair = tuple[str, str]
_KIND, _TEXT = range(2)  # purposes of a hash, so that the draws are independent
_LETTERS_PER_TYPO = 40
_TAGS = (
    ("<b>", "</b>"),
    ("<i>", "</i>"),
    ("<p>", "</p>"),
    ("<em>", "</em>"),
    ("<g1>", "</g1>"),
    ('<a href="#">', "</a>"),
    ("[b]", "[/b]"),
    ("", " {0}"),
    ("", " {name}"),
    ("", " %s"),
    ("", " %1$s"),
    ("${VAR} ", ""),
)


def lower(pair: Pair, languages: Pair, rng: random.Random) -> Pair:
    """Return the pair with its source in lower case."""
    return to_lower(pair[0], languages[0]), pair[1]


def upper(pair: Pair, languages: Pair, rng: random.Random) -> Pair:
    """Return the pair in upper case."""
    return to_upper(pair[0], languages[0]), to_upper(pair[1], languages[1])


def title(pair: Pair, languages: Pair, rng: random.Random) -> Pair:
    """Return the pair with the first letter of each word in upper case."""
    return _title(pair[0], languages[0]), _title(pair[1], languages[1])


def typos(pair: Pair, languages: Pair, rng: random.Random) -> Pair:
    """Return the pair with typing errors in its source: one, and another per 40 characters.

    A character is dropped, doubled, or swapped with the next one.
    """
    text = pair[0]
    for _ in range(1 + len(text) // _LETTERS_PER_TYPO):
        text = _typo(text, rng)
    return text, pair[1]


def tags(pair: Pair, languages: Pair, rng: random.Random) -> Pair:
    """Return the pair with the same markup around both sentences, or a placeholder at one end."""
    before, after = _TAGS[_below(rng, len(_TAGS))]
    return f"{before}{pair[0]}{after}", f"{before}{pair[1]}{after}"


@dataclasses.dataclass(frozen=True)
class NoiseType:
    """A kind of noise.

    Attributes:
        change: returns the changed pair; takes the pair, its languages and a random generator.
        growth: pieces planned per piece of the source and of the target.
        extra: pieces of the source and of the target planned in addition.
        once: whether it changes one sentence of a chunk, since `extra` has room for one.
    """

    change: Callable[[Pair, Pair, random.Random], Pair]
    growth: tuple[float, float]
    extra: tuple[int, int]
    once: bool = False


NOISE_TYPES = {
    "lower": NoiseType(lower, (1.6, 1.0), (2, 0)),
    "upper": NoiseType(upper, (4.5, 4.5), (4, 4)),
    "title": NoiseType(title, (2.0, 2.0), (3, 3)),
    "typos": NoiseType(typos, (1.5, 1.0), (4, 0)),
    "tags": NoiseType(tags, (1.0, 1.0), (20, 20), once=True),
}


@dataclasses.dataclass(frozen=True)
class Noise:
    """The noise of a run.

    Attributes:
        shares: kinds in `NOISE_TYPES`, with the share of pairs that each changes, at most 1 in all.
    """

    shares: tuple[tuple[str, float], ...]

    def kinds(self, keys: np.ndarray) -> np.ndarray:
        """Return the kind of each pair as an index into `shares`, or -1 for none, int `[n]`.

        Args:
            keys: key of each pair, uint64 `[n]`.
        """
        uniform = (hash64(keys, _KIND) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        kinds = np.searchsorted(np.cumsum([share for _, share in self.shares]), uniform, "right")
        return np.where(kinds < len(self.shares), kinds, -1)

    def planned_lengths(
        self, kinds: np.ndarray, lengths: np.ndarray, most: tuple[int, int]
    ) -> np.ndarray:
        """Return the numbers of source and target pieces to plan, int64 `[n, 2]`.

        Args:
            kinds: as `kinds` returns them, int `[n]`.
            lengths: source and target pieces of each pair, int `[n, 2]`.
            most: largest numbers of source and target pieces in a row, at least those of each pair.
        """
        if not self.shares:
            return lengths
        types = [NOISE_TYPES[name] for name, _ in self.shares]
        growth = np.array([*(kind.growth for kind in types), (1.0, 1.0)])[kinds]
        extra = np.array([*(kind.extra for kind in types), (0, 0)])[kinds]
        planned = np.ceil(lengths * growth).astype(np.int64) + extra
        return np.minimum(planned, most)

    def change(
        self, pair: Pair, languages: Pair, kind: int, key: int, context: Context | None = None
    ) -> Pair:
        """Return a pair with noise.

        Args:
            pair: source and target text.
            languages: codes of the source and target language.
            kind: index into `shares`.
            key: key of the pair.
            context: how sentences are joined, if the pair may be a chunk of several.
        """
        rng = random.Random(int(hash64(key, _TEXT)[0]))
        noise = NOISE_TYPES[self.shares[kind][0]]
        if context is None or (sentences := _sentences(pair, context)) is None:
            return noise.change(pair, languages, rng)
        count = len(sentences)
        for number in [_below(rng, count)] if noise.once else range(count):
            sentences[number] = noise.change(sentences[number], languages, rng)
        source, target = map(context.join, zip(*sentences, strict=True))
        divided = _sentences((source, target), context)
        return (source, target) if divided and len(divided) == count else pair


def _sentences(pair: Pair, context: Context) -> list[Pair] | None:
    """Return the sentence pairs of a chunk; None for a single one."""
    source, target = map(context.split, pair)
    return list(zip(source, target, strict=True)) if 1 < len(source) == len(target) else None


def _below(rng: random.Random, limit: int) -> int:
    """Return a random integer below a limit; only `random()` is the same in all Python versions."""
    return int(rng.random() * limit)


def _title(text: str, language: str) -> str:
    return " ".join(to_upper(word[:1], language) + word[1:] for word in text.split(" "))


def _typo(text: str, rng: random.Random) -> str:
    if len(text) < 2:
        return text
    at, edit = _below(rng, len(text) - 1), _below(rng, 3)
    first, second = text[at], text[at + 1]
    return text[:at] + (second, first * 2 + second, second + first)[edit] + text[at + 2 :]
