"""Resumable output of one or several processes."""

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from mnmt_jax.commands.resumable_output import ResumableOutput
from mnmt_jax.commands.text_files import open_output
from mnmt_jax.decoding.encoded_lines import Line
from mnmt_jax.decoding.translation import Hypothesis, Translation
from mnmt_jax.distributed.work_shards import WorkShard
from mnmt_jax.errors import UserError
from tests import fresh_process

WINDOW = 8


def lines(count: int):
    return (Line(number, f"line {number}", "en", "de") for number in range(count))


def work(
    output: Path, share: WorkShard, count: int = 21, provenance=None, seconds: float = 0.0
) -> bool:
    """Translate the lines of a work shard; return whether it wrote the output."""

    def translate(window, /, *, done):
        left = [line for line in window if line.number not in done]
        for line in reversed(left):
            time.sleep(seconds)
            hypothesis = Hypothesis(line.text.upper(), -1.0, (2,))
            yield line, Translation((hypothesis,), False, False)

    with ResumableOutput(str(output), provenance or {"a": 1}, WINDOW, share) as unfinished:
        unfinished.finish(lines(count), translate, lambda done: None)
        time.sleep(100 * seconds)
        if not unfinished.is_last():
            return False
        with open_output(str(output)) as file:
            for record in unfinished.records():
                time.sleep(10 * seconds)
                file.write(record["translation"] + "\n")
        unfinished.remove()
    return True


def expected(count: int) -> str:
    return "".join(f"LINE {number}\n" for number in range(count))


@pytest.mark.parametrize("count", [0, 2, 8, 21, 24])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_the_last_process_writes_all_lines_in_order(count, order, tmp_path, capfd):
    output = tmp_path / "out"
    wrote = [work(output, WorkShard(process, 3), count) for process in order]
    assert wrote == [False, False, True] and output.read_text() == expected(count)
    assert list(tmp_path.iterdir()) == [output]
    stderr = capfd.readouterr().err
    assert (
        f"process {order[0]} of 3 has finished its lines; the last process to finish writes"
        in stderr
    )


def test_each_process_translates_its_lines_once(tmp_path, monkeypatch):
    output, parts = tmp_path / "out", {}
    for process in (0, 1):
        work(output, WorkShard(process, 3))
        path = tmp_path / f"out.unfinished.{process}-of-3"
        _, *records, end = map(json.loads, path.read_text().splitlines())
        parts[process] = [record["line"] - 1 for record in records]
        assert end == {"lines": 21}
    assert {each: sorted(own) for each, own in parts.items()} == {
        0: list(range(0, 21, 3)),
        1: list(range(1, 21, 3)),
    }
    before = path.read_bytes()
    assert not work(output, WorkShard(1, 3)) and path.read_bytes() == before


def test_files_of_other_settings_or_inputs_are_refused(tmp_path):
    output = tmp_path / "out"
    work(output, WorkShard(0, 2))
    for share in (WorkShard(), WorkShard(2, 3)):
        with pytest.raises(
            UserError, match="out.unfinished.0-of-2: was written with another number"
        ):
            work(output, share)
    with pytest.raises(UserError, match="0-of-2: has translations made with other settings .a."):
        work(output, WorkShard(1, 2), provenance={"a": 2})
    assert not (tmp_path / "out.unfinished.1-of-2").exists()  # found before anything was done
    with pytest.raises(
        UserError, match="0-of-2: was made from 21 lines, but this process read 20; give every"
    ):
        work(output, WorkShard(1, 2), count=20)
    kept = tmp_path / "out.unfinished.0-of-2"
    content = kept.read_bytes()
    kept.write_text("my own notes\n")
    with pytest.raises(
        UserError, match="0-of-2: was not written by mnmt-jax; move it, or choose another"
    ):
        work(output, WorkShard(1, 2))
    kept.write_bytes(content)
    assert not output.exists() and work(output, WorkShard(1, 2))
    assert output.read_text() == expected(21)


def test_a_smaller_batch_continues(tmp_path):
    """Lowering it is the remedy for a lack of memory; also of a teacher, and in one process."""
    large, small = ({"a": 1, "teachers": {"de-en": {"batch": n, "b": 2}}} for n in (32, 4))
    output = tmp_path / "out"
    work(output, WorkShard(0, 2), provenance=large)
    assert work(output, WorkShard(1, 2), provenance=small)
    assert output.read_text() == expected(21)
    record = '{"line": 1, "source": "line 0", "translation": "kept"}'
    header = '{"made_by": {"a": 1, "batch": 32}}'
    (tmp_path / "out.unfinished").write_text(f"{header}\n{record}\n")
    assert work(output, WorkShard(), provenance={"a": 1, "batch": 4})
    assert output.read_text() == expected(21).replace("LINE 0", "kept", 1)


