"""The server's application: both protocols, status, limits and errors."""

from __future__ import annotations

import functools
import logging
import uuid
from collections.abc import Awaitable, Callable

from fastapi import Depends, FastAPI
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from mnmt_jax import __version__
from mnmt_jax.serving import (
    deepl,
    deepl_glossaries,
    document_routes,
    libretranslate,
    multilingual_glossaries,
    page_routes,
)
from mnmt_jax.serving.authentication import make_identify
from mnmt_jax.serving.database import DatabaseError
from mnmt_jax.serving.document_routes import DOCUMENT_PATHS, FETCH_PATHS
from mnmt_jax.serving.document_store import DocumentStore
from mnmt_jax.serving.failure_log import describe_failure
from mnmt_jax.serving.middleware import (
    BodyLimitMiddleware,
    ErrorMiddleware,
    MetricsMiddleware,
    ModelPathMiddleware,
)
from mnmt_jax.serving.refused_error import RETRY_SECONDS, RefusedError
from mnmt_jax.serving.request_fields import is_deepl
from mnmt_jax.serving.route_fields import describe_routes
from mnmt_jax.serving.service import TranslationService
from mnmt_jax.serving.settings import Settings
from mnmt_jax.serving.usage import QuotaExceeded

_log = logging.getLogger(__name__)

_STOP_PATHS = ("/health", *FETCH_PATHS)  # of routes that a stopping server answers


def create_app(service: TranslationService, is_ready: Callable[[], bool]) -> FastAPI:
    """Return the application.

    Args:
        service: the models.
        is_ready: whether all shapes are compiled.
    """
    settings = service.settings
    dependencies = [
        Depends(_make_refuse_while_closing(service.documents)),
        Depends(make_identify(service.users)),
    ]
    app = FastAPI(
        title="mnmt-jax",
        version=__version__,
        dependencies=dependencies,
        docs_url=None,  # FastAPI's pages load scripts of other addresses
        redoc_url=None,
        redirect_slashes=False,  # ModelPathMiddleware strips them
    )
    registry = CollectorRegistry()
    for router in (
        libretranslate.make_router(service),
        deepl.make_router(service),
        document_routes.make_router(service),
        deepl_glossaries.make_router(service),
        multilingual_glossaries.make_router(service),
        page_routes.make_router(service),
    ):
        describe_routes(router, service.languages)
        app.include_router(router)
    _add_status_routes(app, is_ready, registry)
    describe_routes(app.router, service.languages)
    waiting = Gauge("mnmt_waiting_lines", "Lines that wait for a batch", registry=registry)
    waiting.set_function(lambda: service.waiting)
    _add_middleware(app, settings, registry)
    for kind in (RefusedError, QuotaExceeded, DatabaseError, HTTPException):
        app.add_exception_handler(kind, _answer)
    return app


def _make_refuse_while_closing(documents: DocumentStore) -> Callable[[Request], Awaitable[None]]:
    """Return a dependency of all routes that refuses new work while the server stops.

    Documents can be fetched, and `/health` is answered.
    """

    async def refuse_while_closing(request: Request) -> None:
        if documents.is_closing and request.scope["route"].path not in _STOP_PATHS:
            raise RefusedError(503, "the server is stopping")

    return refuse_while_closing


def _add_middleware(app: FastAPI, settings: Settings, registry: CollectorRegistry) -> None:
    """Add what every request passes through, the innermost first."""
    app.add_middleware(
        BodyLimitMiddleware,
        max_bytes=settings.max_bytes,
        max_bytes_by_path=dict.fromkeys(DOCUMENT_PATHS, settings.max_document_bytes),
        seconds=settings.body_timeout,
        respond=_error_response,
    )
    app.add_middleware(ErrorMiddleware, answer=functools.partial(_failure, settings.log_text))
    app.add_middleware(
        MetricsMiddleware,
        answers=Counter("mnmt_answers", "Answers", ["path", "status"], registry=registry),
        seconds=Histogram("mnmt_answer_seconds", "Time to answer", ["path"], registry=registry),
    )
    if origins := settings.origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"]
        )
    app.add_middleware(ModelPathMiddleware)


def _add_status_routes(
    app: FastAPI, is_ready: Callable[[], bool], registry: CollectorRegistry
) -> None:
    @app.get("/health", tags=["status"])
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/ready", tags=["status"])
    async def ready() -> dict[str, str]:
        if not is_ready():
            raise RefusedError(503, "the model is being compiled")
        return {"status": "ready"}

    for path, answer in (("/health", health), ("/ready", ready)):  # as monitors ask
        app.add_api_route(path, answer, methods=["HEAD"], include_in_schema=False)

    @app.get("/metrics", tags=["status"])
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type="text/plain; version=0.0.4")


def _error_response(
    status: int,
    message: str,
    path: str,
    retry_seconds: int = RETRY_SECONDS,
    hint: str = "",
) -> JSONResponse:
    """Return an error in the form of the path's protocol.

    LibreTranslate's clients compare the message, so that a hint is a field beside it.
    """
    headers = {"Retry-After": str(retry_seconds)} if status in (429, 503) else {}
    if is_deepl(path):
        headers["X-Trace-ID"] = uuid.uuid4().hex
        message = f"{message}; {hint}" if hint else message
        return JSONResponse({"message": message}, status, headers)
    hints = {"hint": hint} if hint else {}
    return JSONResponse({"error": message, **hints}, status, headers)


async def _answer(request: Request, error: Exception) -> Response:
    """Return the response to an error that the client is told of."""
    path = request.url.path
    if isinstance(error, RefusedError):
        return _error_response(error.status, error.message, path, error.retry_seconds, error.hint)
    if isinstance(error, QuotaExceeded):
        status = 456 if is_deepl(path) else 403
        return _error_response(status, "the API key has too few characters left this month", path)
    if isinstance(error, DatabaseError):
        _log.error("%s", error)
        return _error_response(503, "the server's database cannot be used; try again later", path)
    assert isinstance(error, HTTPException)
    response = _error_response(error.status_code, error.detail, path)
    response.headers.update(error.headers or {})  # such as Allow
    return response


def _failure(log_text: bool, path: str, error: Exception) -> JSONResponse:
    """Answer an error of the server itself; its text, which may be a user's, is not shown."""
    _log.error("%s", describe_failure(error, log_text=log_text))
    return _error_response(500, "the translation failed", path)
