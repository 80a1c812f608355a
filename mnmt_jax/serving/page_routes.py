"""Routes of the translation page (its HTML, style sheet and script) and of the page of routes."""

from __future__ import annotations

import importlib.resources
from collections.abc import Awaitable, Callable
from urllib.parse import quote

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from mnmt_jax.serving.docs_page import make_docs_page
from mnmt_jax.serving.middleware import MODEL
from mnmt_jax.serving.refused_error import RefusedError
from mnmt_jax.serving.service import TranslationService

_FILES = {
    "/": ("index.html", "text/html"),
    "/style.css": ("style.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/docs.css": ("docs.css", "text/css"),
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


def make_router(service: TranslationService) -> APIRouter:
    """Return the routes."""
    router = APIRouter(include_in_schema=False)
    for path, (name, kind) in _FILES.items():
        router.add_api_route(path, _make_answer(service, name, kind), methods=["GET", "HEAD"])

    @router.get("/models/{name}")
    async def add_slash(name: str) -> Response:
        _check_model(service, name)
        return RedirectResponse(f"{quote(name)}/")  # relative, also behind a proxy

    @router.api_route("/docs", methods=["GET", "HEAD"])
    async def docs(request: Request) -> Response:
        model = request.scope.get(MODEL)
        _check_model(service, model)
        if request.scope["raw_path"].endswith(b"/"):  # links of the page are relative
            return RedirectResponse("../docs")
        address = f"{request.base_url}models/{quote(model)}/" if model else f"{request.base_url}"
        html = make_docs_page(
            request.app.openapi(), address.rstrip("/"), service.settings.require_keys
        )
        return Response(html, media_type="text/html", headers=_HEADERS)

    return router


def _check_model(service: TranslationService, name: str | None) -> None:
    """Check the model of a page.

    Raises:
        RefusedError: with status 404, if there is none of this name.
    """
    try:
        service.models(name)
    except RefusedError as error:
        raise RefusedError(404, error.message) from None


def _make_answer(
    service: TranslationService, name: str, kind: str
) -> Callable[[Request], Awaitable[Response]]:
    """Return a function that answers with a file."""
    content = (importlib.resources.files("mnmt_jax.serving") / "page" / name).read_bytes()

    async def answer(request: Request) -> Response:
        _check_model(service, request.scope.get(MODEL))
        return Response(content, media_type=kind, headers=_HEADERS)

    return answer
