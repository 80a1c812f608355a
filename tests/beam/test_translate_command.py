"""Translation by commands on Apache Beam: the bytes of one process, after any stop."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mnmt_jax.commands import back_translate, beam_translation, translate
from mnmt_jax.config.sections import Decode, Model
from mnmt_jax.decoding import translation_job
from mnmt_jax.errors import UserError
from tests.made_params import write_random_run
from tests.made_run import make_cache
from tests.unit import made_text

pytest.importorskip("apache_beam", reason="Apache Beam is not installed: scripts/test_beam.sh")

MODEL = Model("prefix", (1,), embed=16, mlp=24, heads=2)
LINES = [*made_text.sentences("en", 20), "", "green\u2028house", "one " * 40]
WORKERS = ("--direct_num_workers=2", "--direct_running_mode=multi_processing")
WINDOW = 8


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with a run, a text and a token cache."""
    folder = tmp_path_factory.mktemp("made")
    write_random_run(folder / "run", MODEL, seed=3)
    (folder / "text.en").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    make_cache(folder / "cache")
    return folder


@pytest.fixture(autouse=True)
def small_windows(monkeypatch):
    """Several windows; workers in other processes get whole ones."""
    monkeypatch.setattr(translation_job, "WINDOW_SIZE", WINDOW)
    monkeypatch.setattr("mnmt_jax.commands.back_translation_rounds.WINDOW_SIZE", WINDOW)


def run(monkeypatch, command, *flags: object) -> int | None:
    monkeypatch.setattr(sys, "argv", ["mnmt", *map(str, flags)])
    return command.main()


def flags(made: Path, output: Path, *more: str) -> list[object]:
    return [
        f"--run={made / 'run'}",
        "--source=en",
        "--target=de",
        f"--input={made / 'text.en'}",
        f"--output={output}",
        "--gin.Decode.buckets=(24,)",
        "--gin.Decode.max_length=8",
        *more,
    ]


@pytest.mark.parametrize(
    ("more", "beam"),
    [
        (["--format=jsonl", "--beam_size=2"], []),
        (["--pivot=fr", "--format=jsonl", "--gin.Decode.source_contrast=0.3"], []),
        (["--gin.Decode.temperature=1.0", "--format=jsonl"], WORKERS),
    ],
)
def test_beam_writes_the_bytes_of_one_process(made, tmp_path, monkeypatch, capsys, more, beam):
    run(monkeypatch, translate, *flags(made, tmp_path / "here", *more))
    warnings = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    run(
        monkeypatch,
        translate,
        *flags(made, tmp_path / "beam", "--runner=beam", *more),
        "--",
        *beam,
    )
    text = (tmp_path / "beam").read_bytes()
    assert text == (tmp_path / "here").read_bytes() and len(set(text.splitlines())) > 10
    said = capsys.readouterr().err.splitlines()
    alone = "--split_sentences translates them whole, or "  # it is not for --runner=beam
    expected = [line.replace(alone, "") for line in warnings]
    assert [line for line in said if "warning" in line] == expected != []
    assert {path.name for path in tmp_path.iterdir()} == {"here", "beam"}


def _fail_at_the_second(work, name):
    """Translate a window unless there is one; Beam may copy functions, so files have the state."""
    if list(work.work.glob("00*-????????????????.jsonl")):
        raise UserError("the worker is lost")
    _TRANSLATE_WINDOW(work, name)


def _record(work, name):
    with (work.work.parent.parent / "translated.txt").open("a") as file:
        print(name, file=file)
    _TRANSLATE_WINDOW(work, name)


_TRANSLATE_WINDOW = beam_translation.translate_window


def test_finished_windows_are_not_translated_again(made, tmp_path, monkeypatch, capsys):
    command = flags(made, tmp_path / "out", "--runner=beam")
    run(monkeypatch, translate, *flags(made, tmp_path / "here"))
    monkeypatch.setattr(beam_translation, "translate_window", _fail_at_the_second)
    with pytest.raises(UserError, match="^the worker is lost$"):
        run(monkeypatch, translate, *command)
    assert "run the same command again to resume" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"made with other settings \(beam_size\)"):
        run(monkeypatch, translate, *command, "--beam_size=3")
    monkeypatch.setattr(beam_translation, "translate_window", _record)
    run(monkeypatch, translate, *command)
    assert "resumes after 1 window" in capsys.readouterr().err
    translated = (tmp_path / "translated.txt").read_text().split()
    assert [name[:6] for name in sorted(translated)] == ["00001-", "00002-"]
    assert (tmp_path / "out").read_bytes() == (tmp_path / "here").read_bytes()


def test_a_worker_with_another_run_is_refused(made, tmp_path, monkeypatch):
    actual = beam_translation.WorkerModel.load

    def load_another(model):
        job = actual(model)
        return translation_job.TranslationJob(job.pretrained, Decode(max_length=3))

    monkeypatch.setattr(beam_translation.WorkerModel, "load", load_another)
    with pytest.raises(UserError, match="differs on a worker .*max_length"):
        run(monkeypatch, translate, *flags(made, tmp_path / "out", "--runner=beam"))
    assert not (tmp_path / "out").exists()


def test_back_translation_on_beam_has_the_cache_of_one_process(made, tmp_path, monkeypatch):
    command = [f"--run={made / 'run'}", f"--cache={made / 'cache'}", "--languages=de,fr"]
    command += ["--gin.Decode.buckets=(24,)", "--gin.Decode.max_length=8"]
    run(monkeypatch, back_translate, *command, f"--output={tmp_path / 'here'}")
    run(monkeypatch, back_translate, *command, f"--output={tmp_path / 'beam'}", "--runner=beam")
    names = [path.relative_to(tmp_path / "here") for path in (tmp_path / "here").rglob("*")]
    files = [name for name in names if (tmp_path / "here" / name).is_file()]
    assert len(files) > 10
    for name in files:
        assert (tmp_path / "beam" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--runner=beam", "--num_processes=2", "--process_id=0"], "--num_processes is of"),
        (["--", "--direct_num_workers=2"], "--direct_num_workers=2: flags after '--' are Beam's"),
    ],
)
def test_flags_of_the_other_runner_are_refused(made, tmp_path, monkeypatch, more, message):
    with pytest.raises(UserError, match=message):
        run(monkeypatch, translate, *flags(made, tmp_path / "out"), *more)
    with pytest.raises(UserError, match="--runner=beam needs --output"):
        run(monkeypatch, translate, *flags(made, Path("/dev/stdout"), "--runner=beam"))
