"""Languages added to a vocabulary: segmentation, stable ids, exact decoding, errors."""

from __future__ import annotations

import dataclasses
import functools
from types import SimpleNamespace

import numpy as np
import pytest

from mnmt_jax.config.sections import Decode
from mnmt_jax.errors import UserError
from mnmt_jax.interop.ctranslate2_job import CTranslate2Job
from mnmt_jax.interop.fairseq import export_fairseq
from mnmt_jax.interop.huggingface import export_huggingface
from mnmt_jax.vocabulary.added_languages import append_pieces
from mnmt_jax.vocabulary.lavs import count_pieces
from mnmt_jax.vocabulary.sentencepiece_options import SentencePieceOptions
from mnmt_jax.vocabulary.sentencepiece_training import train_model
from mnmt_jax.vocabulary.vocabulary import Vocabulary
from tests.made_foreign import m2m100_pieces, spm_model
from tests.unit import made_text

_WORDS = ("één", "twee", "drie", "huis", "rivier", "groen", "klein", "en", "loopt", "achter")
TEXT = tuple(
    " ".join(_WORDS[int(digit)] for digit in str(number * 7919)) for number in range(1, 301)
)


@functools.cache
def model(normalization: str = "identity") -> bytes:
    """Return a SentencePiece model for the generated text of a fourth language."""
    options = SentencePieceOptions(vocab_size=33, byte_fallback=False, normalization=normalization)
    return train_model({"nl": TEXT}, options)


def grown(base: Vocabulary | None = None, language: str = "nl") -> Vocabulary:
    return (base or made_text.vocabulary()).with_language(language, model())


def listed() -> Vocabulary:
    """Return a vocabulary as imported: other order, additional pieces and unused pieces."""
    return Vocabulary(spm_model(), made_text.LANGUAGES, ("<s>", *m2m100_pieces(), "<mask>"))


BASES = {
    "plain": made_text.vocabulary,
    "copies": lambda: made_text.vocabulary().with_copies([("e", "de"), ("e", "en")]),
    "listed": listed,
    "grown": lambda: made_text.vocabulary().with_language("it", spm_model()),
}


@pytest.mark.parametrize("kind", BASES)
def test_existing_ids_stay_and_new_pieces_precede_the_tags(kind):
    base = BASES[kind]()
    vocabulary = grown(base)
    assert vocabulary.languages == (*base.languages, "nl")
    assert vocabulary.first_added == base.first_added
    new = vocabulary.size - base.size - 1
    unseen = vocabulary.added_pieces[len(base.added_pieces) :]
    assert new == len(unseen) >= 10 and vocabulary.tag_id("nl") == vocabulary.size - 1
    ids = range(base.first_tag)
    assert vocabulary.tokens(ids) == base.tokens(ids)
    names = [f"__{code}__" for code in vocabulary.languages]
    rest = range(base.first_tag, vocabulary.size)
    assert vocabulary.tokens(rest) == [*unseen, *names]
    lines = [*made_text.sentences("de", 30), "größer é Ω", " zwei  Räume "]
    for code in base.languages:
        assert vocabulary.encode_lines(lines, code) == base.encode_lines(lines, code)
        for line in lines:
            ids = base.encode(line, code)
            assert vocabulary.decode(ids) == base.decode(ids)


@pytest.mark.parametrize("kind", BASES)
def test_text_of_the_added_language_uses_its_own_model_and_round_trips(kind):
    base = BASES[kind]()
    vocabulary = grown(base)
    alone = Vocabulary(model(), ("nl",))
    known = [p for p in alone.named_pieces if p in base.named_pieces]
    assert known  # some are shared
    actual = set()
    for line in TEXT[:60]:
        ids = vocabulary.encode(line, "nl")
        actual |= set(ids)
        assert vocabulary.tokens(ids) == alone.tokens(alone.encode(line))
        assert vocabulary.decode(ids) == line
    assert any(i < base.first_copy for i in actual) and any(i >= base.first_added for i in actual)
    assert not any(base.first_copy <= i < base.first_added for i in actual)
    # Whatever order the pieces of both come in, a model may write it.
    mixed = vocabulary.encode("drei", "de") + vocabulary.encode("één huis", "nl")
    assert vocabulary.decode(mixed) == "drei één huis"


def test_each_language_of_a_batch_uses_its_own_model():
    vocabulary = grown()
    lines = ["één huis", "ein Haus", "drie", "one", "één huis"]
    codes = ["nl", "de", "nl", "en", "de"]
    cut = vocabulary.encode_lines(lines, codes)
    assert cut == [vocabulary.encode(*pair) for pair in zip(lines, codes, strict=True)]
    assert cut[0] != cut[4]
    with pytest.raises(UserError, match="languages with pieces of their own; say which language"):
        vocabulary.encode("één")
    with pytest.raises(UserError, match="'xx' has no tag"):
        vocabulary.encode("één", "xx")


def test_a_language_may_be_added_without_pieces():
    base = made_text.vocabulary()
    vocabulary = base.with_language("nl")
    assert vocabulary.size == base.size + 1 and not vocabulary.additions
    assert vocabulary.encode("één") == base.encode("één")
    grown = Vocabulary(base.model, (*base.languages, "nl"), normalization=base.normalization)
    assert vocabulary.fingerprint == grown.fingerprint
    assert vocabulary.is_extension_of(base)


