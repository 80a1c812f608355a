"""Slow implementations of preparation steps, and noise to compare the steps with them.

    python -m tests.slow_steps --pairs 100000

Prints how many pairs of noise each step drops, and how many its slow implementation.
"""

from __future__ import annotations

import argparse
import itertools
import random
import string
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterator

import numpy as np

from mnmt_jax.data.preparation.character_rules import (
    PunctuationOnly,
    PunctuationShare,
    Script,
    Unreadable,
)
from mnmt_jax.data.preparation.duplicates import PairDuplicates, SourceDuplicates, TargetDuplicates
from mnmt_jax.data.preparation.length_rules import Length, LengthRatio
from mnmt_jax.data.preparation.pair_rules import Copies, Numbers, RepeatedNgrams
from mnmt_jax.data.preparation.steps import PairBatch

EDGE_CASES = ["", "a", " ", "😀", "שלום", "é1٣", "\ud800", "𝟙𐐷", "ab\n\0"]
ALPHABETS = (
    "abcdeÄßé",
    "агдия",
    "世界人",
    "あいう",
    "アイー",
    "하나",
    "سلام",
    "שלם",
    "𐐨𐐩",
    "0123456789",
    "٣٤۵५",
    ".,!-—–|¡。",
    "<+€",
    "\u200d\u0301́",
    "\ufffd\x07\ue000\ud800\u0378",
)
SCRIPT_NAMES = {
    "en": ("LATIN",),
    "ru": ("CYRILLIC",),
    "ja": ("CJK", "HIRAGANA", "KATAKANA"),
    "ko": ("HANGUL", "CJK"),
    "zh": ("CJK",),
}
DIRECTION = ("en", "ja")


def made_sentence(rng: random.Random) -> str:
    """Return words of few characters, each word of one or two alphabets."""
    words = []
    for _ in range(rng.choice((0, 1, 1, 2, 4, 9))):
        alphabet = rng.choice(ALPHABETS) + rng.choice((*ALPHABETS, "", "", ""))
        words.append("".join(rng.choices(alphabet, k=rng.choice((1, 1, 2, 3, 6)))))
    if rng.random() < 0.2:
        words *= rng.choice((2, 3, 4))
    return rng.choice((" ", " ", "\u3000", "  ")).join(words)


def made_batch(pairs: int) -> PairBatch:
    """Return noise with copies and repeated sentences, after the edge cases."""
    rng = random.Random(7)
    sources = [*EDGE_CASES, *(made_sentence(rng) for _ in range(pairs))]
    targets = [*reversed(EDGE_CASES), *(made_sentence(rng) for _ in range(pairs))]
    for index in range(0, pairs, 5):
        targets[index] = rng.choice((str, str.upper, "{}!".format))(sources[index])
    for index in range(3, pairs, 7):
        earlier = rng.randrange(index)
        sources[index] = sources[earlier]
        targets[index] = targets[rng.choice((earlier, index))]
    scores = {"laser": np.array([rng.choice((0.5, 1.06, 2, np.nan)) for _ in sources])}
    return PairBatch(sources, targets, DIRECTION, scores)


def category(character: str) -> str:
    return unicodedata.category(character)


def both(accepts):
    """Make a slow rule from a function of one sentence and its language."""
    return lambda source, target: accepts(source, "en") and accepts(target, "ja")


def is_in_script(sentence: str, language: str) -> bool:
    names = [unicodedata.name(c, "").split()[0] for c in sentence if c.isalpha()]
    letters = [name for name in names if name != "MATHEMATICAL"]
    expected = [name for name in letters if set(name.split("-")) & {*SCRIPT_NAMES[language]}]
    return not letters or len(expected) / len(letters) >= 0.5


def is_short(sentence: str, _: str) -> bool:
    return 2 <= len(sentence) <= 30 and 1 <= len(sentence.split()) <= 6


def has_ratio(source: int, target: int, limit: float) -> bool:
    small, large = sorted((source, target))
    return large == 0 or (small > 0 and large / small <= limit)


def folded(sentence: str) -> str:
    return "".join(c for c in sentence.casefold() if category(c)[0] in "LMN")


def has_few_marks(sentence: str, _: str) -> bool:
    marks = [c for c in sentence if c in string.punctuation + "—|–"]
    return len(marks) < 0.5 * len(sentence)


def has_few_symbols(sentence: str, _: str) -> bool:
    symbols = [c for c in sentence if category(c)[0] in "PS"]
    return bool(sentence) and len(symbols) / len(sentence) < 0.3


def is_readable(sentence: str, _: str) -> bool:
    bad = [c for c in sentence if category(c) in ("Co", "Cn", "Cs", "Cc") or c == "\ufffd"]
    return len(bad) <= 1


def digit_groups(sentence: str) -> list[str]:
    groups = itertools.groupby(sentence, str.isdecimal)
    return ["".join(str(int(c)) for c in group) for is_digit, group in groups if is_digit]


