"""The command `translate`: pipes, files, formats, errors."""

import gzip
import importlib.util
import io
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from mnmt_jax.commands.resumable_output import ResumableOutput
from mnmt_jax.commands.text_files import is_stream
from mnmt_jax.config.sections import Config, Data, Decode, Mesh, Model, Optimizer, Train
from mnmt_jax.data.converter import Converter, Example, Lengths, segments_from_rows
from mnmt_jax.data.instruction import INSTRUCTIONS
from mnmt_jax.decoding import translation_job as job_module
from mnmt_jax.decoding.translation_job import TranslationJob
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.design.layouts import LAYOUTS
from mnmt_jax.model.network import build_model
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.runtime.run_command import run_command
from mnmt_jax.training.checkpoints import Checkpoints
from mnmt_jax.training.state import LogWindow, TrainState
from tests.full_disk import files_up_to
from tests.unit.made_text import sentence, vocabulary

ROOT = Path(__file__).parent.parent.parent
SCRIPT = ROOT / "scripts" / "infer.py"
WINDOW = 8
TEXTS = [sentence(number, "en") if number != 5 else "" for number in range(20)]
SAMPLED = "--gin.Decode.temperature=1.0"
LINES = [sentence(1, "en"), "", "green\u2028house", sentence(2, "en"), "one " * 30]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run directory with random parameters."""
    folder, vocab = tmp_path_factory.mktemp("runs") / "run", vocabulary()
    model = Model(layout="prefix", stage_layers=(1,), embed=16, mlp=24, heads=2)
    decode = Decode(batch=4, max_length=6, buckets=(12,), beam_size=2)
    config = Config(Data(), model, Optimizer(), Train(), decode, Mesh())
    network, roles = build_model(model, vocab.size), LAYOUTS["prefix"].embedded_roles()
    converter = Converter(vocab, INSTRUCTIONS["1"], roles, Lengths(8, 8))
    example = Example(np.array([5, 6]), np.array([7]), 0, 1)
    batch = converter.batch(segments_from_rows([[example]]), 1)
    params = jax.jit(network.init)(jax.random.key(0), batch)["params"]
    RunDirectory(folder).prepare(config, vocab, has_checkpoint=False)
    checkpoints = Checkpoints(folder / "checkpoints")
    checkpoints.save(TrainState(np.int32(7), params, {}, LogWindow.empty(roles)), {})
    checkpoints.close()
    return folder


@pytest.fixture
def infer(monkeypatch, capfd):
    """Run the command in this process; return its status, standard output and standard error."""
    spec = importlib.util.spec_from_file_location("infer", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def call(*arguments: object, stdin: bytes = b""):
        monkeypatch.setattr(sys, "argv", ["infer.py", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        monkeypatch.setattr(
            "mnmt_jax.runtime.run_command.exit_immediately", sys.exit
        )  # this process has more to do
        with pytest.raises(SystemExit) as exit_info:
            run_command(module.main)
        sys.stdout.flush()
        return exit_info.value.code, *capfd.readouterr()

    return call


def _languages(run: Path) -> tuple:
    return "--run", run, "--source", "en", "--target", "de"


def test_a_pipe_gives_one_output_line_per_input_line(run):
    """Run in a separate process."""
    command = [sys.executable, str(SCRIPT), *map(str, _languages(run))]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        command, input="\n".join(LINES).encode(), capture_output=True, env=environment, check=True
    )
    output = done.stdout.decode()
    expected = Translator.load(run).translate(LINES, source="en", target="de")
    assert output.endswith("\n") and output.removesuffix("\n").split("\n") == expected
    assert expected[1] == "" and all(expected[i] for i in (0, 2, 3, 4))
    assert "5 lines in" in done.stderr.decode()
    assert "warning: 1 line of more than 12 tokens" in done.stderr.decode()
    assert "(line 5)" in done.stderr.decode()
    assert "4 translations at the length limit (Decode.max_length=6)" in done.stderr.decode()


def test_files_gzip_and_json(run, infer, tmp_path):
    source, output = tmp_path / "in.gz", tmp_path / "out.jsonl"
    source.write_bytes(gzip.compress("\r\n".join(["\ufeff" + LINES[0], *LINES[1:]]).encode()))
    arguments = "--input", source, "--output", output, "--format=jsonl", "--beam_size=3"
    status, out, _ = infer(*_languages(run), *arguments)
    assert (status, out) == (0, "")
    records = [json.loads(line) for line in output.read_text().split("\n")[:-1]]
    assert [record["source"] for record in records] == LINES
    assert [record["line"] for record in records] == [1, 2, 3, 4, 5]
    assert [record["truncated"] for record in records] == [False] * 4 + [True]
    actual = Translator.load(run).translate_nbest(LINES, source="en", target="de", beam_size=3)
    for record, translation in zip(records, actual, strict=True):
        assert record["translation"] == translation.text
        assert record["score"] == translation.score
        assert record["limited"] == translation.limited
        nbest = [{"text": h.text, "score": h.score} for h in translation.hypotheses]
        assert record["nbest"] == nbest and len(nbest) in (0, 3)
    assert set(tmp_path.iterdir()) == {source, output}


def test_repr_of_a_translator_names_the_run(run):
    expected = f"Translator('{run}', step=7, layout='prefix', languages=3)"
    assert repr(Translator.load(run)) == expected


def test_bindings_and_step_are_used(run, infer):
    text = LINES[0].encode()
    binding = "--gin.Decode.max_length=1"
    status, out, _ = infer(*_languages(run), binding, "--step=7", stdin=text)
    assert status == 0 and out.count("\n") == 1
    short = Translator.load(run, 7, bindings=["Decode.max_length=1"])
    assert out == short.translate(LINES[:1], source="en", target="de")[0] + "\n"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"--target": "german"}, "did you mean de?"),
        ({"--run": "/nowhere"}, "config.gin: no such file"),
        ({"--step": "8"}, "no checkpoint 8"),
        ({"--input": "/nowhere/x"}, "--input=/nowhere/x: no such file; name a file"),
        ({"--output": "/nowhere/x"}, "--output=/nowhere/x: cannot be written (/nowhere: No such"),
        ({"--gin.Decode.beam": "3"}, "beam"),
        ({"--gin.Decode.buckets": "(2,)"}, "each must be at least 3"),
        ({"--beam_size": "0"}, "--beam_size: '0' must be"),
        ({"--format": "xml"}, "invalid choice"),
    ],
)
def test_invalid_arguments_are_one_error_line(run, infer, changed, message):
    flags = {"--run": run, "--source": "en", "--target": "de"} | changed
    arguments = [argument for pair in flags.items() for argument in pair]
    status, out, error = infer(*arguments, stdin=LINES[0].encode())
    lines = error.strip().split("\n")
    assert status == 2 and out == "" and message in lines[-1] and lines[-1].startswith("error: ")
    assert "Traceback" not in error


def test_bad_text_names_its_line_and_leaves_no_output(run, infer, tmp_path):
    output = tmp_path / "out"
    output.write_text("old\n")
    status, _, error = infer(*_languages(run), "--output", output, stdin=b"one\ntwo \xff\n")
    assert status == 2 and "standard input, line 2: not UTF-8 (byte 5)" in error
    assert output.read_text() == "old\n" and list(tmp_path.iterdir()) == [output]


@pytest.mark.parametrize("kind", ["same", "symbolic", "hard", "gzip"])
def test_the_input_file_is_not_overwritten(infer, tmp_path, kind):
    """Checked before the run is loaded."""
    source, output = tmp_path / "in", tmp_path / ("in.gz" if kind == "gzip" else "out")
    source.write_text("one\n")
    if kind == "same":
        output = source
    elif kind == "symbolic":
        output.symlink_to(source)
    else:
        output.hardlink_to(source)
    status, out, error = infer(*_languages("nowhere"), "--input", source, "--output", output)
    assert (status, out) == (2, "") and source.read_text() == "one\n"
    assert error.startswith(f"error: --output={output}: {output} is the file of --input")
    assert error.count("\n") == 1


def test_an_invalid_output_path_is_refused_before_loading(infer, tmp_path):
    """Checked before the run is loaded; the message has the path as given."""
    for output, why in (
        (tmp_path, "is a folder"),
        (tmp_path / "no" / "x", f"cannot be written ({tmp_path / 'no'}: No such file"),
    ):
        status, out, error = infer(*_languages("nowhere"), "--output", output)
        assert (status, out, error.count("\n")) == (2, "", 1)
        assert error.startswith(f"error: --output={output}: {why}")


def test_devices_pipes_and_links_are_written_in_place(run, infer, tmp_path):
    text = LINES[0].encode()
    expected = infer(*_languages(run), stdin=text)[1]
    assert infer(*_languages(run), "--output=/dev/fd/1", stdin=text)[:2] == (0, expected)
    assert is_stream("/dev/stdout") and not is_stream("/dev/shm/out")
    link, fifo = tmp_path / "link", tmp_path / "fifo"
    (tmp_path / "far").mkdir()
    link.symlink_to(tmp_path / "far" / "out")
    assert infer(*_languages(run), "--output", link, stdin=text)[:2] == (0, "")
    assert link.is_symlink() and link.read_text() == expected
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    assert infer(*_languages(run), "--output", fifo, stdin=text)[:2] == (0, "")
    assert os.read(reader, 1 << 16).decode() == expected
    os.close(reader)
    assert fifo.is_fifo()
    status, _, error = infer(*_languages(run), "--output=/dev/full", stdin=text)
    assert status == 2 and "Traceback" not in error
    assert error.splitlines()[-1].startswith("error: /dev/full: No space left on device; make room")


def test_empty_input_gives_empty_output(run, infer):
    assert infer(*_languages(run))[:2] == (0, "")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with an input of three windows, the last one not full."""
    monkeypatch.setattr(job_module, "WINDOW_SIZE", WINDOW)
    (tmp_path / "in").write_text("\n".join(TEXTS) + "\n")
    return tmp_path


