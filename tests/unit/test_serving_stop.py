"""End of the server while documents are translated."""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import logging
import signal
import threading
from collections.abc import Callable
from typing import Any

import deepl
import pytest
import requests

from mnmt_jax.serving.app import create_app
from mnmt_jax.serving.connections import Server, make_config
from tests.unit.made_server import MadeJob, made_service
from tests.unit.test_serving import call
from tests.unit.test_serving_documents import send
from tests.waiting import wait_until

TEXT = "Hello, you."


@pytest.fixture
def job() -> MadeJob:
    return MadeJob()


@pytest.fixture
def server(job, monkeypatch, request):
    """Run the command's own server in a thread; a parameter is its time-out."""
    monkeypatch.setattr("deepl.http_client.max_network_retries", 0)
    monkeypatch.setattr("mnmt_jax.serving.document_store._FETCH_SECONDS", 600)
    service = made_service(job, wait_milliseconds=0)
    app = create_app(service, lambda: True)
    config = make_config(app, service.settings, host="127.0.0.1", port=0)
    server = Server(config, service.documents, getattr(request, "param", 600))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    yield server, thread
    job.gate.set()
    server.force_exit = server.should_exit = True
    thread.join(60)
    service.stop()


def test_documents_are_translated_and_fetched_before_the_server_ends(server, job, capsys):
    server, thread = server
    client = connect(server)
    job.gate.clear()
    handle = upload(client)
    server.should_exit = True
    wait_until(lambda: server._documents.is_closing)
    assert "; waits for 1 document to be" in capsys.readouterr().err
    url = address(server)
    body = {"q": TEXT, "source": "en", "target": "de"}
    assert call(url, "/translate", body) == (503, {"error": "the server is stopping"})
    ready = requests.get(f"{url}/ready", timeout=60)
    assert ready.status_code == 503 and ready.headers["Retry-After"]
    assert requests.get(f"{url}/health", timeout=60).ok
    assert requests.head(f"{url}/ready", timeout=60).status_code == 503
    with pytest.raises(deepl.DeepLException, match="the server is stopping"):
        upload(client)
    assert not client.translate_document_get_status(handle).done
    job.gate.set()
    assert client.translate_document_wait_until_done(handle).done
    assert client.translate_document_download(handle).content.decode() == f"[de] {TEXT}"
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("forced", [False, True])
def test_the_server_ends_if_nobody_fetches_a_document_or_the_user_insists(
    server, job, forced, monkeypatch
):
    server, thread = server
    if forced:
        job.gate.clear()
    else:
        monkeypatch.setattr("mnmt_jax.serving.document_store._FETCH_SECONDS", 0.1)
    handle = upload(connect(server))
    server.should_exit = True
    server.force_exit = forced
    thread.join(60)
    assert handle and not thread.is_alive()


@pytest.mark.parametrize("server", [0.3], indirect=True)
def test_the_wait_for_documents_is_limited(server, job, monkeypatch, capsys):
    """Those of DeepL's clients, and those whose request waits for them."""
    monkeypatch.setattr("mnmt_jax.serving.connections._ANSWER_SECONDS", 0.3)
    server, thread = server
    job.gate.clear()
    with started(job, send, address(server), TEXT.encode(), source="en", target="de") as answer:
        upload_beside_a_request(server)
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive() and not job.gate.is_set()
        assert isinstance(answer.exception(), requests.ConnectionError)
    assert capsys.readouterr().err.splitlines() == [
        "stops after 1 request; waits for 1 document to be translated or fetched",
        "loses 2 documents, not translated and fetched within --timeout=0.3",
    ]


def test_a_second_signal_ends_the_wait_for_documents_and_requests(
    server, job, monkeypatch, caplog, capsys
):
    server, thread = server
    monkeypatch.setattr(logging.getLogger("uvicorn"), "propagate", True)
    job.gate.clear()
    body = {"q": TEXT, "source": "en", "target": "de"}
    with started(job, call, address(server), "/translate", body) as answer:
        upload_beside_a_request(server)
        server.handle_exit(signal.SIGTERM, None)
        wait_until(lambda: server._documents.is_closing)
        assert thread.is_alive()
        server.handle_exit(signal.SIGTERM, None)
        thread.join(60)
        assert not thread.is_alive() and not job.gate.is_set()
        assert isinstance(answer.exception(), OSError | http.client.HTTPException)
    assert capsys.readouterr().err.splitlines() == [
        "stops after 1 request; waits for 1 document to be translated or fetched",
        "loses 1 document, not translated and fetched",
    ]
    assert not caplog.records


@pytest.mark.parametrize("asks", ["status", "result"])
def test_a_document_whose_error_is_known_holds_up_nothing(server, asks):
    server, thread = server
    client = connect(server)
    handle = upload(client, "12")
    fields = {"document_key": handle.document_key}
    path = f"/v2/document/{handle.document_id}"
    path += "/result" if asks == "result" else ""

    def is_known() -> bool:
        status, answer = call(address(server), path, fields)
        return status == 400 or answer.get("status") == "error"

    wait_until(is_known)
    server.should_exit = True
    thread.join(60)
    assert not thread.is_alive()


@contextlib.contextmanager
def started(job: MadeJob, function: Callable[..., Any], *arguments: Any, **options: Any):
    """Yield the future of a call that waits for `job.gate`, which is open at the end."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        try:
            yield pool.submit(function, *arguments, **options)
        finally:
            job.gate.set()


def upload(client: deepl.Translator, text: str = TEXT) -> deepl.DocumentHandle:
    return client.translate_document_upload(
        text, source_lang="EN", target_lang="DE", filename="a.txt"
    )


def upload_beside_a_request(server: Server) -> None:
    """Upload a document when another request waits, and wait until only that one is left."""
    wait_until(lambda: len(server.server_state.tasks) == 1)
    upload(connect(server))
    wait_until(lambda: len(server.server_state.tasks) == 1)


def address(server: Server) -> str:
    return f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"


def connect(server: Server) -> deepl.Translator:
    return deepl.Translator("key", server_url=address(server))
