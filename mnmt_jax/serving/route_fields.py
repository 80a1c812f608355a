"""Summaries and request fields of the routes, from which their OpenAPI descriptions are made."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Path
from fastapi.routing import APIRoute

from mnmt_jax.serving.deepl_codes import with_region, without_region

GlossaryId = Annotated[str, Path(description="The glossary_id of a glossary.")]
DocumentId = Annotated[str, Path(description="The document_id of the upload.")]
FileName = Annotated[str, Path(description="The last part of translatedFileUrl.")]

_TEXT: dict[str, Any] = {"type": "string"}
_LIST: dict[str, Any] = {"type": "array", "items": _TEXT}
_TEXT_OR_LIST: dict[str, Any] = {"oneOf": [_TEXT, _LIST]}
_FLAG: dict[str, Any] = {"type": "boolean"}
_NUMBER: dict[str, Any] = {"type": "integer", "minimum": 0}
_FILE: dict[str, Any] = {"type": "string", "format": "binary"}
_TERMS: dict[str, Any] = {"type": "object", "additionalProperties": _TEXT}


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of a request.

    Attributes:
        name: its name.
        schema: its type in JSON Schema.
        meaning: one plain sentence.
        example: its value in the example of the route; None leaves it out.
        required: whether a request without it is refused.
    """

    name: str
    schema: Mapping[str, Any]
    meaning: str
    example: Any = None
    required: bool = False

    def described(self) -> dict[str, Any]:
        """Return the schema with the meaning."""
        return {**self.schema, "description": self.meaning}


@dataclasses.dataclass(frozen=True)
class RouteInfo:
    """What the OpenAPI document states of a route.

    Attributes:
        summary: one plain sentence.
        fields: fields of the request, in the order of the documentation.
    """

    summary: str
    fields: tuple[Field, ...] = ()


def _choice(*values: str) -> dict[str, Any]:
    return {"type": "string", "enum": [*values]}


_KEY = Field("api_key", _TEXT, "An API key; the Authorization header may have it instead.")
_MODEL = Field(
    "model", _TEXT, "The name of a model; without it, the first that has both languages."
)
_CHECKS = Field("checks", _FLAG, "Whether the translation is checked; the answer has the results.")
_SOURCE = Field("source", _TEXT, "Code of the source language, or auto to detect it.", "en")
_TARGET = Field("target", _TEXT, "Code of the target language.", "de", required=True)
_GLOSSARY = Field("glossary", _TERMS, "Terms and their required translations.")
_FILE_FIELDS = (
    Field("file", _FILE, "The document.", "@report.docx", required=True),
    Field("filename", _TEXT, "The name of the document, if not that of the file."),
)

_SOURCE_LANG = Field("source_lang", _TEXT, "Code of the source language; without it, detected.")
_TARGET_LANG = Field("target_lang", _TEXT, "Code of the target language.", "DE", required=True)
_GLOSSARY_ID = Field("glossary_id", _TEXT, "A stored glossary; needs source_lang.")
_DEEPL_OPTIONS = (
    Field(
        "formality",
        _choice("default", "prefer_more", "prefer_less"),
        "Accepted without effect; more and less are refused.",
    ),
    Field(
        "model_type",
        _choice("quality_optimized", "latency_optimized", "prefer_quality_optimized"),
        "Accepted without effect; model_type_used in the answer repeats it.",
    ),
)
_TAG_HANDLING = Field(
    "tag_handling", _choice("html", "xml"), "The markup of the text; its tags are kept."
)
_DICTIONARY = (
    Field("source_lang", _TEXT, "Code of the source language.", "EN", required=True),
    _TARGET_LANG,
    Field(
        "entries", _TEXT, "A term and its translation a line.", "mnmt-jax\tmnmt-jax", required=True
    ),
    Field(
        "entries_format",
        _choice("tsv", "csv"),
        "What separates a term from its translation: a tab or a comma.",
        "tsv",
        required=True,
    ),
)
_DIRECTION = _DICTIONARY[:2]
_NAME = Field("name", _TEXT, "The name of the glossary.", "house style", required=True)
_DICTIONARIES = Field(
    "dictionaries",
    {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {field.name: field.described() for field in _DICTIONARY},
            "required": [field.name for field in _DICTIONARY],
        },
    },
    "The entries of each direction.",
    [{field.name: field.example for field in _DICTIONARY}],
    required=True,
)
_DOCUMENT_KEY = Field(
    "document_key", _TEXT, "The document_key of the upload.", "KEY", required=True
)