def test_sentencepiece_id_tables_agree_with_encoding():
    """seqio maps ids of a SentencePiece model by tables in TensorFlow."""
    vocabulary = grown(BASES["copies"]())
    lines = {"nl": TEXT[3], "nld_Latn": TEXT[3], "NL": TEXT[3], "deu": "eins Haus", "fr": "un"}
    for code, line in lines.items():
        own = Vocabulary(vocabulary.sentencepiece_model_for(code), ())
        pieces = own._processor.encode(line)
        table = vocabulary.spm_to_id_for(code)
        assert table[pieces].tolist() == vocabulary.encode(line, code)
        ids = vocabulary.encode(line, code)
        decoder = Vocabulary(vocabulary.decoding_model, ())._processor
        assert decoder.decode(vocabulary.id_to_spm[ids].tolist()) == vocabulary.decode(ids)
    assert len(vocabulary.id_to_spm) == vocabulary.first_tag


def test_pieces_that_appear_in_text():
    base = made_text.vocabulary()
    assert base.appears_in_text.tolist() == [False] + [True] * (base.size - 1)
    of_list = listed()
    names = of_list.tokens(np.flatnonzero(~of_list.appears_in_text))
    assert names == ["<pad>", "<s>", "▁extra", "<mask>"]
    assert (
        grown(of_list).appears_in_text.sum()
        == of_list.appears_in_text.sum() + len(grown(of_list).added_pieces) + 1
    )


def test_control_symbols_of_the_first_model_are_unknown():
    odd = append_pieces(model(), ["<s>"])
    alone = Vocabulary(odd, ())
    assert alone.tokens(alone.encode("huis<s>")) == ["▁huis", "<s>"]
    vocabulary = listed().with_language("nl", odd)
    assert vocabulary.added_pieces == grown(listed()).added_pieces
    assert vocabulary.encode("huis<s>", "nl") == [*vocabulary.encode("huis", "nl"), 2]


def test_additions_are_saved(tmp_path):
    vocabulary = grown(grown(), "it")
    vocabulary.save(tmp_path)
    loaded = Vocabulary.load(tmp_path)
    assert loaded.fingerprint == vocabulary.fingerprint
    assert loaded.additions == vocabulary.additions
    assert loaded.encode(TEXT[0], "it") == vocabulary.encode(TEXT[0], "nl")
    others = made_text.vocabulary(), grown(), grown(grown(language="it"))
    assert len({one.fingerprint for one in (vocabulary, *others)}) == 4
    (tmp_path / "spm_added_1.model").write_bytes(b"no model")
    with pytest.raises(UserError, match="does not belong"):
        Vocabulary.load(tmp_path)
    (tmp_path / "spm_added_2.model").unlink()
    with pytest.raises(UserError, match="spm_added_2.model: no such file; copy the whole folder"):
        Vocabulary.load(tmp_path)
    (tmp_path / "additions.json").write_text("[1]")
    with pytest.raises(UserError, match="additions.json: is damaged"):
        Vocabulary.load(tmp_path)
    made_text.vocabulary().save(tmp_path)  # nothing of the earlier one stays
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "languages.txt",
        "spm.model",
        "vocabulary.json",
    ]


def test_extensions_of_vocabularies_are_recognised():
    base, one = made_text.vocabulary(), grown()
    two = grown(one, "it")
    assert one.is_extension_of(base) and two.is_extension_of(base) and two.is_extension_of(one)
    assert (
        base.is_extension_of(base)
        and not base.is_extension_of(one)
        and not one.is_extension_of(two)
    )
    assert not one.is_extension_of(listed()) and not grown(BASES["copies"]()).is_extension_of(one)
    # The text of a language that was there is cut otherwise: its old ids mean something else.
    cut_anew = dataclasses.replace(base.with_language("nl"), additions=one.additions)
    assert not cut_anew.is_extension_of(base.with_language("nl")) and cut_anew.is_extension_of(base)


def test_invalid_arguments_are_refused(tmp_path):
    with pytest.raises(UserError, match="'de' is in the vocabulary already; it has en, de, fr"):
        grown(language="de")
    base = made_text.vocabulary()
    with pytest.raises(UserError, match="'nl' was added but has no tag"):
        dataclasses.replace(base, additions=[("nl", model())])
    with pytest.raises(UserError, match="'de' was added twice"):
        dataclasses.replace(base, additions=[("de", model())] * 2)
    with pytest.raises(UserError, match="give the one that they were added to"):
        count_pieces(grown(), {})
    for export in (export_fairseq, export_huggingface):
        with pytest.raises(UserError, match="text of nl has .* export with --format t5x"):
            export(None, {}, grown(), tmp_path)
    pretrained = SimpleNamespace(vocabulary=grown(), config=None)
    job = SimpleNamespace(pretrained=pretrained, decode=Decode(), pivot=None)
    with pytest.raises(UserError, match="CTranslate2's .* leave out --engine=ctranslate2"):
        CTranslate2Job.of(job, "float32", 1)
    assert not list(tmp_path.iterdir())


def test_bytes_of_an_added_model_are_unknown_where_the_first_has_none():
    model = train_model({"nl": TEXT}, SentencePieceOptions(vocab_size=280, byte_fallback=True))
    vocabulary = made_text.vocabulary().with_language("nl", model)
    assert not any(piece.startswith("<0x") for piece in vocabulary.added_pieces)
    assert vocabulary.unk_id in vocabulary.encode("huis \u2603", "nl")
