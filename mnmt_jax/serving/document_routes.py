"""Routes for documents: LibreTranslate's /translate_file, and DeepL's /v2/document."""

from __future__ import annotations

import asyncio
import itertools
import mimetypes
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response

from mnmt_jax.documents.formats import check_format, read_document
from mnmt_jax.documents.segments import Document, DocumentOptions, texts_to_translate
from mnmt_jax.errors import UserError
from mnmt_jax.files.path_checks import check_name
from mnmt_jax.serving import deepl, libretranslate
from mnmt_jax.serving.deepl_glossaries import with_glossary
from mnmt_jax.serving.document_store import StoredDocument, Translate
from mnmt_jax.serving.glossary_fields import glossary_field, lacking_terms
from mnmt_jax.serving.refused_error import RefusedError
from mnmt_jax.serving.request_fields import (
    model_of,
    read_fields,
    required,
    text_field,
    user_of,
)
from mnmt_jax.serving.route_fields import DocumentId, FileName
from mnmt_jax.serving.service import TranslationOptions, TranslationService, plain_text
from mnmt_jax.serving.users import User
from mnmt_jax.vocabulary.language_codes import requested_code

DOCUMENT_PATHS = ("/translate_file", "/v2/document")
"""Paths whose bodies may be as large as a document."""

FETCH_PATHS = (
    "/download_file/{stored_name}",
    "/v2/document/{stored_name}",
    "/v2/document/{stored_name}/result",
)
"""Paths of the routes by which clients fetch documents."""

_SAMPLE = 2000  # characters by which the language of a document is detected


def make_router(service: TranslationService) -> APIRouter:
    """Return the routes."""
    router = APIRouter()
    documents = _Documents(service)
    download, status, result = FETCH_PATHS
    libretranslate: dict[str, Any] = {"tags": ["LibreTranslate"]}
    deepl: dict[str, Any] = {"tags": ["DeepL"], "methods": ["POST"]}
    router.add_api_route(
        "/translate_file", documents.translate_file, methods=["POST"], **libretranslate
    )
    router.add_api_route(download, documents.download, **libretranslate)
    router.add_api_route("/v2/document", documents.upload, **deepl)
    router.add_api_route(status, documents.status, **deepl)
    router.add_api_route(result, documents.result, **deepl)
    return router


class _Documents:
    """Handlers of the routes.

    Args:
        service: the models.
    """

    def __init__(self, service: TranslationService) -> None:
        self._service, self._store = service, service.documents

    async def translate_file(self, request: Request) -> dict[str, Any]:
        """Translate a document (LibreTranslate); answer when it is translated."""
        fields = await read_fields(request)
        model = model_of(request, fields)
        source, target = libretranslate.requested_languages(self._service, fields, model)
        options = TranslationOptions(
            target=target,
            source=source,
            model=model,
            glossary=glossary_field(fields, "glossary"),
        )
        name, data = await _read_upload(fields)
        suffix = check_format(name)
        stored_name, document = self._store.add(
            name, options.target, user_of(request).name, suffix, has_key=False
        )
        languages = _requested(options, fields["target"], text_field(fields, "source"))
        translation = self._translation(data, languages, options, user_of(request))
        await self._store.run(stored_name, translation)
        url = f"{request.base_url}download_file/{stored_name}"
        terms = lacking_terms(document, ("missingTerms", "forbiddenTerms"))
        return {"translatedFileUrl": url, **terms}

    async def download(self, stored_name: FileName) -> Response:
        """Return a translated document (LibreTranslate)."""
        document = self._store.get(stored_name)
        if document.status != "done":
            raise RefusedError(404, "the document is not translated yet")
        document.is_fetched = True
        return _file_response(document)

    async def upload(self, request: Request) -> dict[str, str | None]:
        """Begin to translate a document (DeepL)."""
        fields = await read_fields(request)
        model = model_of(request, fields)
        source, target = deepl.requested_languages(self._service, fields, model)
        options = TranslationOptions(target=target, source=source, model=model)
        deepl.check_options(fields)
        if fields.get("output_format"):
            raise RefusedError(400, "output_format is not supported")
        options = with_glossary(self._service, request, fields, options)
        name, data = await _read_upload(fields)
        stored_name, document = self._store.add(
            name, options.target, user_of(request).name, has_key=True
        )
        names = (text_field(fields, name) for name in ("target_lang", "source_lang"))
        languages = _requested(options, *names)
        translation = self._translation(data, languages, options, user_of(request))
        self._store.start(stored_name, translation)
        return {"document_id": stored_name, "document_key": document.key}

    async def status(self, request: Request, stored_name: DocumentId) -> dict[str, Any]:
        """Return whether a document is translated (DeepL)."""
        document = self._store.get(stored_name, await _document_key(request))
        state: dict[str, Any] = {"document_id": stored_name, "status": document.status}
        if document.status == "error":
            state["error_message"] = document.message
            document.is_fetched = True
        elif document.status == "done":
            state["billed_characters"] = document.characters
            state |= lacking_terms(document, ("missing_terms", "forbidden_terms"))
        return state

    async def result(self, request: Request, stored_name: DocumentId) -> Response:
        """Return a translated document, once (DeepL)."""
        document = self._store.get(stored_name, await _document_key(request))
        if document.status == "translating":
            raise RefusedError(503, "the document is not translated yet")
        if document.status == "error":
            document.is_fetched = True
            raise RefusedError(400, document.message)
        self._store.remove(stored_name)
        return _file_response(document)

    def _translation(
        self, data: bytes, languages: DocumentOptions, options: TranslationOptions, user: User
    ) -> Translate:
        """Return a function that translates a file."""

        async def translate(stored: StoredDocument) -> bytes:
            document = await _read(data, stored.name, languages)
            plain = await asyncio.to_thread(_plain_texts, document)
            source = options.source
            if source is None:
                named = document.source
                source = await asyncio.to_thread(_detected, self._service, options, named, plain)
            if source == options.target:
                raise RefusedError(400, f"Source and target language are equal: {source}")
            stored.characters = sum(map(len, plain))
            texts = texts_to_translate(document.segments, source, options.target, options.glossary)
            results = await self._service.translate_document(
                texts, options, user, characters=stored.characters
            )
            stored.missing_terms = _distinct(result.missing_terms for result in results)
            stored.forbidden_terms = _distinct(result.forbidden_terms for result in results)
            return await asyncio.to_thread(document.write, [result.text for result in results])

        return translate


