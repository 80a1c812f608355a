"""Text corpora: one interface, clear errors, counted drops, gzip, streaming."""

import contextlib
import gzip
import logging
import os
import tracemalloc

import pytest

from mnmt_jax.commands.text_files import read_lines as input_lines
from mnmt_jax.data import parallel_corpora
from mnmt_jax.data.cldr import CldrCorpus
from mnmt_jax.data.mixtures import cache_task_sources, language_text, validate_lines
from mnmt_jax.data.monolingual import MonolingualCorpus
from mnmt_jax.data.opposite_directions import has_same_text
from mnmt_jax.data.pair_counts import count_pairs
from mnmt_jax.data.parallel_corpora import CldrPhrases, ParallelFiles, PatternFiles, TsvFile
from mnmt_jax.data.split_aliases import guess_split_name
from mnmt_jax.data.text_reader import Cleaning, read_lines
from mnmt_jax.errors import UserError
from tests.unit import made_text

DROP = Cleaning(on_bad_line="drop", max_characters=30)
EN, DE = b"One.\nTwo.\nThree.\n", "Eins.\nZwei.\nDreißig.\n".encode()
PAIRS = [("One.", "Eins."), ("Two.", "Zwei."), ("Three.", "Dreißig.")]


def write(directory, **files):
    """Write bytes to files; "train_en" becomes train.en, "train_en_gz" train.en.gz."""
    for name, content in files.items():
        name = name.replace("_", ".")
        data = gzip.compress(content) if name.endswith(".gz") else content
        (directory / name).write_bytes(data)


def parallel(directory, languages=("en", "de"), **options):
    return ParallelFiles("mine", f"{directory}/{{split}}.{{language}}", languages, **options)


def test_parallel_files_give_pairs_in_both_directions(tmp_path):
    write(tmp_path, train_en=EN, train_de=DE, test_en=b"Only English.\n")
    corpus = parallel(tmp_path)
    assert corpus.splits() == ("train",)
    assert corpus.directions("train") == (("en", "de"), ("de", "en"))
    assert list(corpus.pairs("train", ("en", "de"))) == PAIRS
    assert list(corpus.pairs("train", ("de", "en"))) == [(de, en) for en, de in PAIRS]
    assert corpus.size("train", ("en", "de")) == 3
    assert not corpus.reports["train", ("en", "de")].dropped


def test_gzip_reads_like_plain_text(tmp_path):
    write(tmp_path, train_en=EN, train_de_gz=DE)
    assert list(parallel(tmp_path).pairs("train", ("en", "de"))) == PAIRS
    write(tmp_path, train_tsv_gz=b"en\tde\nOne.\tEins.\n")
    corpus = TsvFile("mine", f"{tmp_path}/{{split}}.tsv")
    assert list(corpus.pairs("train", ("de", "en"))) == [("Eins.", "One.")]


def test_corpora_and_translator_read_text_alike(tmp_path):
    text = "\ufeffOne\u2028more.\r\nTwo.\n\nThree".encode()
    expected = ["One\u2028more.", "Two.", "", "Three"]
    for name, content in [("a", text), ("b.gz", gzip.compress(text)), ("c", gzip.compress(text))]:
        path = str(tmp_path / name)
        (tmp_path / name).write_bytes(content)
        assert list(read_lines(path, 100)) == list(input_lines(path)) == expected
        with open(path, "rb") as file:  # as standard input
            assert list(read_lines(file)) == expected
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfOne.\nTw\xff\n")
    [good, flaw] = read_lines(str(tmp_path / "a"))
    assert good == "One." and flaw.reason == "bad_utf8"
    with pytest.raises(UserError, match=r"line 2: not UTF-8 \(byte 3\); convert the file"):
        list(input_lines(str(tmp_path / "a")))


