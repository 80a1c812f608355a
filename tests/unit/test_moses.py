"""Moses preprocessing against the Perl scripts, and Graformer's BLEU."""

import sys

import pytest
from sacrebleu.metrics import BLEU

from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.moses import Moses
from mnmt_jax.evaluation.published_averages import TABLES
from mnmt_jax.evaluation.published_procedures import (
    PROCEDURES,
    PaperScorer,
    PaperTexts,
    round_as_published,
)
from tests.unit import made_text

# What Moses' own scripts make of these lines in the order of M2M-100's tok.sh:
# replace-unicode-punctuation, normalize-punctuation -l LANGUAGE, remove-non-printing-char, for
# Romanian what WMT16's two scripts do, tokenizer -no-escape -l LANGUAGE.
PERL = [
    ("de", "Er sagte: „Das war gut.“", 'Er sagte : " Das war gut " .'),
    (
        "de",
        "Nr. 5 kostet 1 000,50 Euro, z.B. hier — ’s ist so…",
        "Nr. 5 kostet 1 000,50 Euro , z.B. hier - ' s ist so ...",
    ),
    (
        "ro",
        "Şi ţara (mea): Ștefan, Țuțea și Ăsta, Â, Î, â, î, ă.",
        "Si tara ( mea ) : Stefan , Tutea si Asta , A , I , a , i , a .",
    ),
    ("fr", "L’homme dit : « oui » !", 'L\' homme dit : " oui " !'),
    (
        "en",
        "He can't say \"it's the U.S.\" & left <b> in 1980's.",
        "He can 't say \" it 's the U.S. \" & left < b > in 1980 's .",
    ),
    ("it", 'L\'altro disse: "no", e poi...', 'L\' altro disse : " no " , e poi ...'),
    ("bn", "আমি বাংলাদেশে বিশ্ববিদ্যালয়ে যাই।", "আমি বাংলাদেশে বিশ ্ ববিদ ্ যালয ় ে যাই ।"),
    ("mr", "मी महाराष्ट्रात राहतो.", "मी महाराष ् ट ् रात राहतो ."),
    ("ta", "நான் தமிழ் பேசுகிறேன்.", "நான ் தமிழ ் பேசுகிறேன ் ."),
    (
        "fi",
        'EU:ssa ja USA:n kello 10:30: "hei", hän sanoi.',
        'EU:ssa ja USA:n kello 10 : 30 : " hei " , hän sanoi .',
    ),
    ("ru", "Это было в 2018 г.", "Это было в 2018 г ."),
    ("en", "He told LiverpoolFC.com.", "He told LiverpoolFC.com ."),
    ("hr", 'Rekao je: "Danas."', 'Rekao je : " Danas " .'),
    (
        "tr",
        "\u200bBu bir a\xadr\u0131za! 100% \u201cevet,\u201d dedi",
        'Bu bir a rıza ! 100 % " evet " , dedi',
    ),
    ("el", "Τι κάνεις; Καλά...", "Τι κάνεις ; Καλά ..."),
    ("fa", "این یک «آزمون» است.", 'این یک " آزمون " است .'),
    ("kk", "Бұл – сынақ, иә？", "Бұл - сынақ , иә ?"),
]

# Tables 1 and 2 of Graformer, in the order of its columns: of the baseline and of Graformer.
LANGUAGES = (
    "bg bn bs cs de el es et fa fi fr hi hr hu it ja kk lt mk mr nl pl pt ro ru sr ta tr uk zh"
)
TO_ENGLISH = {
    22.8: "32.0 12.5 30.3 23.7 28.7 30.7 34.7 17.5 20.4 17.1 33.1 18.7 30.4 19.8 31.3 10.1 7.6 "
    "20.1 29.8 9.4 28.9 19.7 34.8 28.6 20.8 29.0 5.8 18.7 23.4 15.6",
    28.6: "38.5 18.1 36.5 29.4 35.5 37.4 40.7 24.0 26.9 23.0 39.2 25.1 36.7 26.1 37.2 13.7 10.5 "
    "27.2 35.7 13.0 35.2 25.1 41.5 35.1 25.1 35.6 10.2 25.5 28.9 19.9",
}
FROM_ENGLISH = {
    19.0: "28.8 11.3 23.4 16.6 23.7 25.9 33.0 14.0 12.5 12.1 33.5 15.3 23.2 14.7 28.9 11.1 3.4 "
    "12.8 22.2 9.3 25.9 12.8 32.0 24.7 16.1 18.7 13.6 11.6 17.3 21.2",
    21.9: "33.0 14.1 26.3 20.2 27.8 29.8 37.5 16.1 14.2 14.4 37.8 18.1 26.8 17.2 32.5 12.8 3.8 "
    "15.9 25.7 10.6 29.0 15.8 36.6 29.1 19.0 21.4 14.7 13.3 19.5 23.0",
}


