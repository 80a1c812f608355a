"""Commands overwrite only their own files."""

from __future__ import annotations

import json

import pytest

from mnmt_jax.config.loading import is_saved_config, save_config
from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.evaluate import check_folder
from mnmt_jax.evaluation.report import is_report, report_page, write_report
from mnmt_jax.evaluation.result import is_result, write_result
from mnmt_jax.evaluation.result_tables import result_page
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.training.train import train
from mnmt_jax.vocabulary.vocabulary import Vocabulary
from tests.made_run import make_config
from tests.run_commands import command
from tests.unit.made_results import made_result
from tests.unit.made_text import vocabulary


@pytest.fixture(scope="module")
def result():
    return made_result("register", ("en", "de"), seed=1)


@pytest.fixture
def evaluated(tmp_path, result):
    """Make the folder of a finished evaluation."""
    write_result(result, tmp_path / "scores.json")
    write_report(tmp_path / "report.html", [result])
    (tmp_path / "table.md").write_text(result_page(result), encoding="utf-8")
    (tmp_path / "translations").mkdir()
    stamp = {"name": "x", "model": {}, "parameters": 1}
    (tmp_path / "translations" / "made_by.json").write_text(json.dumps(stamp))
    (tmp_path / "translations" / "en-de.jsonl").write_text("{}\n")
    return tmp_path


@pytest.mark.parametrize("name", ["config.gin", "vocabulary", "metrics.jsonl", "tasks.json"])
def test_training_refuses_a_folder_with_foreign_files(tmp_path, name):
    """Checked before the cache is opened."""
    file = tmp_path / name
    file.write_text("Model.embed = 5\n")
    with pytest.raises(UserError, match=f"{name}: already exists.*choose another --workdir"):
        train(make_config("no/cache"), tmp_path)
    assert file.read_text() == "Model.embed = 5\n" and list(tmp_path.iterdir()) == [file]


def test_training_resumes_after_a_kill_during_setup(tmp_path, monkeypatch):
    config, run = make_config("no/cache"), RunDirectory(tmp_path / "run")
    run.check_folder()  # not there yet
    monkeypatch.setattr(
        "mnmt_jax.vocabulary.vocabulary.Vocabulary.save", lambda self, folder: 1 / 0
    )
    with pytest.raises(ZeroDivisionError):
        run.prepare(config, vocabulary(), has_checkpoint=False)
    run.check_folder()
    monkeypatch.undo()
    run.prepare(config, vocabulary(), has_checkpoint=False)
    run.check_folder()


def test_configurations_of_earlier_versions_are_accepted(tmp_path):
    save_config(make_config("cache"), tmp_path / "config.gin")
    text = (tmp_path / "config.gin").read_text()
    unmarked = text.split("\n", 2)[2]
    assert unmarked.startswith("Data.cache") and is_saved_config(text)
    assert is_saved_config(unmarked)
    fewer = [line for line in unmarked.splitlines() if "lora" not in line]
    assert is_saved_config("\n".join(fewer))
    for foreign in ("", "Data.cache = 'x'\n", unmarked + "batch_size = 3\n", "include 'a.gin'\n"):
        assert not is_saved_config(foreign)


def test_an_evaluation_continues_in_its_folder(evaluated, result):
    check_folder(evaluated)
    check_folder(evaluated / "new")
    (evaluated / "report.html").write_text("")  # what a full disk had left
    page = report_page([result])
    without_mark = page.replace('<meta name="generator" content="mnmt-jax">', "")
    assert without_mark != page and is_report(without_mark)
    check_folder(evaluated)


@pytest.mark.parametrize("name", ["report.html", "scores.json", "table.md"])
@pytest.mark.parametrize("content", [b"# notes\n", b'{"format": "mine"}', b"\xff\xfe"])
def test_an_evaluation_refuses_foreign_files(evaluated, name, content):
    (evaluated / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{name}: already exists and was not written by mnmt-jax"):
        command("evaluate", "--run=nowhere", "--task=cldr", "--output", evaluated)
    assert (evaluated / name).read_bytes() == content


def test_an_evaluation_refuses_a_folder_of_other_translations(evaluated):
    stamp = evaluated / "translations" / "made_by.json"
    stamp.unlink()
    with pytest.raises(UserError, match=r"en-de.jsonl: already exists"):
        check_folder(evaluated)
    stamp.write_text("[1]")
    with pytest.raises(UserError, match=r"made_by.json: already exists"):
        check_folder(evaluated)


def test_a_comparison_overwrites_only_reports(evaluated):
    command("compare", evaluated, "--output", evaluated / "report.html")
    with pytest.raises(UserError, match=r"scores.json: already exists"):
        command("compare", evaluated, "--output", evaluated / "scores.json")
    assert is_result((evaluated / "scores.json").read_text())


def test_a_vocabulary_overwrites_only_vocabularies(tmp_path):
    vocabulary().save(tmp_path / "old")
    adopt = "--sentencepiece", tmp_path / "old" / "spm.model", "--languages=en,de", "--output"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "languages.txt").write_text("mine\n")
    with pytest.raises(UserError, match="mine: already exists"):
        command("train_vocabulary", *adopt, tmp_path / "mine")
    assert (tmp_path / "mine" / "languages.txt").read_text() == "mine\n"
    for _ in range(2):
        command("train_vocabulary", *adopt, tmp_path / "new")
    (tmp_path / "new" / "vocabulary.json").write_text("")  # what a full disk had left
    command("train_vocabulary", *adopt, tmp_path / "new")
    assert Vocabulary.load(tmp_path / "new").languages == ("en", "de")


def test_an_existing_vocabulary_is_overwritten_on_request(tmp_path):
    vocabulary().save(tmp_path / "old")
    for code, line in (("en", "one two three"), ("de", "two eins drei")):
        (tmp_path / f"train.{code}").write_text(f"{line}\n" * 9)
    text = "--parallel", tmp_path / "{split}.{language}", "--languages=en,de"
    asked = {
        "adopted": ("--sentencepiece", tmp_path / "old" / "spm.model", "--languages=de,en"),
        "trained": (*text, "--vocab_size=17", "--no-byte_fallback"),
        "split": (*text, "--vocabulary", tmp_path / "old", "--lavs=paper", "--lavs_pairs=1"),
    }
    for name, flags in asked.items():
        existing = tmp_path / name
        vocabulary().save(existing)
        contents = {path: path.read_bytes() for path in existing.iterdir()}
        message = f"^--output={existing}: holds a vocabulary; .* --overwrite$"
        with pytest.raises(UserError, match=message):
            command("train_vocabulary", *flags, "--output", existing)
        assert {path: path.read_bytes() for path in existing.iterdir()} == contents
        command("train_vocabulary", *flags, "--output", existing, "--overwrite")
        assert Vocabulary.load(existing).fingerprint != vocabulary().fingerprint
    with pytest.raises(UserError, match="is the folder of --vocabulary"):
        command("train_vocabulary", *asked["split"], "--output", tmp_path / "old", "--overwrite")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "spm.model").write_text("mine")
    with pytest.raises(UserError, match="mine: already exists"):
        command("train_vocabulary", *asked["trained"], "--output", tmp_path / "mine", "--overwrite")


def test_an_average_overwrites_only_averages(tmp_path):
    (tmp_path / "average").mkdir()
    with pytest.raises(UserError, match="average: already exists"):
        command("average_checkpoints", "--run", tmp_path, "--steps", "1")
    assert (tmp_path / "average").is_dir()