def test_each_file_is_looked_up_once(tmp_path, monkeypatch):
    """For any number of directions, not once per pair."""
    codes = ("en", "de", "fr", "cs", "nl", "sv")
    for code in codes:
        write(tmp_path, **{f"train_{code}": EN, f"validation_{code}": EN})
    looked_for = []
    isfile = os.path.isfile
    monkeypatch.setattr(os.path, "isfile", lambda path: looked_for.append(path) or isfile(path))
    corpus = parallel(tmp_path, codes)
    assert corpus.splits() == ("train", "validation")
    sources = list(cache_task_sources(corpus, corpus.directions("train"), made_text.vocabulary()))
    assert len(sources) == 30 and {len(source.splits) for source in sources} == {2}
    assert all(len(list(corpus.pairs("train", pair))) == 3 for pair in corpus.directions("train"))
    # Plain and gzip, of three splits.
    assert len(looked_for) == len(set(looked_for)) == 2 * 3 * len(codes)


def test_a_file_both_plain_and_gzipped_is_refused(tmp_path):
    write(tmp_path, train_en=EN, train_en_gz=EN, train_de=DE)
    with pytest.raises(UserError, match=r"train\.en: exists plain and as \.gz, remove one"):
        parallel(tmp_path)


def test_a_truncated_gzip_file_names_the_last_good_line(tmp_path):
    whole = gzip.compress(b"".join(b"%d is a line\n" % n for n in range(20_000)))
    write(tmp_path, train_de=b"eine Zeile\n" * 20_000)
    (tmp_path / "train.en.gz").write_bytes(whole[: len(whole) // 2])
    seen = 0
    with pytest.raises(UserError, match=r"train\.en\.gz: unreadable after line \d+ .*copy the"):
        for _ in parallel(tmp_path).pairs("train", ("en", "de")):
            seen += 1
    assert seen > 100
    (tmp_path / "train.en.gz").write_bytes(b"this is no gzip file\n")
    with pytest.raises(UserError, match=r"train\.en\.gz: unreadable after line 0"):
        list(parallel(tmp_path).pairs("train", ("en", "de")))


def test_split_aliases_and_pair_folders(tmp_path):
    write(tmp_path, val_en=EN, val_de=DE)
    corpus = parallel(tmp_path, splits={"validation": "val"})
    assert corpus.splits() == ("validation",)
    (tmp_path / "de-en").mkdir()
    write(tmp_path / "de-en", train_en=EN, train_de=DE)
    pattern = f"{tmp_path}/{{pair}}/{{split}}.{{language}}"
    corpus = ParallelFiles("mine", pattern, ("en", "de", "fr"))
    assert corpus.directions("train") == (("en", "de"), ("de", "en"))
    assert list(corpus.pairs("train", ("en", "de"))) == PAIRS


@pytest.mark.parametrize("name", ["c#1", "b[1]", "what?"])
def test_any_name_of_a_folder_is_read(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    write(folder, train_eng=EN, train_de=DE)
    (folder / "dev.jsonl").write_text('{"text#1": {"en": "One.", "de": "Eins."}}\n')
    assert list(parallel(folder).pairs("train", ("en", "de"))) == PAIRS
    pattern = f"{folder}/{{split}}.jsonl#text#1.{{language}}"
    corpus = ParallelFiles("mine", pattern, ("en", "de"), splits={"validation": "dev"})
    assert list(corpus.pairs("validation", ("en", "de"))) == PAIRS[:1]
    assert guess_split_name(pattern, ("en", "de"), "validation") == "dev"


def test_files_in_both_orders_of_a_pair_are_all_read(tmp_path):
    """As WMT's test sets, which differ by direction; copies count once."""
    directions = ("en", "de"), ("de", "en")
    for number, pair in enumerate(("de-en", "en-de")):
        (tmp_path / pair).mkdir()
        first, second = (b"".join(text.splitlines(True)[number:]) for text in (EN, DE))
        write(tmp_path / pair, train_en=first, train_de=second, test_en=EN, test_de=DE)
    pattern = f"{tmp_path}/{{pair}}/{{split}}.{{language}}"
    corpus = ParallelFiles("mine", pattern, ("en", "de"))
    assert list(corpus.pairs("train", ("en", "de"))) == PAIRS[1:]
    assert list(corpus.pairs("train", ("de", "en"))) == [pair[::-1] for pair in PAIRS]
    assert [has_same_text(corpus, split, ("en", "de")) for split in corpus.splits()] == [
        False,
        True,
    ]
    counts = count_pairs(corpus, directions, ["train", "test"])
    assert counts == {"train": {"en-de": 2, "de-en": 3}, "test": {"en-de": 3, "de-en": 3}}
    assert sorted(language_text(corpus, directions, 9)["en"]) == sorted(
        ["One.", *["Two.", "Three."] * 2]
    )
    text = MonolingualCorpus(corpus, directions)
    assert {line for _, line in text.pairs("train", ("en", "en"))} == {"One.", "Two.", "Three."}
    write(tmp_path / "en-de", train_en=b"", train_de=b"")
    with pytest.raises(UserError, match=r"en-de/train\.\S+: no sentence pair"):
        validate_lines(ParallelFiles("mine", pattern, ("en", "de")), directions)


FLAWS = [
    (
        "blank",
        b"One.\n  \nThree.\n",
        DE,
        r"train\.en:2: blank line; fix it, or drop such lines",
    ),
    ("blank", EN, b"\nZwei.\nDrei.\n", r"train\.de:1: blank line"),
    ("bad_utf8", b"One.\nTw\xffo.\nThree.\n", DE, r"train\.en:2: not UTF-8 \(byte 3\)"),
    ("too_long", EN, b"Eins.\nZwei.\n" + b"x" * 31 + b"\n", r"train\.de:3: 31 characters, more"),
    ("too_long", b"x" * 500 + b"\nTwo.\nThree.\n", DE, r"train\.en:1: more than 122 bytes"),
    (
        "unpaired",
        EN + b"Four.\n",
        DE,
        r"train\.en:4: \S*train\.de has only 3 lines; if an earlier line is missing",
    ),
    (
        "unpaired",
        EN,
        DE + b"Vier.\n",
        r"train\.de:4: \S*train\.en has only 3 lines; if an earlier line is missing",
    ),
]


@pytest.mark.parametrize(("reason", "english", "german", "message"), FLAWS)
def test_a_bad_line_is_one_error_line(tmp_path, reason, english, german, message):
    write(tmp_path, train_en=english, train_de=german)
    corpus = parallel(tmp_path, cleaning=Cleaning(max_characters=30))
    with pytest.raises(UserError, match=message) as error:
        list(corpus.pairs("train", ("en", "de")))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("reason", "english", "german", "message"), FLAWS)
def test_a_bad_line_is_dropped_with_its_translation_and_counted(
    tmp_path, caplog, reason, english, german, message
):
    write(tmp_path, train_en=english, train_de=german)
    corpus = parallel(tmp_path, cleaning=DROP)
    with caplog.at_level(logging.WARNING):
        kept = list(corpus.pairs("train", ("en", "de")))
        list(corpus.pairs("train", ("en", "de")))
    report = corpus.reports["train", ("en", "de")]
    assert dict(report.dropped) == {reason: 1}
    assert report.kept == len(kept) == (3 if reason == "unpaired" else 2)
    assert all(pair in PAIRS or pair[1] == "Drei." for pair in kept)
    assert len(caplog.records) == 1  # the second pass does not repeat it
    assert f"dropped 1 of {len(kept) + 1} lines ({reason} 1; first: " in caplog.text


def test_dropping_never_shifts_the_lines(tmp_path):
    english = [b"line %d" % n for n in range(100)]
    german = [b"Zeile %d" % n for n in range(100)]
    english[10], english[20], german[30], german[31] = b"", b"\xff", b"", b"x" * 31
    write(tmp_path, train_en=b"\n".join(english) + b"\n", train_de=b"\n".join(german))
    corpus = parallel(tmp_path, cleaning=DROP)
    pairs = list(corpus.pairs("train", ("en", "de")))
    numbers = [source.split()[1] for source, _ in pairs]
    assert numbers == [target.split()[1] for _, target in pairs]
    assert numbers == [str(n) for n in range(100) if n not in (10, 20, 30, 31)]
    assert corpus.size("train", ("en", "de")) == 96
    dropped = corpus.reports["train", ("en", "de")].dropped
    assert dropped == {"blank": 2, "bad_utf8": 1, "too_long": 1}


def test_only_line_feeds_end_lines(tmp_path):
    english = "\ufeffOne\u2028more.\r\nTwo\x0bmore\x85.\r\nThree"
    write(tmp_path, train_en=english.encode(), train_de=DE)
    corpus = parallel(tmp_path, cleaning=DROP)
    assert [source for source, _ in corpus.pairs("train", ("en", "de"))] == [
        "One\u2028more.",
        "Two\x0bmore\x85.",
        "Three",
    ]


def test_reading_keeps_memory_bounded(tmp_path):
    """A corpus of one very long line and many short ones is streamed."""
    with gzip.open(tmp_path / "train.en.gz", "wb", compresslevel=1) as file:
        for _ in range(30):
            file.write(b"x" * (1 << 20))
        file.write(b"\n" + b"a line\n" * 200_000)
    tracemalloc.start()
    lines = read_lines(str(tmp_path / "train.en.gz"), 100)
    first = next(lines)
    count = sum(1 for _ in lines)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert first.reason == "too_long" and count == 200_000
    assert peak < 8 << 20


def tsv(directory, content, **options):
    write(directory, train_tsv=content)
    return TsvFile("mine", f"{directory}/{{split}}.tsv", **options)


def test_tsv_columns_by_header_or_by_name(tmp_path):
    rows = "One.\tEins.\tUn.\nTwo.\tZwei.\tDeux.\n"
    corpus = tsv(tmp_path, ("en\tde\tfr\n" + rows).encode())
    assert corpus.languages == ("en", "de", "fr")
    assert len(corpus.directions("train")) == 6
    expected = [("Un.", "Eins."), ("Deux.", "Zwei.")]
    assert list(corpus.pairs("train", ("fr", "de"))) == expected
    corpus = tsv(tmp_path, rows.encode(), columns=("en", "de", "fr"), languages=("fr", "de"))
    assert list(corpus.pairs("train", ("fr", "de"))) == expected
    with pytest.raises(UserError, match="'en' is not among its languages fr de"):
        corpus.pairs("train", ("en", "de"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"en\tde\nOne.\tEins.\nTwo.\n", r"train\.tsv:3: 1 columns, but the header has 2"),
        (b"en\tde\nOne.\tEins.\tUn.\n", r"train\.tsv:2: 3 columns, but the header has 2"),
        (b"en\tde\nOne.\t\n", r"train\.tsv:2: blank line"),
        (b"en\tde\n\xff\tEins.\n", r"train\.tsv:2: not UTF-8 \(byte 1\)"),
        (b"One.\tEins.\n", r"train\.tsv:1: unknown language 'One\.'.*the header must name"),
        (b"", r"train\.tsv:1: the header must name"),
    ],
)
def test_invalid_lines_of_tsv_files(tmp_path, content, message):
    with pytest.raises(UserError, match=message):
        list(tsv(tmp_path, content).pairs("train", ("en", "de")))


def test_files_are_looked_for_in_folders_of_pairs_that_exist(tmp_path, monkeypatch):
    """Of a hundred languages, looking for those of every pair takes a second."""
    (tmp_path / "de-en").mkdir()
    for code in ("de", "en"):
        (tmp_path / "de-en" / f"train.{code}").write_text("One.\n")
    looked, find = set(), parallel_corpora.find_text_column
    monkeypatch.setattr(
        parallel_corpora, "find_text_column", lambda name: looked.add(name) or find(name)
    )
    (tmp_path / "{d}").symlink_to(tmp_path)
    for pattern, expected in (
        ("{pair}/train.{language}", {"de-en/train.de", "de-en/train.en"}),
        ("{d}/{pair}/train.{language}", {"{d}/de-en/train.de", "{d}/de-en/train.en"}),
        ("none/{pair}/train.{language}", set()),
    ):
        patterns = {"train": [f"{tmp_path}/{pattern}"]}
        looked.clear()
        with contextlib.nullcontext() if expected else pytest.raises(UserError, match="no files"):
            corpus = PatternFiles("made", patterns, ("en", "de", "fr", "cs"))
            assert corpus.directions("train") == (("en", "de"), ("de", "en"))
        assert looked == {f"{tmp_path}/{name}" for name in expected}
    escaped = f"{tmp_path}/{{{{d}}}}/{{pair}}/{{split}}.{{language}}"
    assert ParallelFiles("made", escaped, ("en", "de")).directions("train")


def test_tsv_drops_are_counted(tmp_path):
    content = b"en\tde\nOne.\tEins.\nTwo.\n\xff\tDrei.\nFour.\tVier.\n"
    corpus = tsv(tmp_path, content, cleaning=DROP)
    assert list(corpus.pairs("train", ("en", "de"))) == [("One.", "Eins."), ("Four.", "Vier.")]
    assert corpus.reports["train", ("en", "de")].dropped == {"columns": 1, "bad_utf8": 1}


def test_invalid_patterns_and_requests_are_named(tmp_path):
    write(tmp_path, train_en=EN, train_de=DE)
    corpus = parallel(tmp_path, ("en", "de", "fr"))
    for request, message in [
        (("test", ("en", "de")), "no split 'test': it has train"),
        (("train", ("en", "ja")), "'ja' is not among its languages en de fr"),
        (("train", ("en", "fr")), "no file .*train.fr"),
        (("train", ("en", "en")), "source and target are the same"),
    ]:
        with pytest.raises(UserError, match=message):
            corpus.pairs(*request)
    for make, message in [
        (lambda: ParallelFiles("mine", "x.{language}", ("en", "de")), "must have {language} and"),
        (lambda: ParallelFiles("mine", "{split}.{language", ("en", "de")), "expected '}'"),
        (lambda: TsvFile("mine", "{split}.{language}.tsv"), "no other field in braces"),
        (lambda: TsvFile("mine", f"{tmp_path}/{{split}}.tsv"), "no files match"),
        (lambda: parallel(tmp_path / "elsewhere"), "no files match .*elsewhere"),
        (lambda: parallel(tmp_path, ("en",)), "two or more"),
        (lambda: parallel(tmp_path, ("en", "de"), splits={"dev": "val"}), "'dev' must be one of"),
        (lambda: Cleaning(on_bad_line="ignore"), "must be 'error' or 'drop'"),
        (lambda: Cleaning(max_characters=0), "at least 1"),
    ]:
        with pytest.raises(UserError, match=message):
            make()


def test_cldr_text_serves_the_embedded_corpus():
    corpus = CldrPhrases(["en", "de", "cs"], 5, sizes={"train": 20, "test": 10})
    assert corpus.splits() == ("train", "test")
    assert len(corpus.directions("train")) == 6
    pairs = list(corpus.pairs("train", ("de", "cs")))
    assert pairs == CldrCorpus(["de", "cs"], 5).pairs("train", ("de", "cs"), 20)
    assert corpus.size("test", ("cs", "en")) == len(list(corpus.pairs("test", ("cs", "en")))) == 10
    with pytest.raises(UserError, match="no split 'validation'"):
        corpus.pairs("validation", ("en", "de"))


def test_english_of_a_country_is_read_from_the_named_pairs(tmp_path):
    for code in ("en_GB", "de", "fr"):
        (tmp_path / f"train.{code}").write_bytes(EN)
    corpus = parallel(tmp_path, ("en_GB", "de", "fr"))
    text = language_text(corpus, corpus.directions("train"), 100, ["fr"])
    assert {code: len(lines) for code, lines in text.items()} == {"en_GB": 3, "de": 3, "fr": 3}


def test_registry(monkeypatch):
    monkeypatch.setattr(parallel_corpora, "CORPORA", dict(parallel_corpora.CORPORA))
    assert len(parallel_corpora.get_corpus("cldr").languages) == 24
    parallel_corpora.register_corpus("mine", lambda: CldrPhrases(["en", "de"], name="mine"))
    assert parallel_corpora.get_corpus("mine").languages == ("en", "de")
    with pytest.raises(UserError, match="'mine' is registered already"):
        parallel_corpora.register_corpus("mine", CldrPhrases)
    with pytest.raises(UserError, match="unknown corpus 'cldrr': did you mean cldr"):
        parallel_corpora.get_corpus("cldrr")
