"""End of the server while documents are translated."""

from __future__ import annotations

import threading

import deepl
import pytest

from mnmt_jax.serving.app import create_app
from mnmt_jax.serving.connections import Server, make_config
from tests.unit.made_server import MadeJob, made_service
from tests.waiting import wait_until

TEXT = "Hello, you."


@pytest.fixture
def job() -> MadeJob:
    return MadeJob()


@pytest.fixture
def server(job, monkeypatch):
    """Run the command's own server in a thread."""
    monkeypatch.setattr("deepl.http_client.max_network_retries", 0)
    monkeypatch.setattr("mnmt_jax.serving.document_store._FETCH_SECONDS", 600)
    service = made_service(job, wait_milliseconds=0)
    app = create_app(service, lambda: True)
    server = Server(make_config(app, service.settings, host="127.0.0.1", port=0), service.documents)
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
    wait_until(lambda: "stops after 1 document" in capsys.readouterr().err)
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


def test_a_document_whose_error_is_known_holds_up_nothing(server):
    server, thread = server
    client = connect(server)
    handle = upload(client, "12")
    wait_until(lambda: not client.translate_document_get_status(handle).ok)
    server.should_exit = True
    thread.join(60)
    assert not thread.is_alive()


def upload(client: deepl.Translator, text: str = TEXT) -> deepl.DocumentHandle:
    return client.translate_document_upload(
        text, source_lang="EN", target_lang="DE", filename="a.txt"
    )


def connect(server: Server) -> deepl.Translator:
    port = server.servers[0].sockets[0].getsockname()[1]
    return deepl.Translator("key", server_url=f"http://127.0.0.1:{port}")
