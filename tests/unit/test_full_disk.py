"""Write errors are one line that names the file, and earlier files stay."""

from __future__ import annotations

import dataclasses
import errno
import os
import sys
import tempfile

import pytest

from mnmt_jax.data.cache_writer import TaskSource, write_cache
from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.report import write_report
from mnmt_jax.evaluation.result import write_result
from mnmt_jax.files.atomic_write import new_folder, write_errors, write_text
from mnmt_jax.runtime.run_command import run_command
from tests.full_disk import files_up_to
from tests.made_params import write_random_run
from tests.made_run import make_config, random_pairs
from tests.run_commands import command
from tests.unit.made_results import made_result
from tests.unit.made_text import vocabulary


def _ended(main, capsys) -> tuple[int, str]:
    with pytest.raises(SystemExit) as exit_info:
        run_command(main)
    return exit_info.value.code, capsys.readouterr().err


@pytest.mark.parametrize("name", ["out", "out.gz"])
def test_a_file_is_complete_or_unchanged(tmp_path, name):
    path = tmp_path / name
    path.write_text("old")
    noise = "".join(chr(33 + i * i % 89) for i in range(9000))
    with files_up_to(64), pytest.raises(OSError, match=f"{name}'") as actual:
        write_text(path, noise)
    assert (actual.value.errno, actual.value.filename) == (errno.EFBIG, str(path))
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_scores_and_reports_are_complete_or_unchanged(tmp_path, capsys):
    result = made_result("register", ("en", "de"), seed=1)
    for name, write in (
        ("scores.json", lambda path: write_result(result, path)),
        ("report.html", lambda path: write_report(path, [result])),
    ):
        (tmp_path / name).write_text("old")
        with files_up_to(500):
            status, error = _ended(lambda write=write, name=name: write(tmp_path / name), capsys)
        assert status == 2 and error.startswith(f"error: {tmp_path / name}: File too large")
        assert error.count("\n") == 1 and (tmp_path / name).read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("size", [0, 500, 20_000])
def test_a_cache_is_complete_or_absent(tmp_path, size):
    """Fails at the first byte, in a shard, and in the table of lengths."""
    task = TaskSource("made", "en", "de", {"train": lambda: random_pairs(3000, 1)})
    words = vocabulary()
    with files_up_to(size), pytest.raises(UserError) as actual:
        write_cache(tmp_path / "cache", [task], vocabulary=words)
    assert str(actual.value) == (
        f"{tmp_path / 'cache'}: cannot be written (File too large); make room, or choose another "
        "--output"
    )
    assert not list(tmp_path.iterdir())


def test_a_vocabulary_on_a_full_disk_names_its_folder(tmp_path, capsys):
    words = vocabulary()
    with files_up_to(100):
        status, error = _ended(lambda: words.save(tmp_path / "new"), capsys)
    assert (status, error) == (
        2,
        f"error: {tmp_path / 'new'}: File too large; make room, or choose another path\n",
    )


def test_a_corpus_is_complete_or_absent(tmp_path, capsys):
    small = "--languages=en,de", "--train=400", "--validation=0", "--test=0"
    with files_up_to(2000):
        status, error = _ended(lambda: command("make_corpus", "--output", tmp_path, *small), capsys)
    assert status == 2 and f"error: {tmp_path}/train." in error.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_other_errors_in_a_folder_are_unchanged(tmp_path):
    for error in (RuntimeError("ours"), FileNotFoundError(errno.ENOENT, "gone", "elsewhere")):
        with pytest.raises(type(error)), new_folder(tmp_path / "new"):
            raise error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("length", [9, 99_999])
def test_a_full_standard_output_is_an_error(monkeypatch, capsys, length):
    """Detected at the end, or during writing."""
    with open("/dev/full", "w") as file:
        monkeypatch.setattr(sys, "stdout", file)
        status, error = _ended(lambda: print("x" * length), capsys)
    assert (status, error) == (
        2,
        "error: standard output: No space left on device; make room, or choose another path\n",
    )


def test_a_closed_standard_output_ends_the_command(monkeypatch, capsys):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as file:
        monkeypatch.setattr(sys, "stdout", file)
        assert _ended(lambda: print("scores"), capsys) == (141, "")


def test_an_unwritable_path_is_refused_before_any_work(tmp_path):
    (tmp_path / "file").write_text("")
    inside = tmp_path / "file" / "x"
    for script, arguments in (
        ("cache_tasks", ["--mixture=cldr_quickstart"]),
        ("evaluate", ["--run=nowhere", "--task=cldr"]),
        ("export_checkpoint", ["--run=nowhere", "--format=fairseq"]),
        ("train_vocabulary", ["--mixture=cldr_quickstart"]),
    ):
        with pytest.raises(UserError, match=r"file: cannot be written \(Not a directory\)"):
            command(script, *arguments, "--output", inside)


@pytest.mark.parametrize("size", [0, 300, 9000])
@pytest.mark.parametrize("name", ["average", "add_language", "t5x"])
def test_parameters_are_complete_or_absent(tmp_path, capsys, name, size):
    """Orbax reports what tensorstore could not write as `ValueError`, or not at all."""
    run, output = tmp_path / "run", tmp_path / "new"
    write_random_run(run, dataclasses.replace(make_config("nowhere").model, embed=64, mlp=256))
    flags = {
        "average": ("average_checkpoints", "--run", run),
        "add_language": ("add_language", "--run", run, "--language=nl", "--keep_pieces"),
        "t5x": ("export_checkpoint", "--run", run, "--format=t5x"),
    }[name]
    if name == "average":
        output = run / "average"
        flags += ("--steps=0",)
    else:
        flags += ("--output", output)
    before = sorted(output.parent.rglob("*"))
    with files_up_to(size):
        status, error = _ended(lambda: command(*flags), capsys)
    choice = "" if name == "average" else ", or choose another --output"
    assert (status, error) == (
        2,
        f"error: {output}: cannot be written (File too large); make room{choice}\n",
    )
    assert sorted(output.parent.rglob("*")) == before


def test_unrelated_errors_pass_write_errors_unchanged(tmp_path):
    """`write_errors` changes only errors of this project's writes."""
    other = PermissionError(errno.EACCES, "Permission denied", "/elsewhere")
    for error in (other, ValueError("No space left on device: elsewhere"), KeyError("x")):
        with pytest.raises(type(error)) as caught, write_errors(tmp_path / "a", tmp_path / "b"):
            raise error
        assert caught.value is error
    about_ours = ValueError(f"RESOURCE_EXHAUSTED: {tmp_path}/b/0: No space left on device")
    with pytest.raises(UserError, match=r"a: cannot be written .*; make room$"):
        with write_errors(tmp_path / "a", tmp_path / "b", flag=""):
            raise about_ours


def test_a_full_temporary_folder_is_reported(monkeypatch, capsys):
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile._candidate_tempdir_list", lambda: ["/proc/nothing"])
    status, error = _ended(tempfile.gettempdir, capsys)
    assert status == 2 and error.count("\n") == 1
    assert error.startswith("error: No usable temporary directory") and "set TMPDIR" in error
