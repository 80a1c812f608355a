"""Published corpora, read from a few lines in their file formats; missing files are named."""

import json

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from mnmt_jax.data import published_corpora as published
from mnmt_jax.data.corpus import Selection
from mnmt_jax.data.mixtures import MIXTURES, zero_shot_directions
from mnmt_jax.data.parallel_corpora import CORPORA, PatternFiles, get_corpus
from mnmt_jax.data.published_corpora import PUBLISHED, published_corpus
from mnmt_jax.data.text_reader import Cleaning
from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.languages import (
    EC40_TIERS,
    MITRE_LANGUAGES,
    TED19_LANGUAGES,
    TED20_LANGUAGES,
    fine_tuning_directions,
    mitre_directions,
)
from tests.made_pages import TED_HEADER, talk


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    """The folder that MNMT_JAX_DATA names."""
    monkeypatch.setenv("MNMT_JAX_DATA", str(tmp_path))
    return tmp_path


def write(folder, **files):
    """Write texts; "__" in a name is a slash and "_dot_" a full stop."""
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def lines(*texts):
    return "".join(f"{text}\n" for text in texts)


def test_ted19(data):
    rows = [
        talk(en='" I have a confession . "', de="Ich muss &apos;was sagen .", zh="我 得 坦白 。"),
        talk(en="Only English and German .", de="Nur Englisch und Deutsch ."),
        talk(en="", de="Die englische Seite fehlt ."),
        talk(de="Kein Englisch .", zh="没有 英文 。"),
        talk(en="Third .", de="Drittens ."),
    ]
    table = lines("\t".join(TED_HEADER), *rows)
    for split in ("train", "dev", "test"):
        write(data, **{f"ted19__all_talks_{split}_dot_tsv": table})
    corpus = get_corpus("ted19")
    assert corpus.languages == TED19_LANGUAGES
    assert corpus.splits() == ("train", "validation", "test")
    assert list(corpus.pairs("train", ("en", "de"))) == [
        ('" I have a confession . "', "Ich muss &apos;was sagen ."),
        ("Only English and German .", "Nur Englisch und Deutsch ."),
        ("Third .", "Drittens ."),
    ]
    assert list(corpus.pairs("test", ("zh", "de"))) == [
        ("我 得 坦白 。", "Ich muss &apos;was sagen ."),
        ("没有 英文 。", "Kein Englisch ."),
    ]
    assert not corpus.reports["train", ("en", "de")].dropped
    assert len(zero_shot_directions(corpus, MIXTURES["ted19"].directions, "test")) == 306


def test_ted19_uses_the_first_2000_held_out_pairs(data):
    rows = [talk(en=f"Line {n} .", de=f"Zeile {n} .") for n in range(2003)]
    table = lines("\t".join(TED_HEADER), talk(en="No German ."), *rows)
    for split in ("train", "dev", "test"):
        write(data, **{f"ted19__all_talks_{split}_dot_tsv": table})
    corpus = published_corpus("ted19")
    sizes = [corpus.size(split, ("de", "en")) for split in corpus.splits()]
    assert sizes == [2003, 2000, 2000]
    assert list(corpus.pairs("test", ("de", "en")))[-1] == ("Zeile 1999 .", "Line 1999 .")


def test_ted19_with_another_header(data):
    for split in ("train", "dev", "test"):
        write(data, **{f"ted19__all_talks_{split}_dot_tsv": "talk_name\ten\tde\n"})
    with pytest.raises(UserError, match=r"all_talks_train\.tsv:1: the header lacks column 'ar'"):
        published_corpus("ted19")


