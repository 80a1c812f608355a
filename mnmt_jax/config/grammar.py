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

_UNQUOTED = re.compile(r"\s*([\w.]+)\s*=\s*([\w./-]+)\s*")


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
        raise UserError(f"{location}: {_syntax(error.msg, text)}") from error
    except tokenize.TokenError as error:
        location = f"{file_name}:{error.args[1][0]}" if file_name else text
        raise UserError(
            f"{location}: a bracket or quote is not closed ({error.args[0]})"
        ) from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file_name or text}: {_syntax(str(error), text)}") from error


def _syntax(message: str, binding: str) -> str:
    """Return the message of gin's parser as a single line, with a remedy for missing quotes."""
    text = " ".join(message.split())
    if "malformed node" in text or "Unable to parse value" in text:
        match = _UNQUOTED.fullmatch(binding)
        key, value = match.groups() if match else ("Data.cache", "runs/cache")
        example = f"strings need quotes of their own, e.g. --gin.{key}=\"'{value}'\""
        return f"{re.sub(r'^malformed node.*?> ', '', text)}; {example}"
    return text
