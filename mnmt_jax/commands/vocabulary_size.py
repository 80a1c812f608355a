"""Vocabulary size and languages of a configuration that is described or compiled."""

from __future__ import annotations

from mnmt_jax.config.sections import Config
from mnmt_jax.data.cache import TokenCache
from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.language_codes import find_code


def bind_vocabulary(config: Config, vocab_size: int) -> tuple[Config, int, TokenCache | None]:
    """Bind the methods of a configuration to the languages of its cache, if it names one.

    Args:
        config: configuration of a run.
        vocab_size: value of `--vocab_size`; 0 without the flag.

    Returns:
        The configuration, the vocabulary size, and the opened cache or None.

    Raises:
        UserError: if the size is unknown, the cache has another one, or it cannot be opened.
    """
    if config.data.cache:
        try:
            cache = TokenCache.open(config.data.cache)
        except UserError as error:
            without = "--gin.Data.cache=\"''\" --vocab_size=N"
            raise UserError(f"{error}; without the cache: {without}") from None
        size = cache.vocabulary.size
        if vocab_size not in (0, size):
            raise UserError(
                f"--vocab_size={vocab_size}: the vocabulary of {config.data.cache} has {size} "
                "entries; leave the flag out, or the cache with --gin.Data.cache=\"''\""
            )
        return config.bind_languages(cache.vocabulary.languages, find_code), size, cache
    size = vocab_size or config.model.vocab_size
    if not size:
        raise UserError(
            "vocabulary size unknown; pass --vocab_size or set Model.vocab_size or Data.cache"
        )
    return config, size, None