def test_the_folder_of_the_data_may_have_braces(data, monkeypatch):
    folder = data / "my{data}"
    monkeypatch.setenv("MNMT_JAX_DATA", str(folder))
    with pytest.raises(UserError, match=r"multi30k.*not in .*my\{data\}"):
        published_corpus("multi30k")
    table = lines("\t".join(TED_HEADER), talk(en="A", de="b"))
    for split, word in (("train", "train"), ("dev", "val"), ("test", "test_2016_flickr")):
        write(folder, **{f"ted19__all_talks_{split}_dot_tsv": table})
        write(folder, **{f"multi30k__{word}_dot_{code}": lines("A") for code in ("en", "de")})
        opus_files(folder, "de-en", split, [f"{split} b"], [f"{split} A"])
    for name, count in (("ted19", 3), ("multi30k", 3), ("opus100", 3)):
        corpus = published_corpus(name)
        assert sum(corpus.size(split, ("en", "de")) for split in corpus.splits()) == count
    missing = published_corpus("multi30k").missing_files("train", ("en", "cs"))
    assert missing == (f"{folder}/multi30k/train.cs",)


def opus_files(data, pair, split, first, second, kind="supervised"):
    for code, texts in zip(pair.split("-"), (first, second), strict=True):
        path = data / "opus100" / kind / pair / f"opus.{pair}-{split}.{code}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(lines(*texts), encoding="utf-8")


def test_opus100_in_plain_files(data):
    train = (["A", "B", "C", "B", "D"], ["a", "b", "c", "b", ""])
    opus_files(data, "en-fr", "train", *train)
    opus_files(data, "en-fr", "dev", ["E", "C"], ["e", "c"])
    opus_files(data, "en-fr", "test", ["C", "C"], ["c", "c"])
    opus_files(data, "de-en", "train", ["Ja"], ["Yes"])
    opus_files(data, "de-fr", "test", ["Nein"], ["Non"], kind="zero-shot")
    corpus = get_corpus("opus100")
    assert set(corpus.directions("train")) == {
        ("en", "fr"),
        ("fr", "en"),
        ("de", "en"),
        ("en", "de"),
    }
    # Without what the test set has, each pair once, without blank sides. One pair of training
    # takes the place of the validation pair that is in the test set.
    train = list(corpus.pairs("train", ("fr", "en")))
    assert corpus.reports["train", ("fr", "en")].dropped == {"repeated": 2, "blank": 1}
    validation = list(corpus.pairs("validation", ("en", "fr")))
    assert validation[0] == ("E", "e") and len(validation) == 2
    assert sorted([*train, validation[1][::-1]]) == [("a", "A"), ("b", "B")]
    assert list(corpus.pairs("test", ("en", "fr"))) == [("C", "c"), ("C", "c")]
    assert list(corpus.pairs("test", ("fr", "de"))) == [("Non", "Nein")]
    supervised = [("en", "fr"), ("fr", "en"), ("de", "en"), ("en", "de")]
    assert zero_shot_directions(corpus, supervised, "test") == (("de", "fr"), ("fr", "de"))
    # What the authors' script rebuilt is taken where it is.
    opus_files(data, "en-fr", "train-rebuilt", ["B"], ["b"])
    opus_files(data, "en-fr", "dev-rebuilt", ["E", "A"], ["e", "a"])
    assert list(published_corpus("opus100").pairs("train", ("en", "fr"))) == [("B", "b")]


def test_validation_is_refilled_with_the_same_pairs_in_both_directions(data):
    words = [f"w{number}" for number in range(20)]
    opus_files(data, "en-fr", "train", words, [f"f{word}" for word in words])
    opus_files(data, "en-fr", "dev", ["x", "y", "y", "z"], ["fx", "fy", "fy", "fz"])
    opus_files(data, "en-fr", "test", ["x"], ["fx"])
    corpus, again = get_corpus("opus100"), get_corpus("opus100")
    validation = list(corpus.pairs("validation", ("en", "fr")))
    assert validation[:2] == [("y", "fy"), ("z", "fz")] and len(validation) == 4
    train = list(corpus.pairs("train", ("en", "fr")))
    assert len(train) == 18 and not set(train) & set(validation)
    assert list(again.pairs("train", ("fr", "en"))) == [pair[::-1] for pair in train]
    opposite = list(again.pairs("validation", ("fr", "en")))
    assert opposite == [pair[::-1] for pair in validation]
    opus_files(data, "en-fr", "train", words[::-1], [f"f{word}" for word in words[::-1]])
    shuffled = list(published_corpus("opus100").pairs("validation", ("en", "fr")))
    assert set(shuffled) == set(validation)  # the order of the lines does not matter


