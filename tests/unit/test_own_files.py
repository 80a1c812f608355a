"""User files: errors are reported before any work, with a remedy."""

from __future__ import annotations

import json
import tempfile

import pytest

from mnmt_jax.data.split_aliases import guess_split_name
from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary import sentencepiece_training as vocabulary_module
from tests.run_commands import command
from tests.unit import made_text

FLAGS = "--languages=en,de", "--name=mine", "--vocab_size=40", "--no-byte_fallback"


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    _write(folder, "train", 40)
    return folder


def _write(folder, split: str, count: int) -> None:
    for code in ("en", "de"):
        lines = made_text.sentences(code, count)
        (folder / f"{split}.{code}").write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture
def no_training(monkeypatch):
    """End the command before a vocabulary is trained."""

    def train(*arguments, **options):
        raise ZeroDivisionError

    monkeypatch.setattr(vocabulary_module, "train_sentencepiece", train)


def _cache(folder, pattern="", *flags: object) -> None:
    command(
        "cache_tasks", f"--parallel={folder}{pattern}", *FLAGS, *flags, "--output", folder / "cache"
    )


@pytest.mark.parametrize("word", ["val", "dev", "valid", "validation_2020"])
def test_validation_files_of_another_split_name_are_suggested_early(
    data, no_training, capsys, word
):
    _write(data, word, 5)
    with pytest.raises(ZeroDivisionError):
        _cache(data)
    error = capsys.readouterr().err
    flag = f"train=train,validation={word}"  # there is no test text
    assert error.startswith(
        f"warning: no validation text is read; if your files call it '{word}', give --splits {flag}"
    )
    with pytest.raises(ZeroDivisionError):
        _cache(data, "", f"--splits={flag}")
    assert "no validation text" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("splits", "missing", "suggested"),
    [
        ("train=train,validation=dev", "validation=dev", ""),
        ("train=trn,validation=dev", "train=trn", "; perhaps --splits train=train,val.*=dev"),
        ("train=train,validation=dev,test=tst", "test=tst", ""),
        ("train=train,validation=valid", "validation=valid", "train=train,validation=dev"),
    ],
)
def test_a_named_split_without_files_is_refused(data, no_training, splits, missing, suggested):
    if missing != "validation=dev":
        _write(data, "dev", 5)
    message = rf"^--splits: {missing}: no files match \S* for languages en de; add .*{suggested}$"
    with pytest.raises(UserError, match=message):
        _cache(data, "", f"--splits={splits}")


def test_a_split_that_is_named_twice_is_refused(data, no_training):
    message = "^--splits: 'train' is named twice, as 'train' and 'dev'; keep one$"
    with pytest.raises(UserError, match=message):
        _cache(data, "", "--splits=train=train,train=dev")


def test_no_hint_if_no_file_is_missing_or_similar(data, no_training, capsys):
    for split in ("devotion.md", "validation"):
        with pytest.raises(ZeroDivisionError):
            _cache(data)
        assert "splits" not in capsys.readouterr().err
        _write(data, split, 5)


def test_test_files_of_another_split_name_are_suggested(data, tmp_path):
    arguments = "--run=nowhere", "--task=mine", "--languages=en,de", "--output", tmp_path / "out"
    with pytest.raises(UserError, match=r"no files match .*test.\{language\} for languages en de$"):
        command("evaluate", *arguments, "--parallel", data)
    _write(data, "test2016", 5)
    with pytest.raises(UserError, match="; perhaps --splits test=test2016$"):
        command("evaluate", *arguments, "--parallel", data)
    with pytest.raises(UserError, match="nowhere/config.gin"):
        command("evaluate", *arguments, "--parallel", data, "--splits=test=test2016")


