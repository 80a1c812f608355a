"""Routes of DeepL's API, version 2: /v2/translate, /v2/languages, /v2/usage."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from mnmt_jax.serving.request_fields import (
    model_of,
    read_fields,
    required,
    text_field,
    user_of,
)
from mnmt_jax.serving.service import RefusedError, TranslationOptions, TranslationService
from mnmt_jax.vocabulary.languages import get_language

# DeepL's clients refuse these codes as targets and ask for a region.
_REGIONS = {"EN": ("EN-GB", "EN-US"), "PT": ("PT-BR", "PT-PT")}
_DEFAULTS = {"split_sentences": ("", "1"), "tag_handling": ("",), "glossary_id": ("",)}


def make_router(service: TranslationService) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/v2", tags=["DeepL"])
    characters = 0

    @router.post("/translate")
    async def translate(request: Request) -> dict[str, Any]:
        nonlocal characters
        fields = await read_fields(request, lists=("text",))
        texts = required(fields, "text")
        if not all(isinstance(text, str) for text in texts):
            raise RefusedError(400, "text must be a list of texts")
        for name, allowed in _DEFAULTS.items():
            if (value := text_field(fields, name)) not in allowed:
                raise RefusedError(400, f"{name}: '{value}' is not supported")
        source = text_field(fields, "source_lang")
        options = TranslationOptions(
            target=service.language(text_field(fields, "target_lang"), "target_lang"),
            source=service.language(source, "source_lang") if source else None,
            model=model_of(request, fields),
        )
        answers = await service.translate(texts, options, user_of(request))
        characters += sum(map(len, texts))
        return {
            "translations": [
                {
                    "detected_source_language": _code(answer.source),
                    "text": answer.translation.text,
                    "billed_characters": len(text),
                }
                for text, answer in zip(texts, answers, strict=True)
            ]
        }

    @router.get("/languages")
    @router.post("/languages", include_in_schema=False)
    async def languages(request: Request) -> list[dict[str, Any]]:
        fields = await read_fields(request)
        kind = text_field(fields, "type", "source")
        if kind not in ("source", "target"):
            raise RefusedError(400, "type must be source or target")
        codes = service.models(model_of(request, fields)).languages
        return [
            {"language": code, "name": name, "supports_formality": False}
            for code, name in _languages(codes, with_regions=kind == "target")
        ]

    @router.get("/usage")
    @router.post("/usage", include_in_schema=False)
    async def usage() -> dict[str, int]:
        return {"character_count": characters, "character_limit": 10**12}

    return router


def _languages(codes: Iterable[str], *, with_regions: bool) -> list[tuple[str, str]]:
    pairs = []
    for code in codes:
        plain = _code(code)
        regions = _REGIONS.get(plain, (plain,)) if with_regions else (plain,)
        pairs += [(region, get_language(code).name) for region in regions]
    return pairs


def _code(code: str) -> str:
    """Return a code as DeepL writes it: PT-BR, ZH-HANS."""
    return code.replace("_", "-").upper()