def test_opus100_in_parquet_files(data):
    folder = data / "opus100" / "en-fr"
    folder.mkdir(parents=True)
    rows = [
        {"translation": {"en": "Yes\u2028!", "fr": "Oui"}},
        {"translation": {"en": "", "fr": "x"}},
    ]
    for split in ("train", "validation", "test"):
        name = f"{split}-00000-of-00001.parquet"
        parquet.write_table(pyarrow.Table.from_pylist(rows[split == "test" :]), folder / name)
    corpus = get_corpus("opus100")
    assert list(corpus.pairs("train", ("fr", "en"))) == [("Oui", "Yes\u2028!")]
    assert list(corpus.pairs("test", ("fr", "en"))) == []
    assert corpus.reports["test", ("fr", "en")].dropped == {"blank": 1}


def ec40_files(data, *, count):
    """Write training text, and test files of a pair with English and of one without."""
    numbered(data, "ec40/EC40_dataset", "en-de", 2, ("en", "de"))
    numbered(data, "ec40/EC40-FLORES-en-centric-plain", "test.en-de", count, ("en", "de"))
    numbered(data, "ec40/EC40-FLORES-zs-plain", "test.de-nl", count, ("de", "nl"))


def test_ec40_validates_on_dev_and_tests_on_devtest(data):
    """Flores' dev and devtest are one file there; a bad line does not shift others."""
    ec40_files(data, count=2009)
    path = data / "ec40" / "EC40-FLORES-zs-plain" / "test.de-nl.nl"
    path.write_text(path.read_text(encoding="utf-8").replace("nl 3\n", "\n"), encoding="utf-8")
    corpus = get_corpus("ec40")
    assert list(corpus.pairs("train", ("de", "en")))[1] == ("de 1", "en 1")
    for pair, dev in ((("en", "de"), 997), (("nl", "de"), 996)):
        validation, test = (list(corpus.pairs(split, pair)) for split in ("validation", "test"))
        assert (len(validation), len(test)) == (dev, 1012)
        assert validation[-1] == tuple(f"{code} 996" for code in pair)
        assert [test[0], test[-1]] == [tuple(f"{c} {n}" for c in pair) for n in (997, 2008)]
    assert corpus.reports["validation", ("nl", "de")].dropped == {"blank": 1}


def test_other_test_files_of_ec40_are_refused(data):
    ec40_files(data, count=1012)
    corpus = get_corpus("ec40")
    assert corpus.size("validation", ("en", "de")) == 997
    with pytest.raises(
        UserError, match=r"test\.en-de\.en, .*\.de: 1012 lines, but test text .* 998 to"
    ):
        corpus.size("test", ("en", "de"))


