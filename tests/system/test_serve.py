"""`mnmt serve` with a model: answers, readiness, and its end."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from mnmt_jax.commands import serve
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.errors import UserError
from tests.fresh_process import PATIENCE
from tests.unit.made_language_model import write_made_run
from tests.unit.made_translator import made_translator

TEXT = "- one two.  three house!\n\n😀 green {river}"


def answer(url: str, body: dict | None = None) -> tuple[int, dict]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_a_model_is_served_until_sigterm(tmp_path):
    run = write_made_run(tmp_path / "run", made_translator("1", "register"))
    expected = Translator.load(run).translate_text(TEXT, source="en", target="de").text
    flags = ["--run", str(run), "--port=0", "--window=4", "--wait_milliseconds=0"]
    command = [sys.executable, "-m", "mnmt_jax", "serve", *flags]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stderr
        first = server.stderr.readline()
        (url,) = re.findall(
            r"serves .* as run, 3 languages, on (http://127\.0\.0\.1:\d+)$", first.strip()
        )
        deadline = time.monotonic() + PATIENCE
        while answer(f"{url}/ready")[0] != 200:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert "ready: all shapes compiled in " in server.stderr.readline()
        body = {"q": TEXT, "source": "en", "target": "de"}
        assert answer(f"{url}/translate", body) == (200, {"translatedText": expected})
        body = {"text": [TEXT], "source_lang": "EN", "target_lang": "DE"}
        status, translated = answer(f"{url}/v2/translate", body)
        assert status == 200 and translated["translations"][0]["text"] == expected
        server.send_signal(signal.SIGTERM)
        rest = server.stderr.read()
        assert server.wait(PATIENCE) in (0, 143, -signal.SIGTERM) and "Traceback" not in rest, rest


def test_an_address_in_use_is_one_line(tmp_path, monkeypatch):
    run = write_made_run(tmp_path / "run", made_translator("1", "register"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr("sys.argv", ["mnmt serve", f"--run={run}", f"--port={port}"])
        with pytest.raises(UserError, match=f"--port={port}: Address already in use; choose anoth"):
            serve.main()
