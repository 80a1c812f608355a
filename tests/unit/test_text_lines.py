"""Lines of text files: encodings by their byte order marks, limits, and shares of bad lines."""

from __future__ import annotations

import gzip
import io
import json
import os
import tracemalloc

import pyarrow
import pytest
from pyarrow import parquet

from mnmt_jax.commands.text_files import check_input_file, check_output_file
from mnmt_jax.commands.text_files import read_lines as input_lines
from mnmt_jax.data import corpus as corpus_module
from mnmt_jax.data.encodings import guess_narrow_encoding, guess_wide_encoding
from mnmt_jax.data.file_columns import TextColumn
from mnmt_jax.data.monolingual import MonolingualFiles
from mnmt_jax.data.parallel_corpora import ParallelFiles, TsvFile
from mnmt_jax.data.text_reader import MAX_LINE_BYTES, Cleaning, Flaw, read_lines
from mnmt_jax.decoding.input_checks import check_text
from mnmt_jax.errors import UserError
from tests.limited import error_of, run_limited

DROP = Cleaning("drop")
TEXT = "Grüße aus Köln.\r\n\nЗдравствуй\u2028мир\n今日は\nΩ 🙂\nEnde"
LINES = ["Grüße aus Köln.", "", "Здравствуй\u2028мир", "今日は", "Ω 🙂", "Ende"]
MARKS = {
    "utf-8": b"\xef\xbb\xbf",
    "utf-16-le": b"\xff\xfe",
    "utf-16-be": b"\xfe\xff",
    "utf-32-le": b"\xff\xfe\0\0",
    "utf-32-be": b"\0\0\xfe\xff",
}


class Dribble(io.BytesIO):
    """A pipe that gives a few bytes at a time."""

    def __init__(self, content: bytes, size: int) -> None:
        super().__init__(content)
        self._size = size

    def read1(self, size: int = -1) -> bytes:
        return self.read(self._size)


@pytest.mark.parametrize("encoding", MARKS)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
def test_byte_order_marks_are_read(encoding, size):
    content = MARKS[encoding] + TEXT.encode(encoding)
    assert list(read_lines(Dribble(content, size))) == LINES


@pytest.mark.parametrize("size", [1, 7, 64, 1 << 18])
@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\r"])
def test_the_block_size_does_not_matter(size, end):
    content = b"one\r\n\r\n\ntw\xffo\nthree\rmore\r\r\nfour" + end
    lines = [x if isinstance(x, str) else x.reason for x in read_lines(Dribble(content, size))]
    assert lines == ["one", "", "", "bad_utf8", "three\rmore\r", "four"]


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_a_pipe_is_read_by_its_name(compress):
    reader, writer = os.pipe()
    os.write(writer, compress(b"in 3 Tagen\nvor 2 Tagen\n"))
    os.close(writer)
    try:
        check_input_file(f"/dev/fd/{reader}")
        assert list(input_lines(f"/dev/fd/{reader}")) == ["in 3 Tagen", "vor 2 Tagen"]
    finally:
        os.close(reader)


