"""Ids, tags, round trips, external models and training of vocabularies."""

from __future__ import annotations

import errno
import io
from pathlib import Path

import numpy as np
import pytest
import sentencepiece

from mnmt_jax.errors import UserError
from mnmt_jax.interop.importing import import_checkpoint
from mnmt_jax.vocabulary import sentencepiece_training
from mnmt_jax.vocabulary.seeded_permutation import hash64, text_hash64
from mnmt_jax.vocabulary.sentencepiece_options import SentencePieceOptions
from mnmt_jax.vocabulary.sentencepiece_training import sample_sentences, train_sentencepiece
from mnmt_jax.vocabulary.vocabulary import Vocabulary
from tests.limited import error_of, run_limited
from tests.unit import made_text

LINES = made_text.sentences("en", 40) + made_text.sentences("de", 40)


def external_model(**special: int) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=model, vocab_size=44, minloglevel=2, **special
    )
    return model.getvalue()


def test_ids_are_specials_then_pieces_then_tags():
    vocabulary = made_text.vocabulary()
    assert (vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id) == (0, 1, 2)
    assert vocabulary.size == 60 + 3
    assert [vocabulary.tag_id(x) for x in vocabulary.languages] == [60, 61, 62]
    assert vocabulary.tokens([0, 1, 2, 60, 62]) == ["<pad>", "</s>", "<unk>", "__en__", "__fr__"]


def test_text_round_trips_and_only_specials_are_dropped():
    vocabulary = made_text.vocabulary()
    for line in LINES:
        ids = vocabulary.encode(line)
        assert ids and min(ids) > 2 and max(ids) < vocabulary.first_tag
        framed = [vocabulary.tag_id("de"), *ids[:2], 1, *ids[2:], 1, 0, 0]
        assert vocabulary.decode(framed) == line
    assert vocabulary.encode_lines(LINES) == [vocabulary.encode(line) for line in LINES]
    assert vocabulary.encode("") == [] and vocabulary.decode([]) == ""


def test_text_that_looks_like_a_tag_is_not_a_tag():
    vocabulary = made_text.vocabulary()
    assert max(vocabulary.encode("__de__")) < vocabulary.first_tag


@pytest.mark.parametrize(
    "special",
    [
        {},  # SentencePiece's default, as in MITRE's model: unk 0, <s> 1, </s> 2, no pad
        {"pad_id": 3},
        {"bos_id": -1, "eos_id": -1},
    ],
)
def test_external_models_keep_their_piece_order(special, tmp_path):
    model = external_model(**special)
    path = tmp_path / "any.model"
    path.write_bytes(model)
    vocabulary = Vocabulary.from_sentencepiece(path, ["en", "de"])
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    specials = {processor.pad_id(), processor.eos_id(), processor.unk_id()}
    others = [i for i in range(processor.get_piece_size()) if i not in specials]
    assert vocabulary.size == 3 + len(others) + 2
    assert vocabulary.id_to_spm[3:].tolist() == others
    assert vocabulary.spm_to_id[others].tolist() == list(range(3, 3 + len(others)))
    assert vocabulary.spm_to_id[processor.unk_id()] == 2
    if processor.bos_id() >= 0:
        assert "<s>" in vocabulary.tokens(range(3, 5))
    for line in LINES[:10]:
        assert vocabulary.tokens(vocabulary.encode(line)) == processor.encode(line, out_type=str)
        assert vocabulary.decode(vocabulary.encode(line)) == line


def test_unknown_characters_become_unk():
    vocabulary = made_text.vocabulary()
    assert vocabulary.unk_id in vocabulary.encode("語")


def test_save_and_load(tmp_path):
    vocabulary = made_text.vocabulary()
    vocabulary.save(tmp_path)
    again = Vocabulary.load(tmp_path)
    assert again.fingerprint == vocabulary.fingerprint and again.languages == vocabulary.languages
    assert again.encode(LINES[0]) == vocabulary.encode(LINES[0])
    (tmp_path / "languages.txt").write_text("de\nen\nfr\n")
    with pytest.raises(UserError, match="does not belong"):
        Vocabulary.load(tmp_path)
    with pytest.raises(UserError, match="no such file; make a vocabulary with"):
        Vocabulary.load(tmp_path / "missing")
    with pytest.raises(UserError, match="^gs://b/v: must not be in a bucket; copy it to a folder"):
        Vocabulary.load("gs://b/v")


def test_the_vocabulary_of_a_named_run_is_suggested(tmp_path):
    made_text.vocabulary().save(tmp_path / "vocabulary")
    message = rf"spm.model: no such file; did you mean {tmp_path}/vocabulary\?$"
    with pytest.raises(UserError, match=message):
        Vocabulary.load(tmp_path)
    message = rf"^--vocabulary={tmp_path}: no vocabulary; did you mean {tmp_path}/vocabulary\?$"
    with pytest.raises(UserError, match=message):
        import_checkpoint("fairseq", tmp_path / "model.pt", tmp_path / "run", vocabulary=tmp_path)


@pytest.mark.parametrize("kind", ["fairseq", "huggingface", "t5x"])
def test_an_import_from_a_bucket_is_refused(kind, tmp_path):
    for path, folder in (("gs://b/m", None), (tmp_path / "m", "gs://b/m")):
        with pytest.raises(
            UserError, match="^gs://b/m: must not be in a bucket; copy it to a folder"
        ):
            import_checkpoint(kind, path, tmp_path / "run", vocabulary=folder)


