"""The embedded corpus: renderings, no inherited text, disjoint splits."""

import datetime
import os
import pickle
import subprocess
import sys
import unicodedata

import babel.dates
import babel.lists
import babel.localedata
import babel.numbers
import babel.units
import pytest

from mnmt_jax.data.cldr import (
    SPLITS,
    CldrCorpus,
    Renderer,
    load_inventory,
    locale_data,
    sampler,
    split_of,
)
from mnmt_jax.data.cldr import cldr_corpus as corpus_module
from mnmt_jax.data.cldr.inventory import renderer
from mnmt_jax.data.cldr.renderer import NAME_PATHS, RELATIVE_UNITS, spanish_conjunction
from mnmt_jax.data.cldr_export import export_cldr
from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.languages import MITRE_LANGUAGES

PLACES = (
    "colon",
    ("date", "full", 1987, 3, 5),
    ("list", "or", ("territory", "DE"), ("territory", "GR"), ("territory", "EG")),
)
AMOUNTS = (
    "dash",
    ("relative", "hour", -3),
    ("list", "standard", ("quantity", 5, "length-kilometer"), ("money", 21, "CHF")),
)

HAND_CHECKED = [
    (PLACES, "en", "Thursday, March 5, 1987: Germany, Greece, or Egypt"),
    (PLACES, "de", "Donnerstag, 5. März 1987: Deutschland, Griechenland oder Ägypten"),
    (PLACES, "sv", "torsdag 5 mars 1987: Tyskland, Grekland eller Egypten"),
    (PLACES, "cs", "čtvrtek 5. března 1987: Německo, Řecko nebo Egypt"),
    (PLACES, "ja", "1987年3月5日木曜日：ドイツ、ギリシャ、またはエジプト"),
    (PLACES, "jv", "Kamis, 5 Maret 1987: Jérman, Grikenlan, utowo Mesir"),
    (PLACES, "fr", "jeudi 5 mars 1987 : Allemagne, Grèce ou Égypte"),
    (PLACES, "ko", "1987년 3월 5일 목요일: 독일, 그리스 또는 이집트"),
    (AMOUNTS, "ru", "3 часа назад – 5 километров и 21 швейцарский франк"),
    (AMOUNTS, "pl", "3 godziny temu – 5 kilometrów i 21 franków szwajcarskich"),
    (AMOUNTS, "ro", "acum 3 ore – 5 kilometri și 21 de franci elvețieni"),
    (AMOUNTS, "zh", "3小时前——5公里和21瑞士法郎"),
    (("quantity", 2, "length-kilometer"), "ru", "2 километра"),
    (("quantity", "2.5", "length-kilometer"), "cs", "2,5 kilometru"),
    (("quantity", 4, "length-kilometer"), "tl", "4 na kilometro"),
    (("rate", ("money", 2, "SEK"), "duration-hour"), "de", "2 Schwedische Kronen pro Stunde"),
    (("rate", ("quantity", 9, "volume-liter"), "duration-day"), "zh", "9升/天"),
    (("month_day", 3, 5), "tl", "Marso 5"),
    (("month_year", 1987, 3), "cs", "březen 1987"),
    (("date", "long", 1987, 3, 5), "cs", "5. března 1987"),
    (("weekday_month_day", 3, 3, 5), "es", "jueves, 5 de marzo"),
    (("weekday_month_day", 3, 3, 5), "zh", "3月5日星期四"),
    (("datetime", 1987, 3, 5, 0, 4), "en", "March 5, 1987, 12:04 AM"),
    (("datetime", 1987, 3, 5, 15, 4), "ko", "1987년 3월 5일 오후 3:04"),
    (("datetime", 1987, 3, 5, 15, 4), "vi", "15:04 5 tháng 3, 1987"),
    (("quarter", 1987, 3), "jv", "triwulan kaping telu 1987"),
    (("week_of_year", 1987, 9), "pt", "9ª semana de 1987"),
    (("week_of_month", 3, 2), "fr", "semaine 2 (mars)"),
    (("months", 1987, 3, 1987, 8), "uk", "березень – серпень 1987 р."),
    (("months", 1987, 3, 1988, 8), "es", "marzo de 1987 – agosto de 1988"),
    (("days", 1987, 3, 5, 3, 17), "tl", "Marso 5–17, 1987"),
    (("days", 1987, 3, 5, 3, 17), "es", "5–17 mar 1987"),
    (("days", 1987, 3, 5, 4, 17), "de", "5. März – 17. April 1987"),
    (("paren", ("language", "sw"), ("relative", "day", 1)), "zh", "斯瓦希里语（1天后）"),
    (("paren", ("language", "sw"), ("relative", "day", 1)), "it", "swahili (tra 1 giorno)"),
    (
        ("note", ("territory", "FI"), ("relative", "month", 36), ("money", 18, "PEN")),
        "ja",
        "フィンランド――36 か月後：18ペルー ソル",
    ),
]


