"""Language-specific copies of pieces: storage, encoding per language, errors."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest

from mnmt_jax.config.sections import Decode, Model
from mnmt_jax.data.cache_writer import encode_pairs, write_cache
from mnmt_jax.data.instruction import INSTRUCTIONS
from mnmt_jax.data.mixtures import cache_task_sources
from mnmt_jax.data.parallel_corpora import ParallelFiles
from mnmt_jax.decoding import translate_lines as lines_module
from mnmt_jax.decoding.encoded_lines import Line
from mnmt_jax.decoding.inference_model import InferenceModel
from mnmt_jax.decoding.translate_lines import score_lines, translate_lines
from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.published_procedures import PROCEDURES, PaperScorer
from mnmt_jax.interop.fairseq import export_fairseq
from mnmt_jax.interop.huggingface import export_huggingface
from mnmt_jax.interop.token_table import rows_of_vocabulary
from mnmt_jax.model.network import build_model
from mnmt_jax.vocabulary.vocabulary import Vocabulary
from tests.unit import made_text

LANGUAGES = made_text.LANGUAGES
SHARED = [p for p in made_text.vocabulary().named_pieces if p.isalpha() or p[1:].isalpha()]
COPIES = tuple((piece, code) for piece in SHARED[:20] for code in ("de", "en"))


def split() -> Vocabulary:
    """Return a vocabulary with copies for two of its three languages."""
    return made_text.vocabulary().with_copies(COPIES)


def test_ids_are_pieces_then_copies_then_tags():
    plain, vocabulary = made_text.vocabulary(), split()
    assert vocabulary.first_copy == plain.first_tag == 60
    assert vocabulary.size == 60 + 40 + 3
    assert [vocabulary.tag_id(code) for code in LANGUAGES] == [100, 101, 102]
    assert vocabulary.tokens([0, 1, 2, 100]) == ["<pad>", "</s>", "<unk>", "__en__"]
    assert vocabulary.tokens([60, 61]) == [f"{SHARED[0]}_de", f"{SHARED[0]}_en"]
    assert vocabulary.tokens(range(3, 60)) == plain.tokens(range(3, 60))
    assert vocabulary.named_pieces[60 - 3 : 62 - 3] == (SHARED[0], SHARED[0])
    np.testing.assert_array_equal(vocabulary.spm_to_id, plain.spm_to_id)


def test_encoding_of_a_language_without_copies_is_unchanged():
    plain, vocabulary = made_text.vocabulary(), split()
    for text in made_text.sentences("fr", 20):
        assert vocabulary.encode(text, "fr") == plain.encode(text)
        assert vocabulary.encode(text, "de") != plain.encode(text)


def test_encoding_needs_a_language():
    vocabulary = split()
    for encode in (vocabulary.encode, lambda text: vocabulary.encode_lines([text])):
        with pytest.raises(UserError, match="say which language"):
            encode("eins")
    with pytest.raises(UserError, match="say which language"):
        vocabulary.spm_to_id_for(None)
    with pytest.raises(UserError, match="'xx' has no tag"):
        vocabulary.encode("eins", "xx")
    with pytest.raises(UserError, match="say which language"):
        list(encode_pairs(vocabulary, [("one", "eins")]))


@pytest.mark.parametrize("pieces", [None, ("a", "\u2581one", "b")])
def test_vocabularies_without_copies_are_unchanged(tmp_path, pieces):
    vocabulary = Vocabulary(made_text.vocabulary().model, LANGUAGES, pieces)
    listed = b"" if pieces is None else json.dumps(pieces).encode()
    content = vocabulary.model + b"\nen\nde\nfr" + listed
    size = 63 if pieces is None else 9
    split().save(tmp_path / "saved")  # what it writes besides must not stay
    vocabulary.save(tmp_path / "saved")
    files = {path.name: path.read_text("utf-8") for path in tmp_path.glob("saved/*[nt]")}
    digest = hashlib.sha256(content).hexdigest()
    expected = {
        "languages.txt": "en\nde\nfr\n",
        "vocabulary.json": f'{{\n "format": 1,\n "size": {size},\n "first_tag": {size - 3},\n '
        f'"fingerprint": "{digest}"\n}}\n',
    }
    if pieces is not None:
        expected["pieces.json"] = '[\n"a",\n"▁one",\n"b"\n]\n'
    assert files == expected
    loaded = Vocabulary.load(tmp_path / "saved")
    assert loaded.fingerprint == digest and loaded.copies == () and loaded.pieces == pieces


def test_copies_are_saved(tmp_path):
    vocabulary = split()
    vocabulary.save(tmp_path)
    loaded = Vocabulary.load(tmp_path)
    assert loaded.copies == COPIES and loaded.fingerprint == vocabulary.fingerprint
    assert loaded.encode("eins", "de") == vocabulary.encode("eins", "de")
    others = made_text.vocabulary(), made_text.vocabulary().with_copies(COPIES[::-1])
    assert len({one.fingerprint for one in (vocabulary, *others)}) == 3
    path = tmp_path / "copies.json"
    for text, message in (
        ("[]", "does not belong"),
        ('[["a"]]', "copies.json: is damaged"),
        ('[["a", 1]]', "copies.json: is damaged"),
        ("[" * 100_000, "copies.json: is damaged"),
        ('[["a", "xx"]]', "for language 'xx'"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=message):
            Vocabulary.load(tmp_path)
    path.unlink()
    with pytest.raises(UserError, match="does not belong"):
        Vocabulary.load(tmp_path)


@pytest.mark.parametrize(
    ("copies", "message"),
    [
        ([("e", "de"), ("e", "de")], "'e' has two copies for 'de'"),
        ([("e", "it")], "for language 'it', which has no tag; .* en, de, fr"),
        ([("nowhere", "de")], "'nowhere' has a copy but is no piece"),
        ([("<unk>", "de")], "'<unk>' has a copy but is no piece"),
    ],
)
def test_bad_copies_are_refused(copies, message):
    with pytest.raises(UserError, match=message):
        made_text.vocabulary().with_copies(copies)


def test_a_copy_of_a_piece_that_text_cannot_contain_is_refused():
    listed = Vocabulary(made_text.vocabulary().model, LANGUAGES, ("<mask>", "e"))
    assert listed.with_copies([("e", "de")]).encode("e", "de")[-1] == listed.first_tag
    with pytest.raises(UserError, match="'<mask>' has a copy"):
        listed.with_copies([("<mask>", "de")])


def test_the_cache_contains_the_copies_of_each_side(tmp_path):
    for code in LANGUAGES:
        text = "\n".join(made_text.sentences(code, 9)) + "\n"
        (tmp_path / f"train.{code}").write_text(text, encoding="utf-8")
    corpus = ParallelFiles("made", str(tmp_path / "{split}.{language}"), LANGUAGES)
    vocabulary = split()
    sources = cache_task_sources(corpus, [("en", "de"), ("de", "en"), ("fr", "de")], vocabulary)
    cache = write_cache(tmp_path / "cache", sources, vocabulary=vocabulary)
    assert cache.vocabulary.copies == COPIES
    ids = {code: [range(60, 100)[i::2] for i in (0, 1)][code == "en"] for code in ("de", "en")}
    for name, task in cache.tasks.items():
        for number in range(9):
            pair = cache.pair(name, "train", number)
            for side, code in zip(pair, (task.source_lang, task.target_lang), strict=True):
                assert cache.vocabulary.decode(side) == made_text.sentence(number + 1, code)
                assert side.tolist() == vocabulary.encode(
                    made_text.sentence(number + 1, code), code
                )
                copies = {i for i in side.tolist() if i >= 60}
                assert copies <= set(ids.get(code, ())) and bool(copies) == (code != "fr")


@pytest.fixture
def inference_model() -> InferenceModel:
    """Return a model without parameters, to inspect its input batches."""
    config = Model(layout="prefix", stage_layers=(1,), embed=8, mlp=8, heads=2)
    vocabulary = split()
    return InferenceModel(build_model(config, vocabulary.size), None, vocabulary, INSTRUCTIONS["1"])


class _Seen(Exception):
    """Carries an input batch of the model."""


def test_translation_and_scoring_encode_each_line_in_its_language(inference_model, monkeypatch):
    texts = [("eins zwei", "de", "en"), ("eins zwei", "en", "de"), ("eins zwei", "fr", "de")]
    lines = [Line(number, *line) for number, line in enumerate(texts)]
    fed = []

    def search(inference_model, search, admissions, rows):
        raise _Seen(next(admissions).batch)

    def score(params, batch, **settings):
        fed.append(batch)
        return np.zeros(len(lines))

    monkeypatch.setattr(lines_module, "search_continuously", search)
    monkeypatch.setattr(lines_module, "score_batch", score)
    decode = Decode(batch=3, buckets=(40,), max_length=4)
    with pytest.raises(_Seen) as seen:
        list(translate_lines(inference_model, lines, decode))
    score_lines(inference_model, lines, ["trois"] * 3, decode)
    encode = inference_model.vocabulary.encode
    sources = [encode(text, source) for text, source, _ in texts]
    assert len(set(map(tuple, sources))) == 3
    order = sorted(range(3), key=lambda row: (-len(sources[row]), row))
    for batch, rows in ((seen.value.args[0], order), (fed[0], range(3))):
        for row, line in enumerate(rows):
            actual = np.asarray(batch["source_tokens"])[row].tolist()
            assert actual[1 : 2 + len(sources[line])] == [*sources[line], 1]
    for row, (_, _, target) in enumerate(texts):
        ids = encode("trois", target)
        assert np.asarray(fed[0]["target_labels"])[row, : len(ids)].tolist() == ids


def test_published_procedures_get_text_without_copies():
    pairs = ["three Ω house", "one two"], ["drei  Ω Haus", "eins  zwei"]
    plain, copied = (
        PaperScorer(PROCEDURES["mitre"], vocabulary, None).texts(
            ("en", "de"), *pairs[:1] * 2, pairs[1]
        )
        for vocabulary in (made_text.vocabulary(), split())
    )
    assert plain == copied and plain.references[0] == "drei <<unk>> Haus"


def test_exports_to_other_toolkits_are_refused(tmp_path):
    for tags_last in (False, True):
        with pytest.raises(UserError, match="40 copies .* --format t5x"):
            rows_of_vocabulary(split(), tags_last=tags_last)
    listed = split().with_copies(()).named_pieces
    fairseq_like = Vocabulary(split().model, LANGUAGES, ("<s>", *listed), COPIES)
    for vocabulary in (split(), fairseq_like):
        with pytest.raises(UserError, match="40 copies"):
            export_fairseq(None, {}, vocabulary, tmp_path)
        with pytest.raises(UserError, match="40 copies"):
            export_huggingface(None, {}, vocabulary, tmp_path)
    assert not list(tmp_path.iterdir())
