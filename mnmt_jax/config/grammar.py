"""Gin's grammar: text to statements, with placeholders where gin would look up or call names."""

from __future__ import annotations

import importlib.util  # noqa: F401  gin reads this attribute without importing it
import re
import tokenize
from collections.abc import Iterator
from typing import Any

from gin import config_parser

from mnmt_jax.config.bindings import Macro, Reference
from mnmt_jax.errors import UserError

_QUOTES = "; strings need quotes of their own, e.g. --gin.Data.cache=\"'runs/cache'\""


class _AsData(config_parser.ParserDelegate):
    """Parser delegate that returns placeholders for macros and references."""

    def configurable_reference(self, name: str, evaluate: bool) -> Reference:
        return Reference(f"@{name}{'()' if evaluate else ''}")

    def macro(self, name: str) -> Macro:
        return Macro(name)


def statements_of(text: str, file_name: str) -> Iterator[Any]:
    """Yield gin's statements; `file_name` names the file, and is empty for a binding."""
    try:
        yield from config_parser.ConfigParser(text, _AsData())
    except SyntaxError as error:
        location = f"{file_name}:{error.lineno}" if file_name else text
        raise UserError(f"{location}: {_syntax(error.msg)}") from error
    except tokenize.TokenError as error:
        location = f"{file_name}:{error.args[1][0]}" if file_name else text
        raise UserError(
            f"{location}: a bracket or quote is not closed ({error.args[0]})"
        ) from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file_name or text}: {_syntax(str(error))}") from error


def _syntax(message: str) -> str:
    """Return the message of gin's parser as a single line."""
    text = " ".join(message.split())
    if "malformed node" in text or "Unable to parse value" in text:
        return re.sub(r"^malformed node.*?> ", "", text) + _QUOTES
    return text
