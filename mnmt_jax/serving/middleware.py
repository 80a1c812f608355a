"""Middleware of the server: a limit of bodies before they are parsed, and measurements."""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client import Counter, Histogram
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

Respond = Callable[[int, str, str], JSONResponse]
"""Makes the answer to an error from status, message and path."""


class LimitBody:
    """Refuses bodies that are too large, by their header or as they arrive."""

    def __init__(self, app: ASGIApp, max_bytes: int, respond: Respond) -> None:
        self._app, self._max_bytes, self._respond = app, max_bytes, respond

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body, is_complete = bytearray(), False
        while not is_complete:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            is_complete = not message.get("more_body", False)
            if len(body) > self._max_bytes:
                text = f"the body has more than {self._max_bytes} bytes"
                await self._respond(413, text, scope["path"])(scope, receive, send)
                return
        await self._app(scope, _replay(bytes(body), receive), send)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a channel with the body that was read, and then what follows it."""
    was_sent = False

    async def replay() -> Message:
        nonlocal was_sent
        if was_sent:
            return await receive()
        was_sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


class Measure:
    """Counts answers and measures their time, by route."""

    def __init__(self, app: ASGIApp, answers: Counter, seconds: Histogram) -> None:
        self._app, self._answers, self._seconds = app, answers, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.perf_counter(), 499  # of a client that went away

        async def observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, observed)
        finally:
            route = scope.get("route")
            path = getattr(route, "path", "other")
            self._answers.labels(path, str(status)).inc()
            self._seconds.labels(path).observe(time.perf_counter() - start)
