"""HTTP connections with time-outs and a limit on their number, as a protocol of uvicorn.

uvicorn itself has no time-out for the headers of a request and no limit on their size, and it waits
without limit for a client that does not read its answer.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mnmt_jax.errors import pluralize, say
from mnmt_jax.serving.document_store import DocumentStore
from mnmt_jax.serving.refused_error import RETRY_SECONDS
from mnmt_jax.serving.settings import Settings

_ANSWER_SECONDS = 10  # that a stopping server waits for answers, after its documents
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
    # Requests are not logged: the query may be text of users. Without lifespan, because its task
    # would print a traceback at an end by two signals; the application has nothing to start.
    options |= {"ws": "none", "lifespan": "off", "access_log": False, "log_level": "warning"}
    return uvicorn.Config(app, http=protocol, **options)


class Server(uvicorn.Server):
    """A server that finishes requests and documents before it stops, in a limited time.

    Args:
        config: result of `make_config`.
        documents: documents of the server's application, which refuses requests while they close.
        timeout: most seconds until documents are translated and fetched.
    """

    def __init__(self, config: uvicorn.Config, documents: DocumentStore, timeout: float) -> None:
        super().__init__(config)
        self._documents, self._timeout = documents, timeout

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop at the first signal, and wait for nothing at the second."""
        if self.should_exit:
            self.force_exit = True
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for the documents, then for the answers, and end.

        Connections are accepted as long as there are documents, so that clients can fetch them.
        """
        end = time.monotonic() + self._timeout + _ANSWER_SECONDS
        self._say_pending()
        lost = await self._documents.close(self._timeout, lambda: self.force_exit)
        if lost:
            limit = "" if self.force_exit else f" within --timeout={self._timeout:g}"
            say(f"loses {pluralize(lost, 'document')}, not translated and fetched{limit}")
        ending = asyncio.create_task(super().shutdown(sockets))
        while not ending.done():
            if self.force_exit or time.monotonic() > end:
                self._abort_connections()
            await asyncio.wait([ending], timeout=0.1)
        await ending
        self._abort_connections()
        if tasks := self.server_state.tasks:
            await asyncio.wait(tasks, timeout=1)  # else asyncio prints their cancellation

    def _say_pending(self) -> None:
        """Print for what the server waits."""
        requests = len(self.server_state.tasks)
        documents = sum(not one.has_request for one in self._documents.unfinished)
        line = f"stops after {pluralize(requests, 'request')}" if requests else "stops"
        if documents:
            line += f"; waits for {pluralize(documents, 'document')} to be translated or fetched"
        say(line)

    def _abort_connections(self) -> None:
        """Close all connections as a client does that goes away, so requests are cancelled."""
        for connection in list(self.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()


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
