"""Made translations of documents with markup, for tests."""

from __future__ import annotations

import re

import numpy as np

from mnmt_jax.decoding.text.sentence_job import run_steps
from mnmt_jax.decoding.text.text_translation import translation_steps
from mnmt_jax.decoding.text.translated_text import TextToTranslate
from mnmt_jax.decoding.translation import Alignment, Hypothesis, Translation


def word_alignment(source: str, translation: str, links) -> Alignment:
    """Return an alignment of words from pairs (target word, source word)."""
    spans = [tuple(m.span() for m in re.finditer(r"\S+", text)) for text in (source, translation)]
    weights = np.full((len(spans[1]), len(spans[0])), 1e-3)
    for target, origin in links:
        weights[target, origin] = 1.0
    return Alignment(spans[0], spans[1], weights / weights.sum(axis=1, keepdims=True))


def reverse_words(text: str) -> Translation:
    """Translate a sentence to its words in reverse order, with their alignment."""
    words = text.split()
    count, result = len(words), " ".join(reversed(words))
    links = [(number, count - 1 - number) for number in range(count)]
    alignment = word_alignment(text, result, links)
    return Translation((Hypothesis(result, 0.0, ()),), alignment=alignment)


def upper(text: str) -> Translation:
    return Translation((Hypothesis(text.upper(), 0.0, ()),))


def same(text: str) -> Translation:
    return Translation((Hypothesis(text, 0.0, ()),))


def same_aligned(text: str) -> Translation:
    count = len(text.split())
    alignment = word_alignment(text, text, [(n, n) for n in range(count)])
    return Translation((Hypothesis(text, 0.0, ()),), alignment=alignment)


def translate(document, function=upper, *, source="en", target="de", markup="html", **fields):
    """Return the translated document, and the lines of each step."""
    steps = []

    def run(lines):
        steps.append([line.text for line in lines])
        return [function(line.text) for line in lines]

    texts = [TextToTranslate(document, source, target, markup=markup, **fields)]
    (result,) = run_steps(translation_steps(texts, lambda *_: True), run)
    return result.text, steps
