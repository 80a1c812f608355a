"""Canonical language codes in all commands and functions."""

from __future__ import annotations

import json

import pytest

from mnmt_jax.commands import languages as languages_command
from mnmt_jax.commands.direction_flags import parse_directions
from mnmt_jax.data.cache import TokenCache
from mnmt_jax.data.mixtures import cache_task_sources
from mnmt_jax.data.monolingual import MonolingualFiles
from mnmt_jax.data.parallel_corpora import ParallelFiles, TsvFile
from mnmt_jax.decoding.input_checks import match_line_codes
from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.metrics import corpus_scores
from mnmt_jax.evaluation.off_target import lid_off_target
from mnmt_jax.interop.tags import M2M100_LANGUAGES, NLLB_LANGUAGES, NLLB_TAGS
from mnmt_jax.vocabulary.language_codes import (
    canonical_code,
    canonical_codes,
    check_new_code,
    check_safe_codes,
    find_code,
    is_spaceless,
    match_code,
    requested_code,
)
from mnmt_jax.vocabulary.languages import LANGUAGES, english_centric_directions, get_language
from mnmt_jax.vocabulary.vocabulary import Vocabulary
from tests.run_commands import command
from tests.unit import made_text
from tests.unit.made_translator import made_translator

MBART50 = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT "
    "lv_LV my_MM ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN af_ZA az_AZ fa_IR he_IL hr_HR "
    "id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX sv_SE ta_IN te_IN th_TH tl_XX "
    "uk_UA ur_PK xh_ZA gl_ES sl_SI"
).split()


@pytest.mark.parametrize(
    ("forms", "code"),
    [
        ("EN en En en-US en_us eng eng_Latn en-Latn-US", "en"),
        ("de DE de-DE de_DE deu ger deu_Latn", "de"),
        ("fr fre fra fr_FR", "fr"),
        ("zh zh_Hans zh-CN zho chi zho_Hans cmn cmn_Hans zh_hans_cn", "zh"),
        ("zh_Hant zh-TW zho_Hant zh-hant-tw", "zh_Hant"),
        ("yue zh-yue yue_Hant", "yue"),
        ("pb pt-br pt_BR por-BR", "pt_BR"),
        ("pt por por_Latn pt_XX", "pt"),
        ("pt-PT", "pt_PT"),
        ("en-GB", "en_GB"),
        ("ar arb arb_Arab ar_AR", "ar"),
        ("arz arz_Arab", "arz"),
        ("sr srp_Cyrl", "sr"),
        ("sr@latin sr_Latn srp-Latn", "sr_Latn"),
        ("sh hbs", "sh"),
        ("nb nob_Latn", "nb"),
        ("no nor", "no"),
        ("he iw", "he"),
        ("tl fil tgl_Latn fil_Latn", "tl"),
        ("ko kor_Hang", "ko"),
        ("ps pbt_Arab", "ps"),
        ("hsb HSB hsb_Latn hsb-DE", "hsb"),
        ("de-1996", "de_1996"),
        ("de-x-dialect", "de_x_dialect"),
        # The region's script is another one than the language's: the written one counts.
        ("zh-HK zh-Hant-HK", "zh_Hant_HK"),
        ("zh-Hans-HK zho_Hans_HK", "zh_Hans_HK"),
        ("sr-ME sr_Latn_ME", "sr_Latn_ME"),
        ("sr-Cyrl-ME", "sr_Cyrl_ME"),
        ("yue-Hant-CN", "yue_Hant_CN"),
        ("kk_Cyrl_CN", "kk_Cyrl_CN"),
        ("pa-Guru-PK", "pa_Guru_PK"),
    ],
)
def test_forms_of_a_code_have_one_canonical_form(forms, code):
    assert {canonical_code(form) for form in forms.split()} == {code}
    assert canonical_code(code) == code


