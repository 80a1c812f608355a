"""Text normalisation, byte fallback, and unknown characters."""

from __future__ import annotations

import functools
import tempfile
import unicodedata

import pytest

from mnmt_jax.data.text_reader import BLANK, Cleaning, check_sentence
from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.normalization import is_blank, normalize
from mnmt_jax.vocabulary.sentencepiece_options import SentencePieceOptions
from mnmt_jax.vocabulary.sentencepiece_training import train_model, train_sentencepiece
from mnmt_jax.vocabulary.unknown_characters import unknown_characters
from mnmt_jax.vocabulary.vocabulary import Vocabulary
from tests.unit import made_text

TEXT = {
    "en": [*made_text.sentences("en", 200), "in 3 days: Italy, one café and naïve ones"],
    "de": [*made_text.sentences("de", 200), "in 3 Tagen: Italien, grün und groß"],
}
ODD_SPACES = "\t\v\f\x1c\x85\xa0\u1680\u2000\u2003\u200a\u2028\u2029\u202f\u205f\u3000"


@functools.cache
def trained(byte_fallback: bool = True, normalization: str = "nfc") -> Vocabulary:
    options = SentencePieceOptions(
        vocab_size=318 if byte_fallback else 62,
        byte_fallback=byte_fallback,
        text_normalization=normalization,
    )
    with tempfile.TemporaryDirectory() as directory:
        return train_sentencepiece(TEXT, directory, options=options)


@pytest.mark.parametrize("space", ODD_SPACES)
def test_all_white_space_separates_words(space):
    vocabulary = trained()
    assert vocabulary.encode(f"in 3 Tagen:{space}Italien") == vocabulary.encode(
        "in 3 Tagen: Italien"
    )


def test_decomposed_accents_and_invisible_characters_are_normalised():
    vocabulary = trained()
    seen = vocabulary.encode("one café, naïve and grün")
    decomposed = unicodedata.normalize("NFD", "one café, naïve and grün")
    assert decomposed != "one café, naïve and grün"
    assert vocabulary.encode(decomposed) == seen
    assert vocabulary.encode("\ufeffone caf\u200bé, na\u2060ïve and grün") == seen
    assert normalize("na\u200c\u200dive") == "na\u200c\u200dive"  # spelling needs joiners


def test_normalisation_is_that_of_python_and_applied_once():
    text = "".join(map(chr, [*range(32, 0x3400), *range(0xF900, 0xFB50), *range(0x1F600, 0x1F650)]))
    kept = "".join(c for c in text if c not in f"{ODD_SPACES}\u2581\u200b\u2060\ufeff")
    expected = " ".join(kept.split(" "))
    expected = "".join(" " if c.isspace() else c for c in expected)
    assert normalize(kept) == unicodedata.normalize("NFC", expected)
    assert normalize(normalize(text)) == normalize(text)


def test_every_character_round_trips_with_byte_fallback():
    vocabulary = trained()
    text = "one 🙂 語 \u0915\u094d\u200d\u0937 \x00\x07 \U0010ffff"
    assert vocabulary.unk_id not in vocabulary.encode(text)
    assert vocabulary.decode(vocabulary.encode(text)) == text


def test_an_incomplete_byte_sequence_is_dropped():
    vocabulary = trained()
    ids = vocabulary.encode("one🙂")
    assert [vocabulary.decode(ids[:cut]) for cut in (-4, -3, -2, -1)] == ["one"] * 4
    assert vocabulary.decode(ids) == "one🙂"
    for text in ("é", "語", "🙂"):  # of two, three and four bytes, beside a whole one
        for cut in range(1, len(text.encode())):
            spelt = [_byte_id(vocabulary, value) for value in f"語{text}".encode()]
            assert vocabulary.decode(spelt[:-cut]) == "語"


def _byte_id(vocabulary: Vocabulary, value: int) -> int:
    (token,) = (token for token, byte in vocabulary.byte_values.items() if byte == value)
    return token


