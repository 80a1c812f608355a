"""Routes of DeepL's glossaries, version 2, and the glossary of a translation.

A glossary has one dictionary; those of several are in `mnmt_jax.serving.multilingual_glossaries`.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from mnmt_jax.errors import join_names
from mnmt_jax.serving.deepl_codes import without_region
from mnmt_jax.serving.glossary_fields import format_entries, parse_entries
from mnmt_jax.serving.glossary_store import (
    MAX_GLOSSARIES,
    Pair,
    StoredGlossary,
    TooManyGlossaries,
)
from mnmt_jax.serving.refused_error import RefusedError
from mnmt_jax.serving.request_fields import read_fields, required_text, text_field, user_of
from mnmt_jax.serving.route_fields import GlossaryId
from mnmt_jax.serving.service import TranslationOptions, TranslationService
from mnmt_jax.vocabulary.language_codes import Direction

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
        name = required_text(fields, "name")
        dictionary = read_dictionary(service, fields)
        dictionaries = dict([dictionary])
        # In a thread: another process may lock the database for a while.
        (stored,) = await asyncio.to_thread(create_glossary, service, request, name, dictionaries)
        return _described(stored)

    @router.get("/glossaries")
    async def glossaries(request: Request) -> dict[str, Any]:
        stored = store.of_owner(user_of(request).owner)
        return {"glossaries": [_described(one[0]) for one in stored if len(one) == 1]}

    @router.get("/glossaries/{identifier}")
    async def glossary(request: Request, identifier: GlossaryId) -> dict[str, Any]:
        return _described(_only_dictionary(service, request, identifier))

    @router.get("/glossaries/{identifier}/entries")
    async def entries(request: Request, identifier: GlossaryId) -> Response:
        pairs = store.pairs(_only_dictionary(service, request, identifier))
        return Response(format_entries(pairs), media_type=_TSV)

    @router.delete("/glossaries/{identifier}", status_code=204)
    async def delete(request: Request, identifier: GlossaryId) -> Response:
        if not await asyncio.to_thread(store.delete, user_of(request).owner, identifier):
            raise glossary_not_found_error(identifier)
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
    dictionaries = find_glossary(service, request, identifier)
    languages = (without_region(options.source), without_region(options.target))
    stored = dictionary_of(dictionaries, languages)
    if stored is None:
        directions = join_names([f"{one.source} to {one.target}" for one in dictionaries])
        message = f"glossary_id: the glossary is for {directions}, not {' to '.join(languages)}"
        raise RefusedError(400, message)
    return dataclasses.replace(options, glossary=service.glossaries.glossary(stored))


def create_glossary(
    service: TranslationService,
    request: Request,
    name: str,
    dictionaries: Mapping[Direction, Sequence[Pair]],
) -> list[StoredGlossary]:
    """Store a glossary of the request's user, and return its dictionaries.

    Raises:
        RefusedError: with status 456, if there are too many.
    """
    owner = user_of(request).owner
    try:
        return service.glossaries.create(owner, name, dictionaries)
    except TooManyGlossaries:
        message = f"there are {MAX_GLOSSARIES} glossaries already; delete some"
        raise RefusedError(_QUOTA, message) from None


def read_dictionary(
    service: TranslationService, fields: Mapping[str, Any]
) -> tuple[Direction, list[Pair]]:
    """Return the languages and the entries of a dictionary in a request.

    Raises:
        RefusedError: with status 400, if a field is wrong.
    """
    languages = read_languages(service, fields)
    kind = required_text(fields, "entries_format").lower()
    return languages, parse_entries(required_text(fields, "entries"), kind, languages)


def dictionary_of(
    dictionaries: Sequence[StoredGlossary], languages: Direction
) -> StoredGlossary | None:
    """Return the dictionary of a glossary for languages; None if there is none."""
    return next((one for one in dictionaries if (one.source, one.target) == languages), None)


def find_glossary(
    service: TranslationService, request: Request, identifier: str
) -> list[StoredGlossary]:
    """Return the dictionaries of a glossary of the request's user.

    Raises:
        RefusedError: with status 404, if there is none.
    """
    stored = service.glossaries.find(user_of(request).owner, identifier)
    if not stored:
        raise glossary_not_found_error(identifier)
    return stored


def glossary_not_found_error(identifier: str) -> RefusedError:
    """Return the error for a glossary that does not exist."""
    return RefusedError(404, f"there is no glossary {identifier[:64]!a}")


def _only_dictionary(
    service: TranslationService, request: Request, identifier: str
) -> StoredGlossary:
    """Return the dictionary of a glossary that has one; version 2 does not see others."""
    stored = find_glossary(service, request, identifier)
    if len(stored) != 1:
        raise glossary_not_found_error(identifier)
    return stored[0]


def read_languages(service: TranslationService, fields: Mapping[str, Any]) -> Direction:
    """Return the languages of a dictionary in a request, as DeepL writes their codes.

    Raises:
        RefusedError: with status 400, if no model translates between them.
    """
    sources, targets = (
        service.matches(required_text(fields, name), name)
        for name in ("source_lang", "target_lang")
    )
    source, target = without_region(sources[0]), without_region(targets[0])
    models = service.models()
    if source == target or not any(models.sources(sources, code) for code in targets):
        raise RefusedError(400, f"no translation from {source} to {target}")
    return source, target


def _pairs(service: TranslationService) -> list[dict[str, str]]:
    """Return the directions of all models, without regions."""
    models = service.models()
    pairs = dict.fromkeys(
        (without_region(source), without_region(target))
        for source in service.languages
        for target in models.targets(source)
    )
    return [
        {"source_lang": source.lower(), "target_lang": target.lower()}
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
