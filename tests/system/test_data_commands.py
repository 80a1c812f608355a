"""The commands `vocabulary` and `cache`."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mnmt_jax.config.sections import Data
from mnmt_jax.data.cache import TokenCache
from mnmt_jax.data.cache_writer import TaskSource, write_cache
from mnmt_jax.data.input_pipeline import Pipeline
from mnmt_jax.design.layouts import LAYOUTS
from mnmt_jax.vocabulary.vocabulary import Vocabulary
from tests import fresh_process
from tests.unit import made_text

ROOT = Path(__file__).resolve().parents[2]
FEW_PIECES = "--vocab_size=40", "--no-byte_fallback"


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return fresh_process.run(script, *arguments)


def succeed(script: str, *arguments: object) -> dict:
    done = run(script, *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def tsv(tmp_path) -> Path:
    """A TSV training file (gzip) and validation file with one blank cell."""
    folder = tmp_path / "text"
    folder.mkdir()
    rows = list(zip(*(made_text.sentences(x, 30) for x in ("en", "de", "fr")), strict=True))
    text = "en\tde\tfr\n" + "".join("\t".join(row) + "\n" for row in rows)
    with gzip.open(folder / "train.tsv.gz", "wt", encoding="utf-8") as file:
        file.write(text)
    lines = text.splitlines()[:9]
    (folder / "dev.tsv").write_text("\n".join([*lines, "one\t\tun"]) + "\n", encoding="utf-8")
    return folder


def test_user_text_becomes_batches(tsv, tmp_path):
    corpus = ["--tsv", tsv / "{split}.tsv", "--splits", "train=train,validation=dev"]
    corpus += ["--directions", "en-de,de-en", "--name", "mine", "--on_bad_line", "drop"]
    made = succeed(
        "train_vocabulary.py",
        *corpus,
        "--vocab_size",
        40,
        "--no-byte_fallback",
        "--output",
        tmp_path / "vocabulary",
    )
    assert made["size"] == 40 + 2 and made["languages"] == ["en", "de"]
    done = run(
        "cache_tasks.py",
        *corpus,
        "--vocabulary",
        tmp_path / "vocabulary",
        "--output",
        tmp_path / "c",
    )
    assert done.returncode == 0, done.stderr
    assert "dropped 1 of 9 lines" in done.stderr and "blank 1" in done.stderr
    summary = json.loads(done.stdout)
    assert summary["tasks"] == {"train": 2, "validation": 2}
    cache = TokenCache.open(tmp_path / "c")
    assert cache.tasks_with("train") == ("mine_en_de", "mine_de_en")
    assert cache.vocabulary.fingerprint == made["fingerprint"]
    source, target = cache.pair("mine_de_en", "train", 4)
    assert cache.vocabulary.decode(source) == made_text.sentence(5, "de")
    assert cache.vocabulary.decode(target) == made_text.sentence(5, "en")
    data = Data(rows=4, source_length=32, target_length=32, max_segments=4, chunk_examples=20)
    batch = next(Pipeline(cache, LAYOUTS["prefix"], data).train())
    assert (batch["target_segment_ids"] > 0).sum() > 20


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tsv", "{text}/{{split}}.tsv", "--languages", "en,de,es"], "has no text in 'es'"),
        (["--parallel", "{text}/nowhere", "--languages", "en,de"], "no such directory"),
    ],
)
def test_missing_text_is_one_error_line(tsv, tmp_path, flags, message):
    flags = [flag.format(text=tsv) for flag in flags]
    done = run("cache_tasks.py", *flags, "--splits", "train=train", "--output", tmp_path / "cache")
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert message in done.stderr and not (tmp_path / "cache").exists()


def test_the_small_mixture_is_cached_without_tensorflow(tmp_path):
    code = (
        "import sys; sys.argv = ['cache_tasks.py', *sys.argv[1:]]\n"
        "from scripts import cache_tasks; cache_tasks.main()\n"
        "heavy = {'tensorflow', 'seqio', 't5x'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    arguments = ["--mixture", "cldr_quickstart", "--directions", "en-cs", "--vocab_size", "1200"]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments, "--output", str(tmp_path / "cache")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    cache = TokenCache.open(tmp_path / "cache")
    assert cache.tasks_with("train") == ("cldr_quickstart_en_cs",)
    assert cache.tasks_with("validation") == ("cldr_quickstart_en_cs", "cldr_quickstart_cs_en")
    assert cache.split("cldr_quickstart_en_cs", "train").examples == 30_000
    lengths = cache.lengths("cldr_quickstart_en_cs", "train")
    assert 3 < np.mean(lengths) < 30


def test_temporary_files_of_a_killed_process_are_removed(tmp_path):
    """Files of a living process or of another machine stay."""
    program = (
        "import os, signal\n"
        "from mnmt_jax.data.cache_writer import TaskSource, write_cache\n"
        "from tests.unit import made_text\n"
        "def pairs():\n"
        "    yield [3], [4]\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "task = TaskSource('made', 'en', 'de', {'train': pairs})\n"
        f"write_cache({str(tmp_path / 'cache')!r}, [task], vocabulary=made_text.vocabulary())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True)
    [left] = tmp_path.iterdir()
    assert done.returncode == -9 and left.name.startswith(".cache.partial-") and left.is_dir()
    machine = left.name.rpartition("-")[0]
    others = [f"{machine}-{os.getppid()}", ".cache.partial-elsewhere-1", ".cache2.partial-x-1"]
    for name in others:
        (tmp_path / name).mkdir()
    task = TaskSource("made", "en", "de", {"train": lambda: [([3], [4])]})
    write_cache(tmp_path / "cache", [task], vocabulary=made_text.vocabulary())
    assert {path.name for path in tmp_path.iterdir()} == {"cache", *others}


@pytest.fixture
def shared_words(tmp_path) -> list:
    """Return flags of a text in which two of three languages share words, and of its vocabulary."""
    words = {"en": "the hotel in ({})", "de": "das hotel in ({})", "fr": "un ({})"}
    for code, frame in words.items():
        lines = [frame.format(line) for line in made_text.sentences(code, 30)]
        (tmp_path / f"train.{code}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    corpus = ["--parallel", tmp_path / "{split}.{language}", "--languages", "en,de,fr"]
    sizes = ["--vocab_size", 70, "--no-byte_fallback", "--model_type", "bpe"]
    succeed("train_vocabulary.py", *corpus, *sizes, "--output", tmp_path / "vocabulary")
    return [*corpus, "--vocabulary", tmp_path / "vocabulary"]


def test_languages_get_copies_of_shared_pieces(shared_words, tmp_path):
    # Two pairs read each English and German line, and of two opposite directions one counts.
    flags = [*shared_words, "--lavs", "code", "--lavs_threshold", 59]
    made = succeed("train_vocabulary.py", *flags, "--output", tmp_path / "split")
    vocabulary, facts = Vocabulary.load(tmp_path / "split"), made["lavs"]
    assert made["size"] == vocabulary.size == facts["size_before"] + len(vocabulary.copies)
    assert [code for piece, code in vocabulary.copies if piece == "▁in"] == ["en", "de"]
    split = {piece for piece, _ in vocabulary.copies}
    assert facts["split_pieces"] == len(split) and facts["copies"] == len(vocabulary.copies)
    assert facts["left_shared_by_their_characters"] == facts["flagged_pieces"] - len(split) > 0
    assert facts["rule"] == "code" and facts["threshold"] == 59
    done = run("train_vocabulary.py", *flags[:-1], 60, "--output", tmp_path / "higher")
    assert done.returncode == 2 and "occurs more than 60 times" in done.stderr
    done = run(
        "cache_tasks.py", *shared_words[:-1], tmp_path / "split", "--output", tmp_path / "cache"
    )
    assert done.returncode == 0, done.stderr
    cache = TokenCache.open(tmp_path / "cache")
    source, target = cache.pair("corpus_en_de", "train", 0)
    assert cache.vocabulary.decode(source).startswith("the hotel in (")
    assert "▁in_en" in cache.vocabulary.tokens(source)
    assert "▁in_de" in cache.vocabulary.tokens(target)
    count = facts["copies"]
    chosen = ["--lavs", "code", "--lavs_copies", count, "--output", tmp_path / "chosen"]
    facts = succeed("train_vocabulary.py", *shared_words, *chosen)["lavs"]
    assert facts["copies"] == count and facts["threshold"] < 59
    again = ["--lavs", "paper", "--lavs_pairs", 5, "--output", tmp_path / "paper"]
    facts = succeed("train_vocabulary.py", *shared_words, *again)["lavs"]
    assert facts["pairs"] == 5 and facts["left_shared_by_their_characters"] == 0
    assert 5 <= facts["copies"] <= 10


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--lavs", "code", "--lavs_threshold", 999], "more than 999 times .* lower --lavs_thres"),
        (["--lavs", "code", "--lavs_pairs", 3], "--lavs_pairs does not apply to --lavs code"),
        (["--lavs", "paper"], "--lavs paper needs --lavs_pairs"),
        (["--lavs", "code", "--lavs_copies", 1], "raise --lavs_copies or give more text"),
        (
            ["--lavs", "code", "--lavs_copies", 9, "--lavs_threshold", 9],
            "--lavs_copies chooses the threshold; omit --lavs_threshold",
        ),
        (["--lavs", "paper", "--lavs_copies", 3], "--lavs_copies does not apply to --lavs paper"),
        (["--lavs", "code", "--vocab_size", 9], "--vocab_size does not apply to --lavs"),
        (["--lavs", "code", "--vocabulary", "no/such"], "no/such.*: no such file"),
        (["--lavs", "code", "--output", "{vocabulary}"], "--output: is the folder of --vocabulary"),
        (
            ["--lavs", "code", "--english_from", "de"],
            "--english_from does not apply to an existing",
        ),
        (["--lavs_threshold", 3], "--vocabulary does not apply to a new vocabulary"),
    ],
)
def test_invalid_piece_copies_are_one_error_line(shared_words, tmp_path, changes, message):
    before = {path: path.read_bytes() for path in (tmp_path / "vocabulary").iterdir()}
    changes = [str(flag).format(vocabulary=tmp_path / "vocabulary") for flag in changes]
    done = run("train_vocabulary.py", *shared_words, "--output", tmp_path / "split", *changes)
    assert done.returncode == 2 and done.stdout == "", done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ") and re.search(message, last) and "Traceback" not in last
    assert not (tmp_path / "split").exists()
    assert before == {path: path.read_bytes() for path in (tmp_path / "vocabulary").iterdir()}


def test_an_existing_model_is_used(tmp_path):
    model = tmp_path / "any.model"
    model.write_bytes(made_text.vocabulary().model)
    flags = [
        "--sentencepiece",
        model,
        "--languages",
        "fr, en,",
        "--output",
        tmp_path / "vocabulary",
    ]
    assert succeed("train_vocabulary.py", *flags)["size"] == 62
    assert Vocabulary.load(tmp_path / "vocabulary").tag_id("fr") == 60


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mixture", "nix"], "unknown mixture 'nix'; built in are cldr_quickstart"),
        ([], "one of the arguments --mixture --parallel --tsv --bitext --text is"),
        (["--parallel", "text"], "--parallel needs --languages"),
        (["--parallel", "no/such", "--languages", "en,de"], "--parallel=no/such"),
        (["--tsv", "no/{split}.tsv"], "no files match"),
        (["--mixture", "cldr_quickstart", "--directions", "ende"], "'ende' must be SOURCE-TARGET"),
        (["--mixture", "cldr_quickstart", "--directions", "en-ja"], "'ja', which is not among en "),
        (["--mixture", "cldr_quickstart", "--vocabulary", "no/such"], "no such file"),
        (["--mixture", "cldr_quickstart", "--name", "x"], "--name does not apply to the built-in"),
        (["--mixture", "cldr_quickstart", "--languages", "en"], "--languages does not apply to"),
        (["--mixture", "cldr_quickstart", "--splits", "test=a"], "--splits does not apply to"),
        (["--mixture", "cldr_quickstart", "--on_bad_line", "drop"], "--on_bad_line does not apply"),
        (["--mixture", "cldr_quickstart", "--vocab_size", "90"], "--vocab_size does not apply to"),
    ],
)
def test_invalid_arguments_are_one_error_line(arguments, message, tmp_path):
    if "--vocabulary" not in arguments:
        made_text.vocabulary().save(tmp_path / "v")
        arguments = [*arguments, "--vocabulary", str(tmp_path / "v")]
    done = run("cache_tasks.py", *arguments, "--output", tmp_path / "cache")
    assert done.returncode == 2 and done.stdout == ""
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ") and message in last
    assert "Traceback" not in done.stderr and not (tmp_path / "cache").exists()


def test_a_direction_without_text_is_named(tmp_path):
    for language in ("de", "fr"):
        for code in ("en", language):
            text = "\n".join(made_text.sentences(code, 9)) + "\n"
            (tmp_path / f"train.en-{language}.{code}").write_text(text, encoding="utf-8")
    made_text.vocabulary().save(tmp_path / "v")
    flags = ["--parallel", tmp_path / "{split}.{pair}.{language}", "--languages", "en,de,fr"]
    flags += ["--vocabulary", tmp_path / "v", "--output", tmp_path / "cache", "--name", "mine"]
    done = run("cache_tasks.py", *flags, "--directions", "en-de,de-fr")
    assert done.returncode == 2 and "no training text for de-fr" in done.stderr


def test_missing_files_are_named(tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    for split, codes in {"train": "en de fr", "validation": "en de"}.items():
        for code in codes.split():
            text = "".join(f"{line}\n" for line in made_text.sentences(code, 30))
            (folder / f"{split}.{code}").write_text(text, encoding="utf-8")
    flags = ["--parallel", folder, "--languages", "en,de,fr", "--directions", "en-de,en-fr"]
    flags += ["--name", "mine", *FEW_PIECES, "--output"]
    done = run("cache_tasks.py", *flags, tmp_path / "c")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "warning: no validation text: mine_en_fr"
    (folder / "train.fr").rename(folder / "test.fr")
    (folder / "train.en").with_name("test.en").write_text("one\n")
    done = run("cache_tasks.py", *flags, tmp_path / "d")
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr  # no vocabulary first
    assert (
        f"no training text for en-fr (no file {folder / 'train.fr'}); it has en-de" in done.stderr
    )


@pytest.mark.parametrize("flag", ["--vocab_size=90", "--seed=1", "--splits=test=a", "--name=x"])
def test_an_existing_model_refuses_training_options(flag, tmp_path):
    flags = ["--sentencepiece", "any.model", "--languages", "fr,en", "--output", tmp_path / "v"]
    done = run("train_vocabulary.py", *flags, flag)
    name = flag.partition("=")[0]
    expected = f"error: {name} does not apply to --sentencepiece; leave it out"
    assert done.returncode == 2 and done.stderr.strip() == expected


@pytest.mark.parametrize("script", ["train_vocabulary.py", "cache_tasks.py"])
def test_help_imports_nothing_heavy(script):
    code = (
        "import runpy, sys\n"
        f"sys.argv = [{script!r}, '--help']\n"
        f"try: runpy.run_path('scripts/{script}', run_name='__main__')\n"
        "except SystemExit as error: assert not error.code\n"
        "heavy = {'jax', 'grain', 'flax', 'tensorflow', 'numpy', 'babel'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--mixture" in done.stdout


def test_the_data_path_needs_no_tensorflow():
    modules = ["vocabulary", "data.cache", "data.input_pipeline", "data.mixtures", "data.converter"]
    code = "import sys\n" + "".join(f"import mnmt_jax.{module}\n" for module in modules)
    code += "heavy = {'tensorflow', 'seqio', 't5x'} & set(sys.modules)\nassert not heavy, heavy"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