def _files(folder: Path, name: str = "out") -> tuple:
    return "--input", folder / "in", "--output", folder / name


def _stop_after(count: int, error: BaseException, monkeypatch) -> list[int]:
    """Raise an error after a number of translated lines; count all translated lines."""
    numbers: list[int] = []
    as_completed = TranslationJob.as_completed

    def counted(self, lines, **options):
        for line, translation in as_completed(self, lines, **options):
            if len(numbers) == count:
                raise error
            numbers.append(line.number)
            yield line, translation

    monkeypatch.setattr(TranslationJob, "as_completed", counted)
    return numbers


@pytest.mark.parametrize(
    ("name", "utility"), [("out", ()), ("out.gz", ()), ("out", ("--gin.Decode.utility='chrf'",))]
)
def test_an_interrupted_translation_is_resumed(run, infer, folder, monkeypatch, name, utility):
    """Interrupted by Ctrl-C. Sampling gives each line its own draw; no line is translated twice."""
    arguments = *_languages(run), *_files(folder, name), SAMPLED, *utility, "--format=jsonl"
    assert infer(*arguments)[0] == 0
    expected = (folder / name).read_bytes()
    assert (b'"utility": ' in expected) == bool(utility)
    (folder / name).write_bytes(b"old")
    with monkeypatch.context() as patch:
        first = _stop_after(13, KeyboardInterrupt(), patch)
        status, out, error = infer(*arguments)
    kept = folder / f"{name}.unfinished"
    assert (status, out) == (130, "") and (folder / name).read_bytes() == b"old"
    assert f"13 translated lines kept in {kept}: run the same command again to resume" in error
    with monkeypatch.context() as patch:
        rest = _stop_after(-1, KeyboardInterrupt(), patch)
        status, out, error = infer(*arguments)
    assert status == 0 and "resumes after 13 lines" in error and "7 lines in" in error
    assert sorted(first + rest) == list(range(20))
    read = gzip.decompress if name == "out.gz" else bytes
    assert read((folder / name).read_bytes()) == read(expected)
    assert set(folder.iterdir()) == {folder / "in", folder / name}


