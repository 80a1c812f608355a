"""Files for translators: XLIFF 1.2 and 2, and TMX.

A target is a copy of its source with translated text. Translations in the file are kept, unless
they are to be replaced; units that must not be translated stay as they are.
"""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mnmt_jax.data.xml_elements import (
    UNTRANSLATED_STATES,
    XML_LANG,
    child_named,
    inherited_attribute,
    local_name,
)
from mnmt_jax.documents.passages import (
    MAX_DEPTH,
    Atom,
    Block,
    Item,
    ParagraphDocument,
    Span,
    legal,
)
from mnmt_jax.documents.segments import Document, DocumentOptions
from mnmt_jax.documents.tagged_text import MessageFilter, TaggedText
from mnmt_jax.documents.xml_tree import MixedParagraph, XmlFile
from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.language_codes import (
    is_same_in_any_region,
    is_same_language,
    may_be_same_language,
)

_CODES = ("startRef", "rid", "id", "i")  # attributes that pair codes
_SEGMENT = "seg"  # mtype of a segment
_CONTAINERS = ("g", "mrk", "pc", "hi")
_XLIFF_1 = ("source-language", "target-language")
_XLIFF_2 = ("srcLang", "trgLang")
_APPROVALS = ("approved", "state-qualifier", "subState")
_PROTECTED, _PAIRED = "protected", "paired"  # made around what is between two tags
_ENDS = {"bpt": "ept", "bx": "ex", "sc": "ec", "sm": "em"}  # of paired codes
_ANY_LANGUAGE = "*all*"  # srclang of TMX


def read_xliff(data: bytes, name: str, options: DocumentOptions) -> Document:
    """Read XLIFF 1.2 or 2.

    Raises:
        UserError: if it is damaged, or of other languages than those of the options.
    """
    file = XmlFile(data, name, "xliff")
    root = file.root
    is_second = root.get("version", "").startswith("2")
    attributes = _XLIFF_2 if is_second else _XLIFF_1
    holders = [root] if is_second else list(root.iter("{*}file"))
    for holder in holders:
        _check_languages(holder, attributes, name, options)
    source = options.source or _common_source(holders, attributes[0], name)
    paragraphs: list[Block] = []
    messages = MessageFilter()
    for unit in list(root.iter("{*}trans-unit", "{*}segment")):
        if inherited_attribute(unit, "translate") != "no":
            paragraphs += map(_block, _new_targets(unit, options, messages))
    messages.report(name, options.warn)
    return ParagraphDocument(paragraphs, file.to_bytes, source)


def read_tmx(data: bytes, name: str, options: DocumentOptions) -> Document:
    """Read TMX; each unit of the source language gets a variant in the target language.

    Raises:
        UserError: if it is damaged, or no source language is known.
    """
    file = XmlFile(data, name, "tmx")
    root = file.root
    header = child_named(root, "header")
    srclang = header.get("srclang", "") if header is not None else ""
    source = options.source or ("" if srclang == _ANY_LANGUAGE else srclang)
    if not source:
        raise UserError(f"{name}: names no source language; choose it")
    messages = MessageFilter()
    units = list(root.iter("{*}tu"))
    variants = [_new_variant(unit, source, options, messages) for unit in units]
    messages.report(name, options.warn)
    segments = [child_named(one, "seg") for one in variants if one is not None]
    return ParagraphDocument(list(map(_block, segments)), file.to_bytes, source)


def _check_languages(
    element: Any, attributes: tuple[str, str], name: str, options: DocumentOptions
) -> None:
    """Check the languages of a file, and write the target language if there is none.

    Raises:
        UserError: if they are others.
    """
    codes = options.source, options.target
    rules = is_same_in_any_region, may_be_same_language
    for attribute, code, is_similar in zip(attributes, codes, rules, strict=True):
        tag = element.get(attribute)
        if tag and code and not is_similar(tag, code):
            raise UserError(f"{name}: {attribute}={tag} in the file, but {code} is asked for")
    if not element.get(attributes[1]):
        element.set(attributes[1], _tag(options.target))


def _common_source(holders: Sequence[Any], attribute: str, name: str) -> str:
    """Return the source language of the parts of a file; "" if none is named.

    Raises:
        UserError: if they have several.
    """
    codes = list(dict.fromkeys(filter(None, (holder.get(attribute) for holder in holders))))
    if not all(is_same_in_any_region(code, codes[0]) for code in codes[1:]):
        raise UserError(
            f"{name}: {attribute} is {' and '.join(codes)}; make a file of each source language"
        )
    return codes[0] if codes else ""