@pytest.fixture(scope="module")
def moses():
    pytest.importorskip("sacremoses")
    return Moses()


@pytest.mark.parametrize(("code", "line", "tokens"), PERL)
def test_tokens_equal_those_of_the_moses_scripts(moses, code, line, tokens):
    assert moses.tokenize(line, code) == tokens.strip()


def test_detokenized_text_is_unchanged(moses):
    assert moses.detokenize("It &apos;s a test , not more .", "en") == "It's a test, not more."
    assert moses.detokenize("It's a test, not more.", "en") == "It's a test, not more."
    assert (
        moses.detokenize("\u6211 \u5f97 \u5766\u767d \u3002", "zh")
        == "\u6211\u5f97\u5766\u767d\u3002"
    )


@pytest.mark.parametrize(
    ("code", "language", "line"),
    [
        ("fr_CA", "fr", "L' homme d' ici"),
        ("ro_MD", "ro", "Şi ţara ."),
        ("zh_Hant", "zh", "\u6211 \u5f97"),
    ],
)
def test_regions_and_scripts_have_the_rules_of_their_language(moses, code, language, line):
    assert moses.tokenize(line, code) == moses.tokenize(line, language)
    assert moses.detokenize(line, code) == moses.detokenize(line, language) != line


def test_missing_sacremoses_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(
        UserError, match=r"Moses; pip install '\.\[paper-metrics\]' in a clone of mnmt-jax$"
    ):
        PaperScorer(PROCEDURES["ted30"], made_text.vocabulary(), None)


def bleu_of(target, hypotheses, references):
    texts = PaperTexts(["x"] * len(hypotheses), hypotheses, references)
    scorer = PaperScorer(PROCEDURES["ted30"], made_text.vocabulary(), None)
    return scorer.scores(("en", target), texts)


def test_graformers_bleu_uses_moses_tokens(moses):
    hypotheses = [
        "Şi ţara mea, foarte frumoasă (spune el).",
        "Al doilea rând, mai lung decât primul.",
    ]
    references = ["Și tara mea , foarte frumoasa ( spune ).", "Al doilea rând, mult mai lung."]
    columns = [[moses.tokenize(text, "ro") for text in side] for side in (hypotheses, references)]
    expected = BLEU(tokenize="none", force=True).corpus_score(columns[0], [columns[1]]).score
    assert bleu_of("ro", hypotheses, references) == {"bleu": round_as_published(expected)}
    swapped = BLEU(tokenize="none", force=True).corpus_score(columns[1], [columns[0]]).score
    marked = BLEU().corpus_score(hypotheses, [references]).score
    assert abs(swapped - expected) > 0.5 and abs(marked - expected) > 1


@pytest.mark.parametrize(("target", "tokenizer"), [("hi", "13a"), ("zh", "zh"), ("ja", "ja-mecab")])
def test_three_languages_use_sacrebleus_tokenizers(moses, target, tokenizer):
    texts = {
        "hi": (["मैं घर, जा रहा हूँ।"], ["मैं अपने घर, जा रहा हूँ।"]),
        "zh": (["我得坦白,你知道。"], ["我必须坦白,你也知道。"]),
        "ja": (["私は学校へ行きます。"], ["私は大学へ行きます。"]),
    }[target]
    expected = BLEU(tokenize=tokenizer, force=True).corpus_score(texts[0], [texts[1]]).score
    assert bleu_of(target, *texts) == {"bleu": round_as_published(expected)} and expected > 5


def test_texts_are_detokenized_and_pass_through_sentencepiece(moses):
    scorer = PaperScorer(PROCEDURES["ted30"], made_text.vocabulary(), None)
    texts = scorer.texts(("en", "de"), ["three house"], ["drei Haus ."], ["drei Haus"])
    assert texts == PaperTexts(["three house"], ["drei Haus."], ["drei Haus"])
    label = PROCEDURES["ted30"].label
    assert "swapped" not in label and "to hi, ja, zh sacreBLEU's own" in label
    assert label.endswith("values of exactly zero count")


@pytest.mark.parametrize(("key", "tables"), [("→ en", TO_ENGLISH), ("en →", FROM_ENGLISH)])
def test_the_papers_averages(key, tables):
    for mean, row in tables.items():
        scores = dict(zip(LANGUAGES.split(), map(float, row.split()), strict=True))
        values = {(code, "en"): score for code, score in scores.items()}
        if key == "en →":
            values = {pair[::-1]: score for pair, score in values.items()}
        values[("de", "fr")] = 1000.0  # is in neither
        average = TABLES["ted30"](values)[key]
        assert (round(average.mean + 1e-9, 1), average.directions) == (mean, 30)