def test_the_table_is_canonical_and_published_lists_stay_injective():
    for code, known in LANGUAGES.items():
        assert canonical_code(code) == code
        if known.flores and code != "no":  # shares the Flores code of nb
            assert canonical_code(known.flores) == code
    for tags in (NLLB_TAGS, NLLB_LANGUAGES, M2M100_LANGUAGES, MBART50):
        codes = [canonical_code(tag) for tag in tags]
        assert len(set(codes)) == len(codes)
        assert [canonical_code(code) for code in codes] == codes
    assert [canonical_code(tag) for tag in MBART50] == [tag.split("_")[0] for tag in MBART50]
    assert set(map(canonical_code, NLLB_TAGS)) == set(map(canonical_code, NLLB_LANGUAGES))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("jp", "jp is the code of a country, whose language is ja"),
        ("cz", "whose language is cs"),
        ("german", "did you mean de"),
        ("xx", "BCP 47 tag such as"),
        ("hsx", "BCP 47 tag such as"),  # once "did you mean hr or hu or ha"
        ("en-EN", "BCP 47"),
        ("und", "BCP 47"),
        ("", "BCP 47"),
        ("../de", "BCP 47"),
        ("de/../..", "BCP 47"),
        ("x-private", "BCP 47"),
    ],
)
def test_invalid_codes_are_refused_without_suggestion(text, message):
    with pytest.raises(UserError, match=message) as error:
        canonical_code(text)
    assert repr(text) in str(error.value) and "\n" not in str(error.value)
    assert "did you mean" not in str(error.value) or text == "german"


def test_two_forms_of_one_language_are_refused():
    with pytest.raises(UserError, match=r"--languages: 'de' and 'de-DE' are one language \(de\)"):
        canonical_codes(["en", "de", "de-DE"], "--languages")
    with pytest.raises(UserError, match="'de' is listed twice"):
        canonical_codes(["de", "de"])
    assert canonical_codes(["EN", "pt", "pt-BR", "pt-PT"]) == ("en", "pt", "pt_BR", "pt_PT")
    assert canonical_codes(["zh", "zho_Hant"]) == ("zh", "zh_Hant")


def test_codes_are_found_in_lists_of_other_forms():
    nllb = ("eng_Latn", "zho_Hans", "zho_Hant", "ace_Arab", "ace_Latn", "ajp_Arab", "odd!")
    matches = {
        text: find_code(text, nllb) for text in "EN zh zh-TW ace ace-Arab ajp odd! de".split()
    }
    assert matches == {
        "EN": "eng_Latn",
        "zh": "zho_Hans",
        "zh-TW": "zho_Hant",
        "ace": "ace_Latn",
        "ace-Arab": "ace_Arab",
        "ajp": "ajp_Arab",
        "odd!": "odd!",
        "de": None,
    }
    # Regions: exact, else the code without one, else the only one there is.
    assert find_code("pt-BR", ("pt", "pt_BR")) == "pt_BR"
    assert find_code("pt-PT", ("pt", "pt_BR")) == "pt"
    assert find_code("pt", ("pt_BR", "en")) == "pt_BR"
    assert find_code("en-GB", ("en",)) == "en"
    assert find_code("zh-Hant", ("zh", "en")) is None
    # Another region or script is another language.
    assert find_code("pt-BR", ("en", "pt_PT")) is None
    assert find_code("en-GB", ("en_AU", "de")) is None
    assert find_code("ajp-JO", ("ajp_Arab_PS", "ajp_Arab_IL")) is None
    assert find_code("ajp-JO", ("ajp_Arab_PS", "ajp_Arab")) == "ajp_Arab"
    assert find_code("ajp-JO", ("ajp_Arab_PS", "ajp_Arab_JO")) == "ajp_Arab_JO"
    assert find_code("sr-Latn", ("sr_Cyrl", "sr_Cyrl_BA")) is None
    assert find_code("sr-Latn-BA", ("sr_Latn_RS", "sr_Cyrl_BA")) == "sr_Latn_RS"
    with pytest.raises(UserError, match="'pt' is ambiguous: name pt_BR or pt_PT"):
        find_code("pt", ("pt_BR", "pt_PT"))