def test_nllb_with_flores(data, caplog):
    write(
        data,
        **{
            "nllb__de-en__NLLB_dot_de-en_dot_de": lines("Ein Haus.", "", "Ein Baum."),
            "nllb__de-en__NLLB_dot_de-en_dot_en": lines("A house.", "Nothing.", "A tree."),
            "nllb__de-en__NLLB_dot_de-en_dot_scores": lines("1.25", "1.1", "1.06"),
        },
    )
    assert published_corpus("nllb").splits() == ("train",)
    assert "corpus 'flores' is not in" in caplog.text
    write(
        data,
        **{
            "flores__dev__dev_dot_eng_Latn": lines("One."),
            "flores__dev__dev_dot_deu_Latn": lines("Eins."),
            "flores__dev__dev_dot_cmn_Hans": lines("一。"),
            "flores__dev__dev_dot_nob_Latn": lines("En."),
        },
    )
    corpus = get_corpus("nllb")
    assert list(corpus.pairs("train", ("en", "de"))) == [
        ("A house.", "Ein Haus."),
        ("A tree.", "Ein Baum."),
    ]
    assert corpus.splits() == ("train", "validation")
    assert list(corpus.pairs("validation", ("zh", "de"))) == [("一。", "Eins.")]
    assert corpus.size("validation", ("zh", "de")) == 1
    assert len(corpus.directions("validation")) == 6  # Norwegian is not among its languages
    assert MIXTURES["nllb_bridge"].directions == mitre_directions()
    with pytest.raises(UserError, match="'no' is not among its languages"):
        corpus.pairs("validation", ("no", "de"))


FLORES_LAYOUTS = {
    "Flores-200": ("{split}/{code}.{split}", {"zh": "zho_Hans", "tl": "tgl_Latn"}),
    "Flores+": ("{split}/{split}.{code}", {"zh": "cmn_Hans", "tl": "fil_Latn"}),
    "jsonl": ("{split}/{code}.jsonl", {"zh": "cmn_Hans", "tl": "fil_Latn"}),
    "parquet": ("{split}/{code}.parquet", {"zh": "cmn_Hans", "tl": "fil_Latn"}),
}


@pytest.mark.parametrize("layout", FLORES_LAYOUTS)
def test_flores(data, layout):
    pattern, codes = FLORES_LAYOUTS[layout]
    texts = {"eng_Latn": "One \u2028 two.", codes["zh"]: "一二。", codes["tl"]: "Isa."}
    for split, number in (("dev", 2), ("devtest", 3)):
        for code, text in texts.items():
            path = data / "flores" / pattern.format(split=split, code=code)
            path.parent.mkdir(parents=True, exist_ok=True)
            rows = [{"id": n, "iso_639_3": code[:3], "text": f"{text} {n}"} for n in range(number)]
            if layout == "parquet":
                parquet.write_table(pyarrow.Table.from_pylist(rows), path)
                continue
            written = [json.dumps(row) if layout == "jsonl" else row["text"] for row in rows]
            path.write_text(lines(*written), encoding="utf-8")
    corpus = get_corpus("flores")
    assert corpus.splits() == ("validation", "test")
    assert len(corpus.directions("test")) == 6
    assert list(corpus.pairs("validation", ("tl", "zh"))) == [
        ("Isa. 0", "一二。 0"),
        ("Isa. 1", "一二。 1"),
    ]
    assert corpus.size("test", ("en", "zh")) == 3
    tuning = get_corpus("flores_tuning")
    assert tuning.splits() == ("train", "test")
    assert list(tuning.pairs("train", ("en", "tl")))[0] == ("One \u2028 two. 0", "Isa. 0")


def test_fine_tuning_mixtures():
    for count in (5, 25, 100):
        mixture = MIXTURES[f"flores_finetune_{count}"]
        assert (mixture.corpus, mixture.temperature) == ("flores_tuning", 1.0)
        assert mixture.directions == fine_tuning_directions(count)


def test_multi30k(data):
    for code in ("en", "de", "fr", "cs"):
        write(data, **{f"multi30k__train_dot_{code}": lines(code, f"{code} 2")})
        write(data, **{f"multi30k__val_dot_{code}": lines(code)})
        write(data, **{f"multi30k__test_2016_flickr_dot_{code}": lines(code)})
    corpus = get_corpus("multi30k")
    assert corpus.splits() == ("train", "validation", "test")
    assert list(corpus.pairs("train", ("de", "cs"))) == [("de", "cs"), ("de 2", "cs 2")]
    assert len(zero_shot_directions(corpus, MIXTURES["multi30k"].directions)) == 6


