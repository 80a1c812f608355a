"""The page of the routes at `/docs`, made from the OpenAPI document."""

from __future__ import annotations

import importlib.resources
import json
import re
import shlex
import string
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any
from urllib.parse import urlencode

from mnmt_jax.serving.request_fields import is_deepl

_TITLES = {"LibreTranslate": "LibreTranslate", "DeepL": "DeepL", "status": "Status"}
_INTRODUCTIONS = {
    "LibreTranslate": "Bodies are JSON or forms; documents are multipart forms.",
    "DeepL": "Version 2, and version 3 of glossaries. Bodies are JSON or forms.",
    "status": "For load balancers and monitoring.",
}


def make_docs_page(document: Mapping[str, Any], address: str, require_keys: bool) -> str:
    """Return the HTML of the page.

    Args:
        document: the OpenAPI document, whose operations have one tag.
        address: of the server, without a slash at its end.
        require_keys: whether the examples have an API key.
    """
    by_tag: dict[str, list[tuple[str, str, Any]]] = {tag: [] for tag in _TITLES}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            by_tag[operation["tags"][0]].append((method.upper(), path, operation))
    template = (importlib.resources.files("mnmt_jax.serving") / "page" / "docs.html").read_text(
        encoding="utf-8"
    )
    return string.Template(template).substitute(
        version=escape(document["info"]["version"]),
        keys=_key_note(require_keys),
        contents="".join(_contents(tag, routes) for tag, routes in by_tag.items()),
        routes="".join(
            f'<h2 id="{tag}">{title}</h2><p class="muted">{_INTRODUCTIONS[tag]}</p>'
            + "".join(_section(*route, address, require_keys) for route in by_tag[tag])
            for tag, title in _TITLES.items()
        ),
    )


def _key_note(require_keys: bool) -> str:
    if not require_keys:
        return "This server requires no API key."
    header = "<code>Authorization: Bearer KEY</code>"
    return f"This server requires an API key for every POST and all of DeepL's routes: {header}."


def _contents(tag: str, routes: list[tuple[str, str, Any]]) -> str:
    """Return the links to the routes of a protocol."""
    links = "".join(
        f'<li><a href="#{_anchor(method, path)}">{_heading(method, path)}</a></li>'
        for method, path, _ in routes
    )
    return f"<div><strong>{_TITLES[tag]}</strong><ul>{links}</ul></div>"


def _section(
    method: str, path: str, operation: Mapping[str, Any], address: str, require_keys: bool
) -> str:
    """Return the section of a route."""
    rows = "".join(_row(*field) for field in _fields(operation))
    titles = (
        '<tr><th scope="col">field</th><th scope="col">type</th><th scope="col">meaning</th></tr>'
    )
    table = f"<table><thead>{titles}</thead><tbody>{rows}</tbody></table>" if rows else ""
    with_key = require_keys and (method == "POST" or is_deepl(path))
    command = _curl(method, address + path, operation, with_key)
    return (
        f'<section class="card" id="{_anchor(method, path)}"><h3>{_heading(method, path)}</h3>'
        f"<p>{escape(operation['summary'])}</p>{table}"
        f'<pre tabindex="0"><code>{escape(command)}</code></pre></section>'
    )


def _heading(method: str, path: str) -> str:
    return f'<span class="method {method}">{method}</span> <code>{escape(path)}</code>'


def _anchor(method: str, path: str) -> str:
    """Return the identifier of a section: post-v2-translate."""
    return re.sub(r"[^a-z0-9]+", "-", f"{method}{path}".lower()).strip("-")


def _fields(operation: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], str, bool]]:
    """Yield name, schema, meaning and requirement of the fields of the path, query and body."""
    for field in operation.get("parameters", []):
        yield field["name"], field["schema"], field.get("description", ""), field["required"]
    for body in [*_bodies(operation).values()][:1]:
        for name, schema in body["schema"]["properties"].items():
            yield name, schema, schema["description"], name in body["schema"]["required"]


def _bodies(operation: Mapping[str, Any]) -> Mapping[str, Any]:
    content: Mapping[str, Any] = operation.get("requestBody", {}).get("content", {})
    return content


def _row(name: str, schema: Mapping[str, Any], meaning: str, required: bool) -> str:
    mark = ' <span class="required">required</span>' if required else ""
    return (
        f"<tr><td><code>{escape(name)}</code>{mark}</td>"
        f"<td>{escape(_type(schema))}</td><td>{escape(meaning)}</td></tr>"
    )


def _type(schema: Mapping[str, Any]) -> str:
    """Return the type of a field in words."""
    if "oneOf" in schema:
        return " or ".join(_type(choice) for choice in schema["oneOf"])
    if "enum" in schema:
        return " or ".join(schema["enum"])
    if schema["type"] == "array":
        return "list of objects" if schema["items"]["type"] == "object" else "list of texts"
    if schema.get("format") == "binary":
        return "file"
    names = {"string": "text", "boolean": "true or false", "integer": "whole number"}
    return names.get(schema["type"], schema["type"])


def _curl(method: str, url: str, operation: Mapping[str, Any], with_key: bool) -> str:
    """Return a command that sends the example of a route."""
    url = re.sub(r"\{\w+\}", "ID", url)
    query = {
        field["name"]: field["example"]
        for field in operation.get("parameters", [])
        if field["in"] == "query" and "example" in field
    }
    url = f"{url}?{urlencode(query)}" if query else url
    verb = "" if method == "GET" else f"-X {method} "
    parts = [f"curl {verb}{shlex.quote(url)}"]
    if with_key:
        parts.append('-H "Authorization: Bearer KEY"')
    return " \\\n    ".join([*parts, *_body_arguments(operation)])


def _body_arguments(operation: Mapping[str, Any]) -> list[str]:
    """Return the arguments of curl that send the example of a body."""
    for kind, body in _bodies(operation).items():
        if kind == "multipart/form-data":
            return [f"-F {shlex.quote(f'{k}={v}')}" for k, v in body["example"].items()]
        example = json.dumps(body["example"], ensure_ascii=False)
        return [f'-H "Content-Type: {kind}"', f"-d {shlex.quote(example)}"]
    return []