def test_a_closed_standard_input_is_one_error_line(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdin", None)  # as after <&-
    check_output_file(str(tmp_path / "out"), None)
    with pytest.raises(UserError, match="^there is no standard input; name a file with --input$"):
        list(input_lines(None))


def test_invalid_utf16_is_a_bad_line():
    """Half a pair of surrogates, and half a unit at the end."""
    content = b"\xff\xfe" + "a\n".encode("utf-16-le") + b"\x00\xd8" + "b\nc".encode("utf-16-le")
    first, second, third = read_lines(io.BytesIO(content + b"x"))
    assert first == "a" and isinstance(second, Flaw) and isinstance(third, Flaw)
    assert second.reason == third.reason == "bad_utf8" and "UTF-16LE" in second.detail


def test_commands_and_corpora_read_other_encodings(tmp_path):
    (tmp_path / "train.en").write_bytes("\ufeffOne.\nTwo.\n".encode("utf-16-be"))
    (tmp_path / "train.de").write_bytes("Eins.\nZwei.\n".encode("utf-16"))
    pairs = ParallelFiles("x", f"{tmp_path}/{{split}}.{{language}}", ("en", "de"))
    assert list(pairs.pairs("train", ("en", "de"))) == [("One.", "Eins."), ("Two.", "Zwei.")]
    alone = MonolingualFiles("x", f"{tmp_path}/train.{{language}}", ("de",), splits={})
    assert [text for _, text in alone.pairs("train", ("de", "de"))] == ["Eins.", "Zwei."]
    assert list(input_lines(str(tmp_path / "train.en"))) == ["One.", "Two."]
    (tmp_path / "train.tsv").write_bytes("en\tde\nOne.\tEins.\n".encode("utf-16"))
    assert list(TsvFile("x", f"{tmp_path}/{{split}}.tsv").pairs("train", ("en", "de"))) == [
        ("One.", "Eins.")
    ]


def test_a_tsv_file_without_byte_order_mark_names_its_location_once(tmp_path):
    for encoding in ("utf-16-le", "utf-16-be", "utf-32-le"):
        (tmp_path / "train.tsv").write_bytes("en\tde\nOne.\tEins.\n".encode(encoding))
        with pytest.raises(UserError, match=r"^\S*train\.tsv:1: not UTF-8 .*UTF-") as caught:
            TsvFile("x", f"{tmp_path}/{{split}}.tsv")
        assert str(caught.value).count("train.tsv") == 1


GERMAN = [f"Die Straße Nummer {n} führt über größere Brücken." for n in range(20)]
GERMAN += [f"This line {n} is plain." for n in range(10)]
ENCODED = {
    "Windows-1252": ("\n".join(GERMAN) + "\n").encode("cp1252"),
    "UTF-16LE": ("\n".join(GERMAN) + "\n").encode("utf-16-le"),
    "UTF-16BE": ("\n".join(GERMAN) + "\n").encode("utf-16-be"),
    "UTF-32LE": ("\n".join(GERMAN) + "\n").encode("utf-32-le"),
    "Shift_JIS": ("今日は天気がいいですね。\n" * 30).encode("shift_jis"),
    "GB18030": ("今天天气很好，我们去北京。\n" * 30).encode("gb18030"),
    "Windows-1251": ("Привет, как твои дела сегодня?\n" * 30).encode("cp1251"),
    "Windows-1250": ("Příliš žluťoučký kůň úpěl ďábelské ódy.\n" * 30).encode("cp1250"),
}
LANGUAGE_OF = {"Shift_JIS": "ja", "GB18030": "zh", "Windows-1251": "ru", "Windows-1250": "cs"}


@pytest.mark.parametrize("encoding", ENCODED)
def test_a_file_of_another_encoding_is_refused_entirely(tmp_path, encoding):
    content, code = ENCODED[encoding], LANGUAGE_OF.get(encoding, "de")
    (tmp_path / f"train.{code}").write_bytes(content)
    (tmp_path / "train.en").write_text("A sentence.\n" * (content.count(b"\n") + 1))
    pairs = ParallelFiles(
        "x", f"{tmp_path}/{{split}}.{{language}}", ("en", code), cleaning=DROP
    ).pairs("train", ("en", code))
    message = (
        rf"train\.{code}\S*: the first of \d+ lines among \d+ that are not UTF-8; convert .*"
        rf"iconv -f {encoding} -t UTF-8"
    )
    with pytest.raises(UserError, match=message):
        list(pairs)
    path, bad = str(tmp_path / f"train.{code}"), {}
    # Czech letters are guessed as Cyrillic or Western ones where the language is not known.
    language = "ces" if code == "cs" else None
    with pytest.raises(UserError, match=message.replace(r"\S*:", r", line \d+:")):
        list(input_lines(path, bad, language=language))
    with pytest.raises(UserError, match=rf"line \d+: not UTF-8.*convert .*iconv -f {encoding}"):
        list(input_lines(path, language=language))


def test_the_likely_encoding_is_that_of_the_known_languages(tmp_path):
    czech = b"".join(b"A line.\t" + line for line in ENCODED["Windows-1250"].splitlines(True))
    (tmp_path / "train.tsv").write_bytes(b"en\tcs\n" + czech)
    (tmp_path / "train.jsonl").write_bytes(b'{"en": "A", "cs": "\xed\xe9"}\n')
    (tmp_path / "train.de").write_bytes("größer\n".encode("cp1252"))
    (tmp_path / "train.hi").write_bytes("größer\n".encode("cp1252"))
    columns = f"{tmp_path}/{{split}}.jsonl#{{language}}"
    text = f"{tmp_path}/train.{{language}}"
    for corpus, direction, hint in (
        (TsvFile("x", f"{tmp_path}/{{split}}.tsv"), ("en", "cs"), "-f Windows-1250"),
        (ParallelFiles("x", columns, ("en", "cs")), ("en", "cs"), "-f Windows-1250"),
        (MonolingualFiles("x", text, ("de",), splits={}), ("de", "de"), "-f Windows-1252"),
        (MonolingualFiles("x", text, ("hi",), splits={}), ("hi", "hi"), r"convert .* UTF-8, or"),
    ):
        with pytest.raises(UserError, match=rf"not UTF-8 \(byte .*{hint}"):
            list(corpus.pairs("train", direction))


def test_iconv_knows_the_names():
    for encoding, content in ENCODED.items():
        assert content.decode(encoding)


@pytest.mark.parametrize(("lines", "bad"), [(20, 5), (200, 10)])
def test_a_few_bad_lines_are_dropped(tmp_path, lines, bad):
    content = [b"gr\xfcn" if n < bad else b"Gut." for n in range(lines)]
    (tmp_path / "a").write_bytes(b"\n".join(content) + b"\n")
    actual: dict[str, list[int]] = {}
    assert len(list(input_lines(str(tmp_path / "a"), actual))) == lines
    assert actual == {"bad_utf8": list(range(1, bad + 1))}
    (tmp_path / "a").write_bytes(b"\n".join([b"gr\xfcn", *content]) + b"\n")
    with pytest.raises(UserError, match=rf"first of {bad + 1} lines among {lines + 1}"):
        list(input_lines(str(tmp_path / "a"), {}))


def test_a_wrong_encoding_is_detected_early(tmp_path):
    (tmp_path / "a").write_bytes(b"gr\xfcn\n" * 100_000)
    seen = 0
    with pytest.raises(UserError, match="first of 1000 lines among 1000"):
        for _ in input_lines(str(tmp_path / "a"), {}):
            seen += 1
    assert seen == 999


def test_encodings_are_guessed_from_bytes():
    assert guess_wide_encoding(b"plain text") == ""
    assert guess_wide_encoding(b"") == "" and guess_wide_encoding(b"a") == ""
    assert guess_wide_encoding("日本 a b\n".encode("utf-16-le") * 3) == "UTF-16LE"
    assert guess_narrow_encoding("é".encode("cp1252")) == "Windows-1252"


def test_a_nul_character_is_a_bad_line(tmp_path):
    (tmp_path / "train.en").write_bytes(b"One.\nTw\0o.\n")
    (tmp_path / "train.de").write_bytes(b"Eins.\nZwei.\n")
    pattern = f"{tmp_path}/{{split}}.{{language}}"
    with pytest.raises(UserError, match=r"train\.en:2: a NUL character; fix it"):
        list(ParallelFiles("x", pattern, ("en", "de")).pairs("train", ("en", "de")))
    dropping = ParallelFiles("x", pattern, ("en", "de"), cleaning=DROP)
    assert list(dropping.pairs("train", ("en", "de"))) == [("One.", "Eins.")]


def test_lines_have_a_length_limit(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * MAX_LINE_BYTES + b"\n" + b"x" * (MAX_LINE_BYTES + 1))
    bad: dict[str, list[int]] = {}
    first, second = input_lines(str(tmp_path / "a"), bad)
    assert len(first) == MAX_LINE_BYTES and second == "" and bad == {"too_long": [2]}
    with pytest.raises(UserError, match=r"a, line 2: more than 1048576 bytes; split the line, or"):
        list(input_lines(str(tmp_path / "a")))
    with pytest.raises(UserError, match=r"more than 1048576 bytes; split the line$"):
        list(input_lines(str(tmp_path / "a"), has_on_bad_line=False))
    check_text("x" * MAX_LINE_BYTES, "line 1")
    with pytest.raises(UserError, match="line 1 has 1048577 bytes, more than 1048576; split"):
        check_text("x" * (MAX_LINE_BYTES + 1), "line 1")


def test_a_compressed_bomb_is_refused_in_little_memory(tmp_path):
    with gzip.open(tmp_path / "a.gz", "wb", compresslevel=1) as file:
        for _ in range(100):
            file.write(b"x" * (1 << 20))
    tracemalloc.start()
    with pytest.raises(UserError, match=r"a\.gz, line 1: more than 1048576 bytes"):
        list(input_lines(str(tmp_path / "a.gz")))
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


def test_too_many_blank_lines_are_refused(tmp_path, monkeypatch):
    """Kilobytes of gzip can hold billions of them."""
    for code in ("en", "de"):
        (tmp_path / f"train.{code}").write_bytes(b"a\n" + b"\n" * 100 + b"a\n" + b"\n" * 101)
    pattern = f"{tmp_path}/{{split}}.{{language}}"
    corpus = ParallelFiles("x", pattern, ("en", "de"), cleaning=DROP)
    monkeypatch.setattr(corpus_module, "_MAX_BAD_RUN", 101)
    assert corpus.size("train", ("en", "de")) == 2
    monkeypatch.setattr(corpus_module, "_MAX_BAD_RUN", 100)
    corpus = ParallelFiles("x", pattern, ("en", "de"), cleaning=DROP)
    with pytest.raises(UserError, match=r"train\.en:203: no sentence pair in 100 lines up to here"):
        corpus.size("train", ("en", "de"))


def test_a_hundred_megabytes_of_newlines(tmp_path):
    for code in ("en", "de"):
        with gzip.open(tmp_path / f"train.{code}.gz", "wb", compresslevel=1) as file:
            for _ in range(100):
                file.write(b"\n" * (1 << 20))
    code = """
import itertools, sys
from mnmt_jax.data.parallel_corpora import ParallelFiles
from mnmt_jax.data.text_reader import Cleaning, read_lines
print(sum(1 for _ in itertools.islice(read_lines(f"{sys.argv[1]}/train.en.gz"), 10 << 20)))
pattern = f"{sys.argv[1]}/{{split}}.{{language}}"
ParallelFiles("x", pattern, ("en", "de"), cleaning=Cleaning("drop")).size("train", ("en", "de"))
"""
    done = run_limited(code, tmp_path)
    assert done.stdout.strip() == str(10 << 20), done.stderr
    assert "no sentence pair in 1,000,000 lines" in error_of(done)


def test_unreadable_columns_are_one_error_line(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n' + "[" * 50_000 + "\n")
    text, flaw = TextColumn(str(tmp_path / "a.jsonl"), "text").read(MAX_LINE_BYTES)
    assert text == "a" and flaw == Flaw("bad_json", "not JSON (nested too deeply)")
    rows = [{"text": f"sentence {number}"} for number in range(1000)]
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), path, compression="gzip")
    content = bytearray(path.read_bytes())
    content[100:2000] = bytes(1900)
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"a\.parquet: (unreadable after row 0|not a Parquet)"):
        list(TextColumn(str(path), "text").read(MAX_LINE_BYTES))


