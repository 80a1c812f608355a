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
from mnmt_jax.decoding.sentence_job import SentenceJob
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.errors import UserError
from mnmt_jax.runtime.run_command import run_command


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
    parser.add_argument("--input", type=Path, required=True, metavar="FILE")
    parser.add_argument("--source", required=True, metavar="CODE")
    parser.add_argument("--target", required=True, metavar="CODE")
    parser.add_argument("--clients", default="1,8,64", metavar="N,N")
    parser.add_argument("--seconds", type=positive_int, default=120, metavar="N")
    parser.add_argument("--lines_per_request", type=positive_int, default=1, metavar="N")
    flags = parser.parse_args()
    lines = [line for line in flags.input.read_text("utf-8").splitlines() if line.strip()]
    expected, rate = _translate(flags.run, lines, flags.source, flags.target)
    print(f"{len(lines)} lines in one process: {rate:.0f} lines/s", flush=True)
    load = Load(lines, expected, flags.source, flags.target, flags.lines_per_request)
    port = _free_port()
    command = [sys.executable, "-m", "mnmt_jax", "serve", "--run", flags.run, f"--port={port}"]
    with subprocess.Popen(command) as server:
        try:
            _wait_until_ready(server, port)
            for clients in map(int, flags.clients.split(",")):
                print(_measure(load, port, server.pid, clients, flags.seconds, rate), flush=True)
        finally:
            server.terminate()


def _translate(run: str, lines: Sequence[str], source: str, target: str) -> tuple[list[str], float]:
    """Return the translations of lines in this process, and lines per second."""
    job = SentenceJob.create(Translator.load(run))
    for _ in range(2):  # the first pass compiles
        start = time.perf_counter()
        numbered = job.number_lines(lines, source=source, target=target)
        texts = [translation.text for _, translation in job.in_order(numbered)]
        seconds = time.perf_counter() - start
    return texts, len(lines) / seconds


def _measure(load: Load, port: int, pid: int, clients: int, seconds: float, rate: float) -> str:
    """Return the line of a number of clients."""
    answers, memory = Answers(), list[float]()
    start = time.perf_counter()
    asyncio.run(_run_clients(load, port, clients, seconds, answers, memory, pid))
    reached = answers.lines / (time.perf_counter() - start)
    p50, p95, p99 = _percentiles(answers.seconds)
    return (
        f"{clients} clients: {reached:.0f} lines/s, {reached / rate:.2f} of one process; "
        f"p50 {p50:.0f} ms, p95 {p95:.0f} ms, p99 {p99:.0f} ms; {answers.errors} errors, "
        f"{answers.different} of {answers.lines} lines differ; "
        f"memory {memory[0]:.0f} MiB after the first half, {memory[1]:.0f} MiB at the end"
    )


async def _run_clients(
    load: Load,
    port: int,
    clients: int,
    seconds: float,
    answers: Answers,
    memory: list[float],
    pid: int,
) -> None:
    end = time.perf_counter() + seconds
    tasks = [
        asyncio.ensure_future(_client(load, port, number * 37, end, answers))
        for number in range(clients)
    ]
    await asyncio.sleep(seconds / 2)
    memory.append(_memory(pid))
    await asyncio.gather(*tasks)
    memory.append(_memory(pid))


async def _client(load: Load, port: int, position: int, end: float, answers: Answers) -> None:
    """Send requests until the time is over."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
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
