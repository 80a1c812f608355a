"""The claims of docs/security.md on untrusted files, each with its test."""

from __future__ import annotations

import dataclasses
import os
import pickle
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path

import gin
import numpy as np
import pytest
import sentencepiece

from mnmt_jax.data.cache import TokenCache
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.evaluated_model import load_evaluated_model
from mnmt_jax.evaluation.report import report_page
from mnmt_jax.evaluation.result import Sample, read_result, write_result
from mnmt_jax.evaluation.result_tables import comparison_table
from mnmt_jax.interop.exporting import export_checkpoint
from mnmt_jax.interop.importing import import_checkpoint
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.vocabulary.vocabulary import Vocabulary
from tests.made_params import write_zero_run
from tests.made_run import make_cache
from tests.unit.made_results import made_result

ROOT = Path(__file__).parent.parent.parent
ROW = re.compile(r"^\| (?!what it may|---)(.+?) \| (.+) \|$", re.MULTILINE)


def test_every_sentence_names_a_test_that_exists():
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    known = set(re.findall(r"^def (test_\w+)\(", code, re.MULTILINE))
    rows = ROW.findall(page)
    assert len(rows) > 20 and len(rows) == page.count("\n| ") - page.count("\n| what it may")
    named: set[str] = set()
    for sentence, tests in rows:
        assert sentence.endswith("."), sentence
        names = re.findall(r"`(test_\w+)`", tests)
        assert names and set(names) <= known, f"{sentence} names {tests}"
        named |= set(names)
    own = set(re.findall(r"^def (test_\w+)\(", Path(__file__).read_text(), re.MULTILINE))
    assert own - named == {"test_every_sentence_names_a_test_that_exists"}


@pytest.fixture(scope="module")
def original_run(tmp_path_factory) -> Path:
    return write_zero_run(tmp_path_factory.mktemp("made") / "run")


@pytest.fixture
def run(original_run, tmp_path) -> Path:
    shutil.copytree(original_run, tmp_path / "run")
    return tmp_path / "run"


def _forbid_pickles(monkeypatch) -> None:
    def forbidden(*_, **__):
        raise AssertionError("something was unpickled")

    for name in ("load", "loads", "Unpickler", "_Unpickler"):
        monkeypatch.setattr(pickle, name, forbidden)


def test_opening_a_run_unpickles_nothing(run, monkeypatch):
    export_checkpoint("t5x", run, run.parent / "t5x")
    _forbid_pickles(monkeypatch)
    assert Translator.load(run).languages == ("en", "de", "fr")
    import_checkpoint("t5x", run.parent / "t5x", run.parent / "again")
    assert Translator.load(run.parent / "again").languages == ("en", "de", "fr")


def _state(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
    }


def test_reading_a_run_changes_nothing_in_it(run):
    before = _state(run)
    Translator.load(run)
    load_evaluated_model(run)
    export_checkpoint("t5x", run, run.parent / "out")
    assert RunDirectory(run).trained_tasks() is None
    assert before and _state(run) == before


def test_links_in_a_run_are_followed(run):
    (run / "vocabulary").rename(run.parent / "elsewhere")
    os.symlink(run.parent / "elsewhere", run / "vocabulary")
    assert Translator.load(run).languages == ("en", "de", "fr")


def test_training_writes_into_linked_folders(run):
    config, vocabulary = RunDirectory(run).config(), Vocabulary.load(run / "vocabulary")
    other = run.parent / "other"
    (run.parent / "mine").mkdir()
    other.mkdir()
    os.symlink(run.parent / "mine", other / "vocabulary")
    RunDirectory(other).prepare(config, vocabulary, has_checkpoint=False)
    assert (run.parent / "mine" / "spm.model").is_file()


