"""Routes of LibreTranslate: /translate, /detect, /languages, /health, /frontend/settings."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from mnmt_jax.decoding.text.markup_tokens import Markup
from mnmt_jax.decoding.text.text_checks import checks_record
from mnmt_jax.documents.formats import FORMATS
from mnmt_jax.serving.glossary_fields import glossary_field, lacking_terms
from mnmt_jax.serving.refused_error import RefusedError
from mnmt_jax.serving.request_fields import (
    boolean_field,
    integer_field,
    is_list_of_text,
    model_of,
    read_fields,
    required,
    text_field,
    user_of,
)
from mnmt_jax.serving.service import TranslationOptions, TranslationResult, TranslationService
from mnmt_jax.vocabulary.language_codes import canonical_code
from mnmt_jax.vocabulary.languages import get_language

# Codes of LibreTranslate that are not those of BCP 47.
_ALIASES = {"pb": "pt_BR", "zh": "zh_Hans", "zt": "zh_Hant"}


_FORMATS: dict[str, Markup] = {"text": "", "html": "html"}


def make_router(service: TranslationService) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["LibreTranslate"])

    @router.post("/translate")
    async def translate(request: Request) -> dict[str, Any]:
        fields = await read_fields(request)
        texts = required(fields, "q")
        single = isinstance(texts, str)
        if not single and not is_list_of_text(texts):
            raise RefusedError(400, "q must be text or a list of texts")
        if (form := text_field(fields, "format", "text") or "text") not in _FORMATS:
            raise RefusedError(400, f"format: {form} is not supported; choose text or html")
        model = model_of(request, fields)
        source, target = requested_languages(service, fields, model)
        options = TranslationOptions(
            target=target,
            source=source,
            model=model,
            checks=boolean_field(fields, "checks"),
            markup=_FORMATS[form],
            glossary=glossary_field(fields, "glossary"),
        )
        alternatives = _wanted_alternatives(fields)
        answers = await service.translate([texts] if single else texts, options, user_of(request))
        return _response(answers, single, alternatives)

    @router.post("/detect")
    async def detect(request: Request) -> list[dict[str, Any]]:
        text = required(await read_fields(request), "q")
        if not isinstance(text, str):
            raise RefusedError(400, "q must be text")
        detected = await asyncio.to_thread(service.detect, text)
        return [_detected(*(detected or (service.languages[0], 0.0)))]

    @router.get("/languages")
    async def languages(request: Request) -> list[dict[str, Any]]:
        models = service.models(model_of(request, await read_fields(request)))
        return [
            {**_named(code), "targets": [_listed(target) for target in models.targets(code)]}
            for code in models.languages
        ]

    @router.get("/spec", include_in_schema=False)
    async def spec(request: Request) -> dict[str, Any]:
        schema: dict[str, Any] = request.app.openapi()
        return schema

    @router.get("/frontend/settings")
    async def frontend_settings() -> dict[str, Any]:
        first, *others = service.languages
        return {
            "charLimit": service.settings.max_characters,
            "frontendTimeout": 500,
            "apiKeys": service.settings.require_keys,
            "keyRequired": service.settings.require_keys,
            "suggestions": False,
            "glossary": True,
            "filesTranslation": True,
            "supportedFilesFormat": [*FORMATS],
            "language": {"source": _named(first), "target": _named((others or [first])[0])},
        }

    @router.post("/suggest", include_in_schema=False)
    async def suggest() -> None:
        raise RefusedError(403, "suggestions are not collected")

    return router


def _detected(code: str, probability: float) -> dict[str, Any]:
    """Return a detected language; LibreTranslate states its probability in percent."""
    return {"confidence": round(100 * probability, 1), "language": _listed(code)}


def _named(code: str) -> dict[str, str]:
    """Return a language with its English name."""
    return {"code": _listed(code), "name": get_language(code).name}


def _listed(code: str) -> str:
    """Return a code as LibreTranslate lists it and its clients compare it: pt-BR, zh-Hans."""
    canonical = canonical_code(code)
    return "zh-Hans" if canonical == "zh" else canonical.replace("_", "-")


def _response(answers: list[TranslationResult], single: bool, alternatives: int) -> dict[str, Any]:
    texts = [answer.translation.text for answer in answers]
    response: dict[str, Any] = {"translatedText": texts[0] if single else texts}
    detected = [
        _detected(answer.source, answer.confidence)
        for answer in answers
        if answer.confidence is not None
    ]
    if detected:
        response["detectedLanguage"] = detected[0] if single else detected
    for name, values in (
        ("checks", [checks_record(answer.translation) for answer in answers]),
        ("retried", [answer.translation.retried for answer in answers]),
    ):
        if any(values):
            response[name] = values[0] if single else values
    for name, terms in _lacking_terms(answers).items():
        response[name] = terms[0] if single else terms
    if alternatives > 0:
        others = [list(answer.translation.alternatives[:alternatives]) for answer in answers]
        response["alternatives"] = others[0] if single else others
    return response


def _lacking_terms(answers: Sequence[TranslationResult]) -> dict[str, list[list[str]]]:
    """Return terms of the glossary that translations lack or must not have, if there are any."""
    names = ("missingTerms", "forbiddenTerms")
    lacking = [lacking_terms(answer.translation, names) for answer in answers]
    return {
        name: [terms.get(name, []) for terms in lacking]
        for name in names
        if any(name in terms for terms in lacking)
    }


def _wanted_alternatives(fields: Mapping[str, Any]) -> int:
    """Return how many alternatives a request asks for.

    Raises:
        RefusedError: with status 400, if it is no number or below 0.
    """
    if (count := integer_field(fields, "alternatives", 0)) < 0:
        raise RefusedError(400, "alternatives must be at least 0")
    return count


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
    source = text_field(fields, "source", "auto") or "auto"
    target = required(fields, "target")
    if not isinstance(target, str):
        raise RefusedError(400, "target must be text")
    field = "target"
    try:
        target = service.language(_with_script(target), model=model)
        if source.lower() == "auto":
            return None, target
        field = "source"
        return service.source_language(_with_script(source), target, model=model), target
    except RefusedError as error:
        hint = f"{field}: {error.hint}" if error.hint else ""
        raise RefusedError(error.status, error.message, hint=hint) from None


def _with_script(code: str) -> str:
    """Return a code of LibreTranslate as that of BCP 47."""
    return _ALIASES.get(code.lower(), code)
