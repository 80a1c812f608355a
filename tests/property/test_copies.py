"""Vocabularies with copies of pieces: text comes back whole, whatever is split for whom."""

from __future__ import annotations

import functools
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mnmt_jax.vocabulary.sentencepiece_options import SentencePieceOptions
from mnmt_jax.vocabulary.sentencepiece_training import train_sentencepiece
from mnmt_jax.vocabulary.vocabulary import Vocabulary

LANGUAGES = ("en", "de", "fr")
# Text that looks like the copies' names, like tags, and like other marks.
LINES = {
    "en": ["the_de snake_case_en __de__ in_in_de", "in de_de, a_fr b_xx: 1a_2b (in)", "x_ _x __w_"],
    "de": ["in_der_de der die das_en", "__en__ der_de; in 12_de", "die_fr das in der"],
    "fr": ["de_la_fr la_de le_en __fr__", "dans_in la le de", "été_fr été_"],
}
ALPHABET = sorted(set("".join(line for lines in LINES.values() for line in lines)) - {" "})
WORDS = st.one_of(
    st.sampled_from(sorted({w for lines in LINES.values() for x in lines for w in x.split()})),
    st.text(ALPHABET, min_size=1, max_size=6),
)
TEXTS = st.lists(WORDS, min_size=1, max_size=7).map(" ".join)
LISTED = st.sampled_from((False, True))


@functools.cache
def base(listed: bool) -> Vocabulary:
    """A vocabulary of the model's pieces in its order, or of a list that turns them around."""
    with tempfile.TemporaryDirectory() as directory:
        options = SentencePieceOptions(vocab_size=80, byte_fallback=False, model_type="bpe")
        plain = train_sentencepiece(LINES, directory, options=options)
    pieces = ("<mask>", *reversed(plain.named_pieces)) if listed else None
    return Vocabulary(plain.model, LANGUAGES, pieces)


@st.composite
def splits(draw) -> tuple[Vocabulary, Vocabulary]:
    """A vocabulary and the same with some copies in some order."""
    plain = base(draw(LISTED))
    known = [piece for piece in plain.named_pieces if piece != "<mask>"]
    pairs = [(piece, language) for piece in known for language in LANGUAGES]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=len(pairs)))
    if draw(st.booleans()):  # so that most of a text is copies
        chosen = [pair for pair in pairs if pair not in chosen]
    return plain, plain.with_copies(chosen)


@settings(deadline=None, derandomize=True)
@given(splits(), st.lists(TEXTS, min_size=1, max_size=4), st.data())
def test_encoding_and_decoding_is_the_identity(made, texts, data):
    plain, vocabulary = made
    codes = data.draw(
        st.lists(st.sampled_from(LANGUAGES), min_size=len(texts), max_size=len(texts))
    )
    lines = vocabulary.encode_lines(texts, codes)
    for text, language, ids in zip(texts, codes, lines, strict=True):
        assert vocabulary.decode(ids) == text
        tag, eos, pad = vocabulary.tag_id(language), vocabulary.eos_id, vocabulary.pad_id
        assert vocabulary.decode([tag, *ids, eos, pad]) == text
        assert ids == vocabulary.encode(text, language)
        assert ids == vocabulary.encode_lines([text], language)[0]


@settings(deadline=None, derandomize=True)
@given(splits(), TEXTS, st.sampled_from(LANGUAGES))
def test_a_language_has_its_own_copies_and_else_what_all_have(made, text, language):
    plain, vocabulary = made
    shared = plain.encode(text)
    assert plain.unk_id not in shared
    place = {copy: vocabulary.first_copy + i for i, copy in enumerate(vocabulary.copies)}
    pieces = plain.tokens(shared)
    expected = [place.get((p, language), i) for p, i in zip(pieces, shared, strict=True)]
    found = vocabulary.encode(text, language)
    assert found == expected
    names = [f"{p}_{language}" if (p, language) in place else p for p in pieces]
    assert vocabulary.tokens(found) == names
    processed = vocabulary._processor.encode(text)
    assert vocabulary.spm_to_id_for(language)[processed].tolist() == found
    assert vocabulary.id_to_spm[found].tolist() == processed


@pytest.mark.parametrize("listed", [False, True])
def test_the_splits_reach_the_text(listed):
    """The properties above speak of texts with copies, and of more than one id per piece."""
    plain = base(listed)
    pairs = [
        (piece, code) for piece in plain.named_pieces if piece != "<mask>" for code in LANGUAGES
    ]
    vocabulary = plain.with_copies(pairs)
    ids = {code: vocabulary.encode("in_de der", code) for code in LANGUAGES}
    assert min(map(min, ids.values())) >= vocabulary.first_copy == plain.first_tag
    assert len(set(map(tuple, ids.values()))) == 3
    assert max(map(max, ids.values())) < vocabulary.first_tag == plain.first_tag + len(pairs)