def test_records_include_pivot_and_contrast(run, infer):
    contrast = {"source_contrast": 0.5, "language_contrast": 0.1, "contrast_languages": ("en",)}
    flags = [f"--gin.Decode.{name}={value}" for name, value in contrast.items()]
    text = "\n".join(LINES).encode()
    arguments = (*_languages(run), "--format=jsonl", "--pivot=fr", *flags)
    status, out, error = infer(*arguments, stdin=text)
    assert status == 0 and "without another" not in error and "directly" not in error
    records = [json.loads(line) for line in out.split("\n")[:-1]]
    actual = Translator.load(run).translate_nbest(
        LINES, source="en", target="de", pivot="fr", **contrast
    )
    assert [record["translation"] for record in records] == [t.text for t in actual]
    assert [record["score"] for record in records] == [t.score for t in actual]
    assert [record.get("pivot") for record in records] == [t.pivot for t in actual]
    assert [len(record.get("others", ())) for record in records] == [1, 0, 1, 1, 1]
    assert all(set(r.get("others", ())) <= set(LINES) - {r["source"], ""} for r in records)
    assert "pivot" not in records[1] and "others" not in records[1]


def test_unsupported_pivot_and_contrast_settings_are_refused(run, infer):
    text = f"\n{LINES[0]}\n".encode()
    plain = infer(*_languages(run), stdin=text)[1]
    status, out, error = infer(*_languages(run), "--gin.Decode.source_contrast=0.5", stdin=text)
    assert (status, out) == (0, plain)
    assert "warning: 1 line without another line to contrast with" in error and "(line 2)" in error
    for pivot, role in (("en", "source"), ("de", "target")):
        status, out, error = infer(*_languages(run), f"--pivot={pivot}", stdin=text)
        assert (status, out) == (0, plain)
        assert error.count(f"--pivot={pivot} is the {role}: translated directly") == 1
    status, out, error = infer(*_languages(run), "--pivot=xx", stdin=text)
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert "--pivot=xx: the model has no such language" in error


