"""Language codes: conversion of BCP 47 tags and published codes to one canonical form.

The canonical form is the shortest tag with underscores: `de` for `DE`, `de-DE`, `deu`, `ger`,
`deu_Latn`; `zh` for `zh_Hans`, `zho_Hans`, `cmn_Hans`, `zh_CN`; `zh_Hant` for `zho_Hant`, `zh-TW`;
`hsb` for `hsb_Latn`. Hyphens are not used because they separate the two sides of a direction
(`en-zh_Hant`).

- A script is kept if it is not the default script of the language (CLDR's likely subtags).
- A region is kept if it is not the default region: `en_US` is `en`, `en_GB` is not. Portuguese
  has no default region, since corpora use `pt` for Europe's and for Brazil's: `pt_BR` and `pt_PT`
  are languages besides `pt`.
- A macrolanguage and its predominant member share one code: `arb` is `ar`, `arz` is not.

`match_code` finds a code in the list of a vocabulary, whose own spelling is preserved.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mnmt_jax.errors import UserError, join_names

Direction = tuple[str, str]
"""A translation direction: codes of the source and the target language."""

# Published codes that BCP 47 lacks or uses for another language. `pb`: OpenSubtitles and OPUS;
# `ar-ar`: mBART-50; `ns`: M2M-100; `latin` and `cyrillic`: glibc, as in `sr@latin`.
_PUBLISHED = {"pb": "pt-br", "ar-ar": "ar", "ns": "nso"}
_MODIFIERS = {"latin": "latn", "cyrillic": "cyrl", "devanagari": "deva"}
# langcodes replaces these by another language, script or region; corpora distinguish them.
_PRESERVED = {"sh": "sh", "hbs": "sh", "tw": "tw", "twi": "tw", "prs": "prs"}
_PREFERRED = {"fil": "tl", "pbt": "ps"}
_EQUAL_SCRIPTS = {"Hang": "Kore"}
_NO_REGION = ("XX", "ZZ")  # mBART-50's `pt_XX`
_NO_DEFAULT_REGION = ("pt",)
_SPACELESS = frozenset("bo dz ja km lo my th wuu yue zh".split())
# Written with prepositions, conjunctions or articles as parts of the next word.
_PREFIXING = frozenset("acm acq aeb ajp am apc ar ars ary arz he ti".split())
_NO_LANGUAGE = ("und", "mul", "zxx", "mis")
_MAX_LENGTH = 35  # characters; RFC 5646 section 4.4.1
_NAME_LENGTH = 4  # minimum length of a text to compare with language names


@dataclass(frozen=True)
class LanguageTag:
    """A parsed language code without defaults.

    Attributes:
        language: ISO 639-1 code, or ISO 639-3 where there is none.
        script: ISO 15924 code; "" for the default script of the language.
        region: ISO 3166-1 or UN M.49 code; "" for none and for the default region.
        variants: variants, extensions and private-use subtags, in order.
    """

    language: str
    script: str = ""
    region: str = ""
    variants: tuple[str, ...] = ()

    @property
    def code(self) -> str:
        """The canonical code, e.g. `zh_Hant` or `pt_BR`."""
        parts = (self.language, self.script, self.region, *self.variants)
        return "_".join(part for part in parts if part)

    @property
    def without_region(self) -> str:
        """The canonical code of the language in any region."""
        is_default = self.script == _likely_script_and_region(self.language)[0]
        script = "" if is_default and _has_default_script(self.language) else self.script
        parts = (self.language, script, *self.variants)
        return "_".join(part for part in parts if part)

    @property
    def written_script(self) -> str:
        """ISO 15924 code of the script, the default script if none is named."""
        return self.script or _likely_script_and_region(self.language)[0]


@functools.lru_cache(maxsize=1024)
def parse_code(text: str) -> LanguageTag:
    """Parse a language code of any form.

    Args:
        text: BCP 47 tag with hyphens or underscores in any case, ISO 639 code of two or three
            letters, or a code of Flores, NLLB, mBART or M2M-100.

    Raises:
        UserError: if it is not a language code; the message suggests the language likely meant.
    """
    written = text.strip().replace("_", "-").replace("@", "-").lower()
    written = _PUBLISHED.get(written, written)
    subtags = [_MODIFIERS.get(subtag, subtag) for subtag in written.split("-")]
    preserved = _PRESERVED.get(subtags[0])
    tag = _parse_tag("-".join([preserved or subtags[0], *subtags[1:]]), normalize=preserved is None)
    if tag is None or len(written) > _MAX_LENGTH:
        raise UserError(f"unknown language {text!r}: {_hint(text)}")
    language = preserved or _PREFERRED.get(tag.language, tag.language)
    default = _likely_script_and_region(language)[0]
    script, region = tag.script or "", tag.territory or ""
    region = "" if region in _NO_REGION else region
    # zh_TW is written in Hant, sr_ME in Latn; zh_Hans_HK is not.
    regional = _likely_script_and_region(language, region=region)[0]
    script = _EQUAL_SCRIPTS.get(script, script) or regional
    if script == default == regional and (_has_default_script(language) or not tag.script):
        script = ""
    if region == _likely_script_and_region(language, script)[1]:
        region = ""
    other_subtags = (*(tag.extlangs or ()), *(tag.variants or ()), *(tag.extensions or ()))
    private_subtags = () if tag.private is None else (tag.private,)
    variants = tuple(
        subtag for item in (*other_subtags, *private_subtags) for subtag in item.split("-")
    )
    return LanguageTag(language, script, region, variants)


def canonical_code(text: str) -> str:
    """Return the canonical form of a language code, e.g. `de` for `deu_Latn`.

    Raises:
        UserError: as `parse_code`.
    """
    return parse_code(text).code


def canonical_code_or_input(text: str) -> str:
    """Return the canonical form of a language code, or the text itself if it is not a code."""
    tag = _parse_or_none(text)
    return text if tag is None else tag.code


def is_code(text: str) -> bool:
    """Return whether a text is a language code."""
    return _parse_or_none(text) is not None


def is_spaceless(language: str) -> bool:
    """Return whether a language is written without spaces between words and sentences."""
    tag = parse_code(language)
    return tag.language in _SPACELESS and tag.script != "Latn"


def has_separate_words(language: str) -> bool:
    """Return whether a word of a text starts after a space or a mark.

    Languages without spaces have no such starts; Arabic, Hebrew, Amharic and Tigrinya write
    prepositions and articles without a space before the next word.
    """
    return not is_spaceless(language) and parse_code(language).language not in _PREFIXING


def is_same_language(first: str, second: str) -> bool:
    """Return whether two codes denote the same language, without region fallback."""
    return canonical_code_or_input(first) == canonical_code_or_input(second)


def is_same_in_any_region(first: str, second: str) -> bool:
    """Return whether two codes name one language, in any region; False if one is no code."""
    tags = _parse_or_none(first), _parse_or_none(second)
    return None not in tags and len({tag.without_region for tag in tags if tag}) == 1


def may_be_same_language(first: str, second: str) -> bool:
    """Return whether two codes name one language, where one without region may have any.

    `pt` may be `pt_BR` or `pt_PT`, but `pt_BR` is not `pt_PT`.
    """
    tags = _parse_or_none(first), _parse_or_none(second)
    has_open_region = any(tag is not None and not tag.region for tag in tags)
    is_similar = has_open_region and is_same_in_any_region(first, second)
    return is_similar or is_same_language(first, second)


def canonical_codes(texts: Iterable[str], flag: str = "") -> tuple[str, ...]:
    """Return the canonical form of language codes, in which each language occurs once.

    Args:
        texts: codes of any form.
        flag: where the codes come from, for the error, e.g. `--languages`.

    Raises:
        UserError: as `parse_code`, or if two of them are the same language.
    """
    prefix = f"{flag}: " if flag else ""
    spellings: dict[str, str] = {}
    for text in texts:
        try:
            code = canonical_code(text)
        except UserError as error:
            raise UserError(f"{prefix}{error}") from None
        if code in spellings:
            first_spelling = spellings[code]
            other_spelling = (
                "" if first_spelling == text else f" and {text!r} are one language ({code})"
            )
            raise UserError(
                f"{prefix}{first_spelling!r}{other_spelling or ' is listed twice'}: "
                "name each language once"
            )
        spellings[code] = text
    return tuple(spellings)


def find_code(text: str, codes: Collection[str], what: str = "") -> str | None:
    """Find the code in a list that denotes the same language as a code of any form.

    A code without region matches the only regional code, and a regional code falls back to the
    code without region: `pt_BR` matches `pt` if there is no `pt_BR`, but never `pt_PT`.

    Args:
        text: code of any form.
        codes: codes of a vocabulary or corpus, in their own spelling.
        what: where the code comes from, for the error, e.g. `--source`.

    Returns:
        A member of `codes`; None if the language is not among them, or `text` is not a code.

    Raises:
        UserError: if several of `codes` differ in region and `text` names none of them.
    """
    if text in codes:
        return text
    tag = _parse_or_none(text)
    if tag is None:
        return None
    tags = {code: _parse_or_none(code) for code in codes}
    matches = [code for code, other in tags.items() if other == tag]
    if not matches:
        base_code = tag.without_region
        parsed = [(code, other) for code, other in tags.items() if other is not None]
        matches = [code for code, other in parsed if other.code == base_code]
        if tag.region:  # another region is another language
            parsed = [(code, other) for code, other in parsed if other.region in ("", tag.region)]
        matches = matches or [code for code, other in parsed if other.without_region == base_code]
        if not matches and not tag.script and not _has_default_script(tag.language):
            matches = [code for code, other in parsed if other.language == tag.language]
    if len(matches) > 1:
        place = f"{what}={text}: " if what else ""
        raise UserError(f"{place}language {text!r} is ambiguous: name {' or '.join(matches)}")
    return matches[0] if matches else None


def split_direction(text: str) -> list[Direction]:
    """Return the pairs of texts that SOURCE-TARGET can be split into: codes may have hyphens."""
    parts = text.split("-")
    return [("-".join(parts[:n]), "-".join(parts[n:])) for n in range(1, len(parts))]


def requested_code(text: str, known: str) -> str:
    """Return the canonical form of the code in which a request names a language of a model.

    That of the model is taken if it alone has a region, or if the text is an alias.

    Args:
        text: code of the request, for which `find_code` found the model's.
        known: code of the model.
    """
    tag = _parse_or_none(known)
    is_closer = tag is not None and not tag.region and find_code(text, [known]) is not None
    return canonical_code_or_input(text if is_closer else known)


def match_code(text: str, codes: Collection[str], what: str, owner: str = "the model") -> str:
    """Return the result of `find_code`, or raise an error with suggestions.

    Args:
        text: code of any form.
        codes: as in `find_code`.
        what: where the code comes from, for the error, e.g. `--source`.
        owner: owner of the codes, for the error.

    Raises:
        UserError: if the language is not among the codes or is ambiguous; names related codes.
    """
    code = find_code(text, codes, what)
    if code is not None:
        return code
    related = related_codes(text, codes)
    hint = f"did you mean {' or '.join(related)}? " if related else ""
    raise UserError(f"{what}={text}: {owner} has no such language; {hint}it has {', '.join(codes)}")


def check_distinct_matches(matches: Mapping[str, str | None], what: str) -> None:
    """Check that codes match different members of a list.

    Args:
        matches: result of `find_code` by code.
        what: where the codes come from, for the error, e.g. `--languages`.

    Raises:
        UserError: naming two codes with one match, such as `pt_BR` and `pt_PT` for `pt`.
    """
    first_codes: dict[str, str] = {}
    for code, match in matches.items():
        if match is not None and (first := first_codes.setdefault(match, code)) != code:
            raise UserError(
                f"{what}: {first!r} and {code!r} are both {match!r} of the text; name one of them"
            )


def vocabulary_code(text: str, codes: Collection[str]) -> str:
    """Return the code in a vocabulary's list that `find_code` finds.

    Args:
        text: code of any form.
        codes: codes that have a tag.

    Raises:
        UserError: if the language has no tag, or is ambiguous.
    """
    code = find_code(text, codes)
    if code is None:
        raise UserError(
            f"language '{text}' has no tag in this vocabulary; it has {', '.join(codes)}"
        )
    return code


def related_codes(text: str, codes: Iterable[str]) -> list[str]:
    """Return codes of the same language in other scripts, or of the same macrolanguage."""
    tag = _parse_or_none(text)
    if tag is None:
        codes_by_name = _codes_by_name(text)
        return [code for code in codes if canonical_code_or_input(code) in codes_by_name]
    family = _macrolanguage(tag.language)
    return [
        code
        for code in codes
        if (other := _parse_or_none(code)) and _macrolanguage(other.language) == family
    ]


def check_new_code(text: str, codes: Collection[str], what: str) -> str:
    """Return the canonical code of a language that a vocabulary does not have.

    Args:
        text: code of any form.
        codes: codes of the vocabulary.
        what: where the code comes from, for the error, e.g. `--language`.

    Raises:
        UserError: if it is not a code, or the vocabulary has the language.
    """
    try:
        code = canonical_code(text)
    except UserError as error:
        raise UserError(f"{what}={text}: {error}") from None
    if known := [other for other in codes if canonical_code_or_input(other) == code]:
        raise UserError(f"{what}={text}: language '{known[0]}' is in the vocabulary already")
    return code


def display_name(tag: LanguageTag) -> str:
    """Return the English name of a language from CLDR, or from IANA's subtag registry."""
    from babel import Locale

    english = Locale("en")
    name = english.languages.get(tag.language) or _registered_name(tag.language)
    details = [english.scripts.get(tag.script, tag.script)] if tag.script else []
    details += [english.territories.get(tag.region, tag.region)] if tag.region else []
    details += tag.variants
    return f"{name} ({', '.join(details)})" if details else name


