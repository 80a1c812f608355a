"""Routes of DeepL's glossaries, version 3: glossaries of several dictionaries."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from mnmt_jax.serving.deepl_glossaries import (
    create_glossary,
    dictionary_of,
    find_glossary,
    glossary_not_found_error,
    read_dictionary,
    read_languages,
)
from mnmt_jax.serving.glossary_fields import format_entries
from mnmt_jax.serving.glossary_store import Pair, StoredGlossary
from mnmt_jax.serving.refused_error import RefusedError
from mnmt_jax.serving.request_fields import read_fields, required, required_text, user_of
from mnmt_jax.serving.route_fields import GlossaryId
from mnmt_jax.serving.service import TranslationService
from mnmt_jax.vocabulary.language_codes import Direction


def make_router(service: TranslationService) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/v3/glossaries", tags=["DeepL"])
    _add_routes_of_glossaries(router, service)
    _add_routes_of_dictionaries(router, service)
    return router


def _add_routes_of_glossaries(router: APIRouter, service: TranslationService) -> None:
    store = service.glossaries

    @router.post("", status_code=201)
    async def create(request: Request) -> dict[str, Any]:
        fields = await read_fields(request)
        name = required_text(fields, "name")
        dictionaries = _read_dictionaries(service, required(fields, "dictionaries"))
        stored = await asyncio.to_thread(create_glossary, service, request, name, dictionaries)
        return _described(stored)

    @router.get("")
    async def glossaries(request: Request) -> dict[str, Any]:
        stored = store.of_owner(user_of(request).owner)
        return {"glossaries": [_described(one) for one in stored]}

    @router.get("/{identifier}")
    async def glossary(request: Request, identifier: GlossaryId) -> dict[str, Any]:
        return _described(find_glossary(service, request, identifier))

    @router.patch("/{identifier}")
    async def change(request: Request, identifier: GlossaryId) -> dict[str, Any]:
        fields, owner = await read_fields(request), user_of(request).owner
        find_glossary(service, request, identifier)
        new = _read_dictionaries(service, fields.get("dictionaries", []))
        if "name" in fields:
            new_name = required_text(fields, "name")
            await asyncio.to_thread(store.rename, owner, identifier, new_name)
        for languages, pairs in new.items():
            await asyncio.to_thread(store.put, owner, identifier, languages, pairs, merge=True)
        return _described(find_glossary(service, request, identifier))

    @router.delete("/{identifier}", status_code=204)
    async def delete(request: Request, identifier: GlossaryId) -> Response:
        if not await asyncio.to_thread(store.delete, user_of(request).owner, identifier):
            raise glossary_not_found_error(identifier)
        return Response(status_code=204)


def _add_routes_of_dictionaries(router: APIRouter, service: TranslationService) -> None:
    store = service.glossaries

    @router.get("/{identifier}/entries")
    async def entries(request: Request, identifier: GlossaryId) -> dict[str, Any]:
        stored = await _dictionary(service, request, identifier)
        text = format_entries(store.pairs(stored))
        return {"dictionaries": [_codes(stored) | {"entries": text, "entries_format": "tsv"}]}

    @router.put("/{identifier}/dictionaries")
    async def replace(request: Request, identifier: GlossaryId) -> dict[str, Any]:
        fields = await read_fields(request)
        find_glossary(service, request, identifier)
        languages, pairs = read_dictionary(service, fields)
        owner = user_of(request).owner
        new = await asyncio.to_thread(store.put, owner, identifier, languages, pairs)
        if new is None:  # deleted meanwhile
            raise glossary_not_found_error(identifier)
        return _dictionary_info(new)

    @router.delete("/{identifier}/dictionaries", status_code=204)
    async def delete(request: Request, identifier: GlossaryId) -> Response:
        stored = await _dictionary(service, request, identifier)
        languages = stored.source, stored.target
        await asyncio.to_thread(store.delete, user_of(request).owner, identifier, languages)
        return Response(status_code=204)


async def _dictionary(
    service: TranslationService, request: Request, identifier: str
) -> StoredGlossary:
    """Return the dictionary for the languages that a request names.

    Raises:
        RefusedError: with status 404, if there is none.
    """
    stored = find_glossary(service, request, identifier)
    languages = read_languages(service, await read_fields(request))
    dictionary = dictionary_of(stored, languages)
    if dictionary is None:
        raise RefusedError(404, f"the glossary has no dictionary for {' to '.join(languages)}")
    return dictionary


def _read_dictionaries(service: TranslationService, value: Any) -> dict[Direction, Sequence[Pair]]:
    """Return the entries of dictionaries in a request by their languages.

    Raises:
        RefusedError: with status 400, if there is a mistake, or two are for the same languages.
    """
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise RefusedError(400, "dictionaries must be a list of objects")
    dictionaries: dict[Direction, Sequence[Pair]] = {}
    for item in value:
        languages, pairs = read_dictionary(service, item)
        if languages in dictionaries:
            raise RefusedError(400, f"dictionaries: two are for {' to '.join(languages)}")
        dictionaries[languages] = pairs
    return dictionaries


def _codes(stored: StoredGlossary) -> dict[str, Any]:
    return {"source_lang": stored.source.lower(), "target_lang": stored.target.lower()}


def _dictionary_info(stored: StoredGlossary) -> dict[str, Any]:
    return _codes(stored) | {"entry_count": stored.count}


def _described(dictionaries: Sequence[StoredGlossary]) -> dict[str, Any]:
    first = dictionaries[0]
    return {
        "glossary_id": first.id,
        "name": first.name,
        "creation_time": first.created,
        "dictionaries": [_dictionary_info(stored) for stored in dictionaries],
    }
