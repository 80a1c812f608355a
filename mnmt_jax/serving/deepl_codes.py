"""Language codes as DeepL's API writes them."""

from __future__ import annotations

from mnmt_jax.vocabulary.language_codes import (
    canonical_code_or_input,
    is_code,
    parse_code,
)


def without_region(code: str) -> str:
    """Return the code of a source language or of a glossary: PT for pt_BR."""
    return with_region(parse_code(code).without_region if is_code(code) else code)


def with_region(code: str) -> str:
    """Return the code of a target language: PT-BR, ZH-HANT, DE for deu_Latn."""
    return canonical_code_or_input(code).replace("_", "-").upper()
