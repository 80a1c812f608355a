"""The rules of LAVS against slow implementations, and piece counts."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mnmt_jax.commands.vocabulary import main
from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.lavs import (
    count_pieces,
    count_used_pieces,
    flag_by_sharing,
    flag_by_threshold,
    is_splittable,
    language_copies,
    splittable_pieces,
    threshold_for,
)
from mnmt_jax.vocabulary.sentencepiece_options import SentencePieceOptions
from mnmt_jax.vocabulary.sentencepiece_training import train_sentencepiece
from mnmt_jax.vocabulary.vocabulary import Vocabulary
from tests.segmented_text import count_tokens, mark_copies
from tests.unit import made_text

LANGUAGES = ("en", "de", "fr", "nl")
PIECES = [f"{a}{b}" for a in "▁ab" for b in "abcde"]


def random_counts(seed: int) -> dict[str, dict[str, int]]:
    """Return small counts with many ties; zeros are left out."""
    rng = np.random.default_rng(seed)
    table = rng.integers(0, 6, (len(LANGUAGES), len(PIECES)))
    return {
        code: {piece: int(n) for piece, n in zip(PIECES, row, strict=True) if n}
        for code, row in zip(LANGUAGES, table, strict=True)
    }


@pytest.mark.parametrize("threshold", [1, 3, 4])
def test_the_rule_of_the_code_is_strict_and_needs_two_languages(threshold):
    counts = random_counts(0)
    flagged = flag_by_threshold(counts, PIECES, threshold)
    for code, piece in itertools.product(LANGUAGES, PIECES):
        others = [c.get(piece, 0) > threshold for other, c in counts.items() if other != code]
        expected = counts[code].get(piece, 0) > threshold and any(others)
        assert (piece in flagged[code]) == expected
    assert any(flagged.values())
    assert not any(flag_by_threshold(counts, PIECES, 5).values())
    assert not any(flag_by_threshold({"en": counts["en"]}, PIECES, 1).values())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("max_copies", [1, 2, 5, 12, 30, 10_000])
def test_the_threshold_of_a_number_of_copies_is_the_smallest_one(seed, max_copies):
    counts = random_counts(seed)
    pieces = [*PIECES, "a", "▁1"]
    counts["en"] |= {"a": 9, "▁1": 9}  # not splittable, not counted
    counts["de"] |= {"a": 9, "▁1": 9}

    def copies(threshold: int) -> int:
        return len(language_copies(splittable_pieces(flag_by_threshold(counts, pieces, threshold))))

    threshold = threshold_for(counts, pieces, max_copies)
    assert copies(threshold) <= max_copies
    assert threshold == 1 or copies(threshold - 1) > max_copies
    assert copies(1) > 30


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("number", [1, 2, 7, 30, 10_000])
def test_the_published_rule_selects_the_most_shared_pieces(seed, number):
    counts = random_counts(seed)
    shared = [
        (-min(counts[one].get(piece, 0), counts[other].get(piece, 0)), i, (j, k), piece)
        for i, piece in enumerate(PIECES)
        for (j, one), (k, other) in itertools.combinations(enumerate(LANGUAGES), 2)
    ]
    expected_pieces = sorted(triple for triple in shared if triple[0])[:number]
    expected = {code: set() for code in LANGUAGES}
    for _, _, pair, piece in expected_pieces:
        for code in pair:
            expected[LANGUAGES[code]].add(piece)
    flagged = flag_by_sharing(counts, PIECES, number)
    assert {code: set(pieces) for code, pieces in flagged.items()} == expected
    for pieces in flagged.values():
        assert list(pieces) == sorted(pieces, key=PIECES.index)
    assert len(language_copies(flagged)) <= 2 * number


@pytest.mark.parametrize(
    ("piece", "expected"),
    [
        ("▁in", True),
        ("in", True),
        ("▁", False),
        ("ß", False),
        ("▁(", False),
        ("x_y", False),
        ("▁2", False),
        ("1a", True),
        ("é٣", False),
        ("x²", False),
        ("x½", True),  # a fraction is no digit
        ("▁€", True),  # a currency sign is no punctuation
        ("<0x0A>", False),
    ],
)
def test_pieces_split_by_the_authors_code(piece, expected):
    assert is_splittable(piece) == expected
    assert splittable_pieces({"en": ["aa", piece]}) == {
        "en": ("aa", piece) if expected else ("aa",)
    }


def test_pieces_are_counted_as_in_segmented_text():
    vocabulary = made_text.vocabulary()
    text = {code: [*made_text.sentences(code, 1100), "Ω one"] for code in made_text.LANGUAGES}
    counts = count_pieces(vocabulary, {code: iter(text[code]) for code in reversed(text)})
    assert list(counts) == list(made_text.LANGUAGES)
    for code, lines in text.items():
        segmented = [" ".join(p) for p in vocabulary._processor.encode(lines, out_type=str)]
        assert counts[code] == {p: n for p, n in count_tokens(segmented).items() if p != "Ω"}
    with pytest.raises(UserError, match="'it' has no tag"):
        count_pieces(vocabulary, {"en": ["one"], "it": ["uno"]})
    flagged = flag_by_threshold(counts, vocabulary.named_pieces, 20)
    copied = vocabulary.with_copies(language_copies(flagged))
    assert len(copied.copies) > 4
    with pytest.raises(UserError, match="has copies of pieces"):
        count_pieces(copied, {"en": ["one"]})
    ids = {i for code, lines in text.items() for x in copied.encode_lines(lines, code) for i in x}
    assert len(ids - {copied.unk_id}) == count_used_pieces(counts, flagged)
    assert count_used_pieces(counts, flagged) > count_used_pieces(counts, dict.fromkeys(counts, ()))


def test_byte_pieces_get_no_copies(tmp_path, monkeypatch, capsys):
    """Languages share unknown characters; decoding reads their bytes from the shared pieces."""
    text = {code: made_text.sentences(code, 300) for code in ("en", "de")}
    options = SentencePieceOptions(vocab_size=300, byte_fallback=True)
    base = train_sentencepiece(text, tmp_path / "base", options=options)
    for code, lines in text.items():
        (tmp_path / f"train.{code}").write_text("".join(f"{line} Ω\n" for line in lines), "utf-8")
    flags = [f"--vocabulary={tmp_path / 'base'}", f"--output={tmp_path / 'split'}", "--lavs=paper"]
    flags += [f"--parallel={tmp_path}", "--languages=en,de", "--lavs_pairs=20"]
    monkeypatch.setattr("sys.argv", ["mnmt vocabulary", *flags])
    main()
    vocabulary = Vocabulary.load(tmp_path / "split")
    assert vocabulary.copies and not any(p.startswith("<0x") for p, _ in vocabulary.copies)
    for code in ("en", "de"):
        ids = vocabulary.encode("Ω one", code)
        assert (
            vocabulary.decode(ids) == "Ω one" and len(vocabulary.unknown_ids.intersection(ids)) == 2
        )
    with pytest.raises(
        UserError, match="'<0xCE>' has a copy but is a piece of byte fallback; leave"
    ):
        base.with_copies([("<0xCE>", "de")])


def test_the_authors_form_keeps_spaces_and_other_tokens():
    lines = mark_copies(["▁in  in ▁in", " in_de\tin", ""], "de", {"in", "▁x"})
    assert lines == ["▁in  in_de ▁in", " in_de\tin_de", ""]
    assert list(count_tokens(lines).items()) == [("▁in", 2), ("in_de", 3)]