def _requested(options: TranslationOptions, target: str, source: str) -> DocumentOptions:
    """Return the languages of a request in its own codes, for files that name theirs.

    Args:
        options: of the request, with the server's codes.
        target: code of the target language in the request.
        source: code of the source language in the request, if it names one.
    """
    return DocumentOptions(
        requested_code(target, options.target),
        requested_code(source, options.source) if options.source else None,
    )


async def _read(data: bytes, name: str, languages: DocumentOptions) -> Document:
    """Read a document, while other requests are answered.

    Raises:
        RefusedError: with status 400, if it is damaged or has nothing to translate.
    """
    try:
        return await asyncio.to_thread(read_document, data, name, languages)
    except UserError as error:
        raise RefusedError(400, str(error)) from None


def _plain_texts(document: Document) -> list[str]:
    """Return the texts without tags."""
    return [plain_text(segment.text, segment.markup) for segment in document.segments]


async def _document_key(request: Request) -> str:
    return text_field(await read_fields(request), "document_key")


async def _read_upload(fields: Mapping[str, Any]) -> tuple[str, bytes]:
    """Return the name and content of the file of a request.

    Raises:
        RefusedError: with status 400, if there is none, or its name or format is not supported.
    """
    upload = required(fields, "file")
    if isinstance(upload, list):
        raise RefusedError(400, "file: send one file")
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


def _distinct(terms: Iterable[Sequence[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(itertools.chain.from_iterable(terms)))


def _detected(
    service: TranslationService, options: TranslationOptions, named: str, texts: Sequence[str]
) -> str:
    """Return the language of a document: that which the file names, or of its texts.

    Raises:
        RefusedError: with status 400, if it is not detected.
    """
    if named:
        return service.source_language(named, options.target, "source", options.model)
    sample = ""
    for text in texts:
        sample += f"{text} "
        if len(sample) > _SAMPLE:
            break
    detected = service.detect(sample[:_SAMPLE], options.target, service.models(options.model))
    if detected is None:
        raise RefusedError(400, "the language of the document is not detected; choose it")
    return detected[0]


def _file_response(document: StoredDocument) -> Response:
    """Return a file that browsers save instead of showing it."""
    kind = mimetypes.guess_type(document.name)[0] or "application/octet-stream"
    headers = {
        "Content-Type": kind,  # without a charset: the file may have any encoding
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(document.translated_name)}",
        "X-Content-Type-Options": "nosniff",
    }
    return Response(document.data, headers=headers)
