"""Fields of a request: JSON, a form or the query string, as clients of both protocols send them."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from mnmt_jax.serving.middleware import MODEL
from mnmt_jax.serving.refused_error import RefusedError
from mnmt_jax.serving.users import User

# It warns about malformed uploads, which are answered with status 400.
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)

_NO_UTF8 = "the fields are not UTF-8"
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False, "": False}


async def read_fields(request: Request, *, lists: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the fields of a request; those of the body replace those of the query.

    Args:
        request: the request, whose body is within the limit.
        lists: fields whose values are lists also if they occur once.

    Raises:
        RefusedError: with status 400, if the body is not what its content type says.
    """
    if lists not in (known := _parsed(request)):
        known[lists] = await _read_fields(request, lists)
    return known[lists]


def _parsed(request: Request) -> dict[tuple[str, ...], dict[str, Any]]:
    """Return the fields that were read before, so that a body is parsed once."""
    known: dict[tuple[str, ...], dict[str, Any]] = request.scope.setdefault("mnmt.fields", {})
    return known


async def _read_fields(request: Request, lists: tuple[str, ...]) -> dict[str, Any]:
    fields = _form(request.scope["query_string"], lists)
    body = await request.body()
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not body:
        return fields
    if kind == "application/json":
        return fields | _json(body, lists)
    if kind == "multipart/form-data":
        return fields | _collected(await _multipart(request), lists)
    if body.lstrip().startswith(b"{"):
        raise RefusedError(400, "the body looks like JSON; send Content-Type: application/json")
    return fields | _form(body, lists)


def user_of(request: Request) -> User:
    """Return the user of a POST or of a request to DeepL's routes (`authentication`)."""
    user: User = request.state.user
    return user


def is_deepl(path: str) -> bool:
    """Return whether a path is one of DeepL's routes."""
    return path.startswith(("/v2/", "/v3/"))


def model_of(request: Request, fields: Mapping[str, Any]) -> str | None:
    """Return the name of the model that a request chooses, by its path or a field.

    Raises:
        RefusedError: with status 400, if the field is not text.
    """
    return request.scope.get(MODEL) or text_field(fields, "model") or None


def required(fields: Mapping[str, Any], name: str) -> Any:
    """Return a field.

    Raises:
        RefusedError: with status 400, if it is absent.
    """
    value = fields.get(name)
    if value is None or value == "" or value == []:
        raise RefusedError(400, f"Invalid request: missing {name} parameter")
    return value


def text_field(fields: Mapping[str, Any], name: str, default: str = "") -> str:
    """Return a field that is text.

    Raises:
        RefusedError: with status 400, if it is something else.
    """
    value = fields.get(name, default)
    if not isinstance(value, str):
        raise RefusedError(400, f"{name} must be text")
    return value


def required_text(fields: Mapping[str, Any], name: str) -> str:
    """Return a field that must be there and be text.

    Raises:
        RefusedError: with status 400, otherwise.
    """
    required(fields, name)
    return text_field(fields, name)


def tags_field(fields: Mapping[str, Any], name: str) -> frozenset[str]:
    """Return the names of tags: a list of texts, in each of which commas separate them.

    Raises:
        RefusedError: with status 400, if it is something else.
    """
    values = fields.get(name, [])
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise RefusedError(400, f"{name} must be names of tags")
    names = [tag.strip() for value in values for tag in value.split(",")]
    return frozenset(filter(None, names))


def integer_field(fields: Mapping[str, Any], name: str, default: int) -> int:
    """Return a field that is a whole number, or text of one.

    Raises:
        RefusedError: with status 400, if it is something else.
    """
    value = fields.get(name, default)
    try:
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise ValueError
        return int(value)
    except ValueError:
        raise RefusedError(400, f"{name} must be a whole number") from None


def boolean_field(fields: Mapping[str, Any], name: str) -> bool:
    """Return a field that is true or false, or text of one; false without it.

    Raises:
        RefusedError: with status 400, if it is something else.
    """
    value = fields.get(name, False)
    if isinstance(value, str):
        value = _BOOLEANS.get(value.lower())
    if not isinstance(value, bool):
        raise RefusedError(400, f"{name} must be true or false")
    return value


def is_list_of_text(value: Any) -> bool:
    """Return whether the value of a field is a list of texts."""
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _json(body: bytes, lists: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields of a JSON object; null is a field that is absent."""
    try:
        value = json.loads(body)
        is_plain = json.detect_encoding(body) == "utf-8" and not (b"\\u" in body or b"\xed" in body)
        is_broken = not is_plain and has_surrogates(value)
    except (ValueError, RecursionError):
        raise RefusedError(400, "the body is not JSON") from None
    if not isinstance(value, dict):
        raise RefusedError(400, "the body must be a JSON object")
    if is_broken:
        raise RefusedError(400, "the body has halves of characters, such as \\ud800")
    for name in lists:
        if isinstance(value.get(name), str):
            value[name] = [value[name]]
    return {name: field for name, field in value.items() if field is not None}


def has_surrogates(value: object) -> bool:
    """Return whether JSON has halves of surrogate pairs, which are not characters."""
    text = json.dumps(value, ensure_ascii=False)
    return any("\ud800" <= character <= "\udfff" for character in text)


def _form(text: bytes, lists: tuple[str, ...]) -> dict[str, Any]:
    try:
        return _collected(parse_qsl(text.decode(), keep_blank_values=True, errors="strict"), lists)
    except UnicodeDecodeError:
        raise RefusedError(400, _NO_UTF8) from None


async def _multipart(request: Request) -> list[tuple[str, Any]]:
    """Return the fields of a form with files; its texts and names are UTF-8, whatever it declares.

    Starlette reads text that is not in the declared encoding as Latin-1, so all is read as that.
    """
    _, options = parse_options_header(request.headers["content-type"])
    kind = "multipart/form-data; charset=latin-1"
    if b"boundary" in options:
        boundary = options[b"boundary"].decode("latin-1")
        escaped = boundary.replace("\\", "\\\\").replace('"', '\\"')
        kind += f'; boundary="{escaped}"'
    try:
        form = await MultiPartParser(Headers({"content-type": kind}), request.stream()).parse()
    except MultiPartException as error:
        raise RefusedError(400, error.message) from None
    try:
        return [(_utf8(name), _decoded(value)) for name, value in form.multi_items()]
    except UnicodeDecodeError:
        await form.close()
        raise RefusedError(400, _NO_UTF8) from None


def _decoded(value: str | UploadFile) -> str | UploadFile:
    """Return a field of a form with its text, or the name of its file, in UTF-8."""
    if isinstance(value, str):
        return _utf8(value)
    value.filename = _utf8(value.filename or "")
    return value


def _utf8(text: str) -> str:
    """Return UTF-8 that was read as Latin-1 as what it means."""
    return text.encode("latin-1").decode()


def _collected(pairs: list[tuple[str, Any]], lists: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields of a form; the value of one that is repeated is a list, as in JSON."""
    values: dict[str, list[Any]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    return {
        name: repeated if name in lists or len(repeated) > 1 else repeated[0]
        for name, repeated in values.items()
    }
