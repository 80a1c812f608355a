"""Concurrent commands with one output: one result is whole, the other commands are refused."""

from __future__ import annotations

import errno
import gzip
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mnmt_jax.commands.text_files import check_output_file
from mnmt_jax.data.cache_writer import check_output_directory
from mnmt_jax.data.cldr import CldrCorpus
from mnmt_jax.data.cldr_export import export_cldr
from mnmt_jax.errors import UserError
from mnmt_jax.files import atomic_write
from mnmt_jax.files.atomic_write import check_output, locked, new_file, new_folder
from mnmt_jax.interop.adapters import save_adapter
from mnmt_jax.runs.parameters import load_params
from tests.made_foreign import fairseq_checkpoint
from tests.made_params import write_zero_run
from tests.run_commands import ROOT, command
from tests.unit.made_text import vocabulary

PARALLEL = "--languages=en,de", "--vocab_size=17", "--no-byte_fallback"
COMMANDS = {
    "average": ("average_checkpoints", "--run", "{run}", "--steps=0"),
    "add-language": ("add_language", "--run", "{folder}/merged", "--language=nl", "--keep_pieces"),
    "export": ("export_checkpoint", "--run", "{run}", "--format=t5x"),
    "import": (
        "import_checkpoint",
        "--format=fairseq",
        "--input",
        "{folder}/fairseq/checkpoint.pt",
    ),
    "merge": ("adapters", "merge", "--run", "{run}"),
    "save": ("adapters", "save", "--run", "{run}"),
    "load": ("adapters", "load", "--run", "{folder}/merged", "--adapter", "{folder}/adapter"),
    "cache": ("cache_tasks", "--parallel", "{folder}/text", "--name=mine", *PARALLEL),
    "vocabulary": ("train_vocabulary", "--parallel", "{folder}/text", *PARALLEL),
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("same_output")
    write_zero_run(folder / "run")
    command("adapters", "merge", "--run", folder / "run", "--output", folder / "merged")
    save_adapter(folder / "run", folder / "adapter")
    fairseq_checkpoint(folder / "fairseq", "mitre")
    (folder / "text").mkdir()
    for code, line in (("en", "one two three"), ("de", "two eins drei")):
        (folder / "text" / f"train.{code}").write_text(f"{line}\n" * 9)
    return folder


@pytest.mark.parametrize("name", COMMANDS)
def test_an_output_in_use_is_refused(outputs, tmp_path, name):
    run, output = tmp_path / "run", tmp_path / "new"
    shutil.copytree(outputs / "run", run)
    flags = [flag.format(run=run, folder=outputs) for flag in COMMANDS[name]]
    if name == "average":
        output = run / "average"
    else:
        flags += ["--output", str(output)]
    with new_folder(output) as partial:
        (partial / "facts.json").write_text("first")
        with pytest.raises(
            UserError, match=f"^{output}: is being written by another process; wait"
        ):
            command(*flags)
    assert [path.name for path in output.iterdir()] == ["facts.json"]
    assert sorted(path.name for path in output.parent.iterdir() if path.name[0] == ".") == []


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - {"average"}))
def test_the_current_folder_is_refused_before_any_work(outputs, tmp_path, monkeypatch, name):
    """It cannot be replaced without a loss to the shell in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mnmt_jax.vocabulary.sentencepiece_training.train_model", None)
    flags = [flag.format(run=outputs / "run", folder=outputs) for flag in COMMANDS[name]]
    for output in (".", tmp_path):
        with pytest.raises(UserError, match=f"^{output}: is the current folder, .* --output=new"):
            command(*flags, "--output", output)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - {"average"}))
def test_a_mount_point_is_refused_before_any_work(outputs, tmp_path, monkeypatch, name):
    monkeypatch.setattr(atomic_write, "_mount_points", lambda: {str(tmp_path / "volume")})
    monkeypatch.setattr("mnmt_jax.vocabulary.sentencepiece_training.train_model", None)
    flags = [flag.format(run=outputs / "run", folder=outputs) for flag in COMMANDS[name]]
    output, link = tmp_path / "volume", tmp_path / "link"
    output.mkdir()
    link.symlink_to(output)
    for path in (output, link):
        message = f"^--output={path}: is a mount point, .* such as --output={path}/new$"
        with pytest.raises(UserError, match=message):
            command(*flags, "--output", path)
    assert not os.listdir(output)


def test_a_mounted_file_is_refused_as_output(tmp_path, monkeypatch):
    path = tmp_path / "text"
    path.touch()
    monkeypatch.setattr(atomic_write, "_mount_points", lambda: {str(path)})
    with pytest.raises(UserError, match="is a mount point, .* mount its folder instead"):
        check_output_file(str(path), None)


@pytest.mark.skipif(not Path("/proc/self/mountinfo").exists(), reason="the system is not Linux")
def test_mount_points_are_those_of_the_system():
    assert {"/", "/proc"} <= atomic_write._mount_points()


def test_a_folder_in_one_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    """The new folder is made beside it, and takes its name when it is complete."""
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr(
        "mnmt_jax.files.atomic_write.write_refusal",
        lambda folder, size: "Permission denied" if folder == tmp_path else "",
    )
    with pytest.raises(UserError, match=f"^{tmp_path}: cannot be written .Permission denied"):
        check_output(tmp_path / "empty")


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_link_to_a_folder_stays(tmp_path, overwrite):
    output, link = tmp_path / "disk" / "output", tmp_path / "link"
    output.mkdir(parents=True)
    if overwrite:
        (output / "file").write_text("first")
    link.symlink_to(output)
    check_output_directory(link, True, mark="file", kind="a file")
    with new_folder(link, overwrite=overwrite) as partial:
        (partial / "file").write_text("second")
    assert link.is_symlink() and (output / "file").read_text() == "second"
    assert sorted(os.listdir(tmp_path)) == ["disk", "link"]
    assert os.listdir(tmp_path / "disk") == ["output"]


def test_an_output_created_meanwhile_is_kept(tmp_path):
    output = tmp_path / "new"
    message = (
        f"^{output}: already exists, written by another process; choose another --output or remove"
    )
    with pytest.raises(UserError, match=message), new_folder(output) as partial:
        (partial / "file").write_text("second")
        output.mkdir()
        (output / "file").write_text("first")
    assert (output / "file").read_text() == "first" and os.listdir(tmp_path) == ["new"]


def test_a_replaced_output_is_complete(tmp_path):
    output = tmp_path / "new"
    for text in ("first", "second"):
        with new_folder(output, overwrite=True) as partial:
            (partial / text).write_text(text)
    assert os.listdir(output) == ["second"] and os.listdir(tmp_path) == ["new"]
    with pytest.raises(ZeroDivisionError), new_folder(output, overwrite=True):
        raise ZeroDivisionError
    assert os.listdir(output) == ["second"] and os.listdir(tmp_path) == ["new"]


def test_the_lock_of_a_dead_process_is_released(tmp_path):
    code = (
        "import os, pathlib, signal\n"
        "from mnmt_jax.files.atomic_write import locked, new_file, new_folder\n"
        f"with new_folder(pathlib.Path({str(tmp_path / 'new')!r})):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert ended.returncode == -signal.SIGKILL and len(os.listdir(tmp_path)) == 1
    (tmp_path / ".new.partial-elsewhere-1").mkdir()  # of another machine, which holds no lock here
    with new_folder(tmp_path / "new") as partial:
        (partial / "file").write_text("whole")
    assert sorted(os.listdir(tmp_path)) == [".new.partial-elsewhere-1", "new"]


def test_leftovers_of_a_process_with_the_same_id_are_replaced(tmp_path):
    """A container that restarts has the host name and the process ids of before."""
    name = f".{{}}.partial-{socket.gethostname()}-{os.getpid()}"
    for text in ("facts.json", "lines.gz"):
        (tmp_path / name.format(text)).write_bytes(b"left")
        with new_file(tmp_path / text) as file:
            file.write("{}\n")
    assert (tmp_path / "facts.json").read_text() == "{}\n"
    assert gzip.decompress((tmp_path / "lines.gz").read_bytes()) == b"{}\n"
    for suffix in ("", ".replaced"):
        (tmp_path / f"{name.format('new')}{suffix}").mkdir()
        (tmp_path / f"{name.format('new')}{suffix}" / "left").touch()
    (tmp_path / "new").mkdir()
    with new_folder(tmp_path / "new", overwrite=True) as partial:
        (partial / "file").write_text("whole")
    assert os.listdir(tmp_path / "new") == ["file"]
    assert sorted(os.listdir(tmp_path)) == ["facts.json", "lines.gz", "new"]


def test_a_folder_in_use_in_another_container_stays(tmp_path):
    """The other process has an id that no process has here."""
    name = f".new.partial-{socket.gethostname()}-{2**22 + 1}"
    (tmp_path / name).mkdir()
    with locked(tmp_path / name):
        with pytest.raises(UserError, match="is being written by another process"):
            new_folder(tmp_path / "new").__enter__()
        assert os.listdir(tmp_path) == [name]
    with new_folder(tmp_path / "new") as partial:
        (partial / "file").write_text("whole")
    assert os.listdir(tmp_path) == ["new"]


def test_a_folder_is_not_lost_between_its_two_renames(tmp_path, monkeypatch):
    """Of a process that was killed there, and of one whose second rename fails."""
    name = f".new.partial-{socket.gethostname()}-{2**22 + 1}"
    for suffix, file in (("", "unfinished"), (".replaced", "old")):
        (tmp_path / f"{name}{suffix}").mkdir()
        (tmp_path / f"{name}{suffix}" / file).touch()
    rename = Path.rename

    def rename_if_possible(path, target):
        if target.name == "new" and not path.name.endswith(".replaced"):
            raise OSError(errno.EIO, "Input/output error", str(path))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", rename_if_possible)
    with (
        pytest.raises(UserError, match="Input/output error"),
        new_folder(tmp_path / "new", overwrite=True),
    ):
        assert os.listdir(tmp_path / "new") == ["old"]
    assert os.listdir(tmp_path) == ["new"] and os.listdir(tmp_path / "new") == ["old"]


@pytest.mark.parametrize("name", ["x" * 150, "x" * 151, "x" * 252, "ä" * 126])
def test_a_long_name_is_possible(name, tmp_path):
    output = tmp_path / name
    with new_file(output.with_name(f"{name}.gz")) as file, new_folder(output) as partial:
        file.write("text")
        (partial / "file").touch()
    assert sorted(os.listdir(tmp_path)) == [name, f"{name}.gz"]


def test_a_corpus_created_meanwhile_is_kept(tmp_path, monkeypatch):
    """The check for existing files is made under the lock."""
    corpus, sizes = CldrCorpus(("en", "de")), {"train": 3}

    def write_first(path, **options):
        os.mkdir(path)
        (tmp_path / "new" / "train.en").write_text("first")

    monkeypatch.setattr("mnmt_jax.data.cldr_export.os.makedirs", write_first)
    with pytest.raises(UserError, match=r"train.en: already exists; choose another --output"):
        export_cldr(corpus, str(tmp_path / "new"), file_format="parallel", sizes=sizes)
    assert (tmp_path / "new" / "train.en").read_text() == "first"


def test_a_vocabulary_created_meanwhile_is_kept(outputs, tmp_path, monkeypatch):
    """Another vocabulary was written while this one was trained."""
    output = tmp_path / "new"

    def train(text, options):
        vocabulary().save(output)
        return vocabulary().model

    monkeypatch.setattr("mnmt_jax.vocabulary.sentencepiece_training.train_model", train)
    with pytest.raises(UserError, match=f"^--output={output}: holds a vocabulary"):
        command("train_vocabulary", "--parallel", outputs / "text", *PARALLEL, "--output", output)
    assert (output / "languages.txt").read_text().split() == ["en", "de", "fr"]


@pytest.mark.parametrize("flags", [(), ("--last=2",), ("--last=3",)])
def test_fewer_checkpoints_than_requested_are_reported(outputs, tmp_path, capsys, flags):
    run = tmp_path / "run"
    shutil.copytree(outputs / "run", run)
    shutil.copytree(run / "checkpoints" / "0", run / "checkpoints" / "4")
    command("average_checkpoints", "--run", run, *flags)
    stdout, stderr = capsys.readouterr()
    requested = {(): 5, ("--last=2",): 2, ("--last=3",): 3}[flags]
    expected = f"--last={requested}: the run has 2 checkpoints; averaging these"
    assert stdout == "0 4\n" and stderr.startswith(expected) == (requested > 2)
    assert stderr.endswith("averaged 2 steps; use it with --step=average\n")
    assert len(stderr.splitlines()) == (1 if requested == 2 else 2)
    assert load_params(run, "average")[1] == 4


def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path):
    path = tmp_path / "private.txt"
    path.touch(0o600)
    with new_file(path) as file:
        file.write("new")
    assert path.read_text() == "new" and path.stat().st_mode & 0o777 == 0o600


def test_a_corpus_file_of_another_language_does_not_stay_beside_new_files(tmp_path):
    def export(*codes, seed=0):
        corpus = CldrCorpus(codes, seed=seed)
        sizes = {"train": 3}
        export_cldr(corpus, str(tmp_path), file_format="parallel", sizes=sizes, overwrite=True)

    export("en", "de", "fr")
    (tmp_path / "train.txt").touch()
    with pytest.raises(UserError, match=r"train\.fr: is not written now, .* name 'fr' in --lang"):
        export("en", "de", seed=7)
    (tmp_path / "train.fr").unlink()
    export("en", "de", seed=7)