@pytest.mark.parametrize("end", [b"", b"\r"])
def test_line_ends_of_old_macs_are_refused(tmp_path, end):
    """They would be one line; a carriage return beside line feeds is a character."""
    for code, text in (("en", b"one\rtwo"), ("de", b"eins\rzwei")):
        (tmp_path / f"train.{code}").write_bytes(text + end)
    pattern, pair = f"{tmp_path}/{{split}}.{{language}}", ("en", "de")
    message = r"train\.en: its lines end in carriage returns alone; .* tr '\\r' '\\n' < FILE > NEW$"
    for cleaning in (Cleaning(), DROP):
        with pytest.raises(UserError, match=message):
            list(ParallelFiles("x", pattern, pair, cleaning=cleaning).pairs("train", pair))
    with pytest.raises(UserError, match=message):
        list(input_lines(str(tmp_path / "train.en")))
    (flaw,) = read_lines(io.BytesIO(b"one\rtwo" * 9), 9)
    assert flaw.detail.startswith("more than 9 bytes (if its lines end in carriage returns alone")
    assert list(read_lines(io.BytesIO(b"one\rtwo\n"))) == ["one\rtwo"]
    assert list(read_lines(io.BytesIO(b"one\r\r"))) == ["one\r"]


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_null_in_a_column_is_a_blank_line(tmp_path, form):
    """Also where the object of the field is null; a line that is not JSON is bad, too."""
    rows = [{"t": {"en": "a", "de": "b"}}, {"t": {"en": None, "de": "b"}}, {"t": None}]
    path = tmp_path / f"train.{form}"
    if form == "parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        path.write_text("\n".join([*map(json.dumps, rows), "null", "{"]) + "\n")
    pattern, pair = f"{tmp_path}/{{split}}.{form}#t.{{language}}", ("en", "de")
    corpus = ParallelFiles("x", pattern, pair, cleaning=DROP)
    assert list(corpus.pairs("train", pair)) == [("a", "b")]
    counts = {"blank": 3, "bad_json": 1} if form == "jsonl" else {"blank": 2}
    assert corpus.reports["train", pair].dropped == counts
    message = f"{path.name}:2: field 't.en' is null; fix it, or drop such lines with --on_bad_line"
    with pytest.raises(UserError, match=message):
        list(ParallelFiles("x", pattern, pair).pairs("train", pair))
    corpus = ParallelFiles("x", f"{pattern}.text", pair, cleaning=DROP)
    with pytest.raises(UserError, match="'t.en.text' is missing or not text; name a field of text"):
        list(corpus.pairs("train", pair))


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"])
def test_a_file_with_only_a_byte_order_mark_has_no_lines(content):
    assert list(read_lines(io.BytesIO(content))) == []
