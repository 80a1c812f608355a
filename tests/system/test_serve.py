"""`mnmt serve` with a model: answers, readiness, and its end."""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import pytest

from mnmt_jax.commands import serve
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.errors import UserError
from mnmt_jax.runtime import run_command
from mnmt_jax.serving.database import Database
from mnmt_jax.serving.settings import Settings
from mnmt_jax.serving.usage import read_usage
from tests.fresh_process import PATIENCE
from tests.unit.made_language_model import write_made_run
from tests.unit.made_translator import made_translator
from tests.waiting import wait_until

TEXT = "- one two.  three house!\n\n😀 green {river}"


def answer(url: str, body: dict | None = None) -> tuple[int, dict]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@contextlib.contextmanager
def served(run, port: int, *further: str):
    """Serve a run; yield the process and its address when it is ready."""
    flags = ["--run", str(run), f"--port={port}", "--window=4", "--wait_milliseconds=0", *further]
    command = [sys.executable, "-m", "mnmt_jax", "serve", *flags]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stderr
        first = server.stderr.readline()
        (url,) = re.findall(
            r"serves .* as run, 3 languages, on (http://127\.0\.0\.1:\d+)$", first.strip()
        )
        if not further:
            assert "kept in memory until the server ends" in server.stderr.readline()
        deadline = time.monotonic() + PATIENCE
        while answer(f"{url}/ready")[0] != 200:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert "ready: all shapes compiled in " in server.stderr.readline()
        try:
            yield server, url
        finally:
            server.kill()


def test_a_model_is_served_until_sigterm_and_again_after_a_kill(tmp_path):
    run = write_made_run(tmp_path / "run", made_translator("1", "register"))
    expected = Translator.load(run).translate_text(TEXT, source="en", target="de").text
    body = {"q": TEXT, "source": "en", "target": "de"}
    with served(run, free_port()) as (killed, url), under_load(url, body) as load:
        wait_until(lambda: len(load) > 5)
        killed.kill()
        killed.wait(PATIENCE)
        wait_until(lambda: (0, {}) in load)
    assert set(map(repr, load)) <= {repr((200, {"translatedText": expected})), repr((0, {}))}
    database, port = tmp_path / "server.db", int(url.rpartition(":")[2])
    with served(run, port, f"--database={database}") as (server, url):
        assert answer(f"{url}/translate", body) == (200, {"translatedText": expected})
        fields = {"text": [TEXT], "source_lang": "EN", "target_lang": "DE"}
        status, translated = answer(f"{url}/v2/translate", fields)
        assert status == 200 and translated["translations"][0]["text"] == expected
        with under_load(url, body) as load:
            wait_until(lambda: len(load) > 5)
            server.send_signal(signal.SIGTERM)
            rest = server.stderr.read()
            assert server.wait(PATIENCE) == 143
        assert "Traceback" not in rest, rest
        assert re.search(r"^stops( after \d requests?)?$", rest, re.MULTILINE), rest
        assert {status for status, _ in load} <= {200, 503, 0}  # answered, or not accepted
    answered = 2 + [status for status, _ in load].count(200)
    assert read_usage(Database(database))[""] >= answered * len(TEXT)


def test_sigterm_while_shapes_are_compiled_ends_the_process_at_once(tmp_path, monkeypatch):
    """The shutdown of Python aborts if a thread compiles, so `main` returns the status."""
    run = write_made_run(tmp_path / "run", made_translator("1", "register"))
    before, interval = signal.getsignal(signal.SIGTERM), sys.getswitchinterval()
    ends, is_over = [], threading.Event()

    def compile_for_long(*_) -> None:
        wait_until(lambda: "handle_exit" in repr(signal.getsignal(signal.SIGTERM)))  # uvicorn's
        os.kill(os.getpid(), signal.SIGTERM)
        is_over.wait(PATIENCE)

    monkeypatch.setenv("PJRT_NPROC", "8")  # else `main` sets it, for the whole process
    monkeypatch.setattr("sys.argv", ["mnmt serve", f"--run={run}", "--port=0"])
    monkeypatch.setattr(serve, "_prepare", compile_for_long)
    monkeypatch.setattr(run_command, "_keep_programs", lambda: None)
    monkeypatch.setattr(run_command, "exit_immediately", ends.append)
    try:
        with pytest.raises(SystemExit):
            run_command.run_command(serve.main)
    finally:
        is_over.set()
        signal.signal(signal.SIGTERM, before)
        sys.setswitchinterval(interval)
    assert ends == [143]


@contextlib.contextmanager
def under_load(url: str, body: dict):
    """Send requests from three threads; yield the list of their answers, (0, {}) for none."""
    answers: list[tuple[int, dict]] = []
    stops = threading.Event()

    def send() -> None:
        while not stops.is_set():
            try:
                answers.append(answer(f"{url}/translate", body))
            except (OSError, http.client.HTTPException):
                answers.append((0, {}))
                stops.wait(0.05)

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(send) for _ in range(3)]
        try:
            yield answers
        finally:
            stops.set()
    for future in futures:
        future.result()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def test_source_contrast_is_refused(tmp_path, monkeypatch):
    run = write_made_run(tmp_path / "run", made_translator("1", "register", source_contrast=0.5))
    monkeypatch.setenv("PJRT_NPROC", "8")  # else `main` sets it, for the whole process
    monkeypatch.setattr("sys.argv", ["mnmt serve", f"--run={run}", "--port=0"])
    message = f"--run={run}: Decode.source_contrast=0.5 .*; add --gin.Decode.source_contrast=0$"
    with pytest.raises(UserError, match=message):
        serve.main()


def test_an_address_in_use_is_one_line(tmp_path, monkeypatch):
    run = write_made_run(tmp_path / "run", made_translator("1", "register"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("PJRT_NPROC", "8")  # else `main` sets it, for the whole process
        monkeypatch.setattr("sys.argv", ["mnmt serve", f"--run={run}", f"--port={port}"])
        with pytest.raises(UserError, match=f"--port={port}: Address already in use; choose anoth"):
            serve.main()


def test_a_host_that_is_unknown_is_one_line(monkeypatch):
    def unknown(*args, **options):
        raise OSError(-2, f"Name or service not known (while attempting to bind on {args[0]})")

    monkeypatch.setattr(socket, "create_server", unknown)
    with pytest.raises(
        UserError, match=r"--host=no\.invalid .*: Name or service not known; choose"
    ):
        serve._listen(Settings(host="no.invalid"))


@pytest.mark.parametrize(("host", "others"), [("::1", []), ("::", ["127.0.0.1"])])
def test_ipv6_is_served(host, others):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with serve._listen(Settings(host=host, port=0)) as listener:
        port = listener.getsockname()[1]
        assert serve._address(listener, Settings(host=host)) == f"http://[{host}]:{port}"
        for address in ("::1", *others):
            socket.create_connection((address, port), PATIENCE).close()
