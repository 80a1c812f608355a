"""Text normalisation before encoding, and texts that are blank or have no letters."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from mnmt_jax.errors import UserError

NONE, NFC = "none", "nfc"
NORMALIZATIONS = (NONE, NFC)
"""Normalisations of text before a SentencePiece model encodes it."""

SPACE_MARK = "\u2581"
"""SentencePiece's space mark. In text it is read as a space."""

# Ranges of a character class, in the syntax that Python's `re` and TensorFlow's RE2 share.
SPACES = (
    r"\t-\r\x{1c}-\x{1f}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}"
    r"\x{3000}\x{2581}"
)
"""White space of every kind except the space itself, and the space mark."""
INVISIBLE = r"\x{200b}\x{2060}\x{feff}"
"""Zero-width space, word joiner, byte order mark. Joiners (ZWJ, ZWNJ) are excluded."""


def _compile_class(ranges: str) -> re.Pattern[str]:
    """Compile a character class whose code points are in RE2 syntax."""
    return re.compile(
        f"[{re.sub(r'x{([0-9a-f]+)}', lambda match: f'U{int(match[1], 16):08x}', ranges)}]"
    )


_SPACES, _INVISIBLE = _compile_class(SPACES), _compile_class(INVISIBLE)
_VISIBLE = _compile_class(f"^ {SPACES}{INVISIBLE}")


def is_blank(text: str) -> bool:
    """Return whether a text has only white space and invisible characters."""
    return _VISIBLE.search(text) is None


def has_letters(text: str) -> bool:
    """Return whether a text has a letter of any script; other texts have no language."""
    return any(character.isalpha() for character in text)


def normalize(text: str) -> str:
    r"""Normalise a text as vocabularies trained here do (`NFC`).

    White space of every kind becomes a space. Zero-width spaces, word joiners and byte order marks
    are removed. The result is in Unicode's normalisation form C. Zero-width joiners and
    non-joiners, which spelling needs, are kept. The function is idempotent.

    Args:
        text: any text.

    Returns:
        The text; runs of spaces are left to SentencePiece.

    Example:
        >>> normalize("in 3 Tagen:\tItalien\u200b")
        'in 3 Tagen: Italien'
    """
    return unicodedata.normalize("NFC", _INVISIBLE.sub("", _SPACES.sub(" ", text)))


def normalize_lines(lines: Sequence[str], normalization: str) -> list[str]:
    """Normalise lines by a vocabulary's `normalization`."""
    return [normalize(line) for line in lines] if normalization == NFC else list(lines)


def check_normalization(name: str) -> None:
    """Check the name of a normalisation.

    Raises:
        UserError: if the name is unknown.
    """
    if name not in NORMALIZATIONS:
        raise UserError(f"text normalization '{name}' must be one of {', '.join(NORMALIZATIONS)}")