def _new_targets(unit: Any, options: DocumentOptions, messages: MessageFilter) -> Iterator[Any]:
    """Yield a new target of a unit, a copy of its source, unless it has a translation.

    If some segments of the target are empty, they are copied and yielded by themselves.
    """
    source, old = child_named(unit, "source"), child_named(unit, "target")
    if source is None:
        return
    state = unit.get("state") or (old.get("state", "") if old is not None else "")
    is_kept = _has_content(old) and state not in UNTRANSLATED_STATES and not options.overwrite
    segmented = child_named(unit, "seg-source")
    empty = list(_empty_segments(segmented, old)) if is_kept else []
    if (is_kept and not empty) or messages.leaves_out("".join(source.itertext())):
        return
    if empty:
        _mark_translated(unit, old)
        yield from itertools.starmap(_filled, empty)
        return
    before = source if segmented is None else segmented
    target = copy.deepcopy(before)
    target.tag = source.tag.removesuffix("source") + "target"
    if XML_LANG in target.attrib:
        target.set(XML_LANG, _tag(options.target))
    if old is None:
        before.tail = unit.text if (unit.text or "").isspace() else before.tail
    else:
        target.attrib.update(old.attrib)
        target.tail = old.tail
        unit.remove(old)
    before.addnext(target)
    _mark_translated(unit, target)
    yield target


