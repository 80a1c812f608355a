"""Routes of the translation page: its HTML, style sheet and script."""

from __future__ import annotations

import importlib.resources
from collections.abc import Awaitable, Callable

from fastapi import APIRouter
from starlette.responses import Response

_FILES = {
    "/": ("index.html", "text/html"),
    "/style.css": ("style.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
# Nothing of other addresses, nothing within the HTML, and no frame around the page.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def make_router() -> APIRouter:
    """Return the routes."""
    router = APIRouter(include_in_schema=False)
    for path, (name, kind) in _FILES.items():
        router.add_api_route(path, _make_answer(name, kind), methods=["GET", "HEAD"])
    return router


def _make_answer(name: str, kind: str) -> Callable[[], Awaitable[Response]]:
    """Return a function that answers with a file."""
    content = (importlib.resources.files("mnmt_jax.serving") / "page" / name).read_bytes()

    async def answer() -> Response:
        return Response(content, media_type=kind, headers=_HEADERS)

    return answer