def test_ted20_uses_brazilian_portuguese_and_all_held_out_pairs(data):
    rows = [
        talk(en=f"Line {n} .", zh=f"第 {n} 行 。", **{"pt-br": f"Linha {n} ."}) for n in range(2003)
    ]
    rows += [talk(en="Of Portugal .", pt="De Portugal .")]
    for split in ("train", "dev", "test"):
        write(data, **{f"ted19__all_talks_{split}_dot_tsv": lines("\t".join(TED_HEADER), *rows)})
    corpus = get_corpus("ted20")
    assert corpus.languages == TED20_LANGUAGES and len(corpus.languages) == 20
    assert [corpus.size(split, ("pt", "en")) for split in corpus.splits()] == [2003] * 3
    assert next(corpus.pairs("test", ("zh", "pt"))) == ("第 0 行 。", "Linha 0 .")
    assert len(zero_shot_directions(corpus, MIXTURES["ted20"].directions, "test")) == 342


def numbered(data, folder, name, count, codes):
    """Write files NAME.CODE of numbered lines; NAME may contain the pair."""
    for code in codes:
        texts = (f"{code} {number}" for number in range(count))
        path = data / folder / f"{name}.{code}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(lines(*texts), encoding="utf-8")


def numbers(corpus, direction):
    """Return the numbers of a corpus's training lines, which must be equal on both sides."""
    pairs = [[side.split() for side in pair] for pair in corpus.pairs("train", direction)]
    assert all((s[0], t[0], s[1]) == (*direction, t[1]) for s, t in pairs)
    return [int(source[1]) for source, _ in pairs]


def shuffled(count, first):
    """Return the first items of a list shuffled by NumPy with seed 1, as published."""
    everything = list(range(count))
    np.random.seed(1)
    np.random.shuffle(everything)
    return everything[:first]


def test_pairs_are_drawn_as_published(data):
    numbered(data, "x", "train", 50, ("it", "nl", "de"))
    numbered(data, "x", "test", 50, ("it", "nl", "de"))
    (data / "x" / "train.de").write_text(lines("", *(f"de {n}" for n in range(1, 50))))
    patterns = {split: (f"{data}/x/{split}.{{language}}",) for split in ("train", "test")}
    selection = Selection(sample_sizes={("it", "nl"): 7, ("nl", "de"): 60, ("it", "de"): 7})
    cleaning = Cleaning(on_bad_line="drop")
    corpus = PatternFiles("x", patterns, ("it", "nl", "de"), cleaning=cleaning, selection=selection)
    drawn = numbers(corpus, ("it", "nl"))
    assert drawn == sorted(shuffled(50, 7)) == numbers(corpus, ("it", "nl"))
    assert corpus.size("train", ("it", "nl")) == 7
    assert numbers(corpus, ("nl", "it")) == list(range(50))  # only what is named
    assert numbers(corpus, ("nl", "de")) == list(range(1, 50))  # as many as there are
    assert numbers(corpus, ("it", "de")) == sorted(n + 1 for n in shuffled(49, 7))  # of good ones
    assert corpus.reports["train", ("it", "de")].dropped == {"blank": 1}
    assert corpus.size("test", ("it", "nl")) == 50


def test_a_sample_is_drawn_from_the_pairs_that_validation_left(data):
    """Ten lines of validation are in the test set, so as many training pairs refill it."""
    numbered(data, "x", "train", 50, ("it", "nl"))
    numbered(data, "x", "test", 10, ("it", "nl"))
    numbered(data, "x", "validation", 11, ("it", "nl"))
    splits = ("train", "validation", "test")
    patterns = {split: (f"{data}/x/{split}.{{language}}",) for split in splits}
    chosen = {"held_out": ("test",), "refill": True}
    whole, sampled = (
        PatternFiles("x", patterns, ("it", "nl"), selection=Selection(**chosen, sample_sizes=sizes))
        for sizes in ({}, {("it", "nl"): 30})
    )
    expected = numbers(whole, ("it", "nl"))
    assert len(expected) == 30 and numbers(sampled, ("it", "nl")) == expected


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_missing_corpus_is_one_error_line_with_the_expected_files(data, name):
    assert name in CORPORA
    with pytest.raises(UserError, match=f"corpus '{name}' is not in {data}/") as caught:
        get_corpus(name)
    message = str(caught.value)
    assert "\n" not in message and message.endswith("MNMT_JAX_DATA sets the parent folder")
    PUBLISHED[name].path.mkdir()
    with pytest.raises(UserError, match="put there"):
        get_corpus(name)


