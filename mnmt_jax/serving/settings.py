"""Settings of the server: flags, and environment variables of the same names."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from mnmt_jax.errors import UserError

_ENGINES = ("jax", "ctranslate2")
_FLOAT32 = "float32"
_PREFIX = "MNMT_SERVE_"
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s]+")


def _setting(default: Any, meaning: str, *, minimum: float = 1, metavar: str = "TEXT") -> Any:
    metadata = {"help": meaning, "minimum": minimum, "metavar": metavar}
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Address and limits of the server; the metadata of a field is the help of its flag."""

    host: str = _setting("127.0.0.1", "address; 0.0.0.0 is reachable from other machines")
    port: int = _setting(5000, "port; 0 for a free one", minimum=0)
    engine: str = _setting("jax", "what searches: jax, or ctranslate2 (encoder-decoders on CPUs)")
    compute_type: str = _setting(_FLOAT32, "precision of ctranslate2: float32, int8 and others")
    threads: int = _setting(
        0,
        "threads of a search on CPUs; 0 for as many as ctranslate2 chooses, and with jax for the "
        "processors divided by the parallel searches",
        minimum=0,
    )
    parallel_searches: int = _setting(
        0,
        "batches that each copy of a model searches at a time; 0 for 2 on one CPU with jax, else 1",
        minimum=0,
    )
    replicas: int = _setting(
        1, "copies of each model, each on its share of the devices; 1 uses all devices together"
    )
    wait_milliseconds: float = _setting(
        5.0, "how long a batch waits for further sentences after its first one", minimum=0
    )
    window: int = _setting(64, "most sentences of a batch")
    max_waiting: int = _setting(4096, "most sentences that wait; more are refused, status 429")
    max_characters: int = _setting(100_000, "most characters of a request")
    max_sentences: int = _setting(1000, "most sentences, or texts to be detected, of a request")
    max_bytes: int = _setting(1 << 20, "most bytes of a request's body")
    timeout: float = _setting(
        120.0, "seconds until a request is answered with status 503, and a stop waits for documents"
    )
    retry_off_target: bool = _setting(
        False,
        "search translations in the wrong language, copies, loops and empty ones again, with "
        "language contrast and then through a pivot",
    )
    retry_pivot: str = _setting(
        "",
        "pivot language of --retry_off_target; without it English, if the model has it",
        metavar="CODE",
    )
    max_document_bytes: int = _setting(10 << 20, "most bytes of a document")
    max_documents: int = _setting(32, "most documents in translation; then status 429")
    max_kept_bytes: int = _setting(
        256 << 20, "most bytes of translated documents; then those that were fetched go first"
    )
    document_timeout: float = _setting(3600.0, "seconds until a document is given up")
    document_lifetime: float = _setting(600.0, "seconds that a translated document is kept")
    headers_timeout: float = _setting(
        10.0, "seconds until a connection without the headers of a request is closed", minimum=0.1
    )
    body_timeout: float = _setting(
        60.0, "seconds until a request without its whole body is refused, status 408", minimum=0.1
    )
    answer_timeout: float = _setting(
        60.0, "seconds until the connection of a client that reads no answer is closed", minimum=0.1
    )
    max_connections: int = _setting(512, "most connections; more are refused, status 503")
    database: str = _setting(
        "",
        "SQLite file of API keys, usage and glossaries; without it they end with the server",
        metavar="FILE",
    )
    require_keys: bool = _setting(
        False, "refuse requests without an API key of the database (mnmt api-keys)"
    )
    cors_origins: str = _setting(
        "*", "origins whose pages may use the server, separated by commas; '' for none"
    )
    log_text: bool = _setting(False, "print texts and translations, and the words of failures")

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            UserError: if a number is too small or too large, there is no such engine, or settings
                do not fit together.
        """
        self._check_ranges()
        if self.engine not in _ENGINES:
            raise UserError(f"--engine={self.engine} must be {' or '.join(_ENGINES)}")
        if self.engine == "jax" and self.compute_type != _FLOAT32:
            raise UserError(
                f"--compute_type={self.compute_type} is for --engine=ctranslate2; add that flag"
            )
        if self.engine == "ctranslate2" and self.replicas > 1:
            raise UserError("--replicas is for --engine=jax; ctranslate2 has --threads")
        if self.engine == "ctranslate2" and self.retry_off_target:
            raise UserError("--retry_off_target is for --engine=jax; ctranslate2 has no contrast")
        if self.retry_pivot and not self.retry_off_target:
            raise UserError("--retry_pivot is the pivot of --retry_off_target; add that flag")
        if self.require_keys and not self.database:
            raise UserError("--require_keys needs the --database that has the keys")
        self._check_origins()

    def _check_ranges(self) -> None:
        """Check the numbers.

        Raises:
            UserError: if one is too small or too large.
        """
        for field in dataclasses.fields(self):
            value, minimum = getattr(self, field.name), field.metadata["minimum"]
            if isinstance(value, str | bool):
                continue
            if not value >= minimum:
                raise UserError(f"--{field.name}={value} must be at least {minimum}")
            if isinstance(value, float) and value > threading.TIMEOUT_MAX:
                maximum = int(threading.TIMEOUT_MAX)
                raise UserError(f"--{field.name}={value} must be at most {maximum}")
        if self.port > 65535:
            raise UserError(f"--port={self.port} must be at most 65535")

    def _check_origins(self) -> None:
        """Check the origins of pages.

        Raises:
            UserError: if one is not an origin.
        """
        for origin in self.origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise UserError(
                    f"--cors_origins={self.cors_origins}: {origin} must be an origin such as "
                    "https://example.org, without a path, or *"
                )

    @property
    def origins(self) -> list[str]:
        """Origins whose pages may use the server."""
        return [origin.strip() for origin in self.cors_origins.split(",") if origin.strip()]

    @classmethod
    def of_flags(cls, flags: argparse.Namespace) -> Settings:
        """Return the settings of parsed flags."""
        return cls(**{field.name: getattr(flags, field.name) for field in dataclasses.fields(cls)})


def add_settings_flags(
    parser: argparse.ArgumentParser, variables: Mapping[str, str] = os.environ
) -> None:
    """Add a flag for each setting; its default is an environment variable, if that is set.

    Args:
        parser: the parser.
        variables: variables such as MNMT_SERVE_PORT.

    Raises:
        UserError: if a variable is not a number, or not 0 or 1 for a flag without a value.
    """
    for field in dataclasses.fields(Settings):
        kind: Any = type(field.default)
        variable = f"{_PREFIX}{field.name.upper()}"
        default = _variable(variable, variables.get(variable), field.default)
        shown = {bool: "on" if field.default else "off", str: field.default or "none"}.get(
            kind, field.default
        )
        options: dict[str, Any] = {
            "default": default,
            "help": f"{field.metadata['help']}; variable {variable}; default: {shown}",
        }
        if kind is bool:
            options["action"] = argparse.BooleanOptionalAction
        else:
            metavar = {str: field.metadata["metavar"], int: "N", float: "X"}[kind]
            options |= {"type": kind, "metavar": metavar}
        parser.add_argument(f"--{field.name}", **options)


def add_variables(
    parser: argparse.ArgumentParser, names: Sequence[str], variables: Mapping[str, str] = os.environ
) -> None:
    """Let environment variables replace the defaults of flags, and refuse unknown variables.

    Args:
        parser: the parser, with the flags of `add_settings_flags`.
        names: further flags without their dashes.
        variables: variables such as MNMT_SERVE_BEAM_SIZE.

    Raises:
        UserError: if a variable has a wrong value, or there is no such variable.
    """
    for action in parser._actions:
        if action.dest not in names:
            continue
        variable = f"{_PREFIX}{action.dest.upper()}"
        action.help = f"{action.help}; variable {variable}"
        if text := variables.get(variable):
            action.required, action.default = False, _converted(action, variable, text)
    known = [field.name.upper() for field in dataclasses.fields(Settings)]
    known += [name.upper() for name in names]
    for variable in variables:
        name = variable.removeprefix(_PREFIX)
        if name != variable and name not in known:
            similar = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean '{_PREFIX}{similar[0]}'? " if similar else ""
            raise UserError(f"{variable}: no such variable; {hint}see mnmt serve --help")


def _converted(action: argparse.Action, variable: str, text: str) -> Any:
    """Return the value of a variable as its flag reads it; commas separate several values."""
    if isinstance(action, Replacing):
        items = [item.strip() for item in text.split(",") if item.strip()]
        if not items:
            raise UserError(f"{variable}={text}: names nothing; set it, or leave the variable out")
        return items
    try:
        return action.type(text) if callable(action.type) else text
    except argparse.ArgumentTypeError as error:
        raise UserError(f"{variable}: {error}") from None


class Replacing(argparse.Action):
    """Collects the values of a repeated flag, the first of which replaces the default."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Take a value."""
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, [*(() if before is self.default else before), values])


def _variable(name: str, text: str | None, default: Any) -> Any:
    """Return the value of an environment variable; the default if it is not set."""
    kind = type(default)
    if text is None:
        return default
    if kind is bool:
        if text not in ("0", "1"):
            raise UserError(f"{name}={text} must be 0 or 1")
        return text == "1"
    try:
        return kind(text)
    except ValueError:
        raise UserError(f"{name}={text} must be a number") from None
