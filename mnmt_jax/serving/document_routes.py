"""Routes for documents: LibreTranslate's /translate_file, and DeepL's /v2/document."""

from __future__ import annotations

import asyncio
import itertools
import mimetypes
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response

from mnmt_jax.decoding.markup_runs import text_of
from mnmt_jax.decoding.markup_tokens import MarkupReader
from mnmt_jax.decoding.text_translation import TextToTranslate
from mnmt_jax.documents.formats import check_format, read_document
from mnmt_jax.documents.segments import Document, DocumentOptions
from mnmt_jax.errors import UserError
from mnmt_jax.files.path_checks import check_name
from mnmt_jax.serving.deepl import check_options
from mnmt_jax.serving.deepl_glossaries import with_glossary
from mnmt_jax.serving.document_store import DocumentStore, StoredDocument
from mnmt_jax.serving.glossary_fields import glossary_field
from mnmt_jax.serving.libretranslate import language_of
from mnmt_jax.serving.request_fields import model_of, read_fields, required, text_field, user_of
from mnmt_jax.serving.service import RefusedError, TranslationOptions, TranslationService
from mnmt_jax.serving.users import User

DOCUMENT_PATHS = ("/translate_file", "/v2/document")
"""Paths whose bodies may be as large as a document."""

_SAMPLE = 2000  # characters by which the language of a document is detected


def make_router(service: TranslationService) -> APIRouter:
    """Return the routes."""
    router = APIRouter()
    settings = service.settings
    store = DocumentStore(settings.document_lifetime, settings.max_documents)
    _add_libretranslate_routes(router, service, store)
    _add_deepl_routes(router, service, store)
    return router


def _add_libretranslate_routes(
    router: APIRouter, service: TranslationService, store: DocumentStore
) -> None:
    @router.post("/translate_file", tags=["LibreTranslate"])
    async def translate_file(request: Request) -> dict[str, Any]:
        fields = await read_fields(request)
        source = text_field(fields, "source", "auto") or "auto"
        options = TranslationOptions(
            target=language_of(service, required(fields, "target"), "target"),
            source=None if source.lower() == "auto" else language_of(service, source, "source"),
            model=model_of(request, fields),
            glossary=glossary_field(fields, "glossary"),
        )
        name, data = await _read_upload(fields)
        stored_name, document = store.add(name)
        await store.run(stored_name, _translation(service, data, options, user_of(request)))
        url = f"{request.base_url}download_file/{stored_name}"
        terms = _lacking_terms(document, ("missingTerms", "forbiddenTerms"))
        return {"translatedFileUrl": url, **terms}

    @router.get("/download_file/{stored_name}", tags=["LibreTranslate"])
    async def download_file(stored_name: str) -> Response:
        document = store.get(stored_name)
        if document.status != "done":
            raise RefusedError(404, "the document is not translated yet")
        return _file_response(document)


def _add_deepl_routes(router: APIRouter, service: TranslationService, store: DocumentStore) -> None:
    @router.post("/v2/document", tags=["DeepL"])
    async def upload(request: Request) -> dict[str, str]:
        fields = await read_fields(request)
        source = text_field(fields, "source_lang")
        options = TranslationOptions(
            target=service.language(text_field(fields, "target_lang"), "target_lang"),
            source=service.language(source, "source_lang", any_region=True) if source else None,
            model=model_of(request, fields),
        )
        check_options(fields)
        if fields.get("output_format"):
            raise RefusedError(400, "output_format is not supported")
        options = with_glossary(service, request, fields, options)
        name, data = await _read_upload(fields)
        stored_name, document = store.add(name)
        store.start(stored_name, _translation(service, data, options, user_of(request)))
        return {"document_id": stored_name, "document_key": document.key}

    @router.post("/v2/document/{stored_name}", tags=["DeepL"])
    async def status(request: Request, stored_name: str) -> dict[str, Any]:
        document = store.get(stored_name, await _document_key(request))
        state: dict[str, Any] = {"document_id": stored_name, "status": document.status}
        if document.status == "error":
            state["error_message"] = document.message
        elif document.status == "done":
            state["billed_characters"] = document.characters
            state |= _lacking_terms(document, ("missing_terms", "forbidden_terms"))
        return state

    @router.post("/v2/document/{stored_name}/result", tags=["DeepL"])
    async def result(request: Request, stored_name: str) -> Response:
        document = store.get(stored_name, await _document_key(request))
        if document.status == "translating":
            raise RefusedError(503, "the document is not translated yet")
        if document.status == "error":
            raise RefusedError(400, document.message)
        store.remove(stored_name)
        return _file_response(document)


async def _document_key(request: Request) -> str:
    return text_field(await read_fields(request), "document_key")


async def _read_upload(fields: Mapping[str, Any]) -> tuple[str, bytes]:
    """Return the name and content of the file of a request.

    Raises:
        RefusedError: with status 400, if there is none, or its name or format is not supported.
    """
    upload = required(fields, "file")
    if not isinstance(upload, UploadFile):
        raise RefusedError(400, "file must be a file of multipart/form-data")
    name = text_field(fields, "filename") or upload.filename or ""
    try:
        check_format(check_name(name, "file"))
    except UserError as error:
        raise RefusedError(400, str(error)) from None
    try:
        return name, await upload.read()
    finally:
        await upload.close()


def _translation(
    service: TranslationService, data: bytes, options: TranslationOptions, user: User
) -> Callable[[StoredDocument], Awaitable[bytes]]:
    """Return a function that translates a file."""

    async def translate(stored: StoredDocument) -> bytes:
        languages = DocumentOptions(options.target, options.source)
        try:
            document = await asyncio.to_thread(read_document, data, stored.name, languages)
        except UserError as error:
            raise RefusedError(400, str(error)) from None
        source = options.source or _detected(service, document)
        stored.characters = sum(len(segment.text) for segment in document.segments)
        texts = [
            TextToTranslate(
                segment.text,
                source,
                options.target,
                markup=segment.markup,
                glossary=options.glossary,
            )
            for segment in document.segments
        ]
        results = await service.translate_document(texts, options, user)
        stored.missing_terms = _distinct(result.missing_terms for result in results)
        stored.forbidden_terms = _distinct(result.forbidden_terms for result in results)
        return await asyncio.to_thread(document.write, [result.text for result in results])

    return translate


def _distinct(terms: Iterable[Sequence[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(itertools.chain.from_iterable(terms)))


def _lacking_terms(document: StoredDocument, names: tuple[str, str]) -> dict[str, Any]:
    """Return the terms of the glossary that a translation lacks or must not have, by names."""
    terms = zip(names, (document.missing_terms, document.forbidden_terms), strict=True)
    return {name: list(values) for name, values in terms if values}


def _detected(service: TranslationService, document: Document) -> str:
    """Return the language of a document.

    Raises:
        RefusedError: with status 400, if it is not detected.
    """
    sample = ""
    for segment in document.segments:
        is_plain = not segment.markup
        sample += segment.text if is_plain else text_of(MarkupReader(segment.markup), segment.text)
        sample += " "
        if len(sample) > _SAMPLE:
            break
    detected = service.detect(sample[:_SAMPLE])
    if detected is None:
        raise RefusedError(400, "the language of the document is not detected; choose it")
    return detected[0]


def _file_response(document: StoredDocument) -> Response:
    """Return a file that browsers save instead of showing it."""
    kind = mimetypes.guess_type(document.name)[0] or "application/octet-stream"
    headers = {
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(document.name)}",
        "X-Content-Type-Options": "nosniff",
    }
    return Response(document.data, media_type=kind, headers=headers)
