"""Load on a translation server: answers per second, waiting time and memory (docs/serving.md).

Example:
    python benchmarks/serving_load.py runs/quickstart/register --input test.en --source en \
        --target de --clients 1,8,64 --seconds 120

Clients send requests one after the other, each on its own connection. The rate is compared with
that of the same lines in one process (`mnmt translate --split_sentences`), compilation excluded,
and every answer with the translation there.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from mnmt_jax.commands.common_flags import CommandParser, positive_int
from mnmt_jax.commands.text_files import read_lines
from mnmt_jax.decoding.text.sentence_job import SentenceJob
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.errors import UserError
from mnmt_jax.runtime.run_command import run_command

_PASSES = 7  # of the lines in one process


@dataclasses.dataclass(frozen=True)
class Load:
    """What clients send.

    Attributes:
        lines: source lines.
        expected: the translation of each.
        source: code of the source language.
        target: code of the target language.
        lines_per_request: lines of a request.
    """

    lines: Sequence[str]
    expected: Sequence[str]
    source: str
    target: str
    lines_per_request: int


@dataclasses.dataclass
class Answers:
    """What clients got.

    Attributes:
        seconds: time to answer of each request.
        lines: translated lines.
        different: lines whose translation is not the expected one.
        errors: answers with another status than 200.
    """

    seconds: list[float] = dataclasses.field(default_factory=list)
    lines: int = 0
    different: int = 0
    errors: int = 0


def main() -> None:
    """Print a line for each number of clients."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--input", required=True, metavar="FILE")
    parser.add_argument("--source", required=True, metavar="CODE")
    parser.add_argument("--target", required=True, metavar="CODE")
    parser.add_argument("--clients", default="1,8,64", metavar="N,N")
    parser.add_argument("--seconds", type=positive_int, default=120, metavar="N")
    parser.add_argument("--lines_per_request", type=positive_int, default=1, metavar="N")
    parser.add_argument(
        "--heavy_lines",
        type=int,
        default=0,
        metavar="N",
        help="lines of the requests of one more client, another user; default: 0, no such client",
    )
    flags = parser.parse_args()
    lines = [line for line in read_lines(flags.input) if line.strip()]
    expected, rate, cpu = _translate(flags.run, lines, flags.source, flags.target)
    print(
        f"{len(lines)} lines in one process: {rate:.0f} lines/s, {1000 * cpu:.1f} CPU ms a line",
        flush=True,
    )
    load = Load(lines, expected, flags.source, flags.target, flags.lines_per_request)
    port = _free_port()
    command = [sys.executable, "-m", "mnmt_jax", "serve", "--run", flags.run, f"--port={port}"]
    with subprocess.Popen(command) as server:
        try:
            _wait_until_ready(server, port)
            for clients in map(int, flags.clients.split(",")):
                round_ = _Round(load, port, server.pid, flags.heavy_lines)
                print(round_.measure(clients, flags.seconds, rate), flush=True)
        finally:
            server.terminate()


def _translate(
    run: str, lines: Sequence[str], source: str, target: str
) -> tuple[list[str], float, float]:
    """Return translations in this process, lines per second, and CPU seconds of a line.

    The last two are medians of the passes after the first one, which compiles.
    """
    job = SentenceJob.create(Translator.load(run))
    passes = []
    for _ in range(1 + _PASSES):
        start, cpu = time.perf_counter(), time.process_time()
        numbered = job.number_lines(lines, source=source, target=target)
        texts = [translation.text for _, translation in job.in_order(numbered)]
        passes.append((time.perf_counter() - start, time.process_time() - cpu))
    seconds, cpu = map(statistics.median, zip(*passes[1:], strict=True))
    return texts, len(lines) / seconds, cpu / len(lines)