def test_an_interrupted_pivot_or_contrast_translation_is_resumed(run, infer, folder, monkeypatch):
    contrast = "--gin.Decode.source_contrast=0.5", "--format=jsonl"
    arguments = *_languages(run), *_files(folder), *contrast
    assert infer(*arguments, "--pivot=fr")[0] == 0
    expected = (folder / "out").read_bytes()
    with monkeypatch.context() as patch:
        _stop_after(13, KeyboardInterrupt(), patch)
        assert infer(*arguments, "--pivot=fr")[0] == 130
    status, _, error = infer(*arguments)
    assert status == 2 and "made with other settings (pivot)" in error
    status, _, error = infer(*arguments, "--pivot=fr")
    assert status == 0 and "resumes after 13 lines" in error
    assert (folder / "out").read_bytes() == expected
    # Another line in the input: what was contrasted with others than it would be now is not used.
    with monkeypatch.context() as patch:
        _stop_after(13, KeyboardInterrupt(), patch)
        infer(*arguments)
    changed = [text if number != 14 else TEXTS[13] for number, text in enumerate(TEXTS)]
    (folder / "in").write_text("\n".join(changed) + "\n")
    assert infer(*arguments)[0] == 0
    actual = (folder / "out").read_bytes()
    (folder / "out").unlink()
    assert infer(*arguments)[0] == 0 and (folder / "out").read_bytes() == actual