@pytest.mark.parametrize("byte_fallback", [True, False])
def test_unknown_characters_are_named_in_order(byte_fallback):
    vocabulary = trained(byte_fallback)

    def unknown(text: str) -> str:
        return unknown_characters(vocabulary, text, vocabulary.encode(text))

    assert unknown("one café") == ""
    assert unknown("one 🙂🙂 語, two ж") == "🙂🙂語ж"
    assert unknown("a\u2581b") == "\u2581"  # the mark of a space is read as one
    assert unknown("\u2581") == "\u2581" and vocabulary.encode("\u2581") == []


def test_the_normalisation_is_saved_with_the_vocabulary(tmp_path):
    vocabulary = trained()
    vocabulary.save(tmp_path / "new")
    again = Vocabulary.load(tmp_path / "new")
    assert again.normalization == "nfc" and again.fingerprint == vocabulary.fingerprint
    assert again.encode("one\ttwo") == vocabulary.encode("one two")
    facts = (tmp_path / "new" / "vocabulary.json").read_text()
    (tmp_path / "new" / "vocabulary.json").write_text(facts.replace('"nfc"', '"none"'))
    with pytest.raises(UserError, match="does not belong"):
        Vocabulary.load(tmp_path / "new")
    (tmp_path / "new" / "vocabulary.json").write_text(facts.replace('"nfc"', "[1]"))
    with pytest.raises(UserError, match="is damaged"):
        Vocabulary.load(tmp_path / "new")


def test_vocabularies_without_normalisation_are_unchanged(tmp_path):
    plain = trained(byte_fallback=False, normalization="none")
    plain.save(tmp_path)
    assert "normalization" not in (tmp_path / "vocabulary.json").read_text()
    assert plain.unk_id in plain.encode("one\ttwo")
    assert not Vocabulary(plain.model, plain.languages, normalization="nfc").is_extension_of(plain)


def test_an_added_language_has_normalisation_and_byte_fallback():
    base = trained()
    options = SentencePieceOptions(vocab_size=273)
    added = base.with_language("nl", train_model({"nl": ["één huis bij de rivier"] * 9}, options))
    assert added.encode("é\té", "nl") == added.encode("é é", "nl")
    spelt = added.encode("語🙂", "nl")
    assert added.unk_id not in spelt and added.decode(spelt) == "語🙂"
    assert set(spelt[-4:]) <= set(base.byte_values)  # no second set of bytes
    plain = trained(byte_fallback=False)
    without = plain.with_language(
        "nl", train_model({"nl": ["één huis bij de rivier"] * 9}, options)
    )
    assert without.unk_id in without.encode("語", "nl")
    assert not any(piece.startswith("<0x") for piece in without.added_pieces)


@pytest.mark.parametrize("text", ["", " \t", "\u200b\ufeff", "\u3000\u2060", "\u2581"])
def test_invisible_text_is_blank(text):
    assert is_blank(text) and not is_blank(f"{text}x") and not is_blank(f"{text}\u200d")
    assert check_sentence(text, Cleaning()) is BLANK


def test_a_failed_vocabulary_training_suggests_a_change(tmp_path):
    most = r"lower --vocab_size to at most 320 \(at least 294\), or give more text"
    for size, remedy in ((5000, most), (20, "to at least 294, or")):
        with pytest.raises(UserError, match=remedy):
            train_sentencepiece(TEXT, tmp_path, options=SentencePieceOptions(vocab_size=size))


def test_the_suggested_size_leaves_out_the_byte_pieces_that_were_not_counted():
    messages = {
        100: r"could not train 100 pieces: .* too high; lower .* at most 64 \(at least 38\), or",
        20: "could not train 20 pieces: .*; raise --vocab_size to at least 38$",
    }
    for size, message in messages.items():
        with pytest.raises(UserError, match=message):
            train_model(TEXT, SentencePieceOptions(vocab_size=size), uncounted_pieces=256)
    for size in (64, 38):
        assert train_model(TEXT, SentencePieceOptions(vocab_size=size), uncounted_pieces=256)


def test_too_few_pieces_for_byte_fallback_are_refused(tmp_path):
    with pytest.raises(UserError, match="--no-byte_fallback"):
        train_sentencepiece(TEXT, tmp_path, options=SentencePieceOptions(vocab_size=60))
