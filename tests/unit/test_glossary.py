"""Glossaries: their files, the terms of a text, and what translations lack."""

import unicodedata

import pytest

from mnmt_jax.decoding.glossary import Glossary, as_glossary
from mnmt_jax.decoding.terms import (
    LineTerms,
    Term,
    _count_tokens,
    encode_terms,
    missing_terms,
    present_forbidden_terms,
    search_terms,
)
from mnmt_jax.errors import UserError
from tests.processor_time import is_quicker_than
from tests.unit.made_text import vocabulary


def _counts(glossary, text, language="en", **options):
    terms = Glossary.of_mapping(glossary).terms_of(text, language, **options)
    return {term.source: term.count for term in terms.required}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Open the file, then the other file.", {"file": 2}),
        ("The profile of files", {}),
        ("A file manager opens a file.", {"file manager": 1, "file": 1}),
        ("FILE (File)", {"file": 2}),
        ("file_name file2 file-name", {"file": 1}),
        ("A pdf is no PDF", {"PDF": 1}),
        ("the US told us", {"US": 1, "us": 1}),
        ("", {}),
        ("a fil", {}),
    ],
)
def test_terms_are_whole_words_and_the_longest_match(text, expected):
    glossary = {
        "file": "Datei",
        "file manager": "Dateiverwalter",
        "PDF": "PDF-Dokument",
        "US": "USA",
        "us": "uns",
    }
    assert _counts(glossary, text) == expected


@pytest.mark.parametrize("other", ["cafe\u0301 noir", "caf\u00e9  noir", " caf\u00e9 noir"])
def test_terms_that_the_model_reads_alike_are_one(other):
    with pytest.raises(UserError, match="occurs twice; join its targets with |"):
        Glossary.of_mapping({"caf\u00e9 noir": "A", other: "B"})


def test_terms_of_languages_without_spaces_are_substrings():
    assert _counts({"文件": "file", "文件管理": "file manager"}, "打开文件和文件管理器", "zh") == {
        "文件": 1,
        "文件管理": 1,
    }
    assert _counts({"文件": "file"}, "打开文件", "en") == {}


def test_combining_marks_belong_to_a_word():
    assert _counts({"cafe": "Café"}, "cafe\u0301 cafe") == {"cafe": 1}
    assert _counts({"फ़ाइल": "file"}, "फ़ाइलें फ़ाइल", "hi") == {"फ़ाइल": 1}


@pytest.mark.parametrize(
    "text",
    ["my résumé", "my re\u0301sume\u0301", "the file\u00a0name", "the file \t name", "FILE\nNAME"],
)
@pytest.mark.parametrize("change", [str, lambda text: unicodedata.normalize("NFD", text)])
def test_terms_are_found_in_text_that_the_model_reads_alike(text, change):
    glossary = {change("résumé"): "Lebenslauf", "file\u00a0 name": "Dateiname", "\u200b": "nichts"}
    expected = change("résumé") if "my" in text else "file\u00a0 name"
    assert _counts(glossary, text) == {expected: 1}


@pytest.mark.parametrize("language", ["tr", "az_Latn"])
def test_lower_case_terms_are_meant_in_the_cases_of_the_language(language):
    glossary = {"ışık": "light", "iyi": "good", "İzmir": "Izmir"}
    assert _counts(glossary, "İyi IŞIK ışık", language) == {"iyi": 1, "ışık": 2}
    assert _counts(glossary, "İYİ Işık işik izmir", language) == {"iyi": 1, "ışık": 1}
    assert _counts(glossary, "izmir", language, ignore_case=True) == {"İzmir": 1}
    assert _counts(glossary, "Iyi", "en") == {"iyi": 1}


@pytest.mark.parametrize("text", ["Instagram hesabı", "INSTAGRAM", "İnstagram", "instagram"])
def test_terms_also_have_the_capitals_of_other_languages(text):
    glossary = {"instagram": "Instagram", "ılık": "warm", "LinkedIn": "L"}
    assert _counts(glossary, f"{text} Ilık", "tr") == {"instagram": 1, "ılık": 1}
    assert _counts(glossary, "LINKEDIN LİNKEDIN", "tr", ignore_case=True) == {"LinkedIn": 2}