def _empty_segments(segmented: Any, target: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the empty segments of a target, each after the segment of the source with its mid."""
    segments = [] if segmented is None else segmented.iter("{*}mrk")
    sources = {one.get("mid"): one for one in segments if one.get("mtype") == _SEGMENT}
    for segment in target.iter("{*}mrk"):
        source = sources.get(segment.get("mid"))
        is_segment = segment.get("mtype") == _SEGMENT
        if is_segment and _has_content(source) and not _has_content(segment):
            yield source, segment


def _filled(source: Any, segment: Any) -> Any:
    """Return a segment with the content of one of the source."""
    segment[:] = copy.deepcopy(source)[:]
    segment.text = source.text
    return segment


def _has_content(element: Any) -> bool:
    """Return whether an element has text, or inline elements that stand for some."""
    if element is None:
        return False
    inner = (one for one in element.iterdescendants("*") if local_name(one) not in _CONTAINERS)
    return bool("".join(element.itertext()).strip()) or any(True for _ in inner)


def _mark_translated(unit: Any, target: Any) -> None:
    """Set the state of a translation that nobody has approved."""
    for element in (unit, target):
        if element.get("state"):
            element.set("state", "translated")
        for attribute in _APPROVALS:
            element.attrib.pop(attribute, None)


def _new_variant(unit: Any, source: str, options: DocumentOptions, messages: MessageFilter) -> Any:
    """Return a new variant of a unit in the target language, or None if it has a translation."""
    variants = [one for one in unit if local_name(one) == "tuv"]
    others = [one for one in variants if not is_same_language(_language_of(one), options.target)]
    originals = _in_language(others, source, is_same_in_any_region)
    remaining = [one for one in variants if one not in originals[:1]]  # pt may be read for pt_BR
    targets = _in_language(remaining, options.target, may_be_same_language)
    if not originals or child_named(originals[0], "seg") is None:
        return None
    if any(_has_content(child_named(one, "seg")) for one in targets) and not options.overwrite:
        return None
    if messages.leaves_out("".join(originals[0].itertext())):
        return None
    code = next(map(_language_of, targets), _tag(options.target))
    for target in targets:
        unit.remove(target)
    original = originals[0]
    variant = copy.deepcopy(original)
    for child in list(variant):
        if local_name(child) != "seg":
            variant.remove(child)
    variant.attrib.clear()
    variant.set(XML_LANG, code)
    original.tail = unit.text if (unit.text or "").isspace() else original.tail
    original.addnext(variant)
    return variant


def _in_language(
    variants: Sequence[Any], code: str, is_similar: Callable[[str, str], bool]
) -> list[Any]:
    """Return the variants in a language, or the first in a similar one if none is."""
    same = [one for one in variants if is_same_language(_language_of(one), code)]
    return same or [one for one in variants if is_similar(_language_of(one), code)][:1]


def _language_of(variant: Any) -> str:
    return variant.get(XML_LANG) or variant.get("lang") or ""


def _block(element: Any) -> Block:
    """Return the translatable content of a target or of a segment of TMX."""
    text = TaggedText(element.text or "")
    return (
        _TextTarget(element, text) if text.segment.markup and not len(element) else _Target(element)
    )


class _TextTarget:
    """A target without elements whose text has tags."""

    def __init__(self, element: Any, text: TaggedText) -> None:
        self._element, self._text = element, text
        self.segments = [text.segment] if text.segment.is_translatable else []

    def replace(self, texts: Iterator[str]) -> None:
        """Replace the text by its translation."""
        for _ in self.segments:
            self._element.text = legal(self._text.restored(next(texts)))


class _Target(MixedParagraph):
    """A target with elements; what is between paired codes is in an element meanwhile."""

    def __init__(self, element: Any) -> None:
        for start in list(element.iter("{*}sm")):
            if start.get("translate") == "no" and local_name(start.getparent()) != _PROTECTED:
                _wrap(start)
        self._pairs = [pair for parent in list(_containers(element)) for pair in _paired(parent)]
        super().__init__(element, _classify)

    def replace(self, texts: Iterator[str]) -> None:
        """Replace the content by its translation; texts are those of the passages."""
        super().replace(texts)
        for wrapper, start, end in self._pairs:
            start.tail, wrapper.text = wrapper.text, None
            wrapper.insert(0, start)
            wrapper.append(end)
            _unwrap(wrapper)
        for wrapper in list(self._element.iter(_PROTECTED)):
            _unwrap(wrapper)


def _containers(element: Any) -> Iterator[Any]:
    """Yield an element and the containers in it whose text is translated."""
    containers = [element]
    for parent in containers:
        yield parent
        containers += filter(_is_container, parent)


def _paired(parent: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Put what is between paired codes of one element into elements; codes may nest.

    Yields:
        The new element, and the codes, which are taken out.
    """
    opened: list[tuple[tuple[str, str], Any]] = []
    keys: Counter[tuple[str, str]] = Counter()
    for child in list(parent):
        name = local_name(child)
        code = next(filter(None, map(child.get, _CODES)), "")
        if name in _ENDS:
            opened.append(((_ENDS[name], code), child))
            keys[opened[-1][0]] += 1
        while keys[name, code]:
            key, start = opened.pop()
            keys[key] -= 1
            if key == (name, code):
                if len(opened) < MAX_DEPTH:
                    yield _between(start, child), start, child
                break


def _between(start: Any, end: Any) -> Any:
    """Put what is between two siblings into a new element in their place."""
    wrapper = start.makeelement(_PAIRED)
    wrapper.text, start.tail = start.tail, None
    wrapper.tail, end.tail = end.tail, None
    start.addprevious(wrapper)
    while (child := start.getnext()) is not end:
        wrapper.append(child)
    for code in (start, end):
        code.getparent().remove(code)
    return wrapper


def _wrap(start: Any) -> None:
    """Put a `<sm/>`, and what follows up to its `<em/>` or the end, into an element."""
    wrapper = start.makeelement(_PROTECTED, {"translate": "no"})
    start.addprevious(wrapper)
    child, open_ids = start, set()
    while child is not None:
        following = child.getnext()
        wrapper.append(child)
        if local_name(child) == "sm" and child.get("translate") == "no":
            open_ids.add(child.get("id"))
        elif local_name(child) == "em":
            open_ids.discard(child.get("startRef"))
            if not open_ids:
                wrapper.tail, child.tail = child.tail, None
                break
        child = following


def _unwrap(wrapper: Any) -> None:
    """Replace an element by its content."""
    *_, last = wrapper
    last.tail = (last.tail or "") + (wrapper.tail or "")
    for child in list(wrapper):
        wrapper.addprevious(child)
    wrapper.getparent().remove(wrapper)


def _classify(child: Any) -> Item:
    if not _is_container(child):
        text = "".join(child.itertext()) if _is_protected(child) else ""
        return Atom(child, is_word=bool(local_name(child)), text=text)
    return Span(child, (), is_apart=child.get("mtype") == _SEGMENT)


def _is_container(child: Any) -> bool:
    return local_name(child) in (*_CONTAINERS, _PAIRED) and not _is_protected(child)


def _is_protected(child: Any) -> bool:
    return child.get("translate") == "no" or child.get("mtype") == "protected"


def _tag(code: str) -> str:
    """Return a code as XML writes it: pt-BR."""
    return code.replace("_", "-")