@pytest.fixture(scope="module")
def large():
    return CldrCorpus(MITRE_LANGUAGES, inventory="large")


@pytest.fixture(scope="module")
def small():
    return CldrCorpus(MITRE_LANGUAGES, inventory="small")


@pytest.mark.parametrize(("meaning", "language", "text"), HAND_CHECKED)
def test_renderings_checked_by_hand(meaning, language, text):
    assert Renderer(language).render(meaning) == text


def plain(text):
    return locale_data.normalize(text)


@pytest.mark.parametrize("language", MITRE_LANGUAGES)
def test_dates_agree_with_babel(language):
    item, name = renderer(language), locale_data.babel_name(language)
    for year, month, day in [(1987, 3, 5), (2024, 2, 29), (1999, 12, 31), (2001, 5, 1)]:
        date = datetime.date(year, month, day)
        for style in ("full", "long"):
            expected = plain(babel.dates.format_date(date, style, locale=name))
            assert item.render(("date", style, year, month, day)) == expected
        for hour, minute in [(0, 5), (12, 0), (13, 59), (9, 30)]:
            time = babel.dates.format_time(datetime.time(hour, minute), "short", locale=name)
            if language == "ko":  # Babel takes root's mark, though Korean has its own
                time = time.replace("AM", "오전").replace("PM", "오후")
            assert plain(time) in item.render(("datetime", year, month, day, hour, minute))


@pytest.mark.parametrize("language", MITRE_LANGUAGES)
def test_lists_agree_with_babel(language):
    item, name = renderer(language), locale_data.babel_name(language)
    for size in (2, 3, 4):
        codes = ["BR", "CA", "NZ", "PE"][:size]
        names = [item.names["territory"][code] for code in codes]
        for style in ("standard", "or"):
            expected = plain(babel.lists.format_list(names, style, locale=name))
            items = [("territory", code) for code in codes]
            assert item.render(("list", style, *items)) == expected


@pytest.mark.parametrize("language", MITRE_LANGUAGES)
def test_relative_times_agree_with_babel(language):
    item, name = renderer(language), locale_data.babel_name(language)
    seconds = dict(babel.dates.TIMEDELTA_UNITS)
    assert set(seconds) == set(RELATIVE_UNITS) - {"quarter"}
    for number in (1, 2, 3, 5, 11, 21, 22, 25, 60):
        for sign in (1, -1):
            for unit, length in seconds.items():
                expected = babel.dates.format_timedelta(
                    sign * datetime.timedelta(seconds=number * length),
                    granularity=unit,
                    # A finer unit is named only from its threshold on: never before `unit`.
                    threshold=10**9 if unit != "year" else 1,
                    add_direction=True,
                    locale=name,
                )
                assert item.render(("relative", unit, sign * number)) == plain(expected)


@pytest.mark.parametrize("language", MITRE_LANGUAGES)
def test_amounts_agree_with_babel(language):
    item, name = renderer(language), locale_data.babel_name(language)
    for number in (1, 2, 3, 5, 11, 21, 22, 25, 100, 101):
        # Babel has no long form for Chinese, which leaves it to the short one.
        length = "short" if language == "zh" else "long"
        expected = babel.units.format_unit(number, "length-meter", length, locale=name)
        assert item.render(("quantity", number, "length-meter")) == plain(expected)
        # Chilean pesos have no decimals, which would change the plural.
        expected = babel.numbers.format_currency(number, "CLP", locale=name, format_type="name")
        assert item.render(("money", number, "CLP")) == plain(expected)


def own_file(language):
    path = babel.localedata.resolve_locale_filename(locale_data.babel_name(language))
    with open(path, "rb") as file:
        return pickle.load(file)


@pytest.mark.parametrize("language", MITRE_LANGUAGES)
def test_names_and_relative_times_come_from_the_languages_own_file(language):
    own, root, item = own_file(language), locale_data._file("root"), renderer(language)
    inventory = load_inventory("large")
    assert len(inventory.names["territory"]) >= 200
    assert len(inventory.names["language"]) >= 250
    for kind, codes in inventory.names.items():
        (table,), inner = NAME_PATHS[kind]
        for code in codes:
            entry = own[table][code]
            for key in inner:
                entry = entry[key]
            assert item.names[kind][code] == plain(entry).strip()
    for unit in RELATIVE_UNITS:
        for tense, patterns in zip(("future", "past"), item.relative_patterns(unit), strict=True):
            assert patterns["other"] == plain(own["date_fields"][unit][tense]["other"])
            assert patterns["other"] != root["date_fields"][unit][tense]["other"]
    assert not item.missing_phrases()