@pytest.mark.parametrize(
    ("text", "known", "code"),
    [
        ("pt_PT", "pt", "pt_PT"),
        ("PT-br", "pt_BR", "pt_BR"),
        ("pt", "pt_BR", "pt_BR"),
        ("pt", "por_Latn", "pt"),
        ("zh-TW", "zho_Hant", "zh_Hant"),
        ("zt", "zh_Hant", "zh_Hant"),  # an alias of LibreTranslate
        ("klingonese", "klingonese", "klingonese"),
    ],
)
def test_the_code_of_a_request_is_the_closer_one(text, known, code):
    assert requested_code(text, known) == code


def test_a_script_decides_before_a_region():
    assert find_code("zh_Hans_HK", ["zh_HK", "zh"]) == "zh"
    assert find_code("zh_Hans_HK", ["zh_HK", "zh_Hans_HK"]) == "zh_Hans_HK"
    assert find_code("zh_Hans_HK", ["zh_Hant_HK"]) is None
    assert find_code("zh", ["zh_Hans_HK", "zh_HK"]) == "zh_Hans_HK"


def test_an_unknown_language_is_named_with_related_ones_only():
    with pytest.raises(UserError, match="did you mean nb or nn[?] it has en, nb, nn"):
        match_code("no", ("en", "nb", "nn"), "--source")
    with pytest.raises(UserError, match="no such language; it has ha, vi"):
        match_code("hsb", ("ha", "vi"), "--source")
    with pytest.raises(UserError, match="did you mean deu_Latn"):
        match_code("german", ("deu_Latn", "en"), "--source")


def test_codes_per_line_are_mapped_to_the_models():
    own = ("eng_Latn", "zho_Hant")
    assert next(match_line_codes("EN", "source", own)) == "eng_Latn"
    assert list(match_line_codes(["en", "zh-TW"], "target", own)) == ["eng_Latn", "zho_Hant"]


def test_a_new_language_is_compared_by_its_canonical_code():
    assert check_new_code("hsb-DE", ("de", "pt"), "--language") == "hsb"
    assert check_new_code("pb", ("de", "pt"), "--language") == "pt_BR"
    with pytest.raises(UserError, match="language 'deu_Latn' is in the vocabulary already"):
        check_new_code("de-DE", ("deu_Latn", "pt"), "--language")


def test_a_vocabulary_keeps_its_codes_and_accepts_any_form():
    base = made_text.vocabulary()
    vocabulary = Vocabulary(base.model, ("zho_Hant", "deu_Latn", "custom-tag"))
    assert vocabulary.language_index("de") == 1 and vocabulary.tag_id("zh-TW") == base.first_tag
    assert vocabulary.vocabulary_code_of("DE") == "deu_Latn" and vocabulary.vocabulary_code_of(
        "custom-tag"
    )
    with pytest.raises(UserError, match="'hsb' has no tag"):
        vocabulary.language_index("hsb")
    with pytest.raises(UserError, match=r"'\.\./up'.* cannot be a language code"):
        Vocabulary(base.model, ("de", "../up"))
    with pytest.raises(UserError, match="cannot be"):
        check_safe_codes(["a b"], "list")


def test_languages_outside_the_table_are_described():
    sorbian = get_language("hsb")
    assert (sorbian.name, sorbian.script, sorbian.family) == ("Upper Sorbian", "Latin", "Other")
    assert (sorbian.detector, sorbian.sacrebleu_tokenizer, sorbian.flores) == (None, "13a", None)
    brazil, taiwan, latin = get_language("pb"), get_language("zh-TW"), get_language("sr-Latn")
    assert (brazil.family, brazil.detector, brazil.name) == (
        "Romance",
        "pt",
        "Portuguese (Brazil)",
    )
    assert (taiwan.sacrebleu_tokenizer, taiwan.script, taiwan.detector) == ("zh", "Han", "zh")
    assert (latin.script, latin.detector, latin.family) == ("Latin", None, "Slavic")
    pinyin = get_language("zh-Latn")
    assert (pinyin.sacrebleu_tokenizer, pinyin.script, pinyin.detector) == ("13a", "Latin", None)
    assert [code for code in ("zh_Latn", "zh_Hant", "ja_Latn", "ja") if is_spaceless(code)] == [
        *("zh_Hant", "ja"),
    ]
    assert get_language("yue").sacrebleu_tokenizer == "zh"
    assert get_language("kv").script == "Cyrillic"
    assert english_centric_directions(["en-GB", "hsb"]) == (("en_GB", "hsb"), ("hsb", "en_GB"))