def test_the_capitals_of_the_language_come_first():
    glossary = {"ilik": "marrow", "ılık": "warm", "Ilıca": "spa", "İlıca": "other"}
    assert _counts(glossary, "Ilık İlik Ilik", "tr") == {"ılık": 1, "ilik": 2}
    assert _counts(glossary, "ILICA", "tr", ignore_case=True) == {"Ilıca": 1}


def test_a_change_of_length_in_lower_case_does_not_move_terms():
    assert _counts({"file": "Datei"}, "İİİ file İ") == {"file": 1}


def test_case_is_ignored_where_a_text_is_in_capitals():
    assert _counts({"Writer": "Writer"}, "open writer") == {}
    assert _counts({"Writer": "Writer"}, "open writer", ignore_case=True) == {"Writer": 1}


def test_large_glossaries_and_many_terms_take_little_time():
    """Terms with one first letter, and a line in which every word is a term."""
    glossary = Glossary.of_mapping({f"a{n}": "b" for n in range(50_000)})
    text = " ".join(f"a{n}" for n in range(3000))

    def run():
        terms = glossary.terms_of(text, "en")
        assert len(terms.required) == 3000 and len(missing_terms(terms, "b b", "de")) == 0
        assert encode_terms(terms, vocabulary(), "de") is not None

    assert is_quicker_than(2, run)


def test_many_targets_of_many_terms_take_little_time():
    targets = [tuple(f"w{n}x{m}" for m in range(100)) for n in range(64)]
    terms = LineTerms(tuple(Term(f"s{n}", texts) for n, texts in enumerate(targets)))
    others = tuple(f"s{n}" for n in range(64) if n != 7)

    def run():
        assert missing_terms(terms, "w7x3", "de") == others

    assert is_quicker_than(1, run)


