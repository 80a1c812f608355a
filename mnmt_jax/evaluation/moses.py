"""Moses tokenization and detokenization for scoring, based on the port `sacremoses`.

Where the port differs from the Moses scripts, the results here follow the scripts. The exception is
Han characters in text of other languages, which are separated here.
"""

from __future__ import annotations

import functools
import importlib
import re
import unicodedata
from collections.abc import Callable
from typing import Any

from mnmt_jax.errors import UserError, install_remedy
from mnmt_jax.vocabulary.language_codes import parse_code

# As in WMT16's scripts for Romanian: cedillas to commas, then diacritics removed.
_ROMANIAN = str.maketrans("ŞşŢţȘșȚțĂăÂâÎî", "SsTtSsTtAaAaIi")

# Languages whose quotation marks the port handles like the script, which treats others as German.
_PORT_QUOTES = ("en", "cs", "de", "es", "fr")
# Characters that become separate tokens; the port does not separate marks of Indic scripts.
_SEPARATE = r"[^\p{Alphabetic}\p{Nd}\s.'`,\-]"
# A colon inside a Finnish word ("EU:ssa"), and the letter that replaces it in the port.
_INNER_COLON, _COLON_SUBSTITUTE = r":(?=\p{Ll})", "\u02d0"
# The full stop after the last word of a line; the port does not split it from abbreviations.
_LAST_STOP = re.compile(r"(?<=[^\s.])\.$")


class Moses:
    """Moses tokenizer and detokenizer, by language: regions and scripts have no rules of their own.

    Raises:
        UserError: if sacremoses is not installed.
    """

    def __init__(self) -> None:
        try:
            self._package: Any = importlib.import_module("sacremoses")
        except ImportError as error:
            raise UserError(
                "--paper_compatible: this benchmark needs the scripts of Moses; "
                + install_remedy("paper-metrics")
            ) from error
        self._detokenizers: dict[str, Callable[[list[str]], str]] = {}
        self._tokenizers: dict[str, Callable[[str], str]] = {}

    def detokenize(self, text: str, code: str) -> str:
        """Detokenize a sentence of space-separated tokens."""
        language = parse_code(code).language
        if language not in self._detokenizers:
            self._detokenizers[language] = self._package.MosesDetokenizer(lang=language).detokenize
        return self._detokenizers[language](text.split())

    def tokenize(self, text: str, code: str) -> str:
        """Tokenize a sentence; return its space-separated tokens.

        Punctuation is normalised, non-printing characters become spaces, and Romanian loses its
        diacritics.

        Source: M2M-100's tok.sh, the default case for languages without a special one.
        """
        language = parse_code(code).language
        if language not in self._tokenizers:
            self._tokenizers[language] = self._tokenizer(language)
        return self._tokenizers[language](text)

    def _tokenizer(self, language: str) -> Callable[[str], str]:
        import regex  # a dependency of sacremoses

        normalizer = self._package.MosesPunctNormalizer(
            lang=language, pre_replace_unicode_punct=True
        )
        if language not in _PORT_QUOTES:
            normalizer.substitutions += normalizer.DE_ES_FR_QUOTATION_FOLLOWED_BY_COMMA
        separate, colon = regex.compile(_SEPARATE), regex.compile(_INNER_COLON)
        tokenizer = self._package.MosesTokenizer(lang=language)
        split = functools.partial(tokenizer.tokenize, escape=False, return_str=True)

        def tokenize(text: str) -> str:
            # The scripts see the newline, which moves a final full stop behind the quotation mark.
            text = _replace_nonprinting(normalizer.normalize(f"{text.rstrip()}\n"))
            text = text.translate(_ROMANIAN) if language == "ro" else text
            text = colon.sub(_COLON_SUBSTITUTE, text) if language == "fi" else text
            tokens = _LAST_STOP.sub(" .", split(separate.sub(r" \g<0> ", text)))
            return tokens.replace(_COLON_SUBSTITUTE, ":") if language == "fi" else tokens

        return tokenize


def _replace_nonprinting(text: str) -> str:
    """Replace non-printing characters with spaces."""
    return "".join(
        " " if unicodedata.category(character)[0] == "C" else character for character in text
    )
