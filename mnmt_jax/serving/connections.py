"""HTTP connections with time-outs and a limit on their number, as a protocol of uvicorn.

uvicorn itself has no time-out for the headers of a request and no limit on their size, and it waits
without limit for a client that does not read its answer.
"""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mnmt_jax.errors import pluralize, say
from mnmt_jax.serving.document_store import DocumentStore
from mnmt_jax.serving.refused_error import RETRY_SECONDS
from mnmt_jax.serving.settings import Settings

_MAX_HEADER_BYTES = 65536
_MESSAGE = "too many connections; try again later"
_BODY = json.dumps({"error": _MESSAGE, "message": _MESSAGE})
_REFUSAL = (
    "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Type: application/json\r\n"
    f"Retry-After: {RETRY_SECONDS}\r\nContent-Length: {len(_BODY)}\r\n\r\n{_BODY}"
).encode()


def make_config(app: ASGIApp, settings: Settings, **options: Any) -> uvicorn.Config:
    """Return the configuration of uvicorn for an application.

    Args:
        app: the application.
        settings: limits of connections.
        options: further arguments of `uvicorn.Config`.
    """
    protocol = type("Connection", (LimitedConnection,), {"settings": settings})
    # Requests are not logged: the query may be text of users.
    return uvicorn.Config(
        app, http=protocol, ws="none", access_log=False, log_level="warning", **options
    )


class Server(uvicorn.Server):
    """A server that prints the number of pending requests and documents before it stops.

    Args:
        config: result of `make_config`.
        documents: documents of the server's application.
    """

    def __init__(self, config: uvicorn.Config, documents: DocumentStore) -> None:
        super().__init__(config)
        self._documents = documents

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Translate the documents and answer the requests that have come, and end.

        Connections are accepted as long as there are documents, so that clients can fetch them.
        """
        counts = {
            "request": len(self.server_state.tasks),
            "document": self._documents.in_background,
        }
        pending = [pluralize(count, name) for name, count in counts.items() if count]
        say(f"stops after {' and '.join(pending)}" if pending else "stops")
        await self._documents.close(lambda: self.force_exit)
        await super().shutdown(sockets)


class LimitedConnection(HttpToolsProtocol):
    """A connection that is closed if its client does not send headers or take its answer.

    The time for headers begins with the connection, and again when an answer was taken; that for
    taking an answer begins when it does not fit into the buffers of the system and of asyncio (64
    KiB); what fits must be taken in the time for headers.
    """

    settings = Settings()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._headers_timer: asyncio.TimerHandle | None = None
        self._answer_timer: asyncio.TimerHandle | None = None
        self._header_bytes = 0  # since the last answer

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, unless there are too many."""
        super().connection_made(transport)
        self._time_headers()
        if len(self.connections) > self.settings.max_connections:
            transport.write(_REFUSAL)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        self._stop_headers_timer()
        self._stop_answer_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_headers_timer()
            self._header_bytes = 0
            return
        self._header_bytes += len(data)
        if self._header_bytes > _MAX_HEADER_BYTES:
            self.transport.abort()

    def on_response_complete(self) -> None:
        """Wait for the next request, once the client has taken the answer."""
        if self._answer_timer is None and self.cycle.response_complete:  # none is pipelined
            self._time_headers()
        self._header_bytes = 0
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Begin the time in which the client must take its answer."""
        super().pause_writing()
        if self._answer_timer is None:
            seconds = self.settings.answer_timeout
            self._answer_timer = self.loop.call_later(seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """End that time."""
        self._stop_answer_timer()
        if self.cycle is not None and self.cycle.response_complete:
            self._time_headers()
        super().resume_writing()

    def _time_headers(self) -> None:
        if self._headers_timer is None:
            seconds = self.settings.headers_timeout
            self._headers_timer = self.loop.call_later(seconds, self.transport.abort)

    def _stop_headers_timer(self) -> None:
        if self._headers_timer is not None:
            self._headers_timer.cancel()
            self._headers_timer = None

    def _stop_answer_timer(self) -> None:
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None