class _Round:
    """Clients at work for some seconds.

    Args:
        load: what they send.
        port: port of the server.
        pid: its process.
        heavy_lines: lines of the requests of one more client, another user; 0 is none.
    """

    def __init__(self, load: Load, port: int, pid: int, heavy_lines: int) -> None:
        self._load, self._port, self._pid, self._heavy_lines = load, port, pid, heavy_lines
        self._answers, self._heavy, self._memory = Answers(), Answers(), list[float]()

    def measure(self, clients: int, seconds: float, rate: float) -> str:
        """Return the figures of a number of clients."""
        start, cpu = time.perf_counter(), _cpu_seconds(self._pid)
        asyncio.run(self._run(clients, seconds))
        lines = self._answers.lines + self._heavy.lines
        reached = lines / (time.perf_counter() - start)
        cpu = (_cpu_seconds(self._pid) - cpu) / max(lines, 1)
        p50, p95, p99 = _percentiles(self._answers.seconds)
        both = (self._answers, self._heavy)
        return (
            f"{clients} clients{' and a heavy one' if self._heavy_lines else ''}: "
            f"{reached:.0f} lines/s, {reached / rate:.2f} of one process, {1000 * cpu:.1f} CPU ms "
            f"a line; p50 {p50:.0f} ms, p95 {p95:.0f} ms, p99 {p99:.0f} ms; "
            f"{sum(one.errors for one in both)} errors, "
            f"{sum(one.different for one in both)} of {lines} lines differ; memory "
            f"{self._memory[0]:.0f} MiB after the first half, {self._memory[1]:.0f} MiB at the end"
        )

    async def _run(self, clients: int, seconds: float) -> None:
        end, load, port = time.perf_counter() + seconds, self._load, self._port
        work = [_client(load, port, 37 * n, end, self._answers) for n in range(clients)]
        if self._heavy_lines:
            heavy = dataclasses.replace(load, lines_per_request=self._heavy_lines)
            work.append(_client(heavy, port, 0, end, self._heavy, "127.0.0.2"))
        tasks = [asyncio.ensure_future(one) for one in work]
        await asyncio.sleep(seconds / 2)
        self._memory.append(_memory(self._pid))
        await asyncio.gather(*tasks)
        self._memory.append(_memory(self._pid))


async def _client(
    load: Load,
    port: int,
    position: int,
    end: float,
    answers: Answers,
    address: str = "127.0.0.1",
) -> None:
    """Send requests until the time is over; the address of a client tells users apart."""
    local = (address, 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=local)
    while time.perf_counter() < end:
        chosen = [(position + n) % len(load.lines) for n in range(load.lines_per_request)]
        position += load.lines_per_request
        fields = {"q": [load.lines[n] for n in chosen], "source": load.source}
        body = json.dumps({**fields, "target": load.target}).encode()
        start = time.perf_counter()
        writer.write(_HEAD % len(body) + body)
        status, answer = await _read_answer(reader)
        answers.seconds.append(time.perf_counter() - start)
        if status != 200:
            answers.errors += 1
            continue
        texts = json.loads(answer)["translatedText"]
        wanted = [load.expected[n] for n in chosen]
        answers.lines += len(texts)
        answers.different += sum(a != b for a, b in zip(texts, wanted, strict=True))
    writer.close()


_HEAD = (
    b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n"
)


async def _read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    size = re.search(rb"(?i)content-length: *(\d+)", head)
    if size is None:
        raise UserError(f"an answer without a length: {head!r}")
    return int(head.split(b" ", 2)[1]), await reader.readexactly(int(size[1]))


def _percentiles(seconds: Sequence[float]) -> tuple[float, float, float]:
    """Return the 50th, 95th and 99th percentile in milliseconds."""
    cuts = statistics.quantiles([1000 * second for second in seconds], n=100, method="inclusive")
    return cuts[49], cuts[94], cuts[98]


def _memory(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    (size,) = re.findall(r"VmRSS:\s*(\d+) kB", status)
    return int(size) / 1024


def _cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _wait_until_ready(server: subprocess.Popen[bytes], port: int) -> None:
    while server.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready"):
                return
        except OSError:
            time.sleep(0.5)
    raise UserError("the server ended before it was ready")


if __name__ == "__main__":
    run_command(main)
