"""Routes of DeepL's glossaries, version 2, and the glossary of a translation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from mnmt_jax.serving.deepl_codes import without_region
from mnmt_jax.serving.glossary_fields import format_entries, parse_entries
from mnmt_jax.serving.glossary_store import MAX_GLOSSARIES, StoredGlossary, TooManyGlossaries
from mnmt_jax.serving.request_fields import read_fields, required, text_field, user_of
from mnmt_jax.serving.service import RefusedError, TranslationOptions, TranslationService

_TSV = "text/tab-separated-values"
_QUOTA = 456  # DeepL's status for quotas


def make_router(service: TranslationService) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/v2", tags=["DeepL"])
    store = service.glossaries

    @router.get("/glossary-language-pairs")
    async def pairs() -> dict[str, Any]:
        return {"supported_languages": _pairs(service)}

    @router.post("/glossaries", status_code=201)
    async def create(request: Request) -> dict[str, Any]:
        fields = await read_fields(request)
        name = _text(fields, "name")
        languages = _languages(service, fields)
        entries = parse_entries(_text(fields, "entries"), _text(fields, "entries_format").lower())
        try:
            return _described(store.create(user_of(request).owner, name, languages, entries))
        except TooManyGlossaries:
            message = f"there are {MAX_GLOSSARIES} glossaries already; delete some"
            raise RefusedError(_QUOTA, message) from None

    @router.get("/glossaries")
    async def glossaries(request: Request) -> dict[str, Any]:
        return {
            "glossaries": [_described(stored) for stored in store.of_owner(user_of(request).owner)]
        }

    @router.get("/glossaries/{identifier}")
    async def glossary(request: Request, identifier: str) -> dict[str, Any]:
        return _described(find_glossary(service, request, identifier))

    @router.get("/glossaries/{identifier}/entries")
    async def entries(request: Request, identifier: str) -> Response:
        pairs = store.pairs(find_glossary(service, request, identifier))
        return Response(format_entries(pairs), media_type=_TSV)

    @router.delete("/glossaries/{identifier}", status_code=204)
    async def delete(request: Request, identifier: str) -> Response:
        if not store.delete(user_of(request).owner, identifier):
            raise _not_found(identifier)
        return Response(status_code=204)

    return router


def with_glossary(
    service: TranslationService,
    request: Request,
    fields: Mapping[str, Any],
    options: TranslationOptions,
) -> TranslationOptions:
    """Return the options of a translation with the glossary of its field `glossary_id`.

    Raises:
        RefusedError: with status 404, if there is no such glossary; with 400, if it is for other
            languages, or the source language is not stated.
    """
    identifier = text_field(fields, "glossary_id")
    if not identifier:
        return options
    if options.source is None:
        raise RefusedError(400, "glossary_id needs source_lang")
    stored = find_glossary(service, request, identifier)
    languages = tuple(map(without_region, (options.source, options.target)))
    if languages != (stored.source, stored.target):
        raise RefusedError(
            400,
            f"glossary_id: the glossary is for {stored.source} to {stored.target}, not "
            f"{' to '.join(languages)}",
        )
    return dataclasses.replace(options, glossary=service.glossaries.glossary(stored))


def find_glossary(service: TranslationService, request: Request, identifier: str) -> StoredGlossary:
    """Return a glossary of the request's user.

    Raises:
        RefusedError: with status 404, if there is none.
    """
    stored = service.glossaries.find(user_of(request).owner, identifier)
    if stored is None:
        raise _not_found(identifier)
    return stored


def _not_found(identifier: str) -> RefusedError:
    return RefusedError(404, f"there is no glossary {identifier[:64]!a}")


def _text(fields: Mapping[str, Any], name: str) -> str:
    required(fields, name)
    return text_field(fields, name)


def _languages(service: TranslationService, fields: Mapping[str, Any]) -> tuple[str, str]:
    """Return the codes of a new glossary, as DeepL writes them."""
    codes = [
        service.language(_text(fields, name), name, any_region=True)
        for name in ("source_lang", "target_lang")
    ]
    source, target = map(without_region, codes)
    if source == target or not service.models().choose(*codes):
        raise RefusedError(400, f"no translation from {source} to {target}")
    return source, target


def _pairs(service: TranslationService) -> list[dict[str, str]]:
    """Return the directions of all models, without regions."""
    models = service.models()
    pairs = dict.fromkeys(
        (without_region(source), without_region(target))
        for source in service.languages
        for target in service.languages
        if models.choose(source, target)
    )
    return [
        {"source_lang": source, "target_lang": target}
        for source, target in pairs
        if source != target
    ]


def _described(stored: StoredGlossary) -> dict[str, Any]:
    return {
        "glossary_id": stored.id,
        "name": stored.name,
        "ready": True,
        "source_lang": stored.source.lower(),
        "target_lang": stored.target.lower(),
        "creation_time": stored.created,
        "entry_count": stored.count,
    }