def without(data, *path):
    """Copy nested data without the entry at a path."""
    copy = dict(data)
    if len(path) == 1:
        del copy[path[0]]
    else:
        copy[path[0]] = without(copy[path[0]], *path[1:])
    return copy


@pytest.mark.parametrize(
    ("language", "path", "missing"),
    [
        ("de", ("datetime_skeletons", "yw"), "week_of_year"),
        ("de", ("datetime_skeletons", "yMMMM"), None),  # widened from yMMM
        ("de", ("date_formats", "full"), "date"),
        ("de", ("date_fields", "hour", "past"), "relative"),
        ("ja", ("list_patterns", "or", "end"), "or"),
        ("de", ("list_patterns", "standard", "end"), "list"),
        ("ru", ("months", "stand-alone", "wide"), None),  # the format names stand in
        ("ru", ("months", "format", "wide"), "month_day"),
        ("de", ("interval_formats", "yMMMM", "y"), "months"),
        ("de", ("datetime_formats", "long"), "datetime"),
    ],
)
def test_entries_inherited_from_root_are_left_out(monkeypatch, language, path, missing):
    """Babel silently renders each of these with the entry of root."""
    own = locale_data._file(locale_data.babel_name(language))
    changed = without(own, *path)
    original = locale_data._file
    monkeypatch.setattr(
        locale_data, "_file", lambda name: original("root") if name == "root" else changed
    )
    phrases = Renderer(language).missing_phrases()
    assert missing in phrases if missing else not phrases


def test_inherited_order_is_used_only_if_longer_patterns_confirm_it(monkeypatch):
    """Filipino leaves "MMMM d" to root, but its own "E, MMMM d" shows that this is its order."""
    assert "MMMMd" not in own_file("tl")["datetime_skeletons"]
    assert renderer("tl").render(("month_day", 3, 5)) == "Marso 5"
    changed = without(own_file("tl"), "datetime_skeletons", "MMMMEd")
    original = locale_data._file
    monkeypatch.setattr(
        locale_data, "_file", lambda name: original("root") if name == "root" else changed
    )
    assert "month_day" in Renderer("tl").missing_phrases()


def test_babels_shared_cache_is_unchanged(large):
    large.sentences("train", 1)
    date = datetime.date(1987, 3, 5)
    assert babel.dates.format_skeleton("MMMMd", date, locale="fil") == "Marso 5"


@pytest.mark.parametrize("language", MITRE_LANGUAGES)
def test_inventory_entries_have_distinct_forms(language):
    item, inventory = renderer(language), load_inventory("large")
    owners = {}
    for kind, codes in inventory.names.items():
        for code in codes:
            assert owners.setdefault(item.names[kind][code].casefold(), (kind, code)) == (
                kind,
                code,
            )
    counted = {}
    for number in (1, 2, 5, 21):
        for unit in inventory.units:
            text = item.render(("quantity", number, unit))
            assert counted.setdefault(text, (number, unit)) == (number, unit)
        for code in inventory.names["currency"]:
            text = item.render(("money", number, code))
            assert counted.setdefault(text, (number, code)) == (number, code)
    assert len(owners) > 600 and len(counted) > 1000


@pytest.mark.parametrize("name", ["small", "large"])
def test_splits_share_no_text_in_any_language(name, small, large):
    corpus = {"small": small, "large": large}[name]
    train = corpus.meanings("train", 4000)
    train += corpus.meanings("train", 2000, ("de", "en")) + corpus.meanings(
        "train", 2000, ("en", "ja")
    )
    held_out = {split: corpus.meanings(split, 500) for split in ("validation", "test")}
    for language in MITRE_LANGUAGES:
        texts = {corpus.render(meaning, language) for meaning in train}
        assert len(texts) == len(set(train)) > 4000  # different meanings never read alike
        previous = texts
        for meanings in held_out.values():
            texts = {corpus.render(meaning, language) for meaning in meanings}
            assert len(texts) == 500
            assert not texts & previous
            previous = previous | texts


