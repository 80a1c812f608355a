"""spBLEU equals sacreBLEU with the tokenizer, and is left out without it."""

import pytest
from sacrebleu.metrics import BLEU
from sacrebleu.tokenizers import tokenizer_spm

from mnmt_jax.errors import UserError
from mnmt_jax.evaluation import spbleu as module
from mnmt_jax.evaluation.spbleu import find_tokenizer, missing_model_note, spbleu
from tests.unit import made_text


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Make an empty cache of sacreBLEU."""
    monkeypatch.setattr(module, "SACREBLEU_DIR", str(tmp_path))
    monkeypatch.setattr(tokenizer_spm, "SACREBLEU_DIR", str(tmp_path))

    def refuse(*arguments):
        raise AssertionError("nothing may be downloaded")

    monkeypatch.setattr(tokenizer_spm, "download_file", refuse)
    return tmp_path


def put(path):
    """Write a small SentencePiece model to the path of Flores-200's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(made_text.vocabulary().model)


def test_the_score_equals_sacrebleu(cache):
    put(module.cached_model_path())
    assert module.cached_model_path().parent == cache / "models"
    references = made_text.sentences("de", 30)
    hypotheses = [text.replace("Haus", "Baum") for text in references]
    score, _, signature = spbleu(hypotheses, references, find_tokenizer())
    own = BLEU(tokenize="flores200")
    assert 20 < score < 99
    assert score == own.corpus_score(hypotheses, [references]).score
    assert signature.startswith(str(own.get_signature()) + "|model:")
    assert BLEU().corpus_score(hypotheses, [references]).score != pytest.approx(score, abs=1)


def test_the_note_on_a_missing_model_is_short_and_names_the_flag(cache):
    assert find_tokenizer() is None
    note = missing_model_note()
    assert note.startswith("spBLEU left out: ") and "\n" not in note and len(note) < 80
    assert "--flores200_model" in note


def test_a_given_model_file_is_used_or_refused(tmp_path):
    put(tmp_path / "flores.model")
    assert find_tokenizer(tmp_path / "flores.model") is not None
    with pytest.raises(UserError, match=r"nowhere\.model: no such file; get flores200"):
        find_tokenizer(tmp_path / "nowhere.model")
    (tmp_path / "text").write_text("no model")
    with pytest.raises(UserError, match="text: not a SentencePiece model"):
        find_tokenizer(tmp_path / "text")
