"""Moses' scripts on text before it is scored, by their port `sacremoses`.

Where the port tokenizes otherwise than the scripts do, this does as the scripts, but for Han
characters in text of other languages, which come apart here.
"""

from __future__ import annotations

import functools
import importlib
import re
import unicodedata
from collections.abc import Callable
from typing import Any

from mnmt_jax.errors import UserError

# What WMT16's scripts for Romanian do: cedillas to commas, then letters without marks.
_ROMANIAN = str.maketrans("ŞşŢţȘșȚțĂăÂâÎî", "SsTtSsTtAaAaIi")

# Languages whose quotation marks the port treats as the script does, to which others are German.
_OWN_QUOTES = ("en", "cs", "de", "es", "fr")
# What stands alone; in the port, marks of Indic scripts do not.
_APART = r"[^\p{Alphabetic}\p{Nd}\s.'`,\-]"
# A colon inside a Finnish word ("EU:ssa"), and the letter in whose guise it passes the port.
_INNER_COLON, _LETTER = r":(?=\p{Ll})", "\u02d0"
# The full stop of a line's last word, which the port keeps with an abbreviation.
_LAST_STOP = re.compile(r"(?<=[^\s.])\.$")


class Moses:
    """Detokenizes and tokenizes sentences.

    Raises:
        UserError: if sacremoses is not installed.
    """

    def __init__(self) -> None:
        try:
            self._package: Any = importlib.import_module("sacremoses")
        except ImportError as error:
            raise UserError(
                "--paper_compatible: this benchmark's texts go through Moses' scripts first; pip "
                "install sacremoses"
            ) from error
        self._detokenizers: dict[str, Callable[[list[str]], str]] = {}
        self._tokenizers: dict[str, Callable[[str], str]] = {}

    def detokenize(self, text: str, code: str) -> str:
        """Return a sentence of tokens as it is written."""
        if code not in self._detokenizers:
            self._detokenizers[code] = self._package.MosesDetokenizer(lang=code).detokenize
        return self._detokenizers[code](text.split())

    def tokenize(self, text: str, code: str) -> str:
        """Return a sentence's tokens, with blanks between them.

        Punctuation is normalised and what does not print becomes a blank; Romanian also loses its
        diacritics.

        Source: M2M-100's tok.sh, the case of all languages that have none of their own.
        """
        if code not in self._tokenizers:
            self._tokenizers[code] = self._tokenizer(code)
        return self._tokenizers[code](text)

    def _tokenizer(self, code: str) -> Callable[[str], str]:
        import regex  # sacremoses needs it

        normalizer = self._package.MosesPunctNormalizer(lang=code, pre_replace_unicode_punct=True)
        if code not in _OWN_QUOTES:
            normalizer.substitutions += normalizer.DE_ES_FR_QUOTATION_FOLLOWED_BY_COMMA
        apart, colon = regex.compile(_APART), regex.compile(_INNER_COLON)
        tokenizer = self._package.MosesTokenizer(lang=code)
        split = functools.partial(tokenizer.tokenize, escape=False, return_str=True)

        def tokenize(text: str) -> str:
            # The scripts see the line's end, which makes a full stop before a quotation mark last.
            text = _printed(normalizer.normalize(f"{text.rstrip()}\n"))
            text = text.translate(_ROMANIAN) if code == "ro" else text
            text = colon.sub(_LETTER, text) if code == "fi" else text
            tokens = _LAST_STOP.sub(" .", split(apart.sub(r" \g<0> ", text)))
            return tokens.replace(_LETTER, ":") if code == "fi" else tokens

        return tokenize


def _printed(text: str) -> str:
    """Put a blank in the place of each character that does not print."""
    return "".join(" " if unicodedata.category(mark)[0] == "C" else mark for mark in text)