def test_the_split_of_a_meaning_is_frozen():
    """Trained models and published scores rely on these; a change here is a new corpus."""
    frozen = {
        ("territory", "DE"): "train",
        ("territory", "CN"): "test",
        ("date", "long", 1984, 3, 5): "validation",
        ("month_day", 3, 15): "test",
        ("month_day", 7, 7): "test",
        ("month_day", 8, 8): "validation",
        PLACES: "train",
    }
    assert {meaning: split_of(meaning) for meaning in frozen} == frozen


def test_each_held_out_split_has_a_twentieth(small):
    days = [
        ("date", "long", year, month, 9) for year in range(1900, 2000) for month in range(1, 13)
    ]
    shares = {s: sum(split_of(day) == s for day in days) / len(days) for s in SPLITS}
    assert 0.03 < shares["validation"] < 0.07 and 0.03 < shares["test"] < 0.07
    for split in SPLITS:
        assert {split_of(meaning) for meaning in small.meanings(split, 200)} == {split}


@pytest.mark.parametrize("name", ["small", "large"])
def test_text_is_normalised(name, small, large):
    corpus = {"small": small, "large": large}[name]
    seen = 0
    for sentence in corpus.sentences("train", 400):
        for text in sentence.values():
            seen += 1
            assert text == unicodedata.normalize("NFC", text).strip()
            assert "  " not in text and "{" not in text
            assert not any(char.isspace() and char != " " for char in text)
            assert not any(unicodedata.category(char) == "Cf" for char in text)
    assert seen == 400 * 24


def test_large_inventory_uses_every_phrase_type(large):
    def kinds(meaning):
        yield meaning[0]
        for part in meaning[1:]:
            if isinstance(part, tuple):
                yield from kinds(part)

    seen = {kind for meaning in large.meanings("train", 3000) for kind in kinds(meaning)}
    assert seen == set(renderer("en")._kinds)


