"""The flags all commands share."""

import argparse
import os
import re
import subprocess
import sys

import pytest

from mnmt_jax.commands import count, mnmt, prepare
from mnmt_jax.commands.common_flags import (
    CommandParser,
    add_gin_flags,
    amount,
    import_modules,
    parse_command_line,
    positive_int,
)
from mnmt_jax.errors import UserError


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="x")
    parser.add_argument("--workdir")
    parser.add_argument("--beam_size", type=int)
    add_gin_flags(parser)
    return parser


def test_files_and_bindings_keep_their_order():
    argv = ["--gin_file=a.gin", "--gin.Train.steps=3", "--workdir", "run", "--gin_file", "b.gin"]
    argv += ["--gin.Model.layout", "'prefix'", "--gin.Data.tasks=('a=b', 'c')"]
    flags, files, bindings = parse_command_line(_parser(), argv)
    assert flags == argparse.Namespace(workdir="run", beam_size=None, module_import=[])
    assert files == ["a.gin", "b.gin"]
    assert bindings == ["Train.steps=3", "Model.layout='prefix'", "Data.tasks=('a=b', 'c')"]


def test_no_flags_give_empty_lists():
    flags, files, bindings = parse_command_line(_parser(), [])
    assert (flags.workdir, files, bindings) == (None, [], [])


@pytest.mark.parametrize("argv", [["--gin.Train.steps"], ["--gin.=3"], ["--gin.Train.steps="]])
def test_an_incomplete_binding_is_one_error_line(argv: list[str]):
    with pytest.raises(UserError, match="must be --gin.NAME=VALUE"):
        parse_command_line(_parser(), argv)


@pytest.mark.parametrize("argv", [["--nonsense"], ["--beam_size", "five"]])
def test_a_wrong_flag_is_one_error_line(argv: list[str]):
    with pytest.raises(UserError, match="see x --help"):
        parse_command_line(_parser(), argv)


@pytest.mark.parametrize("number", ["0", "00", "2147483648", "9" * 5000, "-1", "1.5", "ten"])
def test_numbers_of_things_have_limits(number):
    with pytest.raises(argparse.ArgumentTypeError, match="must be"):
        positive_int(number)
    assert positive_int("2147483647") == 2**31 - 1
    assert amount("0") == 0
    with pytest.raises(argparse.ArgumentTypeError, match="from 0 to 2147483647$"):
        amount("2147483648")


def test_what_the_output_cannot_show_is_escaped():
    command = [sys.executable, "-m", "mnmt_jax", "languages", "nb"]
    variables = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    assert done.returncode == 0 and "Bokm\\xe5l" in done.stdout, done


def test_all_outputs_of_commands_are_checked():
    for command, flags in (
        (prepare, ["--recipe=plain", "--mixture=multi30k", "--text_output=gs://bucket/report"]),
        (prepare, ["--recipe=plain", "--mixture=multi30k", "--evaluation_text=gs://bucket/a"]),
        (count, ["--mixture=multi30k", "--page=gs://bucket/report.html"]),
    ):
        with pytest.raises(
            UserError, match=f"{flags[-1].partition('=')[0]}=gs:.*: must be on this"
        ):
            command.make_parser().parse_args(flags)


@pytest.mark.parametrize("url", ["gs://bucket/report", "s3://bucket/report"])
def test_an_output_in_a_bucket_is_refused(url: str):
    parser = _parser()
    parser.add_argument("--output")
    assert parser.parse_args(["--output=a:/b"]).output == "a:/b"
    with pytest.raises(UserError, match=f"--output={url}: must be on this machine"):
        parse_command_line(parser, [f"--output={url}"])


def test_help_names_the_gin_flags(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as exit_info:
        parse_command_line(_parser(), ["--help"])
    assert exit_info.value.code == 0
    assert "--gin_file" in (text := capsys.readouterr().out) and "--gin.NAME" in text


def test_modules_are_imported_from_the_current_folder_without_shadowing(tmp_path, monkeypatch):
    (tmp_path / "named_here.py").write_text("VALUE = 3\n")
    (tmp_path / "broken_here.py").write_text("import nowhere_at_all\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    parser = _parser()
    flags, _, _ = parse_command_line(parser, ["--module_import=named_here"])
    import_modules(flags.module_import)
    assert sys.modules.pop("named_here").VALUE == 3
    assert sys.path[0] != str(tmp_path)
    with pytest.raises(UserError, match=r"--module_import=absent: .*; this folder and PYTHONPATH"):
        import_modules(["absent"])
    with pytest.raises(
        UserError, match=r"--module_import=broken_here: .*nowhere_at_all.*; install"
    ):
        import_modules(["broken_here"])


@pytest.mark.parametrize("name", ["./own", "own.py", "", "a b"])
def test_invalid_module_names_are_refused(name):
    with pytest.raises(UserError, match=f"--module_import={name}: must be the name of a module"):
        import_modules([name])


def test_errors_in_an_imported_module_are_reported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for text, remedy in {
        "from mnmt_jax.design.method import Methd\n": "cannot import name 'Methd'.*; correct it",
        "import mnmt_jax.nowhere\n": "mnmt_jax/__init__.py lists the packages",
        "def\n": "invalid syntax.*; correct it",
    }.items():
        (tmp_path / "wrong_here.py").write_text(text)
        with pytest.raises(UserError, match=f"^--module_import=wrong_here: .*{remedy}"):
            import_modules(["wrong_here"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "trian: no such command; did you mean train?"),
        (["nonsense"], "nonsense: no such command; mnmt --help lists them"),
        (["average", "--run=x", "--last=-3"], "argument --last: '-3' must be a whole number"),
        (["average", "--run=x", "--best=0"], "argument --best: '0' must be a whole number"),
        (["train", "--workdir=x", "--initialize_from="], "--initialize_from= is empty"),
        (["translate", "--run=x", "--sorce=de"], "--sorce: no such flag; did you mean '--source'?"),
        (["translate", "--nbest=4"], "--nbest: no such flag; use --beam_size N --format=jsonl for"),
        (["translate", "--n-best", "4"], "--n-best: no such flag; use --beam_size N --format=json"),
        (["adapters", "save", "--rn=x"], "--rn: no such flag; did you mean '--run'? see mnmt adap"),
        (
            ["translate", "--beam=2"],
            "--beam: no such flag; did you mean '--beam_size'? see ",
        ),
        (["evaluate", "--metrics=bleu"], "--metrics: no such flag; did you mean '--metricx'?"),
        (["train", "--xyz", "1"], "--xyz: no such flag; see mnmt train --help"),
        (["train", "--gin.Train.steps=3"], "are required: --workdir"),
    ],
)
def test_mistakes_are_named_before_missing_flags(arguments, message, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["mnmt", *arguments])
    with pytest.raises(UserError, match=re.escape(message)):
        mnmt.main()