def test_translations_before_a_bad_line_are_kept(run, infer, folder):
    good = (folder / "in").read_bytes()
    lines = good.split(b"\n")
    lines[17] = b"two \xff"
    (folder / "in").write_bytes(b"\n".join(lines))
    status, _, error = infer(*_languages(run), *_files(folder))
    assert status == 2 and "16 translated lines kept" in error
    assert error.splitlines()[-1].startswith(f"error: {folder / 'in'}, line 18: not UTF-8 (byte 5)")
    assert "--on_bad_line=drop" in error and not (folder / "out").exists()
    status, _, error = infer(*_languages(run), *_files(folder), "--on_bad_line=drop")
    assert status == 0 and "resumes after 16 lines" in error
    assert "warning: 1 line not UTF-8, treated as blank (line 18)" in error
    texts = [*TEXTS[:17], "", *TEXTS[18:]]
    expected = Translator.load(run).translate(texts, source="en", target="de")
    assert (folder / "out").read_text().split("\n") == [*expected, ""]


def test_only_complete_translations_of_the_same_input_are_reused(run, infer, folder, monkeypatch):
    assert infer(*_languages(run), *_files(folder))[0] == 0
    expected = (folder / "out").read_text().splitlines()
    with monkeypatch.context() as patch:
        _stop_after(12, KeyboardInterrupt(), patch)
        infer(*_languages(run), *_files(folder))
    kept = folder / "out.unfinished"
    records = kept.read_bytes().splitlines(keepends=True)
    assert len(records) == 13
    for content, changed, going_on in (
        (b"".join(records)[:-9], {}, 11),  # the last record cut
        (b"".join(records[:4]) + b"\x00\x00\n" + b"".join(records[4:]), {}, 3),
        (b"".join(records), {9: "the house is"}, None),  # another line in the input
        (b"".join(records), {12: None}, 12),  # the input shortened to what is done
    ):
        kept.write_bytes(content)
        texts = [changed.get(number, line) for number, line in enumerate(TEXTS)]
        texts = list(itertools.takewhile(lambda text: text is not None, texts))
        (folder / "in").write_text("\n".join(texts) + "\n")
        status, _, error = infer(*_languages(run), *_files(folder))
        actual = (folder / "out").read_text().splitlines()
        assert status == 0 and len(actual) == len(texts) and not kept.exists()
        same = [number for number in range(len(texts)) if number not in changed]
        assert [actual[n] for n in same] == [expected[n] for n in same] and len(same) > 11
        if going_on is not None and len(texts) > 12:
            assert f"resumes after {going_on} lines" in error


def test_other_settings_are_refused_while_translations_are_kept(run, infer, folder, monkeypatch):
    with monkeypatch.context() as patch:
        _stop_after(9, KeyboardInterrupt(), patch)
        infer(*_languages(run), *_files(folder))
    kept = folder / "out.unfinished"
    content = kept.read_bytes()
    status, _, error = infer(*_languages(run), *_files(folder), "--beam_size=1")
    assert status == 2 and error.count("\n") == 1
    assert "out.unfinished: has translations made with other settings (beam_size, met" in error
    assert kept.read_bytes() == content and not (folder / "out").exists()
    kept.write_bytes(content.splitlines(keepends=True)[0])  # killed before the first line was done
    assert infer(*_languages(run), *_files(folder), "--beam_size=1")[0] == 0
    expected = Translator.load(run).translate(TEXTS, source="en", target="de", beam_size=1)
    assert (folder / "out").read_text().split("\n") == [*expected, ""]


def test_no_files_remain_if_no_line_was_translated(run, infer, folder, monkeypatch):
    _stop_after(0, KeyboardInterrupt(), monkeypatch)
    assert infer(*_languages(run), *_files(folder))[0] == 130
    assert list(folder.iterdir()) == [folder / "in"]


