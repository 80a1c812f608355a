"""The registry of languages and the direction lists built from it."""

import random

import pytest

from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary import languages as registry

# MITRE's published pairs (MIT licence), forward half; the second half is the same reversed.
MITRE_PAIRS = (
    "en-de,en-nl,en-sv,en-da,en-af,en-fr,en-es,en-it,en-pt,en-ro,en-ru,en-cs,en-pl,en-bg,en-uk,"
    "en-id,en-jv,en-ms,en-tl,en-ja,en-zh,en-ko,en-vi,de-sv,de-da,de-af,nl-sv,nl-da,nl-af,fr-it,"
    "fr-pt,fr-ro,es-it,es-pt,es-ro,ru-pl,ru-bg,ru-uk,cs-pl,cs-bg,cs-uk,id-jv,id-ms,id-tl,ja-ko,"
    "ja-vi,zh-ko,zh-vi,de-nl,de-fr,de-es,de-ru,de-cs,de-id,de-ja,de-zh,nl-fr,nl-es,nl-ru,nl-cs,"
    "nl-id,nl-ja,nl-zh,fr-es,fr-ru,fr-cs,fr-id,fr-ja,fr-zh,es-ru,es-cs,es-id,es-ja,es-zh,ru-cs,"
    "ru-id,ru-ja,ru-zh,cs-id,cs-ja,cs-zh,id-ja,id-zh,ja-zh,de-ms,fr-ms,ru-ms,vi-ms,ja-ms,zh-ms,"
    "jv-ms,ja-tl,zh-tl,vi-tl,ru-tl,fr-tl,de-tl"
)

FINE_TUNING = (
    "jv-sv ms-id de-tl ru-pl ko-jv zh-bg ms-en pl-ru zh-af uk-ko pt-jv ko-ro fr-da cs-pl fr-af "
    "da-fr ru-sv fr-pl pl-tl da-ro sv-es bg-jv zh-en da-cs uk-ms tl-es bg-de pt-nl vi-bg tl-id "
    "ru-bg nl-ms en-uk da-sv jv-ms en-nl zh-vi bg-ja ro-ja bg-ru nl-tl vi-es ja-pt cs-uk da-ko "
    "af-it jv-zh zh-cs sv-da ko-pt cs-nl pt-vi nl-en vi-ja es-nl tl-ru ru-es ja-jv ro-zh nl-ro "
    "fr-jv cs-fr fr-cs uk-jv ko-bg cs-da es-ro ms-sv ja-cs cs-en da-pl jv-tl pl-pt zh-sv pl-de "
    "fr-ro pt-zh zh-id pl-fr ko-ru it-bg es-de cs-tl af-pt fr-ru da-nl da-af ms-fr ko-cs en-jv "
    "pl-uk bg-uk af-tl ro-bg de-pl de-vi uk-nl id-ja nl-zh zh-pl"
).split()  # registers paper, Appendix E


def test_mitre_directions_equal_the_published_list_in_order():
    forward = [tuple(pair.split("-")) for pair in MITRE_PAIRS.split(",")]
    expected = forward + [(target, source) for source, target in forward]
    assert len(expected) == 194
    assert list(registry.mitre_directions()) == expected


def test_mitre_has_358_zero_shot_directions_of_552():
    everything = registry.many_to_many_directions(registry.MITRE_LANGUAGES)
    assert len(everything) == 552
    assert len(set(everything) - set(registry.mitre_directions())) == 358


def test_fine_tuning_directions_are_the_published_list_in_order():
    everything = list(registry.many_to_many_directions(registry.MITRE_LANGUAGES))
    directions = registry.fine_tuning_directions(100)
    assert ["-".join(direction) for direction in directions] == FINE_TUNING
    assert [everything.index(item) for item in directions[:5]] == [394, 430, 41, 265, 523]
    assert registry.fine_tuning_directions(25) == directions[:25]
    assert registry.fine_tuning_directions(5) == directions[:5]
    drawn = tuple(random.Random(0).sample(everything, 25))
    assert drawn[:17] == directions[:17] and drawn[17] != directions[17]
    supervised = set(registry.mitre_directions())
    assert [len(supervised & set(directions[:count])) for count in (5, 25, 100)] == [3, 7, 36]
    for count in (0, 101):
        with pytest.raises(UserError, match="5, 25 and 100"):
            registry.fine_tuning_directions(count)


def test_mitre_groups_cover_all_but_english_and_agree_with_the_family_field():
    members = [code for group in registry.MITRE_GROUPS.values() for code in group]
    assert sorted(members) == sorted(set(registry.MITRE_LANGUAGES) - {"en"})
    for name, group in registry.MITRE_GROUPS.items():
        assert {registry.get_language(code).family for code in group} == {name}
    assert registry.get_language("en").family == "English"


@pytest.mark.parametrize(
    ("codes", "size"),
    [
        (registry.MITRE_LANGUAGES, 24),
        (registry.EC40_LANGUAGES, 41),
        (registry.TED19_LANGUAGES, 19),
        (registry.OPUS100_LANGUAGES, 95),
        (registry.OPUS100_ALL_LANGUAGES, 100),
        (registry.TED30_LANGUAGES, 31),
        (registry.NEWSCRAWL_LANGUAGES, 45),
    ],
)
def test_language_lists_have_published_sizes_and_known_codes(codes, size):
    assert len(codes) == len(set(codes)) == size
    assert set(codes) <= set(registry.LANGUAGES)


