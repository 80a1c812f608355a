"""In-memory server with the JSON API of Google Cloud Storage.

Only what tensorstore, gcsfs and google-cloud-storage ask while runs are read and written; any other
request is answered 501, so a test that needs more fails.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

import google_crc32c
import pytest

from mnmt_jax.files.bucket import copy_files

_OBJECT = re.compile(r"(?:/download)?/storage/v1/b/(?P<bucket>[^/]+)/o/(?P<name>[^/]+)")
_LIST = re.compile(r"/storage/v1/b/(?P<bucket>[^/]+)/o")
_BUCKET = re.compile(r"/storage/v1/b/(?P<bucket>[^/]+)")
_UPLOAD = re.compile(r"/upload/storage/v1/b/(?P<bucket>[^/]+)/o")

FORBIDDEN = (403, b'{"error": {"code": 403, "message": "Forbidden"}}')
OUTAGES = ("stalled", "cut", "lost", "503", "429")
WRONG = ("short", "long", "flipped", "403", "404")
TROUBLES = (*OUTAGES, *WRONG)
"""Troubles with an answer: outages, and those that do not end by themselves."""
NONSENSE = (200, b'{"kind": "storage#objects"}')  # a proxy's answer to another request, say


class _Store(ThreadingHTTPServer):
    """The server.

    Attributes:
        objects: what the bucket holds, name -> (generation, content); a write makes a new
            generation.
        refuses: status and content of the answer to every request, instead of the bucket's; None
            while it serves.
        trouble: returns the trouble with the next answer that has the content of an object, one of
            `TROUBLES`; "" for none.
        listed_sizes: wrong sizes of objects, as lists state them.
        read: names of the objects whose content was asked for, in order.
        released: set to end the answers that stall.
    """

    request_queue_size = 128  # connections beyond it wait for seconds

    def __init__(self, port: int = 0) -> None:
        super().__init__(("localhost", port), _Handler)
        self.trouble: Callable[[str], str] = lambda name: ""
        self.listed_sizes: dict[str, int] = {}
        self.read: list[str] = []
        self.released = threading.Event()
        self.objects: dict[str, tuple[int, bytes]] = {}
        self.refuses: tuple[int, bytes] | None = None
        self.lock = threading.Lock()
        self.generation = 0

    def write(self, name: str, content: bytes, wanted: str | None) -> bool:
        """Write the object if its generation matches; generation 0 means that it must not exist."""
        with self.lock:
            if wanted is not None and int(wanted) != self.objects.get(name, (0, b""))[0]:
                return False
            self.generation += 1
            self.objects[name] = (self.generation, content)
            return True


def _hash_of(content: bytes) -> str:
    checksum = google_crc32c.value(content).to_bytes(4, "big")
    return f"crc32c={base64.b64encode(checksum).decode()}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer in one piece: the client's end waits between two
    server: _Store

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def parse_request(self) -> bool:
        """Refuse requests while the server is set to refuse; answer each request once.

        A second answer on a connection that is kept would be taken for that of the next request.
        """
        if not super().parse_request():
            return False
        status, content = self.server.refuses or (0, b"")
        if status:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self._answer(status, content, **{"Content-Type": "application/json"})
            self.wfile.flush()
        return not status

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if actual := _OBJECT.fullmatch(url.path):
            self._object(unquote(actual["name"]), query)
        elif _LIST.fullmatch(url.path):
            self._list(query)
        elif actual := _BUCKET.fullmatch(url.path):
            self._json({"kind": "storage#bucket", "name": actual["bucket"], "id": actual["bucket"]})
        else:
            self._answer(501)

    def do_POST(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        kind, name = query.get("uploadType"), query.get("name", "")
        if not _UPLOAD.fullmatch(url.path) or kind not in ("media", "resumable"):
            self._answer(501)
        elif kind == "resumable" and "upload_id" not in query:
            host = f"http://localhost:{self.server.server_address[1]}"
            self._answer(200, Location=f"{host}{self.path}&upload_id=1")
        elif self.server.write(name, content, query.get("ifGenerationMatch")):
            self._json(self._facts(name))
        else:
            self._answer(412)

    def do_DELETE(self) -> None:
        actual = _OBJECT.fullmatch(urlsplit(self.path).path)
        with self.server.lock:
            gone = actual and self.server.objects.pop(unquote(actual["name"]), None)
        self._answer(204 if gone else 404)

    def _object(self, name: str, query: dict[str, str]) -> None:
        generation, content = self.server.objects.get(name, (0, b""))
        if not generation:
            self._answer(404)
        elif query.get("alt") != "media":
            self._json(self._facts(name))
        elif query.get("ifGenerationNotMatch") == str(generation):
            self._answer(304)
        else:
            self.server.read.append(name)
            if trouble := self.server.trouble(name):
                self._answer_with(trouble, content)
                return
            first, last = 0, len(content) - 1
            if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
                first, last = int(asked[1]), min(int(asked[2] or last), last)
            headers = {"x-goog-generation": str(generation), "x-goog-hash": _hash_of(content)}
            if asked:
                headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            self._answer(206 if asked else 200, content[first : last + 1], **headers)

    def _answer_with(self, trouble: str, content: bytes) -> None:
        half = content[: len(content) // 2]
        if trouble.isdigit():
            self._answer(int(trouble), b"{}", **{"Content-Type": "application/json"})
        elif trouble in ("short", "long", "flipped"):
            flipped = bytes([content[0] ^ 1]) + content[1:]
            sent = {"short": half, "long": content + b"0", "flipped": flipped}[trouble]
            self._answer(200, sent, **{"x-goog-hash": _hash_of(content)})
        else:
            assert trouble in ("cut", "stalled", "lost")
            self.close_connection = True
            if trouble != "lost":
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(half)
                self.wfile.flush()
            if trouble == "stalled":
                self.server.released.wait(60)

    def _list(self, query: dict[str, str]) -> None:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        with self.server.lock:
            names = sorted(name for name in self.server.objects if name.startswith(prefix))
        rests = {name: name.removeprefix(prefix) for name in names}
        folders = {prefix + rest.split("/")[0] + "/" for rest in rests.values() if "/" in rest}
        if delimiter:
            names = [name for name in names if "/" not in rests[name]]
        facts = {"prefixes": sorted(folders)} if delimiter and folders else {}
        self._json({"kind": "storage#objects", "items": list(map(self._facts, names)), **facts})

    def _facts(self, name: str) -> dict[str, str]:
        generation, content = self.server.objects.get(name, (0, b""))
        now = "2026-01-01T00:00:00.000Z"
        media = f"http://localhost:{self.server.server_address[1]}/download/storage/v1/b/bucket/o/"
        return {
            "kind": "storage#object",
            "bucket": "bucket",
            "name": name,
            "size": str(self.server.listed_sizes.get(name, len(content))),
            "generation": str(generation),
            "timeCreated": now,
            "updated": now,
            "mediaLink": f"{media}{quote(name, safe='')}?alt=media",
        }

    def _json(self, facts: object) -> None:
        self._answer(200, json.dumps(facts).encode(), **{"Content-Type": "application/json"})

    def _answer(self, status: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextlib.contextmanager
def serve(port: int = 0, objects: Mapping[str, bytes] | None = None) -> Iterator[_Store]:
    """Serve a bucket, `gs://bucket`, to the clients of this process.

    Args:
        port: port to listen at; 0 for a free one.
        objects: initial content, by name.
    """
    store = _Store(port)
    for name, content in (objects or {}).items():
        store.write(name, content, None)
    # It looks every hundredth of a second whether it is to end, not every half.
    threading.Thread(target=store.serve_forever, args=(0.01,), daemon=True).start()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("STORAGE_EMULATOR_HOST", "TENSORSTORE_GCS_HTTP_URL"):
            patch.setenv(name, f"http://localhost:{store.server_address[1]}")
        patch.setenv("GOOGLE_CLOUD_PROJECT", "none")
        patch.setenv("EPATH_USE_TF", "false")
        from etils.epath import gpath
        from gcsfs import GCSFileSystem

        GCSFileSystem.clear_instance_cache()  # it has the address of an earlier server
        gpath._is_tf_installed.cache_clear()
        yield store
    gpath._is_tf_installed.cache_clear()
    store.released.set()
    store.shutdown()


def download(folder: Path, copy: Path) -> Path:
    """Copy a folder and return the copy."""
    copy_files(folder, copy)
    return copy