ROUTES: dict[tuple[str, str], RouteInfo] = {
    ("POST", "/translate"): RouteInfo(
        "Translate a text or a list of texts.",
        (
            Field(
                "q",
                _TEXT_OR_LIST,
                "The text, or a list of texts; in a form, the field repeated.",
                "Hello!",
                required=True,
            ),
            _SOURCE,
            _TARGET,
            Field("format", _choice("text", "html"), "The format of the texts; tags are kept."),
            Field(
                "alternatives",
                _NUMBER,
                "How many other translations of a single sentence to return.",
            ),
            _GLOSSARY,
            _CHECKS,
            _MODEL,
            _KEY,
        ),
    ),
    ("POST", "/detect"): RouteInfo(
        "Detect the language of a text.",
        (Field("q", _TEXT, "The text.", "Hello!", required=True), _KEY),
    ),
    ("GET", "/languages"): RouteInfo(
        "List the languages, and the targets of each.",
        (Field("model", _TEXT, "The name of a model; without it, languages of all models."),),
    ),
    ("GET", "/frontend/settings"): RouteInfo("Return the settings that clients show."),
    ("POST", "/translate_file"): RouteInfo(
        "Translate a document; the answer has the address of the translation.",
        (*_FILE_FIELDS, _SOURCE, _TARGET, _GLOSSARY, _MODEL, _KEY),
    ),
    ("GET", "/download_file/{stored_name}"): RouteInfo("Download a translated document."),
    ("POST", "/v2/translate"): RouteInfo(
        "Translate a list of texts.",
        (
            Field(
                "text",
                _LIST,
                "The texts; in a form, the field repeated.",
                ["Hello!"],
                required=True,
            ),
            _SOURCE_LANG,
            _TARGET_LANG,
            Field(
                "split_sentences",
                _choice("0", "1", "nonewlines"),
                "0: a text is one sentence; 1: line breaks end sentences; nonewlines: they do not.",
            ),
            _GLOSSARY_ID,
            _TAG_HANDLING,
            Field(
                "ignore_tags",
                _LIST,
                "Tags whose content is not translated; commas may separate them.",
            ),
            Field("splitting_tags", _LIST, "Tags of XML that end a sentence."),
            Field("non_splitting_tags", _LIST, "Tags that do not end a sentence."),
            *_DEEPL_OPTIONS,
            _CHECKS,
            _MODEL,
        ),
    ),
    ("GET", "/v2/languages"): RouteInfo(
        "List the source or the target languages.",
        (
            Field("type", _choice("source", "target"), "Which list; without it, source.", "target"),
            Field("model", _TEXT, "The name of a model; without it, languages of all models."),
        ),
    ),
    ("GET", "/v2/usage"): RouteInfo("Return the characters of this month and their limit."),
    ("POST", "/v2/document"): RouteInfo(
        "Upload a document, whose translation begins at once.",
        (
            *_FILE_FIELDS,
            _SOURCE_LANG,
            _TARGET_LANG,
            _GLOSSARY_ID,
            _DEEPL_OPTIONS[0],
            _MODEL,
        ),
    ),
    ("POST", "/v2/document/{stored_name}"): RouteInfo(
        "Return whether a document is translated.", (_DOCUMENT_KEY,)
    ),
    ("POST", "/v2/document/{stored_name}/result"): RouteInfo(
        "Download a translated document, which is then deleted.", (_DOCUMENT_KEY,)
    ),
    ("GET", "/v2/glossary-language-pairs"): RouteInfo("List the directions of glossaries."),
    ("POST", "/v2/glossaries"): RouteInfo("Store a glossary.", (_NAME, *_DICTIONARY)),
    ("GET", "/v2/glossaries"): RouteInfo("List the glossaries of one direction."),
    ("GET", "/v2/glossaries/{identifier}"): RouteInfo("Describe a glossary."),
    ("GET", "/v2/glossaries/{identifier}/entries"): RouteInfo(
        "Return the entries of a glossary as TSV."
    ),
    ("DELETE", "/v2/glossaries/{identifier}"): RouteInfo("Delete a glossary."),
    ("POST", "/v3/glossaries"): RouteInfo(
        "Store a glossary of one or more directions.", (_NAME, _DICTIONARIES)
    ),
    ("GET", "/v3/glossaries"): RouteInfo("List all glossaries."),
    ("GET", "/v3/glossaries/{identifier}"): RouteInfo("Describe a glossary and its dictionaries."),
    ("PATCH", "/v3/glossaries/{identifier}"): RouteInfo(
        "Rename a glossary, or add entries to its dictionaries.",
        tuple(dataclasses.replace(field, required=False) for field in (_NAME, _DICTIONARIES)),
    ),
    ("DELETE", "/v3/glossaries/{identifier}"): RouteInfo("Delete a glossary."),
    ("GET", "/v3/glossaries/{identifier}/entries"): RouteInfo(
        "Return the entries of one direction.", _DIRECTION
    ),
    ("PUT", "/v3/glossaries/{identifier}/dictionaries"): RouteInfo(
        "Store or replace the entries of one direction.", _DICTIONARY
    ),
    ("DELETE", "/v3/glossaries/{identifier}/dictionaries"): RouteInfo(
        "Delete the entries of one direction.", _DIRECTION
    ),
    ("GET", "/health"): RouteInfo("Return whether the server runs."),
    ("GET", "/ready"): RouteInfo("Return whether all shapes are compiled."),
    ("GET", "/metrics"): RouteInfo("Return measurements for Prometheus."),
}


