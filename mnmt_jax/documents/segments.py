"""Segments of a document, the interface of its formats, and the options of a translation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from mnmt_jax.vocabulary.normalization import has_letters

if TYPE_CHECKING:
    from mnmt_jax.decoding.glossary import Glossary
    from mnmt_jax.decoding.text.markup_tokens import Markup
    from mnmt_jax.decoding.text.translated_text import TextToTranslate


@dataclasses.dataclass(frozen=True)
class Segment:
    """A text of a document that is translated by itself.

    Attributes:
        text: the text; with markup, "xml" is a fragment without a root element.
        markup: how elements in the text are written; "" if it has none.
        is_wrapped: whether its translation is divided into lines at spaces.
    """

    text: str
    markup: Markup = ""
    is_wrapped: bool = False

    @property
    def is_translatable(self) -> bool:
        """Whether it has letters outside of tags, comments and untranslated elements."""
        if not self.markup:
            return has_letters(self.text)
        from mnmt_jax.decoding.text.markup_text import has_text  # JAX is slow to import
        from mnmt_jax.decoding.text.markup_tokens import MarkupReader

        return has_text(MarkupReader(self.markup), self.text)


def texts_to_translate(
    segments: Sequence[Segment], source: str, target: str, glossary: Glossary | None = None
) -> list[TextToTranslate]:
    """Return segments as texts of a translation.

    Args:
        segments: the segments.
        source: the model's code of the source language.
        target: the model's code of the target language.
        glossary: terms and their translations.
    """
    from mnmt_jax.decoding.text.translated_text import TextToTranslate  # JAX is slow to import

    return [
        TextToTranslate(
            one.text,
            source,
            target,
            markup=one.markup,
            glossary=glossary,
            is_wrapped=one.is_wrapped,
        )
        for one in segments
    ]


def _ignore(text: str) -> None:
    """Take a warning without effect."""


@dataclasses.dataclass(frozen=True)
class DocumentOptions:
    """Languages of a document, which files of several languages need, and what is replaced.

    Attributes:
        target: code of the target language.
        source: code of the source language; None is the one that the file names.
        overwrite: translate again what a file for translators has translations of.
        warn: takes warnings about texts that are not translated.
    """

    target: str
    source: str | None = None
    overwrite: bool = False
    warn: Callable[[str], None] = _ignore


class Document(Protocol):
    """A document that has been read.

    Attributes:
        source: code of the source language that the file names; "" if it names none.
    """

    source: str

    @property
    def segments(self) -> Sequence[Segment]:
        """Segments with letters, in order."""

    def write(self, texts: Sequence[str]) -> bytes:
        """Return the file with translated segments.

        Args:
            texts: the translation of each segment.
        """