def unmatched(source: str, target: str) -> int:
    counts, other = Counter(digit_groups(source)), Counter(digit_groups(target))
    return sum(abs(counts[number] - other[number]) for number in counts | other)


def most_frequent(tokens, n: int) -> int:
    ngrams = [tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1)]
    return max(map(ngrams.count, ngrams), default=0)


SLOW_RULES = {
    "length": (Length(2, 30, 1, 6), both(is_short)),
    "ratio of words": (
        LengthRatio(1.5),
        lambda x, y: has_ratio(len(x.split()), len(y.split()), 1.5),
    ),
    "ratio of characters": (
        LengthRatio(2, "characters"),
        lambda x, y: has_ratio(len(x), len(y), 2),
    ),
    "script": (Script(), both(is_in_script)),
    "copies": (Copies(), lambda x, y: x != y),
    "near copies": (Copies(True, True), lambda x, y: folded(x) != folded(y)),
    "punctuation only": (
        PunctuationOnly(),
        both(lambda x, _: any(category(c)[0] in "LN" for c in x)),
    ),
    "ascii punctuation": (PunctuationShare(0.5, "ascii"), both(has_few_marks)),
    "unicode punctuation": (PunctuationShare(0.3), both(has_few_symbols)),
    "unreadable": (Unreadable(1), both(is_readable)),
    "numbers": (Numbers(), lambda x, y: sorted(digit_groups(x)) == sorted(digit_groups(y))),
    "some numbers": (Numbers(2), lambda x, y: unmatched(x, y) <= 2),
    "repeated words": (
        RepeatedNgrams(2, 2),
        both(lambda x, _: most_frequent(x.split(), 2) <= 2),
    ),
    "repeated characters": (
        RepeatedNgrams(3, 1, "characters"),
        both(lambda x, _: most_frequent(x, 3) <= 1),
    ),
    "one word": (RepeatedNgrams(1, 3), both(lambda x, _: most_frequent(x.split(), 1) <= 3)),
}


def drops(keys: np.ndarray) -> list[bool]:
    """Return which pairs repeat a key of an earlier pair."""
    seen, repeated = set(), []
    for row in keys.tolist():
        columns = {*enumerate(row)}
        repeated.append(bool(columns & seen))
        seen |= columns
    return repeated


def drops_of(values) -> list[bool]:
    seen = set()
    return [value in seen or seen.add(value) is not None for value in values]


class MinHash:
    """The part of datasketch's MinHash that is used, from its definition."""

    def __init__(self, hashvalues: np.ndarray) -> None:
        self.hashvalues = hashvalues

    @classmethod
    def generator(cls, sets, num_perm, seed, scheme, hashfunc) -> Iterator[MinHash]:
        """Yield the smallest value of each permutation `a * h + b mod 2**32` of each set."""
        assert scheme == "affine32"
        rng = np.random.RandomState(seed)
        factors = rng.randint(0, 1 << 31, num_perm, dtype=np.uint32).astype(np.uint64) * 2 + 1
        terms = rng.randint(0, 1 << 32, num_perm, dtype=np.uint32).astype(np.uint64)
        for values in sets:
            hashes = np.array([murmur(hashfunc(value)) for value in values], np.uint64)
            permuted = (factors[:, None] * hashes + terms[:, None]) % (1 << 32)
            yield cls(permuted.min(axis=1).astype(np.uint32))


def murmur(value: int) -> int:
    """Return MurmurHash3's finalizer of 32 bits."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        value = (value ^ (value >> shift)) * factor % (1 << 32)
    return value


def compare(pairs: int) -> Iterator[tuple[str, int, int, bool]]:
    """Yield the name of each rule, both counts of dropped pairs, and whether they are the same."""
    batch = made_batch(pairs)
    for name, (rule, accepts) in SLOW_RULES.items():
        dropped = ~rule.keeps(batch)
        slow = ~np.fromiter(map(accepts, batch.sources, batch.targets), bool, len(batch))
        yield name, dropped.sum(), slow.sum(), bool((dropped == slow).all())
    for is_folded, change in ((False, str), (True, folded)):
        sources, targets = [*map(change, batch.sources)], [*map(change, batch.targets)]
        by_rule = {
            PairDuplicates: zip(sources, targets, strict=True),
            SourceDuplicates: sources,
            TargetDuplicates: targets,
        }
        for cls, values in by_rule.items():
            actual, slow_drops = drops(cls(is_folded, is_folded).keys(batch)), drops_of(values)
            name = f"{'folded ' if is_folded else ''}{cls.name}"
            yield name, sum(actual), sum(slow_drops), actual == slow_drops


def main() -> int:
    """Print the counts; return 1 if any differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=100_000)
    differ = 0
    print("| rule | dropped | by the slow implementation | same pairs |\n|---|---|---|---|")
    for name, dropped, slow, is_same in compare(parser.parse_args().pairs):
        print(f"| {name} | {dropped:,} | {slow:,} | {'yes' if is_same else 'NO'} |", flush=True)
        differ |= not is_same
    return differ


if __name__ == "__main__":
    sys.exit(main())
