"""Text of miniatures: a few CLDR phrases in any language, parallel by line."""

from __future__ import annotations

import functools

from mnmt_jax.data.cldr import CldrCorpus
from mnmt_jax.data.cldr.renderer import Meaning

LINES = 60
"""Lines of every file of a miniature, unless a corpus reads later lines of it."""


@functools.cache
def phrases(language: str, split: str, count: int) -> tuple[str, ...]:
    """Return phrases of a language; phrase i means the same in all languages.

    Args:
        language: code. For a language without CLDR names the words are English ones, reversed.
        split: `train`, `validation` or `test`.
        count: number of phrases; after `LINES` they repeat.
    """
    corpus = CldrCorpus(("en",))
    meanings = corpus.meanings(split, LINES)
    lines = [_render(corpus, meaning, language) for meaning in meanings]
    return tuple(lines[number % LINES] for number in range(count))


def _render(corpus: CldrCorpus, meaning: Meaning, language: str) -> str:
    try:
        return corpus.render(meaning, language)
    except (LookupError, ValueError):
        return corpus.render(meaning, "en")[::-1]
