"""Lower and upper case by language: ı and İ in Turkish and Azerbaijani."""

from __future__ import annotations

import functools

from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.language_codes import parse_code

_WITH_DOTLESS_I = ("az", "tr")
_LOWER = str.maketrans("Iİ", "ıi")


@functools.lru_cache(maxsize=1024)
def has_dotless_i(language: str) -> bool:
    """Return whether I is the capital of ı in a language, and İ that of i; False if unknown."""
    try:
        return parse_code(language).language in _WITH_DOTLESS_I
    except UserError:
        return False


def to_lower(text: str, language: str) -> str:
    """Return a text of a language in lower case.

    Example:
        >>> to_lower("ISLAK ZEMİN", "tr")
        'ıslak zemin'
    """
    if has_dotless_i(language):
        text = text.replace("I\u0307", "i").translate(_LOWER)
    return text.lower()


def lower_spellings(text: str, language: str) -> tuple[str, ...]:
    """Return a text in lower case, character by character, so that positions stay.

    Names keep the I of other languages, so a language with ı also has a spelling with i for each I.

    Example:
        >>> lower_spellings("Instagram", "tr")
        ('ınstagram', 'instagram')
    """
    if has_dotless_i(language):
        texts = dict.fromkeys((text.translate(_LOWER), text.replace("I", "i").translate(_LOWER)))
    else:
        texts = dict.fromkeys((text,))
    return tuple("".join(c.lower() if len(c.lower()) == 1 else c for c in one) for one in texts)


def to_upper(text: str, language: str) -> str:
    """Return a text of a language in upper case.

    Example:
        >>> to_upper("iyi günler", "tr")
        'İYİ GÜNLER'
    """
    return (text.replace("i", "İ") if has_dotless_i(language) else text).upper()


def capitalized_spellings(text: str, language: str) -> tuple[str, ...]:
    """Return the spellings of a text with its first letter as a capital.

    Names have the capitals of other languages, so i also has I in a language with ı.

    Example:
        >>> capitalized_spellings("instagram", "tr")
        ('İnstagram', 'Instagram')
    """
    capitals = dict.fromkeys((to_upper(text[:1], language), text[:1].upper()))
    return tuple(capital + text[1:] for capital in capitals)