def test_errors_name_the_remedy(tmp_path):
    vocabulary = made_text.vocabulary()
    with pytest.raises(UserError, match="'xx' has no tag.*en, de, fr"):
        vocabulary.tag_id("xx")
    with pytest.raises(ValueError, match="id 63 is outside"):
        vocabulary.decode([63])
    with pytest.raises(UserError, match="twice"):
        Vocabulary(vocabulary.model, ("en", "en"))
    (tmp_path / "bad.model").write_bytes(b"not a model")
    with pytest.raises(UserError, match="not a SentencePiece model"):
        Vocabulary.from_sentencepiece(tmp_path / "bad.model", ["en"])
    with pytest.raises(UserError, match="could not train 100000 pieces"):
        options = SentencePieceOptions(vocab_size=100_000)
        train_sentencepiece({"en": LINES}, tmp_path, options=options)
    with pytest.raises(UserError, match="no sentences"):
        train_sentencepiece({"en": []}, tmp_path)


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_training_is_reproducible(model_type, tmp_path):
    options = SentencePieceOptions(vocab_size=44, byte_fallback=False, model_type=model_type)
    first = train_sentencepiece({"en": LINES}, tmp_path / "a", options=options)
    second = train_sentencepiece({"en": LINES}, tmp_path / "b", options=options)
    # The model file holds no date or path; equality is to the byte.
    assert first.fingerprint == second.fingerprint


def test_a_vocabulary_that_cannot_be_replaced_stays(tmp_path, monkeypatch):
    old, new = made_text.vocabulary(), Vocabulary(external_model(), ("de", "en"))
    old.save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    write = Path.write_bytes

    def write_on_a_full_disk(path, data):
        if len(data) > 1000:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return write(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", write_on_a_full_disk)
        with pytest.raises(OSError, match="No space left"):
            new.save(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    new.save(tmp_path)
    assert Vocabulary.load(tmp_path).fingerprint == new.fingerprint


def test_sampling_follows_the_temperature_without_replacement():
    text = {
        "en": [f"e{i}" for i in range(1000)],
        "de": [f"d{i}" for i in range(100)],
        "fr": [f"f{i}" for i in range(10)],
    }

    def shares(temperature: float, budget: int = 150) -> list[int]:
        options = SentencePieceOptions(sentences=budget, temperature=temperature)
        sample = sample_sentences(text, options)
        assert len(set(sample)) == len(sample) <= budget
        return [sum(line[0] == letter for line in sample) for letter in "edf"]

    proportional = np.array(shares(1.0))
    np.testing.assert_allclose(proportional, 150 * np.array([1000, 100, 10]) / 1110, atol=1)
    flat = shares(1e9)
    assert flat[2] == 10 and abs(flat[0] - 70) <= 1 and abs(flat[1] - 70) <= 1
    assert shares(5.0, 10_000) == [1000, 100, 10]
    options = SentencePieceOptions(sentences=150)
    assert sample_sentences(text, options) == sample_sentences(text, options)


@pytest.mark.parametrize("budget", [1, 20, 150, 1109, 1110, 5000])
@pytest.mark.parametrize("temperature", [1.0, 5.0])
def test_the_sample_of_streams_is_that_of_all_sentences(monkeypatch, budget, temperature):
    """Only the lowest keys are in memory; the reference computes all of them."""
    monkeypatch.setattr(sentencepiece_training, "_BLOCK", 7)
    options = SentencePieceOptions(sentences=budget, temperature=temperature, seed=3)
    counts = {"en": 1000, "de": 100, "fr": 10, "cs": 0}
    text = {code: [f"{code} {i}" for i in range(count)] for code, count in counts.items()}
    quotas = sentencepiece_training._quotas([*counts.values()], budget, temperature)
    expected = []
    for (code, sentences), quota in zip(text.items(), quotas, strict=True):
        keys = hash64(3, text_hash64(code), np.arange(len(sentences)))
        expected += [sentences[i] for i in sorted(np.argsort(keys)[:quota])]
    assert sample_sentences({code: iter(text[code]) for code in text}, options) == expected
    assert budget > 1110 or 0 <= budget - len(expected) < 3


def test_repeated_languages_are_read_in_linear_time(tmp_path):
    for name in ("spm.model", "vocabulary.json"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "languages.txt").write_text("en\n" * 1_000_000)
    code = """
import sys
from mnmt_jax.vocabulary.vocabulary import Vocabulary
Vocabulary.load(sys.argv[1])
"""
    done = run_limited(code, tmp_path)
    assert error_of(done).endswith("languages 'en' are listed twice; list each language once")


def test_many_copies_for_many_languages_are_checked_in_linear_time():
    code = """
from mnmt_jax.vocabulary.added_languages import check_added_languages
from mnmt_jax.vocabulary.language_specific_pieces import check_language_pieces
codes = [f"x{number}" for number in range(100_000)]
print(len(check_language_pieces([("a", code) for code in codes], codes)))
print(len(check_added_languages([(code, b"") for code in codes], codes)))
"""
    done = run_limited(code, cpu_seconds=30)
    assert done.stdout.split() == ["100000", "100000"], done.stderr


@pytest.mark.parametrize("ids", [[3, -1, 5], [3, 64, 99], np.array([70])])
def test_the_first_id_outside_of_a_vocabulary_is_named(ids):
    vocabulary = made_text.vocabulary()
    outside = next(int(i) for i in ids if not 0 <= i < vocabulary.size)
    with pytest.raises(ValueError, match=f"^id {outside} is outside the vocabulary of "):
        vocabulary.decode(ids)
    assert vocabulary.decode([]) == ""