def test_a_process_started_after_the_end_is_refused(tmp_path):
    output = tmp_path / "out"
    for process in (0, 1):
        work(output, WorkShard(process, 2))
    for process in (0, 1):
        with pytest.raises(UserError, match="out: already exists, and is complete if these"):
            work(output, WorkShard(process, 2))
    assert list(tmp_path.iterdir()) == [output] and output.read_text() == expected(21)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--num_processes=3",), "--process_id is missing beside the other flag"),
        (("--process_id=3",), "--num_processes is missing beside the other flag"),
        (("--num_processes=3", "--process_id=3"), "--process_id=3 must be from 0 to"),
        (("--num_processes=0", "--process_id=0"), "--num_processes=0 must be at least 1"),
        (
            ("--num_processes=3", "--process_id=0"),
            "--num_processes needs --output, because finished",
        ),
        (("--num_processes=3", "--process_id=0", "--output=/dev/stdout"), "needs --output"),
    ],
)
def test_incomplete_process_flags_are_one_error_line(flags, message):
    done = fresh_process.run("infer.py", "--run=nowhere", "--source=en", "--target=de", *flags)
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1


def test_finished_lines_are_flushed_to_disk_at_once(tmp_path):
    """A killed process loses no finished line."""
    with ResumableOutput(str(tmp_path / "out"), {"a": 1}, WINDOW) as unfinished:
        unfinished._write(b"record\n")
        kept = (tmp_path / "out.unfinished").read_bytes()
    assert kept == b'{"made_by": {"a": 1}}\nrecord\n'


def interrupted(count: int):
    """Yield lines, then raise as a slow input with Ctrl-C, or a bad line, does."""
    yield from lines(count)
    raise KeyboardInterrupt


@pytest.mark.parametrize("read", [None, 0, 3, WINDOW + 3])
def test_an_error_before_finished_lines_are_read_keeps_them(read, tmp_path, capsys):
    output, kept = tmp_path / "out", tmp_path / "out.unfinished"

    def translate(window, /, *, done):
        for line in window:
            if line.number == 2 * WINDOW + 3:
                raise KeyboardInterrupt
            yield line, Translation((Hypothesis(line.text.upper(), -1.0, (2,)),))

    with pytest.raises(KeyboardInterrupt), ResumableOutput(str(output), {"a": 1}, WINDOW) as first:
        first.finish(lines(21), translate, lambda done: None)
    content = kept.read_bytes()
    assert "19 translated lines kept in" in capsys.readouterr().err
    with pytest.raises(KeyboardInterrupt), ResumableOutput(str(output), {"a": 1}, WINDOW) as again:
        if read is None:
            raise KeyboardInterrupt
        again.finish(interrupted(read), translate, lambda done: None)
    assert kept.read_bytes() == content
    assert f"translated lines kept in {kept}: run the same" in capsys.readouterr().err
    assert work(output, WorkShard()) and output.read_text() == expected(21)
    assert "resumes after 19 lines" in capsys.readouterr().err


def test_an_error_before_the_first_line_leaves_no_file(tmp_path):
    with (
        pytest.raises(KeyboardInterrupt),
        ResumableOutput(str(tmp_path / "out"), {"a": 1}, WINDOW) as unfinished,
    ):
        unfinished.finish(interrupted(3), lambda window, done: iter(()), lambda done: None)
    assert list(tmp_path.iterdir()) == []


def compete(folder: Path, processes: int, rounds: int) -> None:
    """Run processes that end together, or kill and restart one, alternately."""

    def start(output: Path, process: int, seconds: float) -> int:
        if child := os.fork():
            return child
        if work(output, WorkShard(process, processes), 40, seconds=seconds):
            with (folder / f"wrote_{number}").open("a") as file:
                file.write(f"{process} ")
        os._exit(0)

    for number in range(rounds):
        draw = random.Random(number)
        output = folder / f"out_{number}"
        children = [start(output, each, 1e-4) for each in range(processes)]
        lost = draw.randrange(processes)
        if number % 2:
            time.sleep(draw.random() * 0.02)
            os.kill(children[lost], signal.SIGKILL)
        statuses = [os.waitpid(child, 0)[1] for child in children]
        assert not any(status for each, status in enumerate(statuses) if each != lost), statuses
        if not output.exists():
            assert os.waitpid(start(output, lost, 0), 0)[1] == 0
        assert output.read_text() == expected(40)
        assert list(folder.glob(f"out_{number}.*")) == []
        wrote = folder / f"wrote_{number}"  # nobody if it was killed between
        assert not wrote.exists() or len(wrote.read_text().split()) == 1, wrote.read_text()


def test_the_output_is_written_once_by_concurrent_or_killed_processes(tmp_path):
    program = f"""
        import pathlib
        from tests.unit.test_shares import compete
        compete(pathlib.Path({str(tmp_path)!r}), 4, 20)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, cwd=fresh_process.ROOT, text=True)
    assert done.returncode == 0, done.stderr