def test_a_written_default_script_is_described_as_the_default():
    assert get_language("kk_Cyrl_CN").detector == "kk" == get_language("kk").detector
    assert get_language("kk_CN").detector is None  # in Arabic letters
    assert get_language("zh_Hans_HK").sacrebleu_tokenizer == "zh"


@pytest.mark.parametrize("form", ["de", "de-DE", "deu", "deu_Latn", "ger"])
def test_file_names_accept_any_form_of_a_code(tmp_path, form):
    for name, text in ((f"train.{form}", "ein\n"), ("train.hsb", "jedyn\n")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    pattern = str(tmp_path / "{split}.{language}")
    corpus = ParallelFiles("x", pattern, ("de", "hsb"))
    assert corpus.languages == ("de", "hsb")
    assert list(corpus.pairs("train", ("de", "hsb"))) == [("ein", "jedyn")]
    corpus = ParallelFiles("x", pattern, (form, "HSB"))
    assert list(corpus.pairs("train", ("de", "hsb"))) == [("ein", "jedyn")]
    texts = MonolingualFiles("x", pattern, ("de-DE", "hsb"), splits={"train": "train"})
    assert list(texts.pairs("train", ("de", "de"))) == [("", "ein")]


def test_files_with_the_given_form_of_a_code_are_preferred(tmp_path):
    for name in ("train.de", "train.de-DE", "train.en"):
        (tmp_path / name).write_text(f"{name}\n", encoding="utf-8")
    pattern = str(tmp_path / "{split}.{language}")
    for given in ("de", "de-DE"):
        corpus = ParallelFiles("x", pattern, (given, "en"))
        assert list(corpus.pairs("train", ("de", "en"))) == [(f"train.{given}", "train.en")]
    folder = tmp_path / "deu_Latn-eng_Latn"
    folder.mkdir()
    for name in ("deu_Latn", "eng_Latn"):
        (folder / f"train.{name}").write_text(f"{name}\n", encoding="utf-8")
    corpus = ParallelFiles("x", str(tmp_path / "{pair}/{split}.{language}"), ("en", "de"))
    assert list(corpus.pairs("train", ("en", "de"))) == [("eng_Latn", "deu_Latn")]


def test_table_headers_accept_any_form_of_a_code(tmp_path):
    (tmp_path / "train.tsv").write_text("en-US\tzho_Hans\thsb\na\tb\tc\n", encoding="utf-8")
    corpus = TsvFile("x", str(tmp_path / "{split}.tsv"))
    assert corpus.languages == ("en", "zh", "hsb")
    (tmp_path / "train.tsv").write_text("de\tde-DE\na\tb\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"train\.tsv:1: 'de' and 'de-DE' are one language"):
        TsvFile("x", str(tmp_path / "{split}.tsv"))


def test_directions_accept_any_form_of_a_code():
    known = ("en", "de", "zh_Hant", "pt_BR", "br")
    text = "EN-de,de-DE-en-US,en-zh-TW,zho_Hant-en,pt-BR-de"
    assert parse_directions(text, known) == (
        ("en", "de"),
        ("de", "en"),
        ("en", "zh_Hant"),
        ("zh_Hant", "en"),
        ("pt_BR", "de"),
    )
    with pytest.raises(UserError, match="'en-hsb' has 'hsb', which is not among en de"):
        parse_directions("en-hsb", known)
    with pytest.raises(UserError, match="'br-de-DE-en'"):
        parse_directions("br-de-DE-en", known)


def test_tasks_of_a_language_outside_the_table(tmp_path):
    for name, text in (("train.de", "ein Haus\n"), ("train.hsb", "jedyn dom\n")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    corpus = ParallelFiles("mine", str(tmp_path / "{split}.{language}"), ("de", "hsb"))
    vocabulary = Vocabulary(made_text.vocabulary().model, ("de", "hsb_Latn"))
    names = [task.name for task in cache_task_sources(corpus, (("de", "hsb"),), vocabulary)]
    assert names == ["mine_de_hsb"]


def test_a_cache_and_scores_of_a_language_outside_the_table(tmp_path):
    """Files `train.hsb` become tasks; BLEU is computed, and missing detection is reported."""
    sides = {"hsb": [f"dom {n} mały" for n in range(60)], "de-DE": [f"Haus {n}" for n in range(60)]}
    for split, start in (("train", 0), ("validation", 50)):
        for code, lines in sides.items():
            text = "".join(f"{line}\n" for line in lines[start:])
            (tmp_path / f"{split}.{code}").write_text(text, encoding="utf-8")
    flags = [
        "--parallel",
        tmp_path,
        "--languages",
        "HSB,de",
        "--vocab_size",
        30,
        "--no-byte_fallback",
    ]
    command("cache_tasks", *flags, "--output", tmp_path / "cache")
    cache = TokenCache.open(tmp_path / "cache")
    assert cache.vocabulary.languages == ("hsb", "de")
    assert set(cache.tasks_with("train")) == {"corpus_hsb_de", "corpus_de_hsb"}
    off_target = lid_off_target(["dom mały"], "hsb")
    assert off_target.ratio is None and "no reliable label for hsb" in off_target.note
    assert corpus_scores(["dom 1"], ["dom 1"], "hsb").bleu_signature.count("tok:13a") == 1
    flags[3] = "de,de-DE"
    with pytest.raises(UserError, match="--languages: 'de' and 'de-DE' are one language"):
        command("cache_tasks", *flags, "--output", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_translation_and_contrast_accept_any_form_of_a_code():
    translator = made_translator(
        max_length=3, language_contrast=0.1, contrast_languages=("EN", "source")
    )
    assert translator.languages == ("en", "de", "fr")
    plain = made_translator(
        max_length=3, language_contrast=0.1, contrast_languages=("en", "source")
    )
    lines = ["eins zwei", "drei"]
    expected = plain.translate(lines, source="de", target="fr", pivot="en")
    translations = translator.translate(lines, source="DEU", target="fra_Latn", pivot="en-US")
    assert translations == expected
    with pytest.raises(UserError, match="Decode.contrast_languages=.* no 'hsb'"):
        made_translator(language_contrast=0.1, contrast_languages=("hsb",)).translate(
            lines, source="de", target="fr"
        )


def run_languages(monkeypatch, capsys, *arguments):
    monkeypatch.setattr("sys.argv", ["mnmt languages", *arguments])
    languages_command.main()
    return capsys.readouterr().out


def test_the_command_lists_the_table_and_explains_codes(monkeypatch, capsys):
    rows = json.loads(run_languages(monkeypatch, capsys, "--format=json"))
    assert [row["code"] for row in rows] == list(LANGUAGES)
    assert rows[0].keys() == {
        "code",
        "flores",
        "name",
        "script",
        "family",
        "detector",
        "corpora",
    }
    german = next(row for row in rows if row["code"] == "de")
    assert german["flores"] == "deu_Latn" and {"ec40", "opus100"} <= set(german["corpora"])
    lines = run_languages(monkeypatch, capsys, "zho_Hans", "pb", "EN", "hsb").splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [
        ["zho_Hans", "zh"],
        ["pb", "pt_BR"],
        ["EN", "en"],
        ["hsb", "hsb"],
    ]
    assert "Upper Sorbian" in lines[4] and lines[4].split()[-2:] == ["-", "-"]
    assert len(run_languages(monkeypatch, capsys).splitlines()) == len(LANGUAGES) + 1
    with pytest.raises(UserError, match="jp"):
        run_languages(monkeypatch, capsys, "jp")
