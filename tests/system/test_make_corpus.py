"""The command `corpus`: reproducible files in standard formats."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from mnmt_jax.data.cldr import CldrCorpus
from mnmt_jax.data.parallel_corpora import ParallelFiles, TsvFile
from tests.fresh_process import PATIENCE

SCRIPT = pathlib.Path(__file__).parents[2] / "scripts" / "make_corpus.py"
SIZES = {"train": 300, "validation": 20, "test": 40}


def run(*arguments, hash_seed="0"):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def make(output, *arguments, **options):
    sizes = [argument for split, size in SIZES.items() for argument in (f"--{split}", size)]
    result = run("--output", output, "--languages", "en, de,ja,", *sizes, *arguments, **options)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_parallel_files_contain_the_corpus_and_are_reproducible(tmp_path):
    summary = make(tmp_path / "a", "--seed", 7)
    make(tmp_path / "b", "--seed", 7, hash_seed="99")
    make(tmp_path / "c", "--seed", 8)
    files = contents(tmp_path / "a")
    assert files == contents(tmp_path / "b")
    assert files["train.ja"] != contents(tmp_path / "c")["train.ja"]
    assert set(files) == {f"{split}.{code}" for split in SIZES for code in ("en", "de", "ja")}
    assert summary["lines"] == {name: SIZES[name.split(".")[0]] for name in files}
    assert summary["seed"] == 7 and summary["languages"] == ["en", "de", "ja"]
    pattern = f"{tmp_path}/a/{{split}}.{{language}}"
    written = ParallelFiles("written", pattern, ("en", "de", "ja"))
    for split, size in SIZES.items():
        expected = CldrCorpus(["en", "de", "ja"], 7).sentences(split, size)
        pairs = [(line["de"], line["ja"]) for line in expected]
        assert list(written.pairs(split, ("de", "ja"))) == pairs
    for code in ("en", "de", "ja"):
        lines = {split: set(files[f"{split}.{code}"].splitlines()) for split in SIZES}
        assert not lines["test"] & lines["train"] and not lines["validation"] & lines["train"]


def test_tsv_contains_the_same_sentences(tmp_path):
    summary = make(tmp_path, "--format", "tsv", "--inventory", "large")
    assert set(contents(tmp_path)) == {"train.tsv", "validation.tsv", "test.tsv"}
    assert summary["lines"]["train.tsv"] == 300
    written = TsvFile("written", f"{tmp_path}/{{split}}.tsv")
    assert written.languages == ("en", "de", "ja")
    expected = CldrCorpus(["en", "de", "ja"], inventory="large").sentences("test", 40)
    pairs = [(line["ja"], line["en"]) for line in expected]
    assert list(written.pairs("test", ("ja", "en"))) == pairs


def test_an_empty_split_is_not_written(tmp_path):
    result = run("--output", tmp_path, "--train", 5, "--validation", 0, "--test", 0)
    assert result.returncode == 0, result.stderr
    assert set(contents(tmp_path)) == {"train.en", "train.de", "train.fr"}


def test_existing_files_are_kept_unless_overwriting_is_requested(tmp_path):
    (tmp_path / "test.de").write_text("mine\n")
    result = run("--output", tmp_path, "--train", 5)
    assert result.returncode == 2
    assert "test.de: already exists; choose another --output or pass --overwrite" in result.stderr
    assert contents(tmp_path) == {"test.de": b"mine\n"}
    assert run("--output", tmp_path, "--train", 5, "--overwrite").returncode == 0
    assert contents(tmp_path)["test.de"] != b"mine\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--languages", "en,xx"), "unknown language 'xx'"),
        (("--languages", "en,en"), "'en' is listed twice"),
        (("--train", "-1"), "'-1' must be a whole number from 0 to"),
        (("--format", "xml"), "--format"),
        (("--train", "many"), "--train"),
    ],
)
def test_invalid_arguments_are_one_error_line_and_leave_no_files(tmp_path, arguments, message):
    result = run("--output", tmp_path / "new", *arguments)
    assert result.returncode == 2
    assert result.stdout == "" and message in result.stderr
    assert result.stderr.count("error:") == 1 and "Traceback" not in result.stderr
    assert not (tmp_path / "new").exists()
