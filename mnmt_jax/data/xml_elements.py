"""Elements of translators' XML files: root check, names, inherited attributes."""

from __future__ import annotations

from typing import Any

from mnmt_jax.errors import UserError

XML_LANG = "{http://www.w3.org/XML/1998/namespace}lang"
CODE_ELEMENTS = frozenset("bpt bx cp ec ept ex it ph sc sm em ut x".split())
"""Inline elements of TMX and XLIFF that stand for a code of the document."""

UNTRANSLATED_STATES = ("new", "needs-translation", "initial")
"""States of XLIFF whose target is no translation."""

_XLIFF_VERSIONS = ("1", "2")  # 1.x and 2.x


def check_root(outermost: Any, path: str, root: str) -> None:
    """Check the root element, or None, and the declarations before it.

    Raises:
        UserError: if there is no root, it has another name or XLIFF version, or entities are
            declared.
    """
    if outermost is None:
        raise UserError(f"{path}: has no element at its beginning; this is no XML")
    dtd = outermost.getroottree().docinfo.internalDTD
    if dtd is not None and next(dtd.iterentities(), None) is not None:
        raise UserError(f"{path}: declares entities, which can grow to any size; refused")
    if local_name(outermost) != root:
        raise UserError(f"{path}: begins with <{local_name(outermost)}>, not with <{root}>")
    version = outermost.get("version", _XLIFF_VERSIONS[0]).strip()
    if root == "xliff" and version.partition(".")[0] not in _XLIFF_VERSIONS:
        raise UserError(f'{path}: version="{version}" of XLIFF; export it as XLIFF 1.2 or 2')


def local_name(element: Any) -> str:
    """Return the name of an element without its namespace; "" for an entity."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def child_named(element: Any, name: str) -> Any:
    """Return the first child with a name, or None."""
    return next((child for child in element if local_name(child) == name), None)


def inherited_attribute(element: Any, name: str) -> str:
    """Return the attribute of an element or of its nearest ancestor that has it; "" if none has."""
    while element is not None and element.get(name) is None:
        element = element.getparent()
    return "" if element is None else element.get(name)
