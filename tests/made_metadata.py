"""A metadata server that answers as Google Cloud's does, for the keys of `instance/`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

_PREFIX = "/computeMetadata/v1/instance/"


class MetadataServer(ThreadingHTTPServer):
    """The server.

    Attributes:
        requests: (key, whether the answer waited for a change) of each request.
        refusals: statuses with which the next requests are refused.
        flavor: value of the header of answers.
    """

    daemon_threads = True

    def __init__(self, **values: str) -> None:
        super().__init__(("localhost", 0), _Handler)
        self.values = {name.replace("_", "-"): value for name, value in values.items()}
        self.requests: list[tuple[str, bool]] = []
        self.refusals: list[int] = []
        self.flavor = "Google"
        self.changed = threading.Condition()
        self.version = 1

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"localhost:{self.server_address[1]}"

    def set(self, key: str, value: str) -> None:
        """Change a value, and answer the requests that wait for it."""
        with self.changed:
            self.values[key] = value
            self.answer_waiting()

    def answer_waiting(self) -> None:
        """Answer the requests that wait for a change."""
        with self.changed:
            self.version += 1
            self.changed.notify_all()


class _Handler(BaseHTTPRequestHandler):
    server: MetadataServer

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        server, url = self.server, urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        key = url.path.removeprefix(_PREFIX)
        if self.headers.get("Metadata-Flavor") != "Google":
            self._answer(403)
        elif server.refusals:
            self._answer(server.refusals.pop())
        elif key not in server.values:
            self._answer(404)
        else:
            waits = query.get("wait_for_change") == "true"
            with server.changed:
                state = query.get("last_etag")
                is_known = waits and state == str(server.version)
                server.requests.append((key, is_known))
                if is_known:
                    server.changed.wait(float(query["timeout_sec"]))
                self._answer(200, server.values[key])

    def _answer(self, status: int, value: str = "") -> None:
        self.send_response(status)
        self.send_header("Metadata-Flavor", self.server.flavor)
        self.send_header("ETag", str(self.server.version))
        self.send_header("Content-Length", str(len(value)))
        self.end_headers()
        self.wfile.write(value.encode())


@contextlib.contextmanager
def serve_metadata(**values: str) -> Iterator[MetadataServer]:
    """Serve keys of `instance/`, `_` for `-`, and name the server to this process."""
    server = MetadataServer(**values)
    # It looks every hundredth of a second whether it is to end, not every half.
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GCE_METADATA_HOST", server.address)
        yield server
    server.answer_waiting()  # or the threads that ask would wait for a minute
    server.shutdown()
    server.server_close()
