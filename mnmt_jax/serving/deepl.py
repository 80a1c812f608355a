"""Routes of DeepL's API, version 2: /v2/translate, /v2/languages, /v2/usage.

Those of glossaries are in `mnmt_jax.serving.deepl_glossaries`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from fastapi import APIRouter
from starlette.requests import Request

from mnmt_jax.decoding.text.markup_tokens import MARKUPS, Markup, TagRules
from mnmt_jax.decoding.text.text_checks import checks_record
from mnmt_jax.decoding.text.text_parts import SentenceEnds
from mnmt_jax.serving.deepl_codes import with_region, without_region
from mnmt_jax.serving.deepl_glossaries import with_glossary
from mnmt_jax.serving.glossary_fields import lacking_terms
from mnmt_jax.serving.refused_error import RefusedError
from mnmt_jax.serving.request_fields import (
    boolean_field,
    is_list_of_text,
    model_of,
    read_fields,
    required,
    required_text,
    tags_field,
    text_field,
    user_of,
)
from mnmt_jax.serving.service import TranslationOptions, TranslationResult, TranslationService
from mnmt_jax.vocabulary.languages import get_language

# DeepL's clients refuse these codes as targets and ask for a region.
_REGIONS = {"EN": ("EN-GB", "EN-US"), "PT": ("PT-BR", "PT-PT")}
_NO_LIMIT = 10**12  # characters, as DeepL states it
_ACCEPTED = {
    "tag_handling": MARKUPS,
    "formality": ("", "default", "prefer_more", "prefer_less"),
    "model_type": ("", "quality_optimized", "latency_optimized", "prefer_quality_optimized"),
}
_TAG_RULES = ("ignore_tags", "splitting_tags", "non_splitting_tags")
_REFUSED = ("custom_instructions", "style_id", "translation_memory_id", "glossary_ids")
_SENTENCE_ENDS: dict[str, SentenceEnds] = {
    "0": "none",
    "1": "lines",
    "nonewlines": "punctuation",
}


def make_router(service: TranslationService) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/v2", tags=["DeepL"])

    @router.post("/translate")
    async def translate(request: Request) -> dict[str, Any]:
        fields = await read_fields(request, lists=("text", *_TAG_RULES))
        texts = required(fields, "text")
        if not is_list_of_text(texts):
            raise RefusedError(400, "text must be a list of texts")
        check_options(fields)
        model = model_of(request, fields)
        source, target = requested_languages(service, fields, model)
        options = TranslationOptions(
            target=target,
            source=source,
            model=model,
            sentence_ends=_sentence_ends(fields),
            checks=boolean_field(fields, "checks"),
            markup=cast(Markup, text_field(fields, "tag_handling")),
            tag_rules=TagRules(*(tags_field(fields, name) for name in _TAG_RULES)),
        )
        options = with_glossary(service, request, fields, options)
        answers = await service.translate(texts, options, user_of(request))
        return {
            "translations": [
                {
                    "detected_source_language": without_region(answer.source),
                    "text": answer.translation.text,
                    "billed_characters": len(text),
                    **_model_type(fields),
                    **_checks(answer),
                    **lacking_terms(answer.translation, ("missing_terms", "forbidden_terms")),
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
        return _source_languages(codes) if kind == "source" else _target_languages(codes)

    @router.get("/usage")
    @router.post("/usage", include_in_schema=False)
    async def usage(request: Request) -> dict[str, int]:
        characters, limit = service.users.used(user_of(request))
        return {"character_count": characters, "character_limit": limit or _NO_LIMIT}

    return router


def requested_languages(
    service: TranslationService, fields: Mapping[str, Any], model: str | None
) -> tuple[str | None, str]:
    """Return the server's codes of the languages of a request; None as source detects it.

    Args:
        service: the models.
        fields: of the request.
        model: name of the model that the request names, if any.

    Raises:
        RefusedError: with status 400, if no model has them, or the target is ambiguous.
    """
    target = service.language(required_text(fields, "target_lang"), "target_lang", model)
    source = text_field(fields, "source_lang")
    if not source:
        return None, target
    return service.source_language(source, target, "source_lang", model), target


def check_options(fields: Mapping[str, Any]) -> None:
    """Check that a request asks for nothing that would be ignored.

    Raises:
        RefusedError: with status 400, if it does.
    """
    for name, accepted in _ACCEPTED.items():
        if (value := text_field(fields, name)) not in accepted:
            raise RefusedError(400, f"{name}: '{value}' is not supported")
    for name in _REFUSED:
        if fields.get(name):
            raise RefusedError(400, f"{name} is not supported")


def _sentence_ends(fields: Mapping[str, Any]) -> SentenceEnds:
    """Return where sentences end, by `split_sentences`; JSON clients may send a number."""
    default = "nonewlines" if fields.get("tag_handling") == "html" else "1"
    value = str(fields.get("split_sentences", "")) or default
    if value not in _SENTENCE_ENDS:
        raise RefusedError(400, f"split_sentences: '{value}' must be 0, 1 or nonewlines")
    return _SENTENCE_ENDS[value]


def _checks(answer: TranslationResult) -> dict[str, Any]:
    """Return the results of checks, if they were asked for, and the further search, if any."""
    result = answer.translation
    facts = {"checks": checks_record(result), "retried": result.retried}
    return {name: value for name, value in facts.items() if value is not None}


def _model_type(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return the kind of model as it was asked for: a direction has one model for all kinds."""
    kind = text_field(fields, "model_type").removeprefix("prefer_")
    return {"model_type_used": kind} if kind else {}


def _source_languages(codes: Iterable[str]) -> list[dict[str, Any]]:
    """Return source languages, without regions."""
    plain = dict.fromkeys(without_region(code) for code in codes)
    return [{"language": code, "name": get_language(code).name} for code in plain]


def _target_languages(codes: Iterable[str]) -> list[dict[str, Any]]:
    """Return target languages, with the regions that clients require."""
    names: dict[str, str] = {}
    for code in codes:
        exact = with_region(code)
        for region in _REGIONS.get(exact, (exact,)):
            if region == exact or region not in names:
                names[region] = get_language(code).name
    return [
        {"language": region, "name": name, "supports_formality": False}
        for region, name in names.items()
    ]
