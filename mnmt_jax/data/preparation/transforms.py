"""Transforms of sentences: Unicode normalization, Moses scripts, Chinese word segmentation."""

from __future__ import annotations

import dataclasses
import functools
import logging
import unicodedata
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any, Literal

from mnmt_jax.data.preparation.steps import Transform, import_package
from mnmt_jax.vocabulary.language_codes import is_spaceless, parse_code

FORMS = ("NFC", "NFKC", "none")


@dataclasses.dataclass(frozen=True)
class Normalize(Transform):
    """Unicode normalization and single spaces.

    Attributes:
        form: `NFC`, `NFKC` or `none`.
        spaces: whether runs of white space become one space, and none is left at the ends.
    """

    name = "normalize"
    form: Literal["NFC", "NFKC", "none"] = "NFC"
    spaces: bool = True

    def __post_init__(self) -> None:
        """Check the form."""
        self.require_choice("form", FORMS)

    def apply(self, sentences: Sequence[str], language: str) -> list[str]:
        """Return the normalized sentences."""
        if self.form != "none":
            sentences = [unicodedata.normalize(self.form, sentence) for sentence in sentences]
        if self.spaces:
            sentences = [" ".join(sentence.split()) for sentence in sentences]
        return list(sentences)


@dataclasses.dataclass(frozen=True)
class Moses(Transform):
    """Moses punctuation normalization and tokenization, by sacremoses.

    Attributes:
        punctuation: whether punctuation is normalized.
        tokenize: whether the text is split into tokens; special characters are not escaped.
        split_hyphens: whether tokens are split at hyphens (`tokenizer.perl -a`).
        languages: languages that are changed; all if absent.
    """

    name = "moses"
    punctuation: bool = True
    tokenize: bool = False
    split_hyphens: bool = False
    languages: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the languages."""
        self.require_languages("languages")

    def check_languages(self, languages: Sequence[str]) -> None:
        """Check that sacremoses is installed."""
        import_package("sacremoses", self.name)

    def dependencies(self, languages: Sequence[str]) -> dict[str, str]:
        """Return the version of sacremoses."""
        return {"sacremoses": version("sacremoses")}

    def apply(self, sentences: Sequence[str], language: str) -> list[str]:
        """Return the changed sentences."""
        if self.languages and language not in self.languages:
            return list(sentences)
        bare = parse_code(language).language  # sacremoses knows no regions and scripts
        if self.punctuation:
            sentences = list(map(_punctuation_normalizer(bare), sentences))
        if self.tokenize:
            sentences = list(map(_tokenizer(bare, self.split_hyphens), sentences))
        return list(sentences)


@dataclasses.dataclass(frozen=True)
class Segment(Transform):
    """Spaces between Chinese words, by Jieba; other languages stay as they are."""

    name = "segment"

    def check_languages(self, languages: Sequence[str]) -> None:
        """Check that Jieba is installed if a language is Chinese."""
        if any(map(_is_chinese, languages)):
            _jieba()

    def dependencies(self, languages: Sequence[str]) -> dict[str, str]:
        """Return the version of Jieba if a language is Chinese."""
        return {"jieba": version("jieba")} if any(map(_is_chinese, languages)) else {}

    def apply(self, sentences: Sequence[str], language: str) -> list[str]:
        """Return the sentences with spaces between words."""
        if not _is_chinese(language):
            return list(sentences)
        cut = _jieba().lcut
        return [" ".join(" ".join(cut(sentence)).split()) for sentence in sentences]


def _is_chinese(code: str) -> bool:
    return parse_code(code).language == "zh" and is_spaceless(code)  # not Pinyin


@functools.cache
def _punctuation_normalizer(language: str) -> Callable[[str], str]:
    package = import_package("sacremoses", Moses.name)
    normalize: Callable[[str], str] = package.MosesPunctNormalizer(lang=language).normalize
    return normalize


@functools.cache
def _tokenizer(language: str, split_hyphens: bool) -> Callable[[str], str]:
    tokenizer = import_package("sacremoses", Moses.name).MosesTokenizer(lang=language)
    return functools.partial(
        tokenizer.tokenize, return_str=True, escape=False, aggressive_dash_splits=split_hyphens
    )


@functools.cache
def _jieba() -> Any:
    package = import_package("jieba", Segment.name)
    package.setLogLevel(logging.WARNING)
    return package
