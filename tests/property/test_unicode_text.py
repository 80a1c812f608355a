"""What encoding and decoding keep of any text, and what it counts as unknown."""

from __future__ import annotations

from collections import Counter

import pytest

from mnmt_jax.vocabulary.unknown_characters import unknown_characters
from tests.unicode_lines import kept, known_characters, odd_lines, seen, unknown
from tests.unit.test_text_normalization import TEXT, trained

LINES = list(odd_lines(4000, " ".join(TEXT["en"][:20]).split()))


def test_the_lines_are_odd_in_every_way():
    text = "".join(LINES)
    assert len(set(text)) > 2500 and "\x07" in text and "\u200b" in text and "\u0301" in text
    assert sum(not kept(line) for line in LINES) > 100
    assert sum(seen(line) != line for line in LINES) > 1000


def test_bytes_keep_every_character_but_runs_of_spaces():
    vocabulary = trained(byte_fallback=True)
    encoded = vocabulary.encode_lines(LINES)
    for line, ids in zip(LINES, encoded, strict=True):
        assert vocabulary.decode(ids) == kept(line)
        assert vocabulary.unk_id not in ids


@pytest.mark.parametrize("byte_fallback", [True, False])
def test_unknown_characters_are_those_of_an_independent_count(byte_fallback):
    vocabulary = trained(byte_fallback)
    known = known_characters(vocabulary)
    counted = 0
    for line, ids in zip(LINES, vocabulary.encode_lines(LINES), strict=True):
        characters = unknown_characters(vocabulary, line, ids)
        assert Counter(characters) == unknown(line, known), ascii(line)
        counted += len(characters)
    assert counted > 5000


def test_without_bytes_every_known_character_is_still_read():
    vocabulary = trained(byte_fallback=False)
    known = known_characters(vocabulary)
    for line, ids in zip(LINES, vocabulary.encode_lines(LINES), strict=True):
        readable = [token for token in ids if token != vocabulary.unk_id]
        expected = "".join(c for c in kept(line) if c in known)
        assert vocabulary.decode(readable).replace(" ", "") == expected