def script_name(script: str) -> str:
    """Return the English name of an ISO 15924 script code."""
    from babel import Locale

    return str(Locale("en").scripts.get(script, script))


def _parse_tag(text: str, *, normalize: bool) -> Any:
    """Parse a tag with langcodes; return None if it is not the tag of a language."""
    import langcodes

    try:
        tag = langcodes.Language.get(text, normalize=normalize)
        if normalize:
            script = tag.script  # the standard form drops that of kk_Cyrl_CN
            tag = langcodes.Language.get(langcodes.standardize_tag(tag, macro=True))
            tag = tag.update(langcodes.Language.make(script=script))
    except (LookupError, ValueError):  # LanguageTagError is a ValueError
        return None
    unnamed = not tag.language or tag.language in _NO_LANGUAGE or tag.language.startswith("x-")
    if unnamed or not tag.is_valid():
        return None
    return tag


@functools.lru_cache(maxsize=1024)
def _parse_or_none(text: str) -> LanguageTag | None:
    try:
        return parse_code(text)
    except UserError:
        return None


@functools.lru_cache(maxsize=1024)
def _likely_script_and_region(language: str, script: str = "", region: str = "") -> tuple[str, str]:
    """Return the script of a language in a region, and its default region in a script."""
    import langcodes

    make = langcodes.Language.make
    written = make(language=language, script=script or None, territory=region or None).maximize()
    likely = make(language=language, script=script or None).maximize()
    has_default_region = _has_default_script(language) and language not in _NO_DEFAULT_REGION
    default = (likely.territory or "") if has_default_region else ""
    return written.script or "", "" if default in _NO_REGION else default