@pytest.mark.parametrize(
    ("pattern", "file", "split", "word"),
    [
        ("{split}.{language}", "dev.en.gz", "validation", "dev"),
        ("{split}/{split}.{pair}.{language}", "val/val.de-en.de", "validation", "val"),
        ("{split}/{split}.{language}", "val/dev.de", "validation", ""),
        ("[x]/{split}.tsv", "[x]/newstest2014.tsv", "test", "newstest2014"),
        ("{split}.{language}", "dev.fr", "validation", ""),
        ("{split}.{language}", "text.en", "test", ""),
    ],
)
def test_likely_split_names(tmp_path, pattern, file, split, word):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("")
    assert guess_split_name(str(tmp_path / pattern), ("en", "de"), split) == word


def test_a_corpus_of_one_split_needs_no_split_name(tmp_path, capsys):
    for code in ("en", "de"):
        (tmp_path / f"{code}.txt").write_text("\n".join(made_text.sentences(code, 40)) + "\n")
    _cache(tmp_path, "/{language}.txt")
    assert json.loads(capsys.readouterr().out)["examples"] == {"train": 80, "validation": 0}
    files = "--parallel", tmp_path / "{language}.txt", "--languages=en,de"
    evaluate = "evaluate", "--run=nowhere", "--task=mine", "--output", tmp_path / "out"
    with pytest.raises(UserError, match="nowhere/config.gin"):  # the files were found
        command(*evaluate, *files)
    with pytest.raises(UserError, match="--splits does not apply to files without {split}"):
        command(*evaluate, *files, "--splits=test=x")
    (tmp_path / "all.tsv").write_text("en\tde\n" + "one\teins\n" * 3)
    with pytest.raises(UserError, match="nowhere/config.gin"):
        command(*evaluate, "--tsv", tmp_path / "all.tsv")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("validation.de", "eins\n\ndrei\n", r"validation.de:2: blank line"),
        ("validation.de", "eins\nzwei\n", r"validation.en:3: .*validation.de has only 2 lines"),
        ("validation.en", "", r"validation.de:1: .*validation.en has only 0 lines"),
        ("train.en", "one\n \nthree\n", r"train.en:2: blank line"),
    ],
)
def test_bad_lines_are_named_before_a_vocabulary_is_trained(data, no_training, name, text, message):
    _write(data, "validation", 3)
    (data / name).write_text(text)
    with pytest.raises(UserError, match=message):
        _cache(data)


def test_empty_files_are_named_before_a_vocabulary_is_trained(data, no_training):
    for split in ("validation", "train"):
        for code in ("en", "de"):
            (data / f"{split}.{code}").write_text("")
        with pytest.raises(UserError, match=rf"{split}.de, .*{split}.en: no sentence pair; add"):
            _cache(data)


@pytest.mark.parametrize("languages", ["en,fr", "de,fr", "fr,en", "fr,de,en"])
def test_the_language_without_text_is_named(tmp_path, languages):
    (tmp_path / "a.tsv").write_text("en\tde\nOne\tEins\n", encoding="utf-8")
    output = "--languages", languages, "--output", tmp_path / "cache"
    with pytest.raises(UserError, match=r"a\.tsv has no text in 'fr'; add its files, or leave"):
        command("cache_tasks", "--tsv", tmp_path / "a.tsv", *output)


def test_the_file_of_the_language_without_text_is_named(data):
    output = "--languages=cs,fr,en,de", "--output", data / "cache"
    with pytest.raises(
        UserError, match=r"has no text in 'cs', no file \S*train\.cs; add its files"
    ):
        command("cache_tasks", "--parallel", data, *output)


def _cache_text(data, *flags: object) -> None:
    made_text.vocabulary().save(data / "vocabulary")
    flags = f"--vocabulary={data / 'vocabulary'}", f"--output={data / 'cache'}", *flags
    command("cache_tasks", "--text", data, "--languages=en,de", *flags)


def test_a_language_with_only_validation_text_is_named(data):
    """Its task would have no training text."""
    _write(data, "validation", 3)
    _cache_text(data)  # a directory is as good as '{split}.{language}'
    (data / "train.de").unlink()
    message = r"^--languages: \S* has no text in 'de', no file \S*/train\.de or \.gz; add its"
    with pytest.raises(UserError, match=message):
        _cache_text(data, "--overwrite")
    (data / "train.en").unlink()
    with pytest.raises(UserError, match="has no training files; check --splits"):
        _cache_text(data, "--overwrite")