def test_a_file_has_alternatives_and_forbidden_targets(tmp_path):
    path = tmp_path / "g.tsv"
    path.write_text(
        "\ufeff# terms\nfile\tDatei|Akte|!File\n\n print \t drucken \r\n\t!Sie|!Ihr\n#1\tNr. 1\n",
        "utf-8",
    )
    terms = Glossary.load(path).terms_of("print a file", "en")
    assert terms.required == (Term("print", ("drucken",)), Term("file", ("Datei", "Akte")))
    assert terms.forbidden == ("Sie", "Ihr", "File")
    numbered = Glossary.load(path).terms_of("#1 is late", "en")
    assert numbered.required == (Term("#1", ("Nr. 1",)),)
    assert Glossary.load(path).terms_of("nothing", "en") == LineTerms((), ("Sie", "Ihr"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("file Datei", "g.tsv, line 2: 0 tabs instead of 1"),
        ("file\tDatei\tx", "g.tsv, line 2: 2 tabs instead of 1"),
        ("file\t", "g.tsv, line 2: a target of 'file' is empty"),
        ("file\tDatei|!", "g.tsv, line 2: a target of 'file' is empty"),
        ("\tDatei", "g.tsv, line 2: 'Datei' has no source"),
        ("file\tA|!A", "g.tsv, line 2: 'A' is both required and forbidden"),
        ("file\t" + "A|" * 100 + "A", "g.tsv, line 2: 'file' has 101 targets; leave 100 at most"),
        ("ok\tA", "g.tsv, line 2: 'ok' is also on line 1"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    path = tmp_path / "g.tsv"
    path.write_text(f"ok\tgut\n{line}\n", "utf-8")
    with pytest.raises(UserError) as error:
        Glossary.load(path)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_glossary_that_cannot_be_read_is_an_error(tmp_path):
    (tmp_path / "latin.tsv").write_bytes(b"caf\xe9\tx\n")
    with pytest.raises(UserError, match=r"latin\.tsv: not UTF-8"):
        as_glossary(tmp_path / "latin.tsv")
    for value, message in (
        (tmp_path / "none.tsv", "No such file"),
        (tmp_path, "Is a directory"),
        (3, "must be a Glossary"),
        ({"file": 3}, "'file' must have a text or a list of texts"),
        ({3: "Datei"}, "'3' must have a text or a list of texts"),
        ({"file": []}, "a target of 'file' is empty"),
    ):
        with pytest.raises(UserError, match=message):
            as_glossary(value)


def test_the_digest_is_that_of_the_entries(tmp_path):
    (tmp_path / "g.tsv").write_text("a\tb|!c\n", "utf-8")
    loaded = Glossary.load(tmp_path / "g.tsv")
    assert loaded.digest == Glossary.of_mapping({"a": ["b", "!c"]}).digest
    assert loaded.digest != Glossary.of_mapping({"a": ["b", "c"]}).digest


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("Der Dateimanager öffnet die Datei.", ()),
        ("Der Dateimanager öffnet sie.", ("file",)),
        ("Die Datei, die Akte", ("file manager",)),
        ("Dateimanager: akte", ("file",)),
        ("", ("file manager", "file")),
    ],
)
def test_missing_terms_are_counted_outside_of_longer_ones(text, missing):
    terms = LineTerms((Term("file manager", ("Dateimanager",)), Term("file", ("Datei", "Akte"))))
    assert missing_terms(terms, text, "de") == missing


@pytest.mark.parametrize("name", ["{days}", "%(days)s", "https://a.org/days", "days@a.org"])
def test_terms_inside_of_placeholders_do_not_count(name):
    assert _counts({"days": "Tage"}, name) == {}
    assert _counts({"days": "Tage"}, f"days {name} days") == {"days": 2}
    assert _counts({"days": "Tage", "{n} days": "{n} Tage"}, f"{name} {{n}} days") == {
        "{n} days": 1
    }
    terms = LineTerms((Term("days", ("Tage",), 2),), ("Tag",))
    kept = name.replace("days", "Tage")
    assert missing_terms(terms, f"Tage {kept}", "de") == ("days",)
    assert missing_terms(terms, f"Tage {kept} Tage", "de") == ()
    assert present_forbidden_terms(terms, kept, "de") == ()
    assert present_forbidden_terms(terms, f"{kept} Tage", "de") == ("Tag",)


def test_terms_outside_of_placeholders_in_capitals_count():
    terms = LineTerms((Term("{N} days", ("{N} Tage",)),), ("home",))
    assert missing_terms(terms, "{N} TAGE", "de", ignore_case=True) == ()
    assert missing_terms(terms, "TAGE", "de", ignore_case=True) == ("{N} days",)
    assert present_forbidden_terms(terms, "$HOME", "de", ignore_case=True) == ()
    assert present_forbidden_terms(terms, "$HOME HOME", "de", ignore_case=True) == ("home",)


def test_terms_with_one_translation_need_it_as_often():
    terms = LineTerms((Term("file", ("Datei",)), Term("document", ("Datei",))))
    assert missing_terms(terms, "Datei", "de") == ("file", "document")
    assert missing_terms(terms, "Datei, Datei", "de") == ()


def test_the_first_letter_of_a_term_may_be_a_capital():
    terms = LineTerms((Term("print", ("drucken",)),), ("sie",))
    assert missing_terms(terms, "Drucken", "de") == ()
    assert missing_terms(terms, "DRUCKEN", "de") == ("print",)
    assert missing_terms(terms, "DRUCKEN", "de", ignore_case=True) == ()
    assert present_forbidden_terms(terms, "Sie SIE", "de") == ("sie",)
    assert present_forbidden_terms(terms, "SIE", "de") == ()
    assert present_forbidden_terms(terms, "SIE", "de", ignore_case=True) == ("sie",)


def test_capitals_of_terms_are_those_of_the_language():
    terms = LineTerms((Term("good", ("iyi",)),), ("ışık",))
    assert missing_terms(terms, "İyi günler", "tr") == ()
    assert missing_terms(terms, "IYİ günler", "tr") == ("good",)
    assert missing_terms(terms, "İYİ", "az", ignore_case=True) == ()
    assert present_forbidden_terms(terms, "IŞIK", "tr", ignore_case=True) == ("ışık",)
    assert present_forbidden_terms(terms, "Işık", "tr") == ("ışık",)


def test_targets_may_have_the_capitals_of_other_languages():
    terms = LineTerms((Term("net", ("internet",)),), ("instagram",))
    for capital in "iİI":
        assert missing_terms(terms, f"{capital}nternet var", "tr") == ()
        assert present_forbidden_terms(terms, f"{capital}nstagram", "tr") == ("instagram",)
    assert missing_terms(terms, "INTERNET", "tr", ignore_case=True) == ()


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("inday unitsItalia: Italy", ("Tagen", "Italien")),
        ("in day units (Italia): Italy", ()),
        ("3day units, l'Italian", ("Tagen",)),
        ("Day units/Bella Italia", ()),
    ],
)
def test_a_required_term_starts_a_word(text, missing):
    italy = Term("Italien", ("Italia", "Bella Italia"))
    terms = LineTerms((Term("Tagen", ("day units",)), italy))
    assert missing_terms(terms, text, "en") == missing


