"""Middleware of the server: bodies before they are parsed, abandoned requests, measurements."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping

from prometheus_client import Counter, Histogram
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MODEL = "mnmt_model"
"""Key of a request's scope: the model that its path chooses."""
_MODELS = "/models/"

Respond = Callable[[int, str, str], JSONResponse]
"""Makes the answer to an error from status, message and path."""


class BodyLimitMiddleware:
    """Refuses bodies that are too large or too slow, and cancels abandoned requests.

    The size so far counts, so a body needs no content length. The rest of a body that is too large
    is dropped: most clients read no answer before they have sent all of it. A request is abandoned
    when its client closes the connection before the answer.

    Args:
        app: the application.
        max_bytes: most bytes of a body.
        max_bytes_by_path: other limits, by path.
        seconds: most seconds of a body, and again of the rest of one that is too large.
        respond: answers refused requests.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        max_bytes: int,
        max_bytes_by_path: Mapping[str, int],
        seconds: float,
        respond: Respond,
    ) -> None:
        self._app, self._max_bytes, self._seconds = app, max_bytes, seconds
        self._max_bytes_by_path, self._respond = max_bytes_by_path, respond

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        max_bytes = self._max_bytes_by_path.get(scope["path"], self._max_bytes)
        try:
            async with asyncio.timeout(self._seconds):
                body, is_complete = await _read(receive, max_bytes)
        except TimeoutError:
            text = f"the body took more than {self._seconds:g} seconds"
            response = self._respond(408, text, scope["path"])
            response.headers["Connection"] = "close"
            await response(scope, receive, send)
            return
        if body is None:
            return
        if len(body) > max_bytes:
            text = f"the body has more than {max_bytes} bytes"
            response = self._respond(413, text, scope["path"])
            await response(scope, receive, _without_end(send))
            if not is_complete:
                await self._drop_body(receive)
            await send({"type": "http.response.body"})
            return
        await self._handle(scope, body, receive, send)

    async def _drop_body(self, receive: Receive) -> None:
        """Read the rest of a body until its end or the end of its time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._seconds):
                while (await receive()).get("more_body", False):
                    pass

    async def _handle(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """Run the application until it has answered or the client has gone."""
        gone = asyncio.ensure_future(receive())  # nothing but its end follows the body
        handling = asyncio.ensure_future(self._app(scope, _replay(body, gone), send))
        try:
            await asyncio.wait({gone, handling}, return_when=asyncio.FIRST_COMPLETED)
            if not handling.done():
                handling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await handling
        finally:
            gone.cancel()


async def _read(receive: Receive, max_bytes: int) -> tuple[bytes | None, bool]:
    """Return the body, or its beginning if it is too large, and whether that is all of it.

    The body is None if the client has gone.
    """
    body, is_complete = bytearray(), False
    while not is_complete and len(body) <= max_bytes:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None, True
        body += message.get("body", b"")
        is_complete = not message.get("more_body", False)
    return bytes(body), is_complete


def _without_end(send: Send) -> Send:
    """Return a channel that leaves an answer open after its last byte."""

    async def send_open(message: Message) -> None:
        await send({**message, "more_body": True} if "body" in message else message)

    return send_open


def _replay(body: bytes, gone: asyncio.Future[Message]) -> Receive:
    """Return a channel with the body that was read, and then the client's end."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return messages.pop() if messages else await asyncio.shield(gone)

    return receive


class ErrorMiddleware:
    """Answers exceptions of the application, so that nothing else shows or logs their text."""

    def __init__(self, app: ASGIApp, answer: Callable[[str, Exception], JSONResponse]) -> None:
        self._app, self._answer = app, answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        has_started = False

        async def observed(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self._app(scope, receive, observed)
        except Exception as error:  # the server goes on
            response = self._answer(scope.get("path", ""), error)
            if not has_started:
                await response(scope, receive, send)


class MetricsMiddleware:
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


class ModelPathMiddleware:
    """Takes `/models/NAME` from the beginning of paths, and slashes from their end.

    The name is noted in the scope, so a client that cannot send the field `model` chooses a model
    by the server's address. A redirection to the path without a slash would lose it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] == "http":
            path, model = scope["path"], {}
            if path.startswith(_MODELS):
                name, slash, rest = path.removeprefix(_MODELS).partition("/")
                if name and slash:
                    path, model = slash + rest, {MODEL: name}
            scope = {**scope, "path": path.rstrip("/") or "/", **model}
        await self._app(scope, receive, send)
