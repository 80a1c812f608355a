"""The server's application: both protocols, status, limits and errors."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable

from fastapi import FastAPI
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from mnmt_jax import __version__
from mnmt_jax.errors import UserError
from mnmt_jax.serving import deepl, libretranslate
from mnmt_jax.serving.middleware import ChooseModel, LimitBody, Measure
from mnmt_jax.serving.service import RETRY_SECONDS, RefusedError, TranslationService

_log = logging.getLogger(__name__)


def create_app(service: TranslationService, is_ready: Callable[[], bool]) -> FastAPI:
    """Return the application.

    Args:
        service: the models.
        is_ready: whether all shapes are compiled.
    """
    app = FastAPI(title="mnmt-jax", version=__version__)
    registry = CollectorRegistry()
    app.include_router(libretranslate.make_router(service))
    app.include_router(deepl.make_router(service))
    _add_status_routes(app, is_ready, registry)
    waiting = Gauge("mnmt_waiting_lines", "Lines that wait for a batch", registry=registry)
    waiting.set_function(lambda: service.waiting)
    app.add_middleware(LimitBody, max_bytes=service.settings.max_bytes, respond=_error_response)
    app.add_middleware(
        Measure,
        answers=Counter("mnmt_answers", "Answers", ["path", "status"], registry=registry),
        seconds=Histogram("mnmt_answer_seconds", "Time to answer", ["path"], registry=registry),
    )
    app.add_middleware(
        CORSMiddleware, allow_origins=["*"], allow_methods=["*"], allow_headers=["*"]
    )
    app.add_middleware(ChooseModel)
    app.add_exception_handler(RefusedError, _answer)
    app.add_exception_handler(UserError, _answer)
    app.add_exception_handler(HTTPException, _answer)
    app.add_exception_handler(Exception, _answer)
    return app


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

    @app.get("/metrics", tags=["status"])
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type="text/plain; version=0.0.4")


def _error_response(status: int, message: str, path: str) -> JSONResponse:
    """Return an error in the form of the path's protocol."""
    headers = {"Retry-After": str(RETRY_SECONDS)} if status in (429, 503) else {}
    if path.startswith("/v2/"):
        headers["X-Trace-ID"] = uuid.uuid4().hex
        return JSONResponse({"message": message}, status, headers)
    return JSONResponse({"error": message}, status, headers)


async def _answer(request: Request, error: Exception) -> Response:
    """Answer an error; what the server itself does wrong is not shown."""
    if isinstance(error, RefusedError):
        status, message = error.status, error.message
    elif isinstance(error, HTTPException):
        status, message = error.status_code, error.detail
    else:
        _log.error("%s: %s", type(error).__name__, error)
        status, message = 500, "the translation failed"
    return _error_response(status, message, request.url.path)