@pytest.mark.parametrize(
    ("language", "target", "text"),
    [
        ("zh", "意大利", "去意大利"),
        ("th", "ไทย", "ภาษาไทย"),
        ("he", "בית", "לבית"),
        ("arz", "كتاب", "والكتاب"),
        ("de", "-jährig", "50-jährig"),
    ],
)
def test_terms_inside_of_words_count_where_words_are_not_separate(language, target, text):
    assert missing_terms(LineTerms((Term("x", (target,)),)), text, language) == ()


def test_terms_in_words_of_other_terms_are_required_beside_them():
    terms = LineTerms((Term("test file", ("testbestand",)), Term("file", ("bestand",))))
    assert missing_terms(terms, "testbestand", "nl") == ("file",)
    assert missing_terms(terms, "testbestand, bestand", "nl") == ()


def test_compatible_characters_are_equal():
    """SentencePiece writes NFKC: three dots for an ellipsis."""
    terms = LineTerms((Term("more", ("mehr\u2026",)),), ("\uff21",))
    assert missing_terms(terms, "mehr...", "de") == ()
    assert present_forbidden_terms(terms, "A", "de") == ("\uff21",)


def test_the_tokens_of_a_term_are_those_at_the_start_and_inside_of_a_word():
    vocab = vocabulary()
    encoded = encode_terms(LineTerms((Term("x", ("haus",)),)), vocab, "de")
    (sequences,) = encoded.required
    assert {vocab.decode(one) for one in sequences} == {"haus", "Haus"}
    firsts = {vocab.tokens(one)[0][0] for one in sequences}
    assert "\u2581" in firsts and len(firsts) > 1
    for one in sequences:
        assert vocab.decode([*vocab.encode("eins", "de"), *one]) in (
            "eins haus",
            "eins Haus",
            "einshaus",
            "einsHaus",
        )


def test_terms_that_cannot_be_encoded_are_left_out_but_reported():
    vocab = vocabulary()
    terms = LineTerms((Term("x", ("\u4e00",)), Term("y", ("haus " * 17,))), ("\u4e00",))
    assert encode_terms(terms, vocab, "de") is None
    assert missing_terms(terms, "nothing", "de") == ("x", "y")


def test_too_many_terms_are_bounded():
    vocab = vocabulary()
    terms = LineTerms(tuple(Term(str(n), ("haus " + "und " * (n % 4),)) for n in range(100)))
    shape = encode_terms(terms, vocab, "de").shape
    assert shape.terms * shape.alternatives * shape.length <= 1024


def test_arrays_have_the_alternatives_of_each_term_and_then_forbidden_sequences():
    vocab = vocabulary()
    encoded = [
        encode_terms(LineTerms((Term("x", ("haus",), count=2),), ("und",)), vocab, "de"),
        encode_terms(LineTerms((Term("y", ("und",)),), ("haus",)), vocab, "de"),
    ]
    assert encoded[0].shape == encoded[1].shape
    arrays = search_terms(encoded, 3)
    assert arrays.counts[:, 0].tolist() == [2, 1, 0] and not arrays.counts[:, 1:].any()
    for row, one in enumerate(encoded):
        sequences = [tuple(t for t in tokens if t) for tokens in arrays.tokens[row].tolist()]
        assert sequences[: len(one.required[0])] == list(one.required[0])
        assert sequences[arrays.required :][: len(one.forbidden)] == list(one.forbidden)
        assert sum(map(bool, sequences)) == len(one.required[0]) + len(one.forbidden)
    assert not arrays.tokens[2].any()


def test_terms_inside_of_some_alternatives_and_of_repeated_terms():
    file = Term("file", ("Datei",))
    either = LineTerms((Term("file manager", ("Dateimanager", "Explorer")), file))
    assert missing_terms(either, "Explorer, Datei", "de") == ()
    twice = LineTerms((Term("file manager", ("Dateimanager",), 2), file))
    assert missing_terms(twice, "Dateimanager, Dateimanager", "de") == ("file",)
    assert missing_terms(twice, "Dateimanager, Dateimanager, Datei", "de") == ()


def test_occurrences_of_tokens_do_not_overlap():
    assert [_count_tokens([(4, 4)], (4,) * count) for count in (1, 2, 3, 4)] == [0, 1, 1, 2]