def test_opus100_lacks_the_languages_without_test_data():
    others = set(registry.OPUS100_ALL_LANGUAGES) - set(registry.OPUS100_LANGUAGES)
    assert others == {"an", "dz", "hy", "mn", "yo"}
    for codes in (registry.OPUS100_LANGUAGES, registry.OPUS100_ALL_LANGUAGES):
        assert list(codes) == sorted(codes)
    rows = [registry.LANGUAGES[code] for code in ("an", "dz", "hy", "mn", "yo")]
    assert [(row.flores, row.script, row.detector) for row in rows] == [
        ("arg_Latn", "Latin", "an"),
        ("dzo_Tibt", "Tibetan", None),
        ("hye_Armn", "Armenian", "hy"),
        ("khk_Cyrl", "Cyrillic", "mn"),
        ("yor_Latn", "Latin", "yo"),
    ]
    assert registry.get_language("khk_Cyrl") is registry.get_language("mn")


# Table 11 of the language-specific layers paper, in its order.
_TABLE_11 = (
    "en an as be bg bn br bs ca cs cy da de el es fa fr fy ga gd gl gu hi hr hy is it ku li lt lv "
    "mk mr nb ne nl nn no oc or pa pl ps pt ro ru sh si sk sl sq sr sv tg uk ur wa yi az kk ky tk "
    "tr tt ug uz dz my zh et fi hu se id km mg ms vi ig rw xh yo zu kn ml ta te eo eu ja ko ka mn "
    "th"
).split()


def test_languages_missing_in_the_published_table():
    assert len(set(_TABLE_11)) == len(_TABLE_11) == 94
    left_out = set(registry.OPUS100_ALL_LANGUAGES) - set(_TABLE_11)
    assert left_out == {"af", "am", "ar", "ha", "he", "mt"}
    assert set(_TABLE_11) < set(registry.OPUS100_ALL_LANGUAGES)


def test_ec40_tiers_and_groups_partition_the_40_languages():
    expected = sorted(set(registry.EC40_LANGUAGES) - {"en"})
    for parts in (registry.EC40_TIERS, registry.EC40_GROUPS):
        assert sorted(code for part in parts.values() for code in part) == expected
    tiers = [set(tier) for tier in registry.EC40_TIERS.values()]
    groups = [set(group) for group in registry.EC40_GROUPS.values()]
    assert [[len(tier & group) for group in groups] for tier in tiers] == [[2] * 5] * 4


def test_flores_codes_of_mitre_in_published_order():
    expected = (
        "eng_Latn deu_Latn nld_Latn swe_Latn dan_Latn afr_Latn fra_Latn spa_Latn ita_Latn por_Latn "
        "ron_Latn rus_Cyrl ces_Latn pol_Latn bul_Cyrl ukr_Cyrl ind_Latn jav_Latn zsm_Latn fil_Latn "
        "jpn_Jpan cmn_Hans kor_Hang vie_Latn"
    )
    codes = [registry.get_language(code).flores for code in registry.MITRE_LANGUAGES]
    assert codes == expected.split()


def test_special_tokenizers():
    special = {
        item.code: item.sacrebleu_tokenizer
        for item in registry.LANGUAGES.values()
        if item.sacrebleu_tokenizer != "13a"
    }
    assert special == {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}
    assert set(registry.SACREBLEU_EXTRAS) == {"ja-mecab", "ko-mecab"}


def test_detector_labels():
    unknown = {code for code, item in registry.LANGUAGES.items() if item.detector is None}
    assert unknown == {"dz", "ha", "ig", "iu", "kab", "rw", "se", "ti", "xh", "zu"}
    assert registry.get_language("nb").detector == registry.get_language("no").detector == "no"
    assert all(registry.get_language(code).detector == code for code in registry.MITRE_LANGUAGES)


@pytest.mark.parametrize(
    ("wrong", "hint"), [("germn", "de"), ("German", "de"), ("xx", "unknown"), ("jp", "ja")]
)
def test_unknown_language_is_refused_with_a_hint(wrong, hint):
    with pytest.raises(UserError, match=hint) as error:
        registry.get_language(wrong)
    assert repr(wrong) in str(error.value)
    assert "\n" not in str(error.value)


def test_other_forms_of_a_code_are_the_same_language():
    assert (
        registry.get_language("DE")
        is registry.get_language("deu_Latn")
        is registry.get_language("de")
    )


def test_english_centric_and_many_to_many_directions():
    assert registry.english_centric_directions(["de", "en", "fr"]) == (
        ("en", "de"),
        ("en", "fr"),
        ("de", "en"),
        ("fr", "en"),
    )
    assert registry.many_to_many_directions(["de", "fr"]) == (("de", "fr"), ("fr", "de"))
    with pytest.raises(UserError, match="'en'"):
        registry.english_centric_directions(["de", "fr"])
    with pytest.raises(UserError, match="twice"):
        registry.many_to_many_directions(["de", "fr", "de"])