def test_a_full_disk_keeps_finished_translations(run, infer, folder, monkeypatch):
    """Full after some lines, or when the output is written at the end."""

    def full(self):
        raise OSError(28, "No space left on device")

    kept = folder / "out.unfinished"
    with files_up_to(3000):
        status, _, error = infer(*_languages(run), *_files(folder))
    assert status == 2 and re.search(r"^\d translated lines kept", error, re.MULTILINE)
    assert f"error: {kept}: File too large; make room" in error.splitlines()[-1]
    with monkeypatch.context() as patch:
        patch.setattr(ResumableOutput, "records", full)
        status, _, error = infer(*_languages(run), *_files(folder))
    assert status == 2 and "20 translated lines kept" in error
    assert f"error: {folder / 'out'}: No space left on device; make room" in error.splitlines()[-1]
    status, _, error = infer(*_languages(run), *_files(folder))
    assert status == 0 and "0 lines in" in error and not kept.exists()


def test_two_processes_cannot_write_one_output(run, infer, folder):
    with ResumableOutput(str(folder / "out"), {}, WINDOW):
        status, _, error = infer(*_languages(run), *_files(folder))
    assert status == 2 and "another process is writing it" in error
    assert "Traceback" not in error


def test_several_processes_write_the_output_of_one(run, infer, folder, monkeypatch):
    """One of them is stopped and restarted. Sampling gives each line its own draw."""
    contrast = "--gin.Decode.source_contrast=0.5", "--pivot=fr"
    arguments = *_languages(run), *_files(folder), SAMPLED, *contrast, "--format=jsonl"
    assert infer(*arguments)[0] == 0
    expected = (folder / "out").read_bytes()
    (folder / "out").unlink()

    def process(number: int) -> tuple:
        return infer(*arguments, "--num_processes=3", f"--process_id={number}")

    with monkeypatch.context() as patch:
        _stop_after(4, KeyboardInterrupt(), patch)
        assert process(1)[0] == 130
    for number in (2, 0):
        status, _, error = process(number)
        assert status == 0 and "warning" not in error
        assert (
            f"process {number} of 3 has finished its lines; the last process to finish writes"
            in error
        )
        assert not (folder / "out").exists()
    with monkeypatch.context() as patch:
        rest = _stop_after(-1, KeyboardInterrupt(), patch)
        status, _, error = process(1)
    assert status == 0 and "resumes after 4 lines" in error and "at the length limit" in error
    assert (folder / "out").read_bytes() == expected
    assert len(rest) == 3 and {number % 3 for number in rest} == {1}
    assert set(folder.iterdir()) == {folder / "in", folder / "out"}


def test_foreign_and_input_files_are_not_used_as_partial_output(infer, folder):
    """Checked before the run is loaded."""
    kept = folder / "out.unfinished"
    kept.write_text('{"notes": "mine"}\n')
    for arguments, message in (
        (_files(folder), f"error: {kept}: was not written by mnmt-jax"),
        (("--input", kept, *_files(folder)[2:]), f"{kept} is the file of --input"),
    ):
        status, _, error = infer(*_languages("nowhere"), *arguments)
        assert status == 2 and message in error and error.count("\n") == 1
    assert kept.read_text() == '{"notes": "mine"}\n'


def test_standard_output_gets_each_line_at_once(run, infer, folder, monkeypatch):
    seen = []

    class Watched:
        encoding = "utf-8"

        def reconfigure(self, *, line_buffering, **options):
            assert line_buffering

        def write(self, text):
            seen.append(text)

        def flush(self):
            pass

    monkeypatch.setattr(sys, "stdout", Watched())
    _stop_after(17, KeyboardInterrupt(), monkeypatch)
    status, _, _ = infer(*_languages(run), "--input", folder / "in", "--format=jsonl")
    records = [json.loads(text) for text in seen if text != "\n"]
    assert status == 130 and [record["line"] for record in records] == [*range(1, 17)]
