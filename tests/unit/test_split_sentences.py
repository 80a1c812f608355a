"""`mnmt translate --split_sentences`: lines that hold several sentences."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from pathlib import Path

import pytest

from mnmt_jax.commands import line_events, translate
from mnmt_jax.decoding.text import sentence_job
from mnmt_jax.decoding.text.sentence_job import SentenceJob
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.errors import UserError
from tests.unit.made_language_model import write_made_run
from tests.unit.made_translator import made_translator

LINES = ["one two.  three house!", "", "- green river", "12:30 😀", "behind " * 60, "a\u2028b"]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return write_made_run(tmp_path_factory.mktemp("run") / "run", made_translator("1", "register"))


@pytest.fixture
def command(run, tmp_path, monkeypatch):
    (tmp_path / "in").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    files = [f"--input={tmp_path / 'in'}", f"--output={tmp_path / 'out'}"]

    def call(*flags: str) -> list[str]:
        base = [f"--run={run}", "--source=en", "--target=de", *files, "--split_sentences"]
        monkeypatch.setattr("sys.argv", ["mnmt translate", *base, *flags])
        translate.main()
        return (tmp_path / "out").read_text(encoding="utf-8").split("\n")[:-1]

    return call


def test_each_line_is_its_text_translated(run, command, capsys):
    translator = Translator.load(run)
    texts = [translator.translate_text(line, source="en", target="de").text for line in LINES]
    assert command() == [" ".join(text.splitlines()) for text in texts]
    assert texts[3] == LINES[3] and texts[2].startswith("- ")
    assert "truncated" not in capsys.readouterr().err
    records = [json.loads(line) for line in command("--format=jsonl")]
    assert [record["line"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert records[1]["nbest"] == [] and records[3]["score"] == 0
    assert not any(record["truncated"] for record in records)


def test_sentences_are_contrasted_with_sentences_and_not_their_lines(
    command, tmp_path, monkeypatch, capsys
):
    drawn, draw = [], sentence_job.with_contrast_sources
    monkeypatch.setattr(
        sentence_job, "with_contrast_sources", lambda *args: drawn.append(draw(*args)) or drawn[-1]
    )
    (tmp_path / "in").write_text("one two. three house!\ngreen river. behind.\n")
    contrast = "--gin.Decode.source_contrast=0.5"
    expected = command(contrast)
    (lines,) = drawn
    sentences = {line.text for line in lines}
    assert sentences == {"one two.", "three house!", "green river.", "behind."}
    assert {text for line in lines for text in line.contrast_sources} < sentences
    records = [json.loads(line) for line in command(contrast, "--format=jsonl")]
    assert [record["translation"] for record in records] == expected
    assert not any("others" in record for record in records)
    assert "to contrast with" not in capsys.readouterr().err


def test_lines_with_markup_keep_their_tags(run, command, tmp_path):
    lines = ["<p>one <b>two</b>. three <i class=x>house</i>!</p>", "", "<br>12:30"]
    (tmp_path / "in").write_text("\n".join(lines) + "\n", encoding="utf-8")
    translator = Translator.load(run)
    texts = [
        translator.translate_text(line, source="en", target="de", markup="html").text
        for line in lines
    ]
    assert command("--markup=html") == texts
    assert re.findall("<.*?>", texts[0]) == re.findall("<.*?>", lines[0]) and texts[2] == lines[2]


def test_markup_is_part_of_what_a_file_was_made_by(run):
    job = SentenceJob.create(Translator.load(run))
    marked = dataclasses.replace(job, markup="xml").provenance()
    assert marked == job.provenance() | {"markup": "xml"}


def test_markup_needs_sentences(run, monkeypatch):
    flags = [f"--run={run}", "--source=en", "--target=de", "--markup=xml"]
    monkeypatch.setattr("sys.argv", ["mnmt translate", *flags])
    with pytest.raises(UserError, match="--markup needs --split_sentences"):
        translate.main()


def test_a_stopped_command_continues_after_its_last_window(command, monkeypatch, tmp_path):
    sampled = "--gin.Decode.temperature=1.0"
    monkeypatch.setattr(sentence_job, "_WINDOW_SIZE", 2)
    expected = command(sampled)
    (tmp_path / "out").unlink()
    as_completed, windows = SentenceJob.as_completed, []

    def stopping(self, lines, **options):
        windows.append([line.number for line in lines])
        if len(windows) == 3:
            raise KeyboardInterrupt
        yield from as_completed(self, lines, **options)

    monkeypatch.setattr(SentenceJob, "as_completed", stopping)
    with pytest.raises(KeyboardInterrupt):
        command(sampled)
    assert command(sampled) == expected
    assert windows == [[0, 1], [2, 3], [4, 5], [4, 5]]


def test_no_two_sentences_are_sampled_with_one_seed(run, monkeypatch):
    seeds, draw = [], sentence_job.with_contrast_sources

    def record(lines, decode):
        seeds.extend(line.seed for line in lines)
        return draw(lines, decode)

    monkeypatch.setattr(sentence_job, "with_contrast_sources", record)
    monkeypatch.setattr(sentence_job, "_WINDOW_SIZE", 2)
    job = SentenceJob.create(Translator.load(run))
    lines = job.number_lines(["one. two. three.", "house. river."] * 2, source="en", target="de")
    assert len(list(job.in_order(lines))) == 4
    assert len(set(seeds)) == len(seeds) == 10


@pytest.mark.parametrize(
    ("changed", "names_flag"),
    [
        ({}, True),
        ({"num_processes": 1}, True),
        ({"split_sentences": True}, False),
        ({"context": 0}, False),
        ({"num_processes": 2}, False),
        ({"runner": "beam"}, False),
    ],
)
def test_truncated_lines_name_the_flag_if_it_applies(run, capsys, changed, names_flag):
    plain = {"split_sentences": False, "context": None, "num_processes": None, "runner": ""}
    flags = argparse.Namespace(**plain | changed)
    job = SentenceJob.create(Translator.load(run))
    line_events.report_events({}, line_events.LineEvents(truncated=[5]), job, flags)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("add a larger bucket to --gin.Decode.buckets")
    assert ("; --split_sentences translates them whole, or" in line) == names_flag


def test_several_processes_are_refused(command):
    with pytest.raises(
        UserError, match="--split_sentences translates in one process; leave --num_processes out"
    ):
        command("--num_processes=2", "--process_id=0")