def test_the_folder_defaults_to_data(monkeypatch):
    monkeypatch.delenv("MNMT_JAX_DATA")
    assert str(published.data_folder()) == "data"
    with pytest.raises(UserError, match="is not in data/ted19; put there: all_talks_train"):
        published_corpus("ted19")


def test_numbers_of_directions():
    counts = {row.name: len(row.supervised) for row in PUBLISHED.values()}
    assert counts == {
        "ted19": 36,
        "opus100": 188,
        "opus100_all": 198,
        "ec40": 80,
        "nllb": 194,
        "flores": 0,
        "flores_tuning": 100,
        "ntrex": 0,
        "wmt24pp": 0,
        "bouquet": 0,
        "multi30k": 6,
        "ted20": 38,
        "iwslt17": 6,
        "iwslt17_circle": 9,
        "iwslt17_circle_90k": 9,
        "iwslt17_de": 2,
        "europarl_triangle": 3,
        "europarl_square": 8,
        "multiun": 6,
        "europarl_centric": 4,
        "ted30": 60,
        "wmt14": 4,
        "newscrawl": 45,
        "libreoffice_help": 12,
        "libreoffice_help_disjoint": 12,
    }
    drawn = ("ted19", "ted30", "opus100", "ec40", "multi30k")  # by temperature, or their sizes
    for row in PUBLISHED.values():
        if row.name == "newscrawl":
            assert row.temperature == pytest.approx(1 / 0.7)
            continue
        assert row.temperature == (1.0 if row.supervised and row.name not in drawn else 5.0)
    assert set(PUBLISHED["nllb"].languages) == set(MITRE_LANGUAGES)
    assert len(set().union(*EC40_TIERS.values()) & set(PUBLISHED["ec40"].languages)) == 40


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": "a"}\nno json\n', r"eng_Latn\.jsonl:2: not JSON"),
        ('{"txt": "a"}\n', r"eng_Latn\.jsonl:1: field 'text' is missing"),
        ('{"text": "a\\ud83d"}\n', r"eng_Latn\.jsonl:1: half a character .*ud83d\) at 2"),
        ('{"text": 3}\n', r"eng_Latn\.jsonl:1: field 'text' is missing or not text"),
    ],
)
def test_damaged_tables_name_file_and_line(data, content, message):
    write(data, flores__dev__eng_Latn_dot_jsonl=content)
    write(data, flores__dev__deu_Latn_dot_jsonl='{"text": "b"}\n{"text": "c"}\n')
    with pytest.raises(UserError, match=message):
        list(get_corpus("flores").pairs("validation", ("de", "en")))


def test_damaged_parquet_files_name_the_file(data):
    folder = data / "flores" / "dev"
    folder.mkdir(parents=True)
    (folder / "eng_Latn.parquet").write_bytes(b"no table")
    parquet.write_table(pyarrow.Table.from_pylist([{"txt": "a"}]), folder / "deu_Latn.parquet")
    corpus = get_corpus("flores")
    with pytest.raises(UserError, match=r"eng_Latn\.parquet: not a Parquet file"):
        list(corpus.pairs("validation", ("en", "de")))
    with pytest.raises(UserError, match=r"deu_Latn\.parquet: no column 'text'; it has \['txt'\]"):
        list(corpus.pairs("validation", ("de", "en")))