@pytest.mark.parametrize("kind", ["text", "parallel"])
def test_empty_training_files_are_named(data, kind):
    """Also without vocabulary training; existing files stay."""
    _write(data, "validation", 3)
    _cache_text(data)
    for code in ("en", "de"):
        (data / f"train.{code}").write_text("")
    flags = f"--{kind}={data}", "--languages=de,en", f"--vocabulary={data / 'vocabulary'}"
    what = "sentence" if kind == "text" else "sentence pair"
    with pytest.raises(UserError, match=rf"mine': \S*/train\.de.*: no {what}; add text, or remove"):
        command("cache_tasks", *flags, "--name=mine", "--overwrite", f"--output={data / 'cache'}")
    assert (data / "cache" / "cache.json").is_file()


def test_a_missing_text_folder_is_named(data):
    message = "^--text=nowhere: no such directory; give one with files SPLIT.LANGUAGE, or a patt"
    with pytest.raises(UserError, match=message):
        command("cache_tasks", "--text=nowhere", "--languages=en", f"--output={data / 'cache'}")


@pytest.mark.parametrize(
    ("directions", "message"),
    [
        (
            "de-de",
            "--directions: 'de-de' is not a translation direction; with --monolingual, name",
        ),
        ("en-de,de-fr", "no training text for de-fr .no file .*train.fr.; it has en-de, de-en; "),
    ],
)
def test_invalid_directions_of_monolingual_tasks_are_refused(data, directions, message):
    flags = f"--parallel={data}", "--languages=en,de,fr", f"--directions={directions}"
    _write(data, "validation", 3)
    (data / "validation.fr").write_text("un\ndeux\ntrois\n")
    with pytest.raises(UserError, match=message):
        command("cache_tasks", *flags, "--monolingual", f"--output={data / 'cache'}")


def test_a_seqio_mixture_is_not_monolingual(data):
    flags = "--mixture=other", "--module_import=math", "--monolingual"
    with pytest.raises(UserError, match="^--monolingual does not apply to a seqio mixture"):
        command("cache_tasks", *flags, f"--output={data / 'cache'}")


def test_two_tasks_of_equal_name_are_refused(data):
    _cache_text(data, "--name=mine")
    flags = f"--also={data / 'cache'}", f"--vocabulary={data / 'vocabulary'}", "--name=mine"
    own = f"--text={data}", "--languages=en,de", f"--output={data / 'both'}"
    with pytest.raises(UserError, match="'mine_en' occurs twice, .* your files with --name, or"):
        command("cache_tasks", *own, *flags)
    command("cache_tasks", *own, *flags, "--name=other")


def test_a_second_cache_needs_an_explicit_vocabulary(data, no_training):
    message = f"^--also needs --vocabulary, .* --vocabulary {data}/old/vocabulary$"
    with pytest.raises(UserError, match=message):
        _cache(data, "", "--also", data / "old")
    message = "a copy of gs://bucket/old/vocabulary, which 'gcloud storage cp -r' makes$"
    with pytest.raises(UserError, match=message):
        _cache(data, "", "--also", "gs://bucket/old")
    flags = "--mixture=mine", "--also", data / "old", "--output", data / "cache"
    with pytest.raises(
        UserError, match="^(?!--also).*old"
    ):  # a mixture of seqio has a vocabulary of its own
        command("cache_tasks", *flags)


def test_a_killed_vocabulary_training_leaves_no_temporary_files(data, tmp_path, monkeypatch):
    """A vocabulary trained for a cache is written together with it."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    train, temporary_files = vocabulary_module.train_model, []

    def record(*arguments, **options):
        temporary_files.append(sorted(temporary.rglob("*")))
        return train(*arguments, **options)

    monkeypatch.setattr(vocabulary_module, "train_model", record)
    _cache(data)
    assert temporary_files == [[]] and (data / "cache" / "vocabulary" / "spm.model").is_file()