def _has_default_script(language: str) -> bool:
    """Return whether CLDR has a default script for a language."""
    from langcodes.data_dicts import LIKELY_SUBTAGS

    return language in LIKELY_SUBTAGS


def _macrolanguage(language: str) -> str:
    from langcodes.data_dicts import MACROLANGUAGES

    return str(MACROLANGUAGES.get(language, language))


def _registered_name(language: str) -> str:
    """Return a language's first description in IANA's registry; the code if there is none."""
    from langcodes.registry_parser import parse_registry

    for entry in parse_registry():
        if entry.get("Type") == "language" and entry.get("Subtag") == language:
            return str(entry["Description"][0])
    return language


def _hint(text: str) -> str:
    """Return a suggestion for an invalid code."""
    import langcodes

    names = _codes_by_name(text)
    if names:
        return f"did you mean {' or '.join(names)}?"
    country = text.strip().upper()
    is_country = len(country) == 2 and country not in _NO_REGION
    if is_country and langcodes.tag_is_valid(f"und-{country}"):
        likely_language = langcodes.Language.make(territory=country).maximize().language
        suggestion = canonical_code(likely_language or "")
        return f"{text} is the code of a country, whose language is {suggestion}"
    return (
        "a code is a BCP 47 tag such as de, pt_BR or zh_Hant; 'mnmt languages' lists the codes of "
        "the built-in table"
    )