def test_declared_model_sizes_are_trusted(run):
    text = (run / "config.gin").read_text()
    (run / "config.gin").write_text(text + "Decode.beam_size = 4096\nDecode.batch = 65536\n")
    assert RunDirectory(run).config().decode.beam_size == 4096
    (run / "config.gin").write_text(text + "Decode.beam_size = 1000000000\n")
    with pytest.raises(UserError, match="Decode.beam_size=1000000000 must be at least 1 and at"):
        RunDirectory(run).config()


def test_text_is_printed_unescaped():
    assert "\x1b[2J" in comparison_table([made_result("\x1b[2J", ("en", "de"), seed=1)])


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, name, attributes):
        self.names.add(name)
        self.attributes |= {key for key, _ in attributes}


def _parsed(page: str) -> _Page:
    parser = _Page()
    parser.feed(page)
    return parser


def test_texts_are_escaped_in_a_report(tmp_path):
    """With a script in every text of a result, the page has the same elements."""
    evil = "\"'></title></style><script src=//x>x</script><img onerror=x src=y>&lt;b&gt;"
    plain = made_result("plain", ("en", "de", "fr"), seed=1)
    direction = dataclasses.replace(plain.directions[0], notes=(evil,))
    texts = {name: evil for name in ("source", "target", "source_text", "reference", "hypothesis")}
    sample = Sample(**(dataclasses.asdict(plain.samples[0]) | texts | {"detected": evil}))
    result = dataclasses.replace(
        plain,
        **dict.fromkeys(("name", "task", "layout"), evil),
        directions=(direction, *plain.directions[1:]),
        signatures={evil: evil, "bleu": {evil: evil}},
        samples=(sample, *plain.samples),
        config={evil: {evil: evil}, "model": evil},
        decoding={evil: evil},
        notes=(evil,),
    )
    write_result(result, tmp_path / "scores.json")
    expected, actual = _parsed(report_page([plain])), report_page([read_result(tmp_path)])
    parsed = _parsed(actual)
    assert parsed.names <= expected.names and parsed.attributes <= expected.attributes
    assert "script" not in parsed.names and "img" not in parsed.names
    assert not {name for name in parsed.attributes if name.startswith("on")}
    assert not parsed.attributes & {"src", "href", "action", "data", "srcset", "xlink:href"}
    assert actual.count("&lt;script") > 10 and "url(" not in actual


def test_a_damaged_model_never_reaches_sentencepiece(run, monkeypatch):
    def forbidden(*_):
        raise AssertionError("SentencePiece was given a damaged model")

    monkeypatch.setattr(
        sentencepiece.SentencePieceProcessor, "load_from_serialized_proto", forbidden
    )
    path = run / "vocabulary" / "spm.model"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(UserError, match=r"vocabulary\.json: .*one of them is damaged"):
        Vocabulary.load(run / "vocabulary")
    path.write_bytes((path.read_bytes())[:-1])
    with pytest.raises(UserError, match=r"vocabulary\.json: .*one of them is damaged"):
        Vocabulary.load(run / "vocabulary")


def test_a_cache_unpickles_nothing(tmp_path, monkeypatch):
    cache = make_cache(tmp_path / "cache")
    _forbid_pickles(monkeypatch)
    opened = TokenCache.open(cache)
    assert len(opened.read("made_en_de", "train", np.arange(40))) == 40
    monkeypatch.undo()
    lengths = cache / "tasks" / "made_en_de" / "train-lengths.npy"
    np.save(lengths, np.array([{"a": 1}], object), allow_pickle=True)
    _forbid_pickles(monkeypatch)
    with pytest.raises(UserError, match=r"train-lengths\.npy: is damaged"):
        TokenCache.open(cache).lengths("made_en_de", "train")


def test_gin_imports_modules_named_in_a_file(tmp_path, monkeypatch):
    (tmp_path / "x_for_t5x.py").write_text("")
    (tmp_path / "t5x.gin").write_text("import x_for_t5x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    gin.parse_config_file(str(tmp_path / "t5x.gin"))
    gin.clear_config()
    assert sys.modules.pop("x_for_t5x")