def test_a_corpus_depends_only_on_its_seed():
    program = (
        "import hashlib\n"
        "from mnmt_jax.data.cldr import CldrCorpus\n"
        "from mnmt_jax.vocabulary.languages import MITRE_LANGUAGES\n"
        "for inventory in ('small', 'large'):\n"
        "    corpus = CldrCorpus(MITRE_LANGUAGES, 3, inventory=inventory)\n"
        "    for split in ('train', 'validation', 'test'):\n"
        "        text = repr(corpus.sentences(split, 50))\n"
        "        print(hashlib.sha256(text.encode()).hexdigest())\n"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert len(set(outputs[0].split())) == 6


def test_seeds_and_pairs_differ_and_longer_lists_start_with_shorter_ones(small):
    other = CldrCorpus(["en", "de"], seed=1, inventory="small")
    first = small.pairs("train", ("en", "de"), 50)
    assert first != other.pairs("train", ("en", "de"), 50)
    assert small.pairs("train", ("en", "de"), 100)[:50] == first
    assert small.meanings("train", 50, ("en", "de")) != small.meanings("train", 50, ("en", "fr"))
    assert small.pairs("train", ("de", "en"), 50) == [(de, en) for en, de in first]


def test_a_corpus_of_few_languages_has_the_same_sentences(small):
    few = CldrCorpus(["de", "en"], inventory="small")
    assert few.pairs("train", ("de", "en"), 30) == small.pairs("train", ("de", "en"), 30)
    assert few.pairs("test", ("de", "en"), 30) == small.pairs("test", ("de", "en"), 30)


def test_held_out_lines_mean_the_same_in_all_directions(small):
    sentences = small.sentences("test", 40)
    for direction in [("en", "de"), ("fr", "ja"), ("de", "fr")]:
        source, target = direction
        expected = [(line[source], line[target]) for line in sentences]
        assert small.pairs("test", direction, 40) == expected
    assert len({line["en"] for line in sentences}) == 40


def test_renderings_hold_all_languages_for_the_exact_detector():
    corpus = CldrCorpus(["en", "is"], inventory="small")
    (meaning,) = corpus.meanings("test", 1)
    renderings = corpus.renderings(meaning)
    assert set(renderings) == {"is", *MITRE_LANGUAGES}
    assert renderings["en"] == corpus.sentences("test", 1)[0]["en"]


@pytest.mark.parametrize(
    ("separator", "following", "expected"),
    [
        (" y ", "Irlanda", " e "),
        (" y ", "hindi", " e "),
        (" y ", "hielo", " y "),
        (" y ", "yidis", " y "),
        (" y ", "España", " y "),
        (" o ", "Omán", " u "),
        (" o ", "Honduras", " u "),
        (" o ", "8 días", " u "),
        (" o ", "11 días", " u "),
        (" o ", "110 días", " o "),
        (" o ", "Chile", " o "),
        (", ", "Irlanda", ", "),
    ],
)
def test_spanish_conjunctions(separator, following, expected):
    assert spanish_conjunction(separator, following) == expected


def test_spanish_conjunctions_reach_the_text():
    chile, ireland = ("territory", "CL"), ("territory", "IE")
    assert renderer("es").render(("list", "standard", chile, ireland)) == "Chile e Irlanda"
    eight = ("list", "or", ("quantity", 7, "duration-day"), ("quantity", 8, "duration-day"))
    assert renderer("es").render(eight) == "7 días u 8 días"
    assert renderer("it").render(("list", "standard", chile, ireland)) == "Cile e Irlanda"


def test_missing_phrase_types_of_a_language_are_left_out():
    kannada = CldrCorpus(["en", "kn"], inventory="large")
    weeks = {"week_of_year", "week_of_month"}
    assert kannada.inventory.missing == weeks
    heads = {m[0] for m in kannada.meanings("train", 2000)}
    assert weeks.isdisjoint(heads) and "quarter" in heads
    english = CldrCorpus(["en", "de"], inventory="large")
    assert weeks < {m[0] for m in english.meanings("train", 2000)}


@pytest.mark.parametrize("language", ["lb", "oc", "mt", "ne", "ar", "he", "th", "zu", "nb", "sr"])
@pytest.mark.parametrize("inventory", ["small", "large"])
def test_languages_outside_mitre_render_their_corpora(language, inventory):
    pairs = CldrCorpus(["en", language], inventory=inventory).pairs("train", ("en", language), 300)
    assert len(pairs) == 300 and all(source and target for source, target in pairs)
    assert sum(source != target for source, target in pairs) > 250


@pytest.mark.parametrize("language", ["pt_BR", "es_MX", "en_GB"])
def test_regional_varieties_inherit_the_entries_of_their_parents(language):
    regional, parent = Renderer(language), Renderer(language[:2])
    for kind, names in parent.names.items():
        assert set(names) <= set(regional.names[kind])
    for code, name in own_file(language).get("territories", {}).items():
        assert regional.names["territory"][code] == plain(name)
    assert set(parent.units()) <= set(regional.units()) and not regional.missing_phrases()
    for unit in parent.units():
        assert set(parent.unit_patterns(unit)) <= set(regional.unit_patterns(unit))
    corpus = CldrCorpus(["de", language], inventory="large")
    pairs = [*corpus.pairs("train", ("de", language), 50)]
    assert pairs and all(source and target for source, target in pairs)


def test_a_split_with_too_few_meanings_is_an_error(monkeypatch):
    monkeypatch.setattr(sampler, "_COMPOSITIONS", {"small": ((1.0, "head"),)})
    monkeypatch.setattr(sampler, "_HEADS", {"small": ((1.0, "relative"),)})
    monkeypatch.setattr(corpus_module, "_PATIENCE", 500)
    corpus = CldrCorpus(["en"], inventory="small")
    with pytest.raises(UserError, match="distinct meanings, not 5000: ask for fewer"):
        corpus.meanings("test", 5000)
    held_out = len(RELATIVE_UNITS) * 2 * 60 // 20
    assert held_out / 2 < len(list(corpus.iter_meanings("test"))) < held_out * 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CldrCorpus(["en", "xx"]), "unknown language 'xx'"),
        (lambda: CldrCorpus(["en", "li"]), "'li': CLDR has no data"),
        (lambda: CldrCorpus(["en", "en"]), "name each language once"),
        (lambda: CldrCorpus(["en", "en-US"]), "'en' and 'en-US' are one language"),
        (lambda: CldrCorpus([]), "at least one"),
        (lambda: CldrCorpus(["en", "wa"]), "remove the language"),
        (lambda: CldrCorpus(["en"], inventory="huge"), "one of small large"),
        (lambda: CldrCorpus(["en"]).meanings("dev", 1), "one of train validation test"),
        (lambda: CldrCorpus(["en"]).pairs("test", ("en", "de"), 1), "'de' is not among"),
    ],
)
def test_invalid_arguments_are_named(make, message):
    with pytest.raises(UserError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


def test_a_table_of_one_language_has_a_header(tmp_path):
    for codes in (("de",), ("de", "en")):
        folder = tmp_path / str(len(codes))
        sizes = {"train": 2}
        export_cldr(CldrCorpus(codes), str(folder), file_format="tsv", sizes=sizes)
        header, *lines = (folder / "train.tsv").read_text(encoding="utf-8").splitlines()
        assert header == "\t".join(codes) and len(lines) == 2