def describe_routes(router: APIRouter, languages: Sequence[str]) -> None:
    """Give the routes of a router their summaries and fields in the OpenAPI document.

    Args:
        router: the routes; those of other routers in it are left out.
        languages: codes of the server; examples translate from the first to the second.

    Raises:
        KeyError: if `ROUTES` lacks a route.
    """
    codes = _example_codes(languages)
    for route in router.routes:
        if isinstance(route, APIRoute) and route.include_in_schema:
            assert route.methods
            (method,) = route.methods
            info = ROUTES[method, route.path]
            route.summary = info.summary
            route.openapi_extra = _openapi(method, _localised(info.fields, codes))


def _example_codes(languages: Sequence[str]) -> dict[str, str]:
    """Return the languages of the examples by field."""
    if len(languages) < 2:
        return {}
    source, target = languages[:2]
    return {
        "source": source,
        "target": target,
        "source_lang": without_region(source),
        "target_lang": with_region(target),
    }


def _localised(fields: tuple[Field, ...], codes: Mapping[str, str]) -> tuple[Field, ...]:
    """Return fields whose examples have languages of the server."""
    return tuple(
        dataclasses.replace(field, example=_with_codes(field.name, field.example, codes))
        for field in fields
    )


def _with_codes(name: str, example: Any, codes: Mapping[str, str]) -> Any:
    """Return the example of a field with languages of the server, also within lists."""
    if isinstance(example, list):
        return [_with_codes(name, item, codes) for item in example]
    if isinstance(example, dict):
        return {key: _with_codes(key, value, codes) for key, value in example.items()}
    return example if example is None else codes.get(name, example)


def _openapi(method: str, fields: tuple[Field, ...]) -> dict[str, Any]:
    """Return the part of an operation that describes its fields."""
    if not fields:
        return {}
    if method in ("GET", "DELETE"):
        return {"parameters": [_parameter(field) for field in fields]}
    properties = {field.name: field.described() for field in fields}
    names = [field.name for field in fields if field.required]
    schema = {"type": "object", "properties": properties, "required": names}
    example = {field.name: field.example for field in fields if field.example is not None}
    content = {kind: {"schema": schema, "example": example} for kind in _content_types(fields)}
    return {"requestBody": {"required": bool(names), "content": content}}


def _parameter(field: Field) -> dict[str, Any]:
    """Return a field of the query string."""
    example = {} if field.example is None else {"example": field.example}
    return {
        "name": field.name,
        "in": "query",
        "required": field.required,
        "description": field.meaning,
        "schema": field.schema,
        **example,
    }


def _content_types(fields: tuple[Field, ...]) -> tuple[str, ...]:
    """Return the content types of a body: files need multipart, lists of objects need JSON."""
    if _FILE in [field.schema for field in fields]:
        return ("multipart/form-data",)
    if _DICTIONARIES.name in [field.name for field in fields]:
        return ("application/json",)
    return "application/json", "application/x-www-form-urlencoded"
