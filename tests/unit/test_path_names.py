"""Names that become part of a path are checked before anything is written."""

from __future__ import annotations

import pytest

from mnmt_jax.commands import evaluate
from mnmt_jax.commands.benchmark_corpus import benchmark_corpus
from mnmt_jax.data.cache_writer import TaskSource, write_cache
from mnmt_jax.data.parallel_corpora import CldrPhrases, ParallelFiles
from mnmt_jax.errors import UserError
from mnmt_jax.files.path_checks import check_inside, check_name
from mnmt_jax.vocabulary import sentencepiece_training as vocabulary_module
from mnmt_jax.vocabulary.sentencepiece_options import SentencePieceOptions
from mnmt_jax.vocabulary.vocabulary import Vocabulary
from tests.run_commands import command
from tests.unit import made_text

BAD = {
    "../../evil": "separator",
    "/evil": "separator",
    "a/b": "separator",
    "a\\b": "separator",
    "..": "no name",
    ".": "no name",
    "": "empty",
    " ": "empty",
    "a\nb": "control character",
    "a\x1b[31m": "control character",
    "a\0b": "control character",
    "\udc80": "not Unicode",
    "é" * 101: "longer than 200 bytes",
}
each_bad_name = pytest.mark.parametrize(("name", "message"), BAD.items(), ids=map(ascii, BAD))


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for split in ("train", "test"):
        for code in ("en", "de"):
            text = "\n".join(made_text.sentences(code, 10)) + "\n"
            (folder / f"{split}.{code}").write_text(text, encoding="utf-8")
    return folder


@each_bad_name
def test_names_are_refused_in_one_line(name, message):
    with pytest.raises(
        UserError, match=rf"^--name=.*{message}.*; choose a name of letters"
    ) as caught:
        check_name(name, "--name")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", ["mine", "a.b", "..a", "wmt14-en_de", "день", "x" * 200, "a b"])
def test_valid_names_are_accepted(name):
    assert check_name(name, "--name") == name


@each_bad_name
def test_the_name_of_a_cached_corpus(data, tmp_path, monkeypatch, name, message):
    monkeypatch.setattr(vocabulary_module, "train_sentencepiece", None)  # not reached
    folder = tmp_path / "a" / "b" / "cache"
    flags = f"--parallel={data}", "--languages=en,de", f"--name={name}", "--output", folder
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match=f"--name=.*{message}"):
        command("cache_tasks", *flags)
    assert sorted(tmp_path.rglob("*")) == before


@each_bad_name
def test_the_name_of_a_corpus_in_python(name, message):
    for make in (
        lambda: CldrPhrases(("en", "de"), name=name),
        lambda: ParallelFiles(name, "{split}.{language}", ()),
    ):
        with pytest.raises(UserError, match=f"corpus name=.*{message}"):
            make()


@each_bad_name
def test_the_name_of_evaluated_files(data, name, message):
    arguments = ["--run=x", "--output=y", f"--parallel={data}", "--languages=en,de"]
    flags = evaluate.make_parser().parse_args([*arguments, f"--task={name}"])
    with pytest.raises(UserError, match=f"--task=.*{message}"):
        benchmark_corpus(flags)


@pytest.mark.parametrize("name", ["../evil_en_de", "a/b_en_de", "x" * 241])
def test_task_names_are_checked_in_the_cache(tmp_path, vocabulary, name):
    task = TaskSource(name, "en", "de", {"train": lambda: [([3], [4])]})
    with pytest.raises(UserError, match="task="):
        write_cache(tmp_path / "cache", [task], vocabulary=vocabulary)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def vocabulary():
    text = {code: made_text.sentences(code, 60) for code in ("en", "de")}
    options = SentencePieceOptions(vocab_size=40, byte_fallback=False)
    return Vocabulary(vocabulary_module.train_model(text, options), ("en", "de"))


@pytest.mark.parametrize("code", ["a/b", "../c", "", "a\tb"])
def test_language_codes_are_checked(tmp_path, vocabulary, code):
    """Translation files are named by language codes."""
    with pytest.raises(UserError, match="cannot be a language code"):
        Vocabulary(vocabulary.model, ("en", code))
    with pytest.raises(UserError, match="cannot be a language code"):
        vocabulary.with_language(code)


def test_links_out_of_a_folder(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "ab").mkdir()
    (tmp_path / "a" / "inner").symlink_to(tmp_path / "a")
    (tmp_path / "a" / "outer").symlink_to(tmp_path / "ab")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    check_inside(tmp_path / "a" / "inner" / "x", tmp_path / "a")
    check_inside(tmp_path / "a" / "x", tmp_path / "link")
    for path in ("outer", "outer/x", "../ab"):
        with pytest.raises(UserError, match="is a link to .*outside of"):
            check_inside(tmp_path / "a" / path, tmp_path / "a")