def _codes_by_name(text: str) -> list[str]:
    """Return the canonical codes of the languages whose English names are closest to a text."""
    from babel import Locale

    name = text.strip().lower()
    if len(name) < _NAME_LENGTH:
        return []
    names: dict[str, str] = {}
    for code, english in Locale("en").languages.items():
        if (tag := _parse_or_none(code)) is not None:
            names.setdefault(english.lower(), tag.code)
    closest = difflib.get_close_matches(name, names, n=3, cutoff=0.8)
    closest = closest[:1] if closest and closest[0] == name else closest
    return list(dict.fromkeys(names[match] for match in closest))


def check_safe_codes(codes: Sequence[str], source: str) -> None:
    """Check that codes of an external list can be used in file names.

    Args:
        codes: codes as a vocabulary or another toolkit lists them.
        source: where the list comes from, for the error.

    Raises:
        UserError: if one is empty, contains a slash, backslash, colon, space or control character,
            or begins with a dot.
    """
    invalid = [
        code
        for code in codes
        if not code
        or code.startswith(".")
        or not code.isprintable()
        or any(character in "/\\: " for character in code)
    ]
    if invalid:
        raise UserError(
            f"{source}: {join_names([repr(code) for code in invalid])} cannot be a language code, "
            "which has letters, digits, '-' and '_'"
        )
